"""Files that a command writes with its results: looked at before the work, told or refused in one sentence after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.cli import Refused


def refuse_unwritable(*paths: Path | None) -> None:
    """Raises Refused before the work where a file can clearly not be written after it."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise Refused(f"cannot write {path} (it is a directory)")
        if not path.parent.is_dir():
            raise Refused(f"cannot write {path} (there is no directory {path.parent})")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise Refused(f"cannot write {path} (permission denied)")


def refuse_undrawable(path: Path | None) -> None:
    """Raises Refused before the work where a picture can clearly not be drawn after it."""
    from headrace.bench.plot import Undrawable, check

    if path is not None:
        try:
            check(path)
        except Undrawable as error:
            raise Refused(str(error)) from None
        refuse_unwritable(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes `path`; says on standard error that it was written. Raises Refused when it cannot be."""
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot write {path} ({error.strerror or error})") from None
    print(f"wrote {path}", file=sys.stderr)
