"""How many requests an instance should have in flight: found by what it shows, never by response times.

Additive increase, multiplicative decrease (Chiu and Jain 1989) once per half second, from three kinds of signs:

* hard: the engine said 429, 503 or 529, or timed out, while it had much to do: x 0.7. One that refuses with next to
  nothing in flight is not overloaded by us;
* soft: tokens come slower than the target: by as much as they are too slow, at most 3 % at a time. Or its own metrics
  show too long a queue on two polls, a full KV cache or preemptions: x 0.9. Neither takes more than half of the places
  that become free, for a limit far below what is running lets nothing in until much has left;
* neither, the limit is in use and tokens come clearly faster than the target: + max(1, 5 %). Before the first sign it
  doubles each second (slow start).

Batch has a limit of its own inside this one: it grows by 4 while interactive streams keep well under their target
and shrinks by a tenth when they do not. Order alone cannot protect them: once batch fills the running set, every
token of theirs is slow.
"""

from __future__ import annotations

_START = 8.0
_DOUBLING = 2.0**0.5
_HARD, _SOFT = 0.7, 0.9
_IN_USE = 0.9
_CLEARLY = 0.98
_EASED = 0.97
_CAREFUL = 0.25
"""From this part of the bound on the limit no longer doubles: what it shows comes later than that."""
_GIVEN_UP = 0.25
"""Part of the places becoming free that a shrinking limit takes away: the others are given on, so that nobody waits for
the limit to come down."""
_FLOOR = 0.125
"""Soft signs do not take the limit below this part of its bound: what is so slow then is not slow for being many."""
_MUCH = 0.5
_HARD_PAUSE = 1.0
"""A burst of refusals is one sign."""
_BATCH_STEP = 4.0
_BATCH_SHARE = 0.8
"""Batch shrinks when interactive tokens take more than this part of their target."""


class AdaptiveLimit:
    """The in-flight limit of one instance.

    Args:
        most: never more than this.
        adaptive: False keeps it at `most`.
    """

    __slots__ = ("_adaptive", "_hard_at", "_slow_start", "most", "value")

    def __init__(self, most: int, adaptive: bool) -> None:
        self.most = most
        self._adaptive = adaptive
        self._slow_start = True
        self._hard_at = float("-inf")
        self.value = min(_START, float(most)) if adaptive else float(most)

    @property
    def _floor(self) -> float:
        return max(1.0, _FLOOR * self.most)

    @property
    def limit(self) -> int:
        """Requests that may be in flight."""
        return max(1, int(self.value)) if self._adaptive else self.most

    def reshape(self, most: int, adaptive: bool) -> None:
        """New bounds; what was found stays where it fits."""
        self.value = min(self.value, float(most)) if adaptive and self._adaptive else float(most)
        self.most = most
        self._adaptive = adaptive

    def refused(self, in_flight: int, now: float) -> None:
        """A hard sign, with so many in flight."""
        if in_flight < _MUCH * self.value:
            return
        self._slow_start = False
        if now - self._hard_at >= _HARD_PAUSE:
            self._hard_at = now
            self.value = max(1.0, self.value * _HARD)

    def tick(self, in_flight: int, left: int, pace: float, at_once: float, strained: bool) -> None:
        """One window is over.

        Args:
            in_flight: requests in flight.
            left: requests that left in it.
            pace: seconds per token of the last seconds as a multiple of the target; 0: no stream moved.
            at_once: the same in this window alone; ends the slow start.
            strained: the engine's own metrics show a soft sign.
        """
        used = in_flight >= _IN_USE * self.limit
        if self._slow_start:
            self._slow_start = at_once <= 1.0 and not strained and self.value < _CAREFUL * self.most
            if self._slow_start and used:
                self.value = min(float(self.most), self.value * _DOUBLING)
        elif strained or pace > 1.0:
            wanted = max(self._floor, self.value * (_SOFT if strained else max(_EASED, 1.0 / pace)))
            self.value = min(self.value, max(wanted, self.value - _GIVEN_UP * left))
        elif used and pace < _CLEARLY:
            self.value = min(float(self.most), self.value + max(1.0, 0.05 * self.value))


class BatchLimit:
    """How many batch requests may be in flight at one instance.

    Args:
        floor: it never falls below this share of the instance's limit.
    """

    __slots__ = ("_floor", "value")

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self.value = _START

    def limit(self, limit: int) -> int:
        """Batch requests that may be in flight where `limit` may be in all."""
        return max(1, int(max(self._floor * limit, min(self.value, float(limit)))))

    def tick(self, batch_in_flight: int, limit: int, tpot: float | None, target: float) -> None:
        """One window is over.

        Args:
            batch_in_flight: batch requests in flight.
            limit: the instance's limit of all requests.
            tpot: seconds per token of the streams to protect; None: none moved.
            target: what it should be at most.
        """
        if tpot is not None and tpot > _BATCH_SHARE * target:
            self.value = max(1.0, self._floor * limit, self.value * _SOFT)
        elif batch_in_flight >= _IN_USE * self.limit(limit):
            self.value = min(float(limit), self.value + _BATCH_STEP)
