"""What sockets send in one turn of the loop leaves together, for what it costs is to wake who reads it.

Each write wakes its reader where that one sleeps, and that takes longer than to hand over a request. Whoever was woken
by one write finds the others there. So the first of a turn leaves at once, which is all there is for one that is alone,
and those that follow leave at the turn's end.

Bound: `TOGETHER` senders wait; then they leave.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

TOGETHER = 32

_log = logging.getLogger(__name__)


class Sender(Protocol):
    """Who has something to send."""

    def flush(self) -> None:
        """Send it; nothing where it has gone otherwise. Must not raise."""
        ...


class Outbox:
    """See above. One for all sockets of one kind, in one loop."""

    __slots__ = ("_turning", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[Sender] = []
        self._turning = False
        """Something was sent in this turn already."""

    def add(self, sender: Sender, loop: asyncio.AbstractEventLoop) -> None:
        """Have `sender.flush` called: now, or at the end of this turn of `loop`."""
        if not self._turning:
            self._turning = True
            loop.call_soon(self._end)
            sender.flush()
            return
        self._waiting.append(sender)
        if len(self._waiting) == TOGETHER:
            self._flush()

    def _end(self) -> None:
        """The turn ends."""
        self._turning = False
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sender in waiting:
            try:
                sender.flush()
            except Exception:  # noqa: BLE001 - a callback's outer edge: a mistake of ours with one holds up nobody else
                _log.exception("what was to be sent could not be")
