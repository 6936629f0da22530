"""What all that is kept in a database has in common: how it is opened, what can go wrong, which version it has.

SQLite by default, through SQLAlchemy. Each store has an engine of its own; several, and several processes, may write to
one file: each of their transactions waits for the others', two seconds at most: what
cannot be written then is written later, and a process that ends has no more time than that.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import URL, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

RETRY = 5.0
"""Seconds until a database that could not be used is tried again."""
_BUSY_SECONDS = 2.0

_metadata = sa.MetaData()
_versions = sa.Table(
    "schema_versions",
    _metadata,
    sa.Column("part", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


class SchemaTooNew(Exception):
    """The database was written by a later version of headrace."""


class Unusable(Exception):
    """The database does not do what it should at the moment."""


BROKEN = (SQLAlchemyError, sqlite3.Error, OSError, SchemaTooNew)
"""What a database that cannot be used raises."""


def sqlite_url(path: str | Path) -> URL:
    """The address of a SQLite file; it is created on first use, its directory is not."""
    return URL.create("sqlite+aiosqlite", database=str(path))


def open_engine(url: URL | str) -> AsyncEngine:
    """The way to a database; nothing is opened before its first use."""
    engine = create_async_engine(url, hide_parameters=True)
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", lambda connection, _: tune_sqlite(connection))
    return engine


def make_private(url: URL) -> None:
    """Make the file of a SQLite database that has one and is not there, readable by its owner only.

    Where that fails, its first use will tell.
    """
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        with suppress(OSError):
            os.close(os.open(url.database, os.O_WRONLY | os.O_CREAT, 0o600))


async def agree_on_version(conn: AsyncConnection, part: str, version: int) -> int:
    """Say that the tables of `part` have `version` now; returns the version they had, 0 when they are new.

    Writes in any case, so that a database that takes nothing shows it. Raises SchemaTooNew.
    """
    if conn.dialect.name == "sqlite":
        # Two that begin to read at the same time could not both go on to write.
        await conn.exec_driver_sql("BEGIN IMMEDIATE")
    await conn.run_sync(_metadata.create_all)
    before: int | None = await conn.scalar(sa.select(_versions.c.version).where(_versions.c.part == part))
    if before is None:
        await conn.execute(_versions.insert().values(part=part, version=version))
        return 0
    if before > version:
        raise SchemaTooNew(f"schema {before} of the {part.replace('_', ' ')} is newer than {version}")
    await conn.execute(_versions.update().where(_versions.c.part == part).values(version=version))
    return before


def told(error: Exception, url: URL) -> dict[str, str]:
    """What of a database's error goes into the log: which one it is and what is wrong, no statement, no value."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return {"database": url.database or "", "error": type(cause).__name__, "detail": str(cause)}


def _write_ahead(cursor: DBAPICursor) -> None:
    """Switch the file to a write-ahead log.

    Where several switch a new one at the same time, SQLite refuses all but one at once, without the wait that it was
    given; they find it switched.
    """
    begun = time.monotonic()
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() - begun > _BUSY_SECONDS / 2:
            raise


def tune_sqlite(connection: DBAPIConnection) -> None:
    """Set up a new connection. Raises sqlite3.Error when the file cannot be used; the connection is closed then."""
    try:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(_BUSY_SECONDS * 1000)}")
        _write_ahead(cursor)
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()
    except sqlite3.Error:
        # The pool does not know this connection yet: nobody else would close it.
        connection.close()
        raise
