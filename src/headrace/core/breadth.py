"""How many requests an engine was seen to work on at the same time: what it can run at least.

A gateway does not know an engine's slots, but it sees what proves some of them: streams that have begun and not ended
are in the batch together, and so are those that begin or end in one step. Engines tell the tokens of a step at once, so
what begins within `_TOGETHER` of a first sign, or half a step where steps are shorter, shared its step with all that
were streaming just before. This is what makes short answers count, too: in each step as many end as begin.

As long as no more than this and the engine's allowed queue are in flight, that queue cannot be longer than allowed:
waiting <= in flight - slots <= in flight - breadth. It is a lower bound of slots, so what it allows grows by what the
queue may hold with each step that shows more, until the engine shows no more.

What was seen is remembered for one to two `_PERIOD`s: an engine that was restarted with fewer slots is found out.
"""

from __future__ import annotations

from headrace.core.pace import Pace

_TOGETHER = 0.005
"""First tokens of one step come within this time, in seconds."""
_PERIOD = 30.0


class Breadth:
    """What one engine has shown.

    Args:
        pace: how fast its tokens come, which tells how long its steps are.
    """

    __slots__ = ("_before", "_group", "_of_late", "_pace", "_since", "_together", "most", "running")

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.running = 0
        """Streams that have begun and not ended."""
        self.most = 0
        """Requests that it worked on at the same time, of late."""
        self._of_late = self._before = 0
        """The most that was seen in the present period, and in the one before."""
        self._since = 0.0
        self._group = float("-inf")
        """When the first sign of the last step came."""
        self._together = 0
        """Those that were streaming then, and those that have begun since in the same step."""

    def begun(self, entered: float, now: float) -> None:
        """The first token of a stream is here, which was sent at `entered`.

        What was sent after a step's first sign cannot have shared the step.
        """
        if entered >= self._group or now - self._group > _TOGETHER or self._apart(entered, now):
            self._group, self._together = now, self.running
        self._together += 1
        self.running += 1
        if self._together > self._of_late or now - self._since >= _PERIOD:
            self.shown(self._together, now)

    def ended(self, entered: float, now: float) -> None:
        """One of the streams that have begun ended."""
        if now - self._group > _TOGETHER or self._apart(entered, now):
            self._group, self._together = now, self.running
        self.running -= 1

    def shown(self, number: int, now: float) -> None:
        """So many were seen at the same time."""
        if now - self._since >= _PERIOD:
            self._before = self._of_late if now - self._since < 2 * _PERIOD else 0
            self._of_late, self._since = self.running, now
        self._of_late = max(self._of_late, number)
        self.most = max(self._of_late, self._before)

    def _apart(self, entered: float, now: float) -> bool:
        """This sign, of a request sent at `entered` and soon after the one before, belongs to another step."""
        # A step takes no longer than a token, nor than the whole stay of a request.
        stay = now - entered
        return now - self._group > 0.5 * min(self._pace.tpot or self._pace.base or stay, stay)
