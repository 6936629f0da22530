"""The pace of one replay: which letter is sent when, and again when. It knows nothing of letters but their numbers."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

SendOne = Callable[[int], Awaitable[float | None]]
"""Sends one letter once; the seconds after which it is to be sent again, None when it is over. Must not raise."""

_log = structlog.get_logger(__name__)


class PacedSending:
    """Sends letters in their order, at most `pace` a second and `abreast` at a time, some of them several times."""

    def __init__(self, letters: Sequence[int], send: SendOne, *, pace: float, abreast: int) -> None:
        self._send = send
        self._gap = 1.0 / pace
        self._abreast = abreast
        self._due: list[tuple[float, int, int]] = [(0.0, place, number) for place, number in enumerate(letters)]
        """A heap: when it may be sent, its place in the order, its number."""
        self._under_way = 0
        self._free_at = 0.0
        self._changed = asyncio.Event()
        self._stopped = False

    async def run(self) -> None:
        """Send until all are over, or it was stopped and none is under way. Cancelling this cancels those under way."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while self._under_way or (self._due and not self._stopped):
                now = loop.time()
                ready = self._ready_at()
                if ready is not None and ready <= now:
                    _, place, number = heapq.heappop(self._due)
                    self._under_way += 1
                    self._free_at = now + self._gap
                    group.create_task(self._sent(place, number))
                    continue
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(ready):
                        await self._changed.wait()

    def stop(self) -> None:
        """Send nothing more; what is under way may end."""
        self._stopped = True
        self._changed.set()

    def _ready_at(self) -> float | None:
        """When the next letter may be sent; None: not before something changes."""
        if self._stopped or not self._due or self._under_way >= self._abreast:
            return None
        return max(self._due[0][0], self._free_at)

    async def _sent(self, place: int, number: int) -> None:
        try:
            pause = await self._send(number)
        except Exception:  # noqa: BLE001 - the task's outer edge: one letter that goes wrong does not end the others
            _log.exception("a letter could not be sent again", letter=number)
            pause = None
        finally:
            self._under_way -= 1
            self._changed.set()
        if pause is not None:
            heapq.heappush(self._due, (asyncio.get_running_loop().time() + pause, place, number))
