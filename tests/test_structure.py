"""The sizes that keep code readable are kept by every file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(path for room in ("src", "tests", "benchmarks", "examples") for path in (ROOT / room).rglob("*.py"))
LONGEST_FILE = 400
LONGEST_FUNCTION = 40
WHOLE = {"play"}
"""Functions that may be longer: a reference to compare with is one loop, without the short cuts it judges."""


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function's name and its length in lines, decorators and docstring apart."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            text = ast.get_docstring(node, clean=False)
            yield node.name, node.end_lineno - node.lineno + 1 - (text.count("\n") + 1 if text else 0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    """A file has at most 400 lines, a function at most 40 beside its docstring."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    assert {name: lines for name, lines in functions(path) if lines > LONGEST_FUNCTION and name not in WHOLE} == {}
