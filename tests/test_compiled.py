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
    """Each name in the list is one of files, and what is said in the heads of their classes is only for type checkers.

    mypyc drops what a head says besides parents: a struct would silently be neither frozen nor free of the collector.
    """
    files = list(ROOT.glob(pattern))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                parents = [ast.unparse(parent) for parent in node.bases]
                assert not node.keywords or parents == ["TypedDict"], (file, node.name)
                assert not any("Struct" in parent for parent in parents), (file, node.name)
