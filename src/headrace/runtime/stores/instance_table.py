"""The tables of what outlasts the process about instances, and the statements on them. No connection of their own.

Only rows that this process has changed are written or deleted: another gateway may use the same file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.model import Instance
from headrace.runtime.registry import Registered
from headrace.runtime.stores.database import agree_on_version

SCHEMA_VERSION = 1
_PART = "instances"

_metadata = sa.MetaData()
_registered = sa.Table(
    "registered_instances",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("registered_at", sa.Double, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("instance", sa.LargeBinary, nullable=False),
)
_drained = sa.Table("drained_instances", _metadata, sa.Column("id", sa.Text, primary_key=True))
_notes = sa.Table(
    "learned_of_instances",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("noted_at", sa.Double, nullable=False),
    sa.Column("speed", sa.Double, nullable=False),
    sa.Column("reliability", sa.Double, nullable=False),
    sa.Column("prefill_seconds", sa.Double),
    sa.Column("token_seconds", sa.Double),
    sa.Column("limit", sa.Double),
    sa.Column("open_until", sa.Double),
    sa.Column("open_wait", sa.Double, nullable=False),
    sa.Column("cooldown_until", sa.Double),
)
_decoder = msgspec.json.Decoder(Instance)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What had been learned of an instance at `noted_at`; times are on the wall clock, in seconds."""

    id: str
    address: str
    noted_at: float
    speed: float
    reliability: float
    prefill_seconds: float | None
    token_seconds: float | None
    limit: float | None
    open_until: float | None
    """When its open breaker lets a probe through; None: it is closed."""
    open_wait: float
    cooldown_until: float | None


@dataclass(frozen=True, slots=True)
class Kept:
    """What a process left behind."""

    registered: tuple[tuple[Registered, float], ...]
    """With the wall-clock time of its registration, the oldest first."""
    drained: frozenset[str]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be written."""

    registered: tuple[tuple[Registered, float], ...]
    removed: Collection[str]
    drained: Collection[str]
    undrained: Collection[str]
    notes: Collection[Note]
    older_than: float
    """Notes from before this time are deleted."""

    def __bool__(self) -> bool:
        return any((self.registered, self.removed, self.drained, self.undrained, self.notes))


async def prepare(conn: AsyncConnection) -> None:
    """Creates what is missing. Raises SchemaTooNew."""
    await agree_on_version(conn, _PART, SCHEMA_VERSION)
    await conn.run_sync(_metadata.create_all)


async def read(conn: AsyncConnection) -> Kept:
    """Everything. A row that cannot be understood is left alone and logged."""
    rows = await conn.execute(sa.select(_registered).order_by(_registered.c.registered_at, _registered.c.id))
    registered = [found for row in rows if (found := _entry(row)) is not None]
    drained = await conn.scalars(sa.select(_drained.c.id))
    learned = await conn.execute(sa.select(_notes))
    notes = [note for row in learned.mappings() if (note := _note(row)) is not None]
    return Kept(tuple(registered), frozenset(drained), tuple(notes))


async def write(conn: AsyncConnection, changes: Changes) -> None:
    """Writes and deletes."""
    rows: list[Mapping[str, object]] = [
        {
            "id": entry.instance.id,
            "registered_at": at,
            "source": entry.source,
            "instance": msgspec.json.encode(entry.instance),
        }
        for entry, at in changes.registered
    ]
    await _put(conn, _registered, rows)
    await _put(conn, _drained, [{"id": name} for name in changes.drained])
    await _put(conn, _notes, [{name: getattr(note, name) for name in Note.__slots__} for note in changes.notes])
    await _delete(conn, _registered, changes.removed)
    await _delete(conn, _drained, changes.undrained)
    await conn.execute(_notes.delete().where(_notes.c.noted_at < changes.older_than))


async def _put(conn: AsyncConnection, table: sa.Table, rows: list[Mapping[str, object]]) -> None:
    if rows:
        await conn.execute(table.insert().prefix_with("OR REPLACE", dialect="sqlite"), rows)


async def _delete(conn: AsyncConnection, table: sa.Table, ids: Iterable[str]) -> None:
    for name in ids:
        await conn.execute(table.delete().where(table.c.id == name))


def _entry(row: sa.Row[Any]) -> tuple[Registered, float] | None:
    try:
        entry = Registered(_decoder.decode(row.instance), str(row.source)), float(row.registered_at)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        reason = str(error)
    else:
        if _sound(entry[0].instance):
            return entry
        reason = "a bound or a weight is not above 0, or it has no models"
    _log.warning("a registered instance cannot be read", instance=row.id, reason=reason)
    return None


def _sound(instance: Instance) -> bool:
    """Whether a configuration could hold it: it was checked when it was written, not what became of it since."""
    bounds = (instance.capacity, instance.weight, instance.max_concurrent, instance.window_tokens or 1)
    return bool(instance.models) and instance.window_tokens != 0 and all(bound > 0 for bound in bounds)


def _note(row: sa.RowMapping) -> Note | None:
    try:
        note = msgspec.convert({name: row[name] for name in Note.__slots__}, Note)
    except msgspec.MsgspecError as error:
        _log.warning("what was learned of an instance cannot be read", instance=row["id"], reason=str(error))
        return None
    numbers = [value for value in (getattr(note, name) for name in Note.__slots__) if isinstance(value, float)]
    if note.reliability <= 1 and all(0 <= number < math.inf for number in numbers):
        return note
    _log.warning("what was learned of an instance cannot be read", instance=note.id, reason="a number is out of bounds")
    return None
