"""How long something waited before a gate that was shut, by what shut it."""

from __future__ import annotations


class ShutTimes:
    """The account of one instance. One reason at a time: the first that holds."""

    __slots__ = ("_reason", "_since", "_spent")

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        """By reason, up to `_since`."""
        self._reason = ""
        self._since = 0.0

    def note(self, reason: str, now: float) -> None:
        """Something waits for `reason`; "": nothing does any more."""
        if reason != self._reason:
            self._spent = self.seconds(now)
            self._reason, self._since = reason, now

    def seconds(self, now: float) -> dict[str, float]:
        """How long each reason has kept something waiting."""
        spent = dict(self._spent)
        if self._reason:
            spent[self._reason] = spent.get(self._reason, 0.0) + now - self._since
        return spent
