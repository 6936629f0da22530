"""Single-flight: which running call answers a fingerprint.

A request joins a call while the call can still give it the whole answer from its first byte; the index forgets a
call when its answer grew past what is kept, when it failed, and when it ended.
"""

from __future__ import annotations

from headrace.core.ticket import Call


class FlightIndex:
    """Calls in flight by fingerprint; as many entries as live calls at most."""

    def __init__(self) -> None:
        self._calls: dict[bytes, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, key: bytes | None) -> Call | None:
        """The call that a request with this key may join."""
        return None if key is None else self._calls.get(key)

    def add(self, call: Call) -> None:
        """Let others join `call`."""
        if call.joinable and call.key is not None:
            self._calls.setdefault(call.key, call)

    def drop(self, call: Call) -> None:
        """Nobody may join `call` from now on."""
        key = call.key
        if key is not None and self._calls.get(key) is call:
            del self._calls[key]
