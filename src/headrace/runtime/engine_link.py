"""One socket to an engine: HTTP/1.1 with one exchange at a time, parsed by httptools, without a task or a future.

A link knows nothing of pools and callers. It tells its rider what each read brought, and its owner when it is free
again or lost. A body without a length ends with the connection; any other that ends with it was cut.

Bounds: `HEADER_LINE` per header, `HEADERS` headers, `HEAD` bytes for a whole head, and for what comes behind a chunk; a
request is handed to the socket in steps of `ONE_WRITE`, so that a large one neither holds up the loop nor is held
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

import httptools

from headrace.runtime.failures import Failure, errno_of
from headrace.runtime.outbox import Outbox

HEADER_LINE = 16 * 1024
HEADERS = 128
HEAD = 128 * 1024
ONE_WRITE = 256 * 1024

Head = tuple[int, Mapping[str, str]]
Ending = tuple[Failure | None, str]
"""How an answer ended: None for properly, and a detail for operators."""

PROPERLY: Ending = (None, "")


class Rider(Protocol):
    """Who waits for an answer."""

    def heard(self, head: Head | None, data: bytes, ending: Ending | None) -> None:
        """What a read brought: the head, if it is complete by now; bytes of the body; the answer's proper end."""
        ...

    def lost(self, failure: Failure, detail: str, answered: bool) -> None:
        """There will be no more; `answered`: at least one byte had come."""
        ...


class Owner(Protocol):
    """Who keeps links."""

    outbox: Outbox
    """What their requests leave by."""

    def freed(self, link: Link) -> None:
        """The link can be used again."""
        ...

    def gone(self, link: Link) -> None:
        """The link is closed."""
        ...


class Link(asyncio.Protocol):
    """A connection to one engine."""

    __slots__ = (
        "_bare",
        "_complete",
        "_count",
        "_crowded",
        "_framed",
        "_headers",
        "_keeps",
        "_owner",
        "_parser",
        "_pieces",
        "_reading_paused",
        "_rest",
        "_rider",
        "_status",
        "_surplus",
        "_told",
        "_unsent",
        "loop",
        "on_body",
        "place",
        "since",
        "transport",
    )

    transport: asyncio.Transport
    on_body: Callable[[bytes], None]
    """The parser's: a piece of the body. It goes straight to the others."""
    _told: bool
    _complete: bool
    _bare: int
    """Bytes since the last of a body: a head, or what comes between and behind chunks."""
    _headers: dict[str, str]

    def __init__(self, owner: Owner, place: object, loop: asyncio.AbstractEventLoop) -> None:
        self.place = place
        """Which engine: whatever the owner tells its links apart by."""
        self.loop = loop
        self.since = 0.0
        """When it was freed or sent its last request, on the loop's clock."""
        self._owner = owner
        self._rider: Rider | None = None
        self._unsent = b""
        """A request that leaves with those of others."""
        self._rest: memoryview | None = None
        self._crowded = self._reading_paused = False
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._begin()
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    # ------------------------------------------------------------------ the exchange's side

    def send(self, rider: Rider, head: bytes, body: bytes) -> None:
        """Send a request. Only on a new or a freed link."""
        self._rider = rider
        self.since = self.loop.time()
        if len(body) <= ONE_WRITE:
            self._unsent = head + body
            self._owner.outbox.add(self, self.loop)
            return
        self.transport.write(head)
        self._rest = memoryview(body)
        self._write_on()

    def flush(self) -> None:
        """See `outbox.Sender`."""
        if self._unsent:
            data, self._unsent = self._unsent, b""
            self.transport.write(data)

    def pause(self) -> None:
        """Stop reading, so that the engine is slowed down."""
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    def abort(self) -> None:
        """Close at once; the rider hears nothing more."""
        self._rider = self._rest = None
        self._unsent = b""
        self.transport.abort()

    @property
    def usable(self) -> bool:
        """Whether it looks as if a request could be sent."""
        return not self.transport.is_closing()

    # ------------------------------------------------------------------ the transport's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The socket is there."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse one read and tell what it brought."""
        rider = self._rider
        if rider is None:
            self.transport.abort()  # nobody asked for anything
            return
        broken = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            broken, self._surplus = not self._complete, True
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        head = ending = None
        self._bare = 1 if body else self._bare + len(data)
        if self._bare > HEAD:
            broken = not self._complete
        if not self._told and self._status >= 200:
            self._told = True
            head, self._headers = (self._status, self._headers), {}
        if self._complete:
            ending = PROPERLY
            self._free()
        if body or head is not None or ending is not None:
            rider.heard(head, body, ending)
        if broken and self._rider is rider:
            self.abort()
            rider.lost(Failure.PROTOCOL, "not an HTTP answer, or a header too large", True)

    def pause_writing(self) -> None:
        """The engine reads slowly."""
        self._crowded = True

    def resume_writing(self) -> None:
        """It takes more."""
        self._crowded = False
        self._write_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the socket, and of a body without a length."""
        self._owner.gone(self)
        rider, self._rider, self._rest = self._rider, None, None
        self._unsent = b""
        if rider is None:
            return
        answered = self._bare > 0
        if exc is None and self._told and not self._framed:
            rider.heard(None, b"", PROPERLY)
        elif exc is not None:
            rider.lost(Failure.CUT, f"connection lost{errno_of(exc)}", answered)
        else:
            where = "in the middle of the body" if self._told else "before the end of the answer"
            rider.lost(Failure.CUT, f"closed {where}", answered)

    # ------------------------------------------------------------------ the parser's side

    def on_message_begin(self) -> None:
        """An answer begins; a second one is nobody's, and nothing of it is read."""
        if self._complete:
            raise ValueError("nobody asked for another answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if len(name) + len(value) > HEADER_LINE or self._count >= HEADERS:
            raise ValueError("larger than a head may be")
        self._count += 1
        key, text = _key(name), value.decode("utf-8", "surrogateescape")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """The head is complete; one of 1xx announces another."""
        self._status = self._parser.get_status_code()
        headers = self._headers
        self._framed = "content-length" in headers or headers.get("transfer-encoding", "").lower().endswith("chunked")

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._status < 200:
            self._headers, self._count = {}, 0
        else:
            self._complete = True
            self._keeps = self._parser.should_keep_alive()

    # ------------------------------------------------------------------ inside

    def _begin(self) -> None:
        """Nothing of an answer is here yet."""
        self._told = self._framed = self._complete = self._surplus = self._keeps = False
        self._bare = self._count = self._status = 0
        self._headers = {}

    def _free(self) -> None:
        """The answer is complete: whoever comes next may have the link, unless something is left over on it."""
        self._rider = None
        unsent = self._unsent or self._rest is not None or self.transport.get_write_buffer_size() > 0
        if self._surplus or unsent or not self._keeps:
            self._rest = None
            self.transport.abort() if unsent else self.transport.close()
            return
        self._begin()
        self.resume()
        self._owner.freed(self)

    def _write_on(self) -> None:
        while self._rest is not None and not self._crowded:
            part, self._rest = self._rest[:ONE_WRITE], self._rest[ONE_WRITE:] or None
            self.transport.write(part)


@lru_cache(maxsize=256)
def _key(name: bytes) -> str:
    """A header's name in lower case. Engines use the same few in every answer."""
    return name.decode("latin-1").lower()
