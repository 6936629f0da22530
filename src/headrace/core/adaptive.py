"""How many requests an instance should have in flight: found by what it shows, never by response times.

Additive increase, multiplicative decrease (Chiu and Jain 1989) once per half second, from three kinds of signs:

* hard: the engine said 429, 503 or 529, or timed out, while it had much to do: x 0.7. Where it then refuses even next
  to nothing it is ill, not overloaded: what was taken is given back;
* soft: tokens come slower than the target: by as much as they are too slow, at most 3 % at a time. Or its own metrics
  show a long queue that does not move, a full KV cache or preemptions: x 0.9;
* neither, the limit is in use and tokens come clearly faster than the target: + max(1, 5 %). Before two signs in a row
  it doubles each second (slow start), or in each half second in which tokens take a quarter of the target at most.

How fast tokens can be on this machine, and so what is slow, shows only where next to nothing else runs. So where a
stream comes to an idle instance that was never seen calm, one more at most goes with it, for half a second to a second:
else a slow machine that begins under a flood would be held to the pace of a fast one for good.

The limit is a matter of pace, not of room, so an eighth more places are kept for guests: users who hold less than an
eighth of what is in flight do not wait for another's answer to end. They are charged like everybody; where all users
are alike all are guests, and the limit comes to rest with those places in use.

Batch has a limit of its own inside this one: it grows by 4 while interactive streams keep well under their target
and shrinks by a tenth when they do not. Order alone cannot protect them: once batch fills the running set, every
token of theirs is slow.
"""

from __future__ import annotations

from math import inf

_START = 8.0
_STEP, _EASY_STEP = 2.0**0.5, 2.0
"""What it grows by in one window of the slow start."""
_LOOK = 10.0
"""Seconds after which the search begins though the machine was not seen calm."""
_HARD, _SOFT = 0.7, 0.9
_IN_USE = 0.9
_CLEARLY = 0.98
_EASED = 0.97
_SIGNS = 2
"""Windows in a row that must be too slow to end the slow start: the first streams wait for each other's prompts."""
_FLOOR = 0.125
"""Soft signs do not take the limit below this part of its bound: what is so slow then is not slow for being many."""
GUESTS = 0.125
"""So much more than the limit may be in flight for guests: users who hold less than this part of what is."""
_MUCH = 0.5
_ONE_OUTAGE = 60.0
"""Refusals so many seconds apart have to do with each other."""
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

    __slots__ = (
        "_adaptive",
        "_before",
        "_hard_at",
        "_signs",
        "_slow_start",
        "_value",
        "ample",
        "limit",
        "looking",
        "looks_until",
        "most",
    )

    def __init__(self, most: int, adaptive: bool) -> None:
        self.most = most
        self._adaptive = adaptive
        self._slow_start = True
        self.looks_until = inf if adaptive else 0.0
        """Until when only the machine's own pace is looked for; infinite: not yet, 0: not any more."""
        self.looking = False
        """It is at present."""
        self._signs = 0
        self._before = 0.0
        """The limit before the refusals of late."""
        self._hard_at = float("-inf")
        self.limit = self.ample = most
        """Requests that may be in flight; and with the places for guests."""
        self.value = min(_START, float(most)) if adaptive else float(most)

    @property
    def value(self) -> float:
        """The limit with its fraction."""
        return self._value

    @value.setter
    def value(self, value: float) -> None:
        self._value = value
        self.limit = self.most if not self._adaptive else 1 if self.looking else max(1, int(value))
        self.ample = min(self.most, self.limit + max(1, int(GUESTS * self.limit)))

    @property
    def found(self) -> float | None:
        """The limit that was found; None: it is fixed, or nothing has been found yet."""
        return self._value if self._adaptive and not self._slow_start else None

    def recall(self, value: float) -> None:
        """Begin from what was found before a restart. A limit that is fixed stays."""
        if self._adaptive:
            self.looks_until, self.looking = 0.0, False
            self.value = min(max(1.0, value), float(self.most))
            self._slow_start = False

    @property
    def _floor(self) -> float:
        return max(1.0, _FLOOR * self.most)

    def reshape(self, most: int, adaptive: bool) -> None:
        """New bounds; what was found stays where it fits."""
        value = min(self.value, float(most)) if adaptive and self._adaptive else float(most)
        self.most = most
        self._adaptive = adaptive
        self.looking = self.looking and adaptive
        self.value = value

    def pass_time(self, now: float) -> None:
        """Something happened at the instance: a look whose time is over ends."""
        if now >= self.looks_until:
            self.looked()

    def look(self, now: float) -> None:
        """A stream is sent to the idle machine."""
        if self._adaptive and self.looks_until == inf:
            self.looks_until, self.looking = now + _LOOK, True
            self.value = self._value

    def looked(self) -> None:
        """The machine was seen calm, or will not be."""
        if self.looks_until:
            self.looks_until, self.looking = 0.0, False
            self.value = self._value

    def refused(self, in_flight: int, now: float) -> None:
        """A hard sign, with so many in flight."""
        if in_flight < _MUCH * self.value:
            self.value = max(self.value, self._before)
            return
        self._slow_start = False
        if now - self._hard_at >= _HARD_PAUSE:
            self._before = self.value if now - self._hard_at > _ONE_OUTAGE else max(self._before, self.value)
            self._hard_at = now
            self.value = max(1.0, self.value * _HARD)

    def tick(self, in_flight: int, pace: float, at_once: float, strained: bool, easy: bool = False) -> None:
        """One window is over.

        Args:
            in_flight: requests in flight.
            pace: seconds per token of the last seconds as a multiple of the target; 0: no stream moved.
            at_once: the same in this window alone; ends the slow start.
            strained: the engine's own metrics show a soft sign.
            easy: tokens come so fast that there may be twice as many streams.
        """
        if self.looking:
            return
        used = in_flight >= _IN_USE * self.limit
        if self._slow_start:
            self._signs = self._signs + 1 if used and (at_once > 1.0 or strained) else 0
            self._slow_start = self._signs < _SIGNS
            if self._slow_start and used and not self._signs:
                self.value = min(float(self.most), self.value * (_EASY_STEP if easy else _STEP))
        elif strained or pace > 1.0:
            wanted = max(self._floor, self.value * (_SOFT if strained else max(_EASED, 1.0 / pace)))
            self.value = min(self.value, wanted)
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

    def tick(self, batch_in_flight: int, limit: int, tpot: float | None, target: float, waiting: bool = False) -> None:
        """One window is over.

        Args:
            batch_in_flight: batch requests in flight.
            limit: the instance's limit of all requests.
            tpot: seconds per token of the streams to protect; None: none moved.
            target: what it should be at most.
            waiting: there are streams to protect, and none of them moved: they may well wait for batch.
        """
        if tpot is not None and tpot > _BATCH_SHARE * target:
            self.value = max(1.0, self._floor * limit, self.value * _SOFT)
        elif not waiting and batch_in_flight >= _IN_USE * self.limit(limit):
            self.value = min(float(limit), self.value + _BATCH_STEP)
