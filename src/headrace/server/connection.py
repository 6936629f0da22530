"""One connection of a caller: requests strictly in turn, on two lanes, under bounds on heads, bodies and time.

The most used routes are served on the connection itself (`direct.DirectExchange`); every other request becomes an ASGI
task (`asgi_turn.AsgiTurn`). Requests that a caller sends ahead wait in line: one read's worth of them at most, because
reading stops while somebody waits, and nobody's handler is called before the answers in front of it are complete.

Watched are a head, a body, a caller that takes nothing, and an idle connection. No request sets a timer: connections
under the same limit of time share one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import httptools
import structlog
from uvicorn.protocols.utils import get_remote_addr

from headrace.errors import body_too_slow, draining, invalid_request
from headrace.server.asgi_turn import AsgiTurn
from headrace.server.direct import DirectExchange
from headrace.server.exchange import headers_of
from headrace.server.limits import StallWatch, TimeLimit
from headrace.server.refusals import last_words
from headrace.server.turns import Turn

if TYPE_CHECKING:
    from headrace.server.connections import Connections

HEAD_LIMIT = 64 * 1024
"""Most bytes of a request line with its headers; more gets 431."""
HEAD_TIMEOUT = 30.0
"""Seconds from the first byte of a head, or from the connection, until it must be complete."""

_SHOWN = 200
"""Characters in the log of what could not be read."""
_FRAMING = (b"content-length", b"transfer-encoding")

_log = structlog.get_logger("headrace.server")

_TOO_LARGE = last_words(invalid_request(f"The headers are larger than {HEAD_LIMIT} bytes. Send less.", status=431))
_UNREADABLE = last_words(invalid_request("This is no HTTP request, or one that could be read in two ways."))
_STOPPING = last_words(draining())


class Connection(asyncio.Protocol):
    """One connection; uvicorn's server counts it, and tells it to shut down."""

    __slots__ = (
        "_advancing",
        "_crowded",
        "_current",
        "_deaf",
        "_framing",
        "_head_size",
        "_headers",
        "_limit",
        "_parser",
        "_paused",
        "_reading",
        "_shared",
        "_stall",
        "_unsent",
        "_url",
        "_waiting",
        "transport",
    )
    __deletable__ = ("_parser",)  # the compiler wants to know what is deleted

    def __init__(self, shared: Connections) -> None:
        self.transport: asyncio.Transport
        self._shared = shared
        self._parser = self._new_parser()
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] | None = None
        """Of the head that is being read."""
        self._framing = b""
        """What the head said of its body, while that is put off; see `_parse`."""
        self._head_size = 0
        self._reading: Turn | None = None
        """Whose body is being read."""
        self._current: Turn | None = None
        self._waiting: list[Turn] = []
        self._advancing = self._paused = self._crowded = self._deaf = False
        """`_deaf`: what the caller still sends is thrown away."""
        self._limit: TimeLimit[Connection] | None = None
        """The limit of time it is under."""
        self._stall: StallWatch | None = None
        self._unsent = b""
        """What leaves with the answers of others."""

    # ------------------------------------------------------------------ the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The first head must come."""
        self.transport = cast("asyncio.Transport", transport)
        self._shared.state.connections.add(self)  # type: ignore[arg-type]  # uvicorn's own classes, of which it uses `shutdown`
        self._be_under(self._shared.heads)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer has gone: everybody in line is told."""
        del exc
        self._shared.state.connections.discard(self)
        self._be_under(None)
        if self._stall is not None:
            self._stall.end()
        self._unsent = b""
        self._forsake()
        del self._parser  # it leads back here, and what leads back waits for the garbage collector

    def data_received(self, data: bytes) -> None:
        """Parse, then serve. The end of a head and a piece of a body start the count of a head's bytes anew."""
        if self._deaf:
            return
        self._head_size += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            # What goes wrong in our own callbacks comes as an error of the parser as well.
            _log.info("no request", status=400, peer=self.peer, reason=repr(error.__context__ or error)[:_SHOWN])
            self._refuse(_UNREADABLE)
            return
        if self._head_size > HEAD_LIMIT:
            _log.info("no request", status=431, peer=self.peer)
            self._refuse(_TOO_LARGE)
            return
        self._advance()
        if self._waiting and not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        """The caller does not keep up."""
        self._crowded = True
        if self._current is not None:
            self._current.crowd()
        self._beware_of_stall()

    def resume_writing(self) -> None:
        """The caller takes more."""
        self._crowded = False
        if self._stall is not None:
            self._stall.end()
            self._stall = None
        if self.transport.is_closing():
            self._beware_of_stall()
        if self._current is not None:
            self._current.room()
        else:
            self._advance()
            self._read_on()

    # ------------------------------------------------------------------ the parser's side

    def on_message_begin(self) -> None:
        """A head begins."""
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer: those say nothing here."""
        if self._headers is not None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete: which lane?"""
        shared, headers, parser = self._shared, self._headers or [], self._parser
        self._headers = None
        self._framing = b""
        if self._reading is not None:
            return  # the body that was put off begins
        if parser.should_upgrade():
            self._framing = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] in _FRAMING])
        turn: Turn
        route = None
        if parser.get_method() == b"POST":
            route = shared.direct.get(self._url) or shared.direct.get(self._url.partition(b"?")[0])
        if route is None:
            turn = AsgiTurn(shared.config, shared.state, self.transport, parser, self._url, headers, self.answered)
        else:
            modern = parser.get_http_version() != "1.0"
            keep_alive = modern and parser.should_keep_alive()
            turn = DirectExchange(self, shared, route, headers_of(headers), keep_alive, modern)
        self._head_size = 0
        self._reading = turn
        self._waiting.append(turn)

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._head_size = 0
        if self._reading is not None:
            self._reading.take(body)

    def on_message_complete(self) -> None:
        """The next bytes are a head again."""
        if self._framing:
            return
        if self._reading is not None:
            self._reading.arrived()
            self._reading = None
        if self._limit is self._shared.bodies:
            self._be_under(None)

    # ------------------------------------------------------------------ the side of those in line

    @property
    def peer(self) -> str:
        """See `turns.Line`."""
        address = get_remote_addr(self.transport)
        return address[0] if address else ""

    def write(self, data: bytes) -> None:
        """See `turns.Line`."""
        self.flush()
        self.transport.write(data)

    def write_soon(self, data: bytes) -> None:
        """See `turns.Line`."""
        self.flush()
        self._unsent = data
        self._shared.outbox.add(self, self._shared.loop)

    def flush(self) -> None:
        """See `outbox.Sender`."""
        if self._unsent:
            data, self._unsent = self._unsent, b""
            self.transport.write(data)

    def answered(self) -> None:
        """See `turns.Line`: the next in line, or wait for more."""
        self._current = None
        self._shared.state.total_requests += 1
        if self._advancing:
            return
        if self._waiting:
            self._advance()
        else:
            self._watch()
        self._read_on()

    def linger(self) -> None:
        """See `turns.Line`. One that is closed while its caller sends is reset, and that can take the answer away."""
        self._be_under(self._shared.lingering)
        if self.transport.can_write_eof():  # with TLS it cannot
            self.transport.write_eof()

    # ------------------------------------------------------------------ the server's and the limits' side

    def shutdown(self) -> None:
        """The server stops: close when the answers under way are complete; who still sends his body is refused."""
        last = self._waiting[-1] if self._waiting else self._current
        if last is None:
            self.close()
            return
        last.last()
        if last is not self._reading:
            return
        if isinstance(last, DirectExchange):
            last.reject(draining())
            self._advance()
        elif last is self._current:
            self._refuse(_STOPPING)

    def close(self) -> None:
        """Enough: what was written still goes out, as long as the caller takes some of it."""
        self._be_under(None)
        self.flush()
        self.transport.close()
        self._beware_of_stall()

    def close_idle(self) -> None:
        """Nothing was asked for a long time, or what was asked takes its time."""
        self._limit = None
        if self._current is None and not self._waiting:
            self.close()

    def cut(self) -> None:
        """Enough, at once."""
        self._limit = None
        self.transport.abort()

    def give_up_body(self) -> None:
        """The body took too long."""
        self._limit = None
        if isinstance(self._reading, DirectExchange):
            self._reading.reject(body_too_slow(self._shared.intake.settings.body_timeout))
            self._advance()

    # ------------------------------------------------------------------ inside

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # What follows a request that said `connection: close` must not keep that one from being answered.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _parse(self, data: bytes) -> None:
        """Feed the parser. It stops behind a head that asks for another protocol, and takes the request for complete.

        There is no other protocol here, and so it is none: a body follows if the head told of one, or else the next
        head. Some clients ask for HTTP/2 in that way, whatever they send.

        Raises httptools.HttpParserError for what is no HTTP.
        """
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as wish:
                data = data[wish.args[0] :]
                if self._framing:
                    self._parser = self._new_parser()
                    data = b"POST / HTTP/1.1\r\n%b\r\n%b" % (self._framing, data)
                elif not data:
                    return
            else:
                return

    def _advance(self) -> None:
        """Let everybody do what can be done now; answers that are complete at once let the next one in."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while not self.transport.is_closing():
                if self._current is None:
                    if not self._waiting or self._crowded:  # who does not take answers gets no others
                        break
                    self._current = self._waiting.pop(0)
                current = self._current
                current.proceed()
                if self._current is current:
                    break
        finally:
            self._advancing = False
        self._watch()

    def _watch(self) -> None:
        """What is to be waited for now, and how long."""
        shared, current = self._shared, self._current
        if self._limit is shared.lingering:
            return
        if self.transport.is_closing():
            self.close()
        elif current is None:
            self._be_under(shared.idle if self._headers is None else shared.heads)
        elif self._reading is current and isinstance(current, DirectExchange):
            self._be_under(shared.bodies)
        elif self._limit is not shared.idle:  # that one goes on: to end it and begin it anew would cost each request
            self._be_under(None)

    def _be_under(self, limit: TimeLimit[Connection] | None) -> None:
        """Be under this limit of time and no other. One it is under already goes on, but idleness begins anew."""
        before = self._limit
        if limit is before:
            if limit is self._shared.idle:
                limit.begin(self)
            return
        if before is not None:
            before.end(self)
        self._limit = limit
        if limit is not None:
            limit.begin(self)

    def _read_on(self) -> None:
        """Nobody waits in line any more: somebody may come."""
        if self._paused and not self._waiting and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def _beware_of_stall(self) -> None:
        """Bytes wait for the caller: see to it that it takes some."""
        if self._stall is None and self.transport.get_write_buffer_size():
            self._stall = StallWatch(self.transport, self._shared.loop, self._shared.intake.settings.stall_timeout)

    def _refuse(self, answer: bytes) -> None:
        """Say why and close; in the middle of an answer there is only the end of the connection."""
        if self.transport.is_closing():
            return
        if self._current is not None and self._current.started:
            self.close()
            return
        self._forsake()
        self._deaf = True
        self.write(answer)
        self.linger()
        self._read_on()

    def _forsake(self) -> None:
        """Nobody in line is answered any more."""
        turns = [self._current, *self._waiting]
        self._current = self._reading = None
        self._waiting.clear()
        for turn in turns:
            if turn is not None:
                turn.leave()
