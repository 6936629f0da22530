"""What a gateway knows of its instances, past the end of its process.

Kept are the instances that were registered while it ran, who is drained, and what took time to learn: speed,
reliability, breaker, cooldown, the machine's pace and limit. Changes of the registry are written at once, the rest
every `EVERY` seconds if it has changed, and everything at the end; so a death without warning costs a few seconds of
learning. Writing happens in SQLite's own thread.

What was learned more than `FORGET` seconds ago, or of an instance at another address, is not believed any more. Times
are kept on the wall clock; where that was set back meanwhile, no wait becomes longer than it was.

A file that cannot be used is no error of anybody's request: `degraded` is set, one line is logged, nothing is kept, and
it is tried again every `EVERY` seconds. What an earlier process left is read then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import structlog
from sqlalchemy import URL

from headrace.core.parts import part
from headrace.model import Event, Learned, Recalled
from headrace.runtime.registry import Registered, Registry
from headrace.runtime.stores import instance_table
from headrace.runtime.stores.database import BROKEN, make_private, open_engine, told
from headrace.runtime.stores.instance_table import Changes, Note

EVERY = 5.0
FORGET = 86_400.0

_log = structlog.get_logger(__name__)


Gist = tuple[float | None, ...]


class InstanceMemory:
    """Reads what was kept into the registry and the scheduler, and keeps what they know.

    Args:
        url: the database.
        registry: the instances.
        step: tells the scheduler what was learned.
        learned: what the scheduler has learned.
        wall: wall clock in seconds.
        every: seconds between two looks at what was learned.
        workers: so many processes serve together, and each uses its part of what a kept instance can take.
    """

    def __init__(
        self,
        url: URL,
        registry: Registry,
        step: Callable[[Event], None],
        learned: Callable[[], tuple[Learned, ...]],
        *,
        wall: Callable[[], float] = time.time,
        every: float = EVERY,
        workers: int = 1,
    ) -> None:
        self._registry = registry
        self._step = step
        self._learned = learned
        self._wall = wall
        self._every = every
        self._workers = workers
        self._engine = open_engine(url)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._closing = False
        self._writer: asyncio.Task[None] | None = None
        self._prepared = self._started = False
        self._rows: dict[str, tuple[Registered, float]] = {}
        """What the tables hold of this process's doing: registered instances with the time of their registration,"""
        self._drained: frozenset[str] = frozenset()
        """who is drained,"""
        self._told: dict[str, Gist] = {}
        """and what was learned of those that are there."""
        self.degraded = False
        """The file cannot be used: what changes now is forgotten when the process ends."""

    async def open(self) -> None:
        """Tell the registry and the scheduler what was kept, and begin to keep. Never raises for what a file does."""
        if not await self.flush():
            self._registry.restore((), ())
        self._started = True
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._keep())

    def changed(self) -> None:
        """The registry changed: it is written at once."""
        self._wake.set()

    async def flush(self) -> bool:
        """Write what has changed; False when it could not be written."""
        async with self._lock:
            try:
                if not self._prepared:
                    await self._recall()
                await self._write()
            except BROKEN as error:
                if not self.degraded:
                    self.degraded = True
                    _log.warning("what is known of the instances cannot be kept", **told(error, self._engine.url))
                return False
            if self.degraded:
                self.degraded = False
                _log.info("what is known of the instances is kept again")
            return True

    async def close(self) -> None:
        """Write the last, and let go of the file."""
        self._closing = True
        self._wake.set()
        if self._writer is not None:
            await self._writer
            self._writer = None
        await self._engine.dispose()

    # ------------------------------------------------------------------ inside

    async def _keep(self) -> None:
        """The writer. At the end it writes the last; a file that is locked keeps nobody waiting twice."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._wake.wait()
            self._wake.clear()
            last = self._closing
            try:
                written = await self.flush()
            except Exception:  # noqa: BLE001 - the task's outer edge: the next time may succeed
                _log.exception("what is known of the instances could not be kept")
                written = False
            if last or (self._closing and not written):
                return

    async def _recall(self) -> None:
        """Under the lock: the first contact with the database, and what lies in it."""
        make_private(self._engine.url)
        async with self._engine.begin() as conn:
            await instance_table.prepare(conn)
            kept = await instance_table.read(conn)
        self._prepared = True
        rows = [
            (replace(entry, instance=part(entry.instance, self._workers - 1, self._workers)), at)
            for entry, at in kept.registered
        ]
        self._registry.restore((entry for entry, _ in rows), kept.drained)
        self._rows = {entry.instance.id: (entry, at) for entry, at in rows}
        self._drained = kept.drained & {entry.instance.id for entry in self._registry.instances}
        if not self._started:
            addresses, now = self._addresses(), self._wall()
            young = [note for note in kept.notes if now - note.noted_at <= FORGET]
            learned = [_learned(note, now) for note in young if addresses.get(note.id) == note.address]
            # What is only remembered is not written again: it would never grow old.
            self._told = {one.instance: _gist(_note(one, "", now)) for one in learned}
            self._step(Recalled(tuple(learned)))

    def _addresses(self) -> dict[str, str]:
        return {entry.instance.id: entry.instance.address for entry in self._registry.instances}

    async def _write(self) -> None:
        """Under the lock: what differs from what was written last."""
        now = self._wall()
        # Rows are read back by their times, so those that are written together differ in them.
        rows = {
            entry.instance.id: self._row(entry, now + 1e-6 * number) for number, entry in enumerate(self._registry.kept)
        }
        drained = self._registry.drained
        notes = {note.id: note for note in self._notes(now)}
        changes = Changes(
            registered=tuple(row for name, row in rows.items() if self._rows.get(name) != row),
            removed=self._rows.keys() - rows.keys(),
            drained=drained - self._drained,
            undrained=self._drained - drained,
            notes=tuple(notes.values()),
            older_than=now - FORGET,
        )
        if not (changes or self.degraded):
            return
        async with self._engine.begin() as conn:
            if self.degraded:
                await instance_table.prepare(conn)
            await instance_table.write(conn, changes)
        self._rows, self._drained = rows, drained
        self._told.update({name: _gist(note) for name, note in notes.items()})
        for gone in self._told.keys() - self._addresses().keys():
            del self._told[gone]

    def _row(self, entry: Registered, at: float) -> tuple[Registered, float]:
        known = self._rows.get(entry.instance.id)
        return replace(entry, draining=False), at if known is None else known[1]

    def _notes(self, now: float) -> Iterator[Note]:
        """What was learned since it was last written."""
        addresses = self._addresses()
        for learned in self._learned():
            if (address := addresses.get(learned.instance)) is None:
                continue
            note = _note(learned, address, now)
            if self._told.get(note.id, _NOTHING) != _gist(note):
                yield note


def _note(learned: Learned, address: str, now: float) -> Note:
    opens_in, cooldown = learned.opens_in, learned.cooldown
    return Note(
        id=learned.instance,
        address=address,
        noted_at=now,
        speed=learned.speed,
        reliability=learned.reliability,
        prefill_seconds=learned.prefill_seconds,
        token_seconds=learned.token_seconds,
        limit=learned.limit,
        open_until=None if opens_in is None else now + opens_in,
        open_wait=learned.wait,
        cooldown_until=now + cooldown if cooldown > 0 else None,
    )


def _learned(note: Note, now: float) -> Learned:
    passed = max(0.0, now - note.noted_at)

    def rest(until: float | None) -> float | None:
        return None if until is None else max(0.0, until - note.noted_at - passed)

    return Learned(
        instance=note.id,
        speed=note.speed,
        reliability=note.reliability,
        prefill_seconds=note.prefill_seconds,
        token_seconds=note.token_seconds,
        limit=note.limit,
        opens_in=rest(note.open_until),
        wait=note.open_wait,
        cooldown=rest(note.cooldown_until) or 0.0,
    )


def _gist(note: Note) -> Gist:
    """What makes it worth to be written again: more than a little of anything."""
    opens = note.open_until
    if opens is not None and opens <= note.noted_at:
        opens = 0.0  # a probe may go since whenever
    return (
        round(note.speed, 2),
        round(note.reliability, 4),
        note.prefill_seconds,
        note.token_seconds,
        note.limit and round(note.limit, 1),
        None if opens is None else round(opens),
        note.open_wait,
        note.cooldown_until and round(note.cooldown_until),
    )


_NOTHING: Gist = (0.0, 1.0, None, None, None, None, 0.0, None)
"""Of an instance that has done nothing there is nothing to write."""
