"""Dead letters in a database: SQLite by default, through SQLAlchemy.

`add` never waits. Letters wait in a bounded ring (the same rule as in memory) for the one writer task, which takes all
that are there in one transaction; so a burst costs few commits. A transaction that was committed survives the death of
the process (SQLite: write-ahead log, `synchronous=NORMAL`; after a loss of power the last ones may be missing).

A database that cannot be written, or is full or locked, is no error of anybody's request: the letters stay in the ring,
`degraded` is set, one line is logged, and the writer tries again every `retry` seconds. Reading still works as far as
the database can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import structlog
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.runtime.stores import (
    CAPACITY,
    LetterFilter,
    Listed,
    StoredLetter,
    TakenIn,
    Tried,
    Unwritable,
    letter_table,
    listed,
)
from headrace.runtime.stores.database import BROKEN, RETRY, Unusable, make_private, open_engine, told
from headrace.runtime.stores.feed import Feed
from headrace.runtime.stores.ring import LetterIds, LetterRing

T = TypeVar("T")

MAX_BYTES = 1024 * 1024 * 1024
BATCH = 256

_log = structlog.get_logger(__name__)


class SqlDeadLetters:
    """Keeps dead letters at `url`, at most `capacity` of them with `max_bytes` bytes in all.

    `open` starts the writer; what is added before is written then. A SQLite file that is not there yet is made readable
    by its owner only, since prompts will lie in it; SQLite makes the files beside it alike.
    """

    def __init__(
        self,
        url: URL | str,
        *,
        capacity: int = CAPACITY,
        max_bytes: int = MAX_BYTES,
        retry: float = RETRY,
    ) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._retry = retry
        self._ids = LetterIds()
        self._pending = LetterRing(capacity, ids=self._ids)
        self._engine = open_engine(url)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._prepared = False
        self._stored = 0
        self._evicted = 0
        self.feed = Feed[Listed]()
        self.aged_out = 0
        self.degraded = False
        """The database cannot be written; letters are kept in memory for the time being."""

    @property
    def count(self) -> int:
        """Letters kept, as of the last write."""
        return self._stored + len(self._pending)

    @property
    def evicted(self) -> int:
        """Letters lost to the bound since the start."""
        return self._evicted + self._pending.evicted

    async def open(self) -> None:
        """Makes the first contact and starts the writer. A database that cannot be used only degrades the store."""
        async with self._lock:
            await self._flush()
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    def add(self, letter: StoredLetter) -> None:
        """Keeps a letter and has it written. Never waits, never raises."""
        kept = self._pending.add(letter)
        if len(self.feed):
            self.feed.tell(listed(kept))
        self._wake.set()

    async def flush(self) -> bool:
        """Writes what waits; False when it could not be written."""
        async with self._lock:
            return await self._flush()

    async def list(self, which: LetterFilter) -> tuple[StoredLetter, ...]:
        """The letters meant, youngest first."""
        async with self._lock:
            await self._flush()
            stored: list[StoredLetter] = []
            with suppress(Unusable):
                stored = await self._read(lambda conn: letter_table.select(conn, which))
            both = sorted((*stored, *self._pending.list(which)), key=lambda letter: -letter.id)
            return tuple(both[: which.limit])

    async def outline(self, which: LetterFilter) -> tuple[Listed, ...]:
        """The letters meant, youngest first, without their requests."""
        async with self._lock:
            await self._flush()
            stored: list[Listed] = []
            with suppress(Unusable):
                stored = await self._read(lambda conn: letter_table.outline(conn, which))
            both = (*stored, *(listed(letter) for letter in self._pending.list(which)))
            return tuple(sorted(both, key=lambda each: -each.letter.id)[: which.limit])

    async def take_in(self, letters: Sequence[StoredLetter]) -> TakenIn:
        """Keeps letters from elsewhere, `BATCH` in a transaction. Raises Unwritable."""
        added = dropped = 0
        for start in range(0, len(letters), BATCH):
            one = await self._take_in(letters[start : start + BATCH])
            added, dropped = added + one.added, dropped + one.dropped
        return TakenIn(added, len(letters) - added - dropped, dropped)

    async def _take_in(self, letters: Sequence[StoredLetter]) -> TakenIn:
        async def work(conn: AsyncConnection) -> tuple[int, int, int]:
            ids = await letter_table.take_in(conn, letters, self._ids.next)
            evicted = await letter_table.evict(conn, self._capacity, self._max_bytes)
            return len(ids), len(ids) - await letter_table.still_there(conn, ids), evicted

        async with self._lock:
            if not await self._flush():
                raise Unwritable
            try:
                written, dropped, evicted = await self._change(work)
            except Unusable as error:
                raise Unwritable from error
            self._evicted += evicted - dropped
            return TakenIn(written - dropped, len(letters) - written, dropped)

    async def get(self, letter_id: int) -> StoredLetter | None:
        """One letter."""
        async with self._lock:
            waiting = self._pending.get(letter_id)
            if waiting is not None:
                return waiting
            with suppress(Unusable):
                return await self._read(lambda conn: letter_table.get(conn, letter_id))
            return None

    async def drain(self) -> tuple[StoredLetter, ...]:
        """Gives out and removes all that no replay has claimed, oldest first, in one transaction."""
        async with self._lock:
            await self._flush()
            stored: list[StoredLetter] = []
            with suppress(Unusable):
                stored = await self._change(letter_table.take_all)
            return (*stored, *self._pending.drain())

    async def delete(self, ids: Iterable[int]) -> int:
        """Removes letters; returns how many there were."""
        wanted = tuple(ids)
        async with self._lock:
            gone = self._pending.delete(wanted)
            with suppress(Unusable):
                gone += await self._change(lambda conn: letter_table.delete(conn, wanted))
            return gone

    async def age_out(self, before: float) -> int:
        """Removes what died before that time; returns how many."""
        async with self._lock:
            gone = self._pending.age_out(before)
            with suppress(Unusable):
                gone += await self._change(lambda conn: letter_table.delete_before(conn, before))
            self.aged_out += gone
            return gone

    async def claim(self, letter_id: int) -> StoredLetter | None:
        """Takes a letter for a replay, committed before this returns; None when it is gone or taken."""
        async with self._lock:
            await self._flush()
            if self._pending.get(letter_id) is not None:
                return self._pending.claim(letter_id)
            with suppress(Unusable):
                return await self._change(lambda conn: letter_table.claim(conn, letter_id))
            return None

    async def release(self, letter_id: int, tried: Tried | None = None) -> None:
        """The replay did not happen, or failed."""
        async with self._lock:
            self._pending.release(letter_id, tried)
            with suppress(Unusable):
                await self._change(lambda conn: letter_table.release(conn, letter_id, tried))

    async def done(self, letter_id: int) -> None:
        """The replay was answered: the letter is removed. If that cannot be written it stays claimed."""
        await self.delete((letter_id,))

    async def close(self) -> None:
        """Writes what waits, stops the writer and closes the database."""
        self._closing.set()
        self._wake.set()
        self.feed.close()
        if self._writer is None:
            await self.flush()
        else:
            await self._writer
            self._writer = None
        await self._engine.dispose()

    async def _write(self) -> None:
        """The writer: one transaction after the other while there is something to write.

        Its end takes one attempt, begun before or not: a database that is locked keeps nobody waiting twice.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                written = await self.flush()
            except Exception:  # noqa: BLE001 - the task's outer edge: letters are still taken in
                _log.exception("dead letters: the writer failed")
                written = False
            if self._closing.is_set():
                return
            if not written:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), self._retry)
                self._wake.set()

    async def _flush(self) -> bool:
        """Under the lock. True when nothing waits any more."""
        try:
            if not self._prepared or self.degraded:
                make_private(self._engine.url)
                self._ids.beyond(await self._change(_first_contact))
                self._prepared = True
            while batch := self._pending.oldest(BATCH):
                await self._insert(batch)
        except Unusable:
            return False
        return True

    async def _insert(self, batch: tuple[StoredLetter, ...]) -> None:
        async def work(conn: AsyncConnection) -> tuple[frozenset[int], int, int]:
            taken = await letter_table.insert(conn, batch)
            evicted = await letter_table.evict(conn, self._capacity, self._max_bytes)
            return taken, evicted, await letter_table.greatest_id(conn) if taken else 0

        taken, evicted, greatest = await self._change(work)
        written = [letter.id for letter in batch if letter.id not in taken]
        # Those no longer in the ring were evicted from it while they were being written: they are not lost.
        self._evicted += evicted - (len(written) - self._pending.delete(written))
        self._ids.beyond(greatest)
        self._pending.renumber(taken)

    async def _change(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Runs `work` in a transaction; raises Unusable when the database cannot be written."""
        try:
            async with self._engine.begin() as conn:
                result = await work(conn)
                stored = await letter_table.count(conn)
        except BROKEN as error:
            self._degrade(error)
            raise Unusable from error
        self._stored = stored
        if self.degraded:
            self.degraded = False
            _log.info("dead letters are written again")
        return result

    async def _read(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Runs `work` without writing; raises Unusable when the database cannot be read."""
        try:
            async with self._engine.connect() as conn:
                return await work(conn)
        except BROKEN as error:
            self._degrade(error)
            raise Unusable from error

    def _degrade(self, error: Exception) -> None:
        if not self.degraded:
            self.degraded = True
            _log.warning("dead letters cannot be written", **told(error, self._engine.url))


async def _first_contact(conn: AsyncConnection) -> int:
    """Makes the database ready; returns the greatest id in use."""
    await letter_table.prepare(conn)
    return await letter_table.greatest_id(conn)
