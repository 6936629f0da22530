"""What may be compiled for a wheel."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
PATTERNS: list[str] = _WHEEL["hooks"]["mypyc"]["include"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_compiled_exists_and_holds_no_struct(pattern: str) -> None:
    """Each name in the list is one of files, and none of them has a class whose head says more than its parents.

    mypyc drops the rest of a class's head: a struct would silently be neither frozen nor free of the collector.
    """
    files = list(ROOT.glob(pattern))
    assert files
    for file in files:
        classes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
        told = [c.name for c in classes if c.keywords or any("Struct" in ast.unparse(parent) for parent in c.bases)]
        assert told == [], file
