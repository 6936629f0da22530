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

_TOGETHER = 0.005
"""First tokens of one step come within this time, in seconds."""
_PERIOD = 30.0


class Breadth:
    """What one engine has shown."""

    __slots__ = ("_before", "_group", "_of_late", "_since", "_together", "running")

    def __init__(self) -> None:
        self.running = 0
        """Streams that have begun and not ended."""
        self._of_late = self._before = 0
        """The most that was seen in the present period, and in the one before."""
        self._since = 0.0
        self._group = float("-inf")
        """When the first sign of the last step came."""
        self._together = 0
        """Those that were streaming then, and those that have begun since in the same step."""

    @property
    def most(self) -> int:
        """Requests that it worked on at the same time, of late."""
        return max(self._of_late, self._before)

    def begun(self, entered: float, step: float, now: float) -> None:
        """The first token of a stream is here.

        Args:
            entered: when it was sent; what was sent after a step's first token cannot have shared the step.
            step: seconds of the engine's steps, as far as they are known: an upper bound.
            now: monotonic seconds.
        """
        if entered >= self._group:
            self._group = float("-inf")
        self._sign(step, now)
        self._together += 1
        self.running += 1
        self.shown(self._together, now)

    def ended(self, step: float, now: float) -> None:
        """One of the streams that have begun ended."""
        self._sign(step, now)
        self.running -= 1

    def _sign(self, step: float, now: float) -> None:
        if now - self._group > min(_TOGETHER, 0.5 * step):
            self._group = now
            self._together = self.running

    def shown(self, number: int, now: float) -> None:
        """So many were seen at the same time."""
        if now - self._since >= _PERIOD:
            self._before = self._of_late if now - self._since < 2 * _PERIOD else 0
            self._of_late, self._since = self.running, now
        self._of_late = max(self._of_late, number)
