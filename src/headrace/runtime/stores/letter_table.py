"""The table of dead letters, and the statements on it. No connection of its own: `sql` lends one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.model import AttemptRecord, ServiceClass
from headrace.runtime.stores import LetterFilter, Listed, StoredLetter, Tried
from headrace.runtime.stores.database import agree_on_version

SCHEMA_VERSION = 2
_PART = "dead_letters"
_EVICTION_STEP = 256
_BOUND_VARIABLES = 500

_metadata = sa.MetaData()
letters = sa.Table(
    "dead_letters",
    _metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("service_class", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("endpoint", sa.Text, nullable=False),
    sa.Column("died_at", sa.Double, nullable=False),
    sa.Column("waited", sa.Double, nullable=False),
    sa.Column("attempts", sa.LargeBinary, nullable=False),
    sa.Column("claimed", sa.Boolean, nullable=False),
    sa.Column("shed", sa.Boolean, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("replays", sa.Integer, nullable=False, server_default="0"),
    sa.Column("redacted", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("instances", sa.Text, nullable=False, server_default=""),
    sa.Column("body", sa.LargeBinary),  # the last, so that the others are read without its pages
)
_SINCE_2 = ("replays", "redacted", "instances")

_PLAIN = (
    *("id", "request_id", "reason", "detail", "tenant", "user", "session", "model", "endpoint"),
    *("died_at", "waited", "claimed", "replays", "redacted"),
)
_OUTLINE = [column for column in letters.c if column.name != "body"]
_attempts_decoder = msgspec.json.Decoder(tuple[AttemptRecord, ...])
_insert_new = letters.insert().prefix_with("OR IGNORE", dialect="sqlite")
_first_to_go = (letters.c.claimed, letters.c.shed.desc(), letters.c.id)


async def prepare(conn: AsyncConnection) -> None:
    """Creates what is missing, and writes in any case, so that a database that takes nothing shows it.

    Raises SchemaTooNew.
    """
    version = await agree_on_version(conn, _PART, SCHEMA_VERSION)
    await conn.run_sync(_metadata.create_all)
    if 0 < version < 2:
        await _to_2(conn)


async def _to_2(conn: AsyncConnection) -> None:
    """Adds the columns that version 1 had not."""
    for name in _SINCE_2:
        column = sa.schema.CreateColumn(letters.c[name]).compile(dialect=conn.dialect)
        await conn.execute(sa.text(f"ALTER TABLE {letters.name} ADD COLUMN {column}"))
    known = (await conn.execute(sa.select(letters.c.id, letters.c.attempts))).all()
    for letter_id, attempts in known:
        names = _names(attempt.instance for attempt in _attempts_decoder.decode(attempts))
        await conn.execute(letters.update().where(letters.c.id == letter_id).values(instances=names))


async def greatest_id(conn: AsyncConnection) -> int:
    """The greatest id in use, or 0."""
    return await conn.scalar(sa.select(sa.func.max(letters.c.id))) or 0


async def insert(conn: AsyncConnection, batch: Sequence[StoredLetter]) -> frozenset[int]:
    """Writes letters under the ids they have; one that is there already is not written twice.

    Returns the ids that other letters have (another process writes here, too); those of the batch were not written.
    """
    await conn.execute(_insert_new, [_row(letter) for letter in batch])
    ids = [letter.id for letter in batch]
    query = sa.select(letters.c.id, letters.c.request_id).where(letters.c.id.in_(ids))
    there = {row.id: row.request_id for row in await conn.execute(query)}
    return frozenset(letter.id for letter in batch if there[letter.id] != _storable(letter.request_id))


async def evict(conn: AsyncConnection, capacity: int, max_bytes: int) -> int:
    """Deletes what is too much, by the ring's rule; claimed letters go last. Returns how many."""
    total, shed, size = await _extent(conn)
    dropped = 0
    if shed > (capacity + 1) // 2:
        dropped += await _drop_first(conn, shed - (capacity + 1) // 2, letters.c.shed)
    if total - dropped > capacity:
        dropped += await _drop_first(conn, total - dropped - capacity, sa.true())
    while dropped < total and size > max_bytes:
        _, _, size = await _extent(conn)
        dropped += await _drop_bytes(conn, size - max_bytes)
    return dropped


async def count(conn: AsyncConnection) -> int:
    """How many letters there are."""
    return await conn.scalar(sa.select(sa.func.count()).select_from(letters)) or 0


async def select(conn: AsyncConnection, which: LetterFilter) -> list[StoredLetter]:
    """The letters meant, youngest first."""
    query = sa.select(letters).where(*_conditions(which)).order_by(letters.c.id.desc()).limit(which.limit)
    return [_letter(row, row.body) for row in await conn.execute(query)]


async def outline(conn: AsyncConnection, which: LetterFilter) -> list[Listed]:
    """The letters meant, youngest first; their requests are not read."""
    length = sa.func.length(letters.c.body).label("body_bytes")
    query: sa.Select[Any] = (
        sa.select(*_OUTLINE, length).where(*_conditions(which)).order_by(letters.c.id.desc()).limit(which.limit)
    )
    return [Listed(_letter(row, None), row.body_bytes) for row in await conn.execute(query)]


async def take_in(conn: AsyncConnection, batch: Sequence[StoredLetter], new_id: Callable[[float], int]) -> list[int]:
    """Writes letters from elsewhere that are not here yet, under the ids they have if those are free, else `new_id`.

    Returns the ids of those written.
    """
    ids = [letter.id for letter in batch]
    taken = set(await conn.scalars(sa.select(letters.c.id).where(letters.c.id.in_(ids))))
    written: list[int] = []
    for letter in batch:
        number = letter.id
        if number in taken and await _is_here(conn, letter):
            continue
        if number in taken or number <= 0:
            number = new_id(letter.died_at)
        await conn.execute(letters.insert().values(_row(replace(letter, id=number, claimed=False))))
        taken.add(number)
        written.append(number)
    return written


async def still_there(conn: AsyncConnection, ids: Sequence[int]) -> int:
    """How many of these letters there are."""
    return await conn.scalar(sa.select(sa.func.count()).where(letters.c.id.in_(ids))) or 0


async def _is_here(conn: AsyncConnection, letter: StoredLetter) -> bool:
    same = (letters.c.request_id == _storable(letter.request_id)) & (letters.c.died_at == letter.died_at)
    return await conn.scalar(sa.select(letters.c.id).where(same).limit(1)) is not None


async def get(conn: AsyncConnection, letter_id: int) -> StoredLetter | None:
    """One letter."""
    row = (await conn.execute(sa.select(letters).where(letters.c.id == letter_id))).first()
    return None if row is None else _letter(row, row.body)


async def take_all(conn: AsyncConnection) -> list[StoredLetter]:
    """Deletes all that are not claimed and returns them, oldest first."""
    rows = await conn.execute(letters.delete().where(~letters.c.claimed).returning(letters))
    return sorted((_letter(row, row.body) for row in rows), key=lambda letter: letter.id)


async def delete(conn: AsyncConnection, ids: Iterable[int]) -> int:
    """Deletes letters; returns how many there were."""
    wanted, gone = list(ids), 0
    for start in range(0, len(wanted), _BOUND_VARIABLES):
        part = wanted[start : start + _BOUND_VARIABLES]
        gone += (await conn.execute(letters.delete().where(letters.c.id.in_(part)))).rowcount
    return gone


async def delete_before(conn: AsyncConnection, died_before: float) -> int:
    """Deletes what died before that time; returns how many."""
    return (await conn.execute(letters.delete().where(letters.c.died_at < died_before))).rowcount


async def claim(conn: AsyncConnection, letter_id: int) -> StoredLetter | None:
    """Marks a letter as claimed, in one statement; None when it is gone or claimed already."""
    free = (letters.c.id == letter_id) & ~letters.c.claimed
    row = (await conn.execute(letters.update().where(free).values(claimed=True).returning(letters))).first()
    return None if row is None else _letter(row, row.body)


async def release(conn: AsyncConnection, letter_id: int, tried: Tried | None) -> None:
    """Takes the mark away, and adds what a replay in vain left behind."""
    values: dict[str, object] = {"claimed": False}
    letter = await get(conn, letter_id) if tried is not None else None
    if letter is not None and tried is not None:
        row = _row(letter.after(tried))
        values = {name: row[name] for name in ("claimed", "attempts", "instances", "detail", "replays", "size")}
    await conn.execute(letters.update().where(letters.c.id == letter_id).values(values))


async def _extent(conn: AsyncConnection) -> tuple[int, int, int]:
    """Letters, letters refused for want of room, bytes."""
    shed = sa.func.coalesce(sa.func.sum(sa.case((letters.c.shed, 1), else_=0)), 0)
    size = sa.func.coalesce(sa.func.sum(letters.c.size), 0)
    row = (await conn.execute(sa.select(sa.func.count(), shed, size).select_from(letters))).one()
    return int(row[0]), int(row[1]), int(row[2])


async def _drop_first(conn: AsyncConnection, number: int, among: sa.ColumnElement[bool]) -> int:
    first = sa.select(letters.c.id).where(among).order_by(*_first_to_go).limit(number)
    return (await conn.execute(letters.delete().where(letters.c.id.in_(first)))).rowcount


async def _drop_bytes(conn: AsyncConnection, number: int) -> int:
    """Drops at most a step of letters, until so many bytes are free."""
    rows = await conn.execute(sa.select(letters.c.id, letters.c.size).order_by(*_first_to_go).limit(_EVICTION_STEP))
    victims: list[int] = []
    for letter_id, size in rows.all():
        if number <= 0:
            break
        victims.append(letter_id)
        number -= size
    return await delete(conn, victims)


def _conditions(which: LetterFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if which.reason is not None:
        same = letters.c.reason == which.reason
        found.append(same | letters.c.reason.startswith(f"{which.reason}:", autoescape=True))
    for column, value in (
        (letters.c.model, which.model),
        (letters.c.tenant, which.tenant),
        (letters.c.user, which.user),
        (letters.c.service_class, which.service_class),
    ):
        if value is not None:
            found.append(column == str(value))
    if which.instance is not None:
        # Not LIKE, to which upper and lower case are one.
        found.append(sa.func.replace(letters.c.instances, _names((which.instance,)), "") != letters.c.instances)
    if which.id_prefix is not None:
        found.append(
            _begins(sa.cast(letters.c.id, sa.Text), which.id_prefix) | _begins(letters.c.request_id, which.id_prefix)
        )
    if which.since is not None:
        found.append(letters.c.died_at >= which.since)
    if which.until is not None:
        found.append(letters.c.died_at < which.until)
    if which.before is not None:
        found.append(letters.c.id < which.before)
    if which.younger is not None:
        found.append(letters.c.id > which.younger)
    return found


def _begins(text: sa.ColumnElement[str], prefix: str) -> sa.ColumnElement[bool]:
    return sa.func.substr(text, 1, len(prefix)) == prefix


def _names(instances: Iterable[str]) -> str:
    """Ids of instances as one text in which each can be looked for, whole."""
    return "".join(f"\n{_storable(name)}\n" for name in sorted(set(instances)))


def _row(letter: StoredLetter) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(letter, name) for name in _PLAIN}
    texts = {name: _storable(value) for name, value in row.items() if isinstance(value, str)}
    attempts = [replace(attempt, detail=_storable(attempt.detail)) for attempt in letter.attempts]
    return (
        row
        | texts
        | {
            "service_class": str(letter.service_class),
            "attempts": msgspec.json.encode(attempts),
            "shed": letter.shed,
            "size": letter.size,
            "instances": _names(letter.instances),
            "body": letter.body,
        }
    )


def _storable(text: str) -> str:
    """Without what no database takes: a caller's own name must not stop the writer."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def _letter(row: sa.Row[Any], body: bytes | None) -> StoredLetter:
    plain = {name: getattr(row, name) for name in _PLAIN}
    return StoredLetter(
        **plain,
        body=body,
        service_class=ServiceClass(row.service_class),
        attempts=_attempts_decoder.decode(row.attempts),
    )
