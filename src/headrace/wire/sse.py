"""Server-sent events, read piece by piece and written whole.

The reader follows the WHATWG rules ("9.2.6 Interpreting an event stream" of the HTML standard): lines end with LF,
CRLF or a lone CR, a blank line ends an event, `data` lines are joined with LF, one blank after the colon is dropped,
comments are skipped, a byte order mark at the very start is skipped. It differs in two points on purpose: an event
without data is dropped even if it has a name, and an event still open at the end of the body can be asked for with
`finish`.

Bound: an event may hold `limit` bytes, finished lines and the open one together; beyond it the reader says `overflowed`
and keeps nothing.
"""

from __future__ import annotations

from typing import NamedTuple

EVENT_LIMIT = 4 * 1024 * 1024
"""Most bytes of one event. Beyond it the stream counts as broken."""

_COMMENT_LIMIT = 256
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event: its name ("" when it has none) and its data without line ends at the borders."""

    name: bytes
    data: bytes


def event(payload: bytes) -> bytes:
    """`payload` (one line) as the bytes of one event."""
    return b"data: " + payload + b"\n\n"


class SseReader:
    """Cuts a byte stream into events, wherever the network cut it."""

    __slots__ = (
        "_after_cr",
        "_data",
        "_data_size",
        "_limit",
        "_name",
        "_open",
        "_open_size",
        "_start",
        "comment",
        "overflowed",
    )

    def __init__(self, limit: int = EVENT_LIMIT, *, begun: bool = False) -> None:
        """`begun`: the first bytes of the stream have been seen by another."""
        self._limit = limit
        self._start: bytes | None = None if begun else b""
        """What may become a byte order mark; None once the first bytes have been seen."""
        self._after_cr = False
        self._open: list[bytes] = []
        self._open_size = 0
        self._data: list[bytes] = []
        self._data_size = 0
        self._name = b""
        self.comment = b""
        """The beginning of the latest comment's text, without its colon."""
        self.overflowed = False

    @property
    def idle(self) -> bool:
        """Whether the next byte begins an event: nothing is kept and no LF of a CRLF may still come."""
        return not (self._open or self._data or self._name or self._after_cr or self._start is not None)

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that `data` completes. Empty for ever once the reader has overflowed."""
        if self._start is not None:
            data = self._skip_mark(data)
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 0x0A:
                data = data[1:]
        if not data or self.overflowed:
            return []
        self._after_cr = data[-1] == 0x0D
        lines = data.splitlines()
        rest = b"" if data[-1] in b"\r\n" else lines.pop()
        if lines and self._open:
            lines[0] = b"".join((*self._open, lines[0]))
            self._open.clear()
            self._open_size = 0
        events = self._take(lines)
        if rest:
            self._open.append(rest)
            self._open_size += len(rest)
        if self._open_size + self._data_size > self._limit:
            self._overflow()
        return events

    def finish(self) -> SseEvent | None:
        """The event that the end of the body left open: its last line end or its blank line never came."""
        lines = [b"".join(self._open)] if self._open else []
        self._open.clear()
        events = self._take([*lines, b""])
        return events[0] if events else None

    def _skip_mark(self, data: bytes) -> bytes:
        held = (self._start or b"") + data
        if len(held) < len(_BOM) and _BOM.startswith(held):
            self._start = held
            return b""
        self._start = None
        return held.removeprefix(_BOM)

    def _take(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in lines:
            if line:
                self._field(line)
                continue
            payload = b"\n".join(self._data).strip()
            if payload:
                events.append(SseEvent(self._name, payload))
            self._data.clear()
            self._data_size = 0
            self._name = b""
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_size += len(line)
        elif name == b"event":
            self._name = value.strip()[:64]
        elif not name:
            self.comment = value[:_COMMENT_LIMIT]

    def _overflow(self) -> None:
        self.overflowed = True
        self._data.clear()
        self._open.clear()
        self._data_size = self._open_size = 0
