"""Times the scheduler has asked to be woken at: a heap with lazy deletion, rebuilt when half of it is stale."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

Subject = TypeVar("Subject")


class Timer:
    """One pending time; `Timers.cancel` takes it back."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = True


class Timers(Generic[Subject]):
    """Pending times, each with what it is about."""

    __slots__ = ("_heap", "_seq", "_stale", "soonest")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer, Subject]] = []
        self._seq = 0
        self._stale = 0
        self.soonest = inf
        """No pending time comes before this. It may be that of one taken back; `next` tells the true one."""

    def __len__(self) -> int:
        return len(self._heap) - self._stale

    def at(self, when: float, subject: Subject) -> Timer:
        """Ask for `subject` to come up at `when`."""
        self._seq += 1
        timer = Timer()
        heappush(self._heap, (when, self._seq, timer, subject))
        if when < self.soonest:
            self.soonest = when
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Take a pending time back; one that has passed, or None, is fine."""
        if timer is None or not timer.pending:
            return
        timer.pending = False
        self._stale += 1
        if self._stale * 2 > len(self._heap) + 16:
            self._heap = [item for item in self._heap if item[2].pending]
            heapify(self._heap)
            self._stale = 0

    def due(self, now: float) -> Subject | None:
        """The next subject whose time has come, or None."""
        when = self.next()
        if when is None or when > now:
            return None
        _, _, timer, subject = heappop(self._heap)
        timer.pending = False
        self.soonest = self._heap[0][0] if self._heap else inf
        return subject

    def next(self) -> float | None:
        """The soonest pending time."""
        heap = self._heap
        while heap and not heap[0][2].pending:
            heappop(heap)
            self._stale -= 1
        self.soonest = heap[0][0] if heap else inf
        return heap[0][0] if heap else None
