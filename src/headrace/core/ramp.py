"""Slow start: an instance that comes back gets little at first.

It comes back when its breaker closes after a probe, its cooldown is over, a health check finds it up again, it is no
longer drained, its breaker was closed by hand, or it is new in a fleet that is at work. It is cold then, perhaps only
half well, and the least loaded of all: without a bound everything that waits would be sent there at once.

So the requests it may have at a time begin at one and double in equal times until, after `seconds`, they are as many
as its limit allows; each answer it completes adds one, which doubles them with each round of answers (as TCP's slow
start does, Jacobson 1988). It is a bound of choice, not of strength: where no other instance of its tier could take
the request it does not hold (the rule of Envoy's slow start), so a fleet is never idle for it, and what comes back
alone is bounded by its gate only.
"""

from __future__ import annotations

from math import inf, log

_DUST = 1e-6
"""What powers and logarithms may be off by."""


class Ramp:
    """One return.

    Args:
        begins: when it may have its first request.
        seconds: how long until it may have as many as else.
    """

    __slots__ = ("_earned", "_seconds", "begins", "ends")

    def __init__(self, begins: float, seconds: float) -> None:
        self._seconds = seconds
        self._earned = 0
        self.begins = begins
        self.ends = begins + seconds

    def limit(self, most: int, now: float) -> int:
        """Requests it may have at `now`; `most` are as many as its gate allows."""
        if now >= self.ends:
            return most
        passed = max(0.0, now - self.begins) / self._seconds
        return min(most, int(most**passed + self._earned + _DUST))

    def exceeds(self, number: int, most: int) -> float:
        """When it may have more than `number`; infinite where its gate never allows that."""
        wanted = number + 1 - self._earned
        if number >= most:
            return inf
        if wanted <= 1:
            return self.begins
        return min(self.ends, self.begins + self._seconds * log(wanted) / log(most))

    def answered(self, sent: float) -> None:
        """It completed an answer to what was sent at `sent`."""
        if sent >= self.begins:
            self._earned += 1
