"""Limits of time that many connections are under, each kept with one timer for all of them.

Under one limit everybody has the same time, so who came first is due first: a map in the order of coming is all that is
needed, and coming and leaving cost a place in it. A peer that takes nothing has a clock of its own, but few do that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

STALL_LOOKS = 4
"""How often per stall timeout it is seen whether a caller has taken something."""

_log = structlog.get_logger("headrace.server")
_Subject = TypeVar("_Subject")


class TimeLimit(Generic[_Subject]):
    """Calls `over` for everybody who stays under the limit for `seconds`."""

    __slots__ = ("_due", "_loop", "_over", "_seconds", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, over: Callable[[_Subject], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._over = over
        self._due: dict[_Subject, float] = {}
        """When each is due, soonest first."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, subject: _Subject) -> None:
        """The time of `subject` runs from now on, anew if it ran already."""
        due = self._due
        due.pop(subject, None)  # a place of its own would keep its order
        due[subject] = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def end(self, subject: _Subject) -> None:
        """It has kept the limit. Harmless for one that is not under it."""
        self._due.pop(subject, None)

    def _look(self) -> None:
        """The timer is late rather than moved: it finds who is due, and waits for the next."""
        now = self._loop.time()
        try:
            while self._due:
                subject, due = next(iter(self._due.items()))
                if due > now:
                    break
                del self._due[subject]
                self._call(subject)
        finally:
            soonest = next(iter(self._due.values()), None)
            self._timer = None if soonest is None else self._loop.call_at(soonest, self._look)

    def _call(self, subject: _Subject) -> None:
        try:
            self._over(subject)
        except Exception:  # noqa: BLE001 - a timer's outer edge: a mistake of ours with one keeps nobody else waiting
            _log.exception("a limit of time could not be enforced")


class StallWatch:
    """Cuts off a peer for which bytes wait and that takes none of them for `timeout` seconds."""

    __slots__ = ("_loop", "_timeout", "_timer", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._transport = transport
        self._loop = loop
        self._timeout = timeout
        self._timer = self._later(transport.get_write_buffer_size(), loop.time())

    def end(self) -> None:
        """It takes something, or has gone."""
        self._timer.cancel()

    def _look(self, size: int, since: float) -> None:
        """It held `size` bytes, as many or more ever since then."""
        now, held = self._loop.time(), self._transport.get_write_buffer_size()
        if held >= size and now - since >= self._timeout:
            self._transport.abort()
        else:
            self._timer = self._later(held, now if held < size else since)

    def _later(self, held: int, since: float) -> asyncio.TimerHandle:
        return self._loop.call_later(self._timeout / STALL_LOOKS, self._look, held, since)
