"""The waiting room: streams that have not begun, and when each is told where it stands.

Nobody is told anything before he has waited `after` seconds: until then his answer may still become an error with a
status of its own, which clients understand best. From then on a comment every `every` seconds keeps him, and whatever
proxy is in between, from taking silence for death.

There is no timer per request: entries are in the order in which they are due, one timer looks at the first, and a
request that is answered in time costs a place in a map. A look at the queue is O(n log n) in what is queued, so looks
are at least `GRAIN` apart and tell at most `AT_ONCE` each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import structlog

GRAIN = 0.1
"""Seconds between two looks, at least."""
AT_ONCE = 512
"""Most that are told in one look; the others follow in the next."""

_log = structlog.get_logger("headrace.server")


class Guest(Protocol):
    """Somebody who waits for the first word of a stream."""

    @property
    def waits(self) -> bool:
        """Whether nothing of the answer has come yet."""
        ...

    def queued(self, position: int, seconds: float) -> None:
        """He stands at `position`, 1 being next, and is expected to start in `seconds`."""
        ...

    def still_waits(self) -> None:
        """He is not in the queue; the engine has not said anything yet."""
        ...


class WaitingRoom:
    """Tells guests that wait long where they stand.

    Args:
        places: position and seconds until the expected start of everything in the queue, by request id.
        after: seconds until somebody is told for the first time; 0: nobody ever is.
        every: seconds between two words to the same guest.
    """

    def __init__(self, places: Callable[[], Mapping[str, tuple[int, float]]], after: float, every: float) -> None:
        self._places = places
        self._after = after
        self._every = every
        self._new: dict[str, tuple[float, Guest]] = {}
        """Who was not looked at yet: when he is due, soonest first."""
        self._known: dict[str, tuple[float, Guest]] = {}
        """Who was, likewise."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._new) + len(self._known)

    def enter(self, request_id: str, guest: Guest) -> None:
        """From now on `guest` waits for the answer to this request."""
        if self._after <= 0:
            return
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self._new[request_id] = (loop.time() + self._after, guest)
        if self._timer is None:
            self._timer = loop.call_later(self._after, self._look, loop)

    def leave(self, request_id: str) -> None:
        """The request is over. Harmless for one that is not here."""
        if self._new.pop(request_id, None) is None:
            self._known.pop(request_id, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        try:
            due = list(self._due(now))
            places = self._places() if due else {}
            for request_id, guest in due:
                self._known[request_id] = (now + self._every, guest)
            for request_id, guest in due:
                _tell(request_id, guest, places.get(request_id))
        finally:
            soonest = min((when for when, _ in self._firsts()), default=None)
            self._timer = None if soonest is None else loop.call_at(max(soonest, now + GRAIN), self._look, loop)

    def _due(self, now: float) -> Iterator[tuple[str, Guest]]:
        """Those whose time has come and who still wait, taken out; those who do not wait any more are forgotten."""
        count = 0
        for entries in (self._known, self._new):
            while entries and count < AT_ONCE:
                request_id, (when, guest) = next(iter(entries.items()))
                if when > now:
                    break
                del entries[request_id]
                if guest.waits:
                    count += 1
                    yield request_id, guest

    def _firsts(self) -> Iterator[tuple[float, Guest]]:
        for entries in (self._known, self._new):
            if entries:
                yield next(iter(entries.values()))


def _tell(request_id: str, guest: Guest, place: tuple[int, float] | None) -> None:
    try:
        if place is None:
            guest.still_waits()
        else:
            guest.queued(*place)
    except Exception:  # noqa: BLE001 - a timer's outer edge: a mistake of ours with one guest keeps nobody else waiting
        _log.exception("a caller could not be told where he stands", id=request_id)
