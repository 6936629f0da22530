"""Numbers for tool calls in streams.

A client puts the pieces of a call together by `index`. Some engines number every call 0, or give no number; then the
pieces of two calls would be glued into one. The rule here: an id not seen before begins a call, at the engine's
number if that is free and at the next one if not; a piece without an id belongs to the call that last had the
engine's number, or to the last one begun.
"""

from __future__ import annotations

CALLS_LIMIT = 1024
"""Most tool calls that are told apart in one answer; later ones keep the engine's numbers."""


class ToolCallNumbers:
    """The calls of one choice so far."""

    __slots__ = ("_at", "_ids", "_last", "_taken")

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._at: dict[int, int] = {}
        self._taken: set[int] = set()
        self._last = 0

    def place(self, number: int | None, call_id: str | None) -> int:
        """The number under which a client should see a piece that the engine sent with `number` and `call_id`."""
        if call_id and call_id in self._ids:
            place = self._ids[call_id]
        elif len(self._taken) < CALLS_LIMIT and (call_id or not self._taken or self._new_number(number)):
            place = self._begin(number, call_id)
        elif number is None:
            place = self._last
        else:
            place = self._at.get(number, number)
        self._last = place
        return place

    def _new_number(self, number: int | None) -> bool:
        return number is not None and number not in self._at

    def _begin(self, number: int | None, call_id: str | None) -> int:
        free = number is not None and number not in self._taken
        place = number if number is not None and free else max(self._taken, default=-1) + 1
        self._taken.add(place)
        if call_id:
            self._ids[call_id] = place
        if number is not None:
            self._at[number] = place
        return place
