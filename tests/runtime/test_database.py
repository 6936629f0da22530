"""Opening a database file: by many at once, and by nobody who could not use it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy.engine.interfaces import DBAPIConnection

from headrace.runtime.stores.database import tune_sqlite
from tests.patience import GUARD

MANY = 8


def _opener(path: Path, together: threading.Barrier) -> Callable[[int], str]:
    def opened(_: int) -> str:
        with closing(sqlite3.connect(path)) as connection:
            together.wait()
            tune_sqlite(cast("DBAPIConnection", connection))
            found: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
            return found

    return opened


def test_nobody_is_told_that_a_new_file_is_locked(tmp_path: Path) -> None:
    """Eight switch it to a write-ahead log at the same time, forty times: SQLite refuses some, which is no error."""
    together = threading.Barrier(MANY, timeout=GUARD)
    with ThreadPoolExecutor(MANY) as pool:
        for number in range(40):
            path = tmp_path / f"{number}.db"
            list(pool.map(_opener(path, together), range(MANY)))
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_what_is_no_database_is_refused_and_closed(tmp_path: Path) -> None:
    """Nobody else would close the connection."""
    path = tmp_path / "text.db"
    path.write_text("this is not a database, it is a text of some length\n" * 20)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        tune_sqlite(cast("DBAPIConnection", connection))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.cursor()
