"""One connection of a caller: uvicorn's, with a fast lane, bounds on heads, and requests strictly in turn.

The most used routes are served on the connection itself (`direct.DirectExchange`); every other request becomes an ASGI
task as in uvicorn. Requests that a caller sends ahead wait in line: one read's worth of them at most, because reading
stops while somebody waits, and nobody's handler is called before the answers in front of it are complete.

Time is watched by one timer per connection that is moved as seldom as possible: a request that arrives and is answered
within its limits sets no timer. Watched are a head, a body, a caller that takes nothing, and an idle connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.errors import body_too_slow, invalid_request
from headrace.server.app import Application
from headrace.server.asgi import CUT_EXTENSION
from headrace.server.direct import DirectExchange
from headrace.server.intake import LINGER
from headrace.wire.openai import error_body

HEAD_LIMIT = 64 * 1024
"""Most bytes of a request line with its headers; more gets 431."""
HEAD_TIMEOUT = 30.0
"""Seconds from the first byte of a head, or from the connection, until it must be complete."""
STALL_LOOKS = 4
"""How often per stall timeout it is seen whether a caller has taken something."""

_BODY = error_body(invalid_request(f"The headers are larger than {HEAD_LIMIT} bytes. Send less.", status=431))
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
_NO_HTTP = error_body(invalid_request("This is no HTTP request, or one that could be read in two ways."))
_UNREADABLE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_NO_HTTP), _NO_HTTP)
)


class BoundedHttp(HttpToolsProtocol):
    """One connection. Without an `Application` behind it everything is ASGI."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._application = self.config.app if isinstance(self.config.app, Application) else None
        self._current: DirectExchange | _AsgiTurn | None = None
        self._waiting: deque[DirectExchange | _AsgiTurn] = deque()
        self._reading: DirectExchange | None = None
        self._advancing = False
        self._head_size = 0
        self._in_head = True
        self._head_begun = False
        self._preamble_of: list[tuple[bytes, bytes]] | None = None
        self._preamble = b""
        self._clock = _Clock(self.loop)
        self._stall_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ the transport's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first head."""
        super().connection_made(transport)
        self._clock.watch("head", HEAD_TIMEOUT, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer has gone: everybody in line is told."""
        self._clock.stop()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        super().connection_lost(exc)
        for turn in (self._current, *self._waiting):
            if turn is not None:
                turn.leave()
        self._current = self._reading = None
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Parse, then serve. A read in which a head is completed starts the count of its bytes anew."""
        self._head_size = self._head_size + len(data) if self._in_head else 0
        super().data_received(data)
        if self._head_size > HEAD_LIMIT and not self.transport.is_closing():
            self._refuse(_TOO_LARGE)
        self._advance()
        if self._waiting:
            self.flow.pause_reading()

    def pause_writing(self) -> None:
        """The caller does not keep up."""
        super().pause_writing()
        if self._application is not None and self._stall_timer is None:
            self._look_for_stall(self.transport.get_write_buffer_size(), self.loop.time())

    def resume_writing(self) -> None:
        """The caller takes more."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if isinstance(self._current, DirectExchange):
            self._current.room()

    # ------------------------------------------------------------------ the parser's side

    def on_message_begin(self) -> None:
        """A head begins. What ASGI wants to know of it is put together only when ASGI gets it."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._head_begun = True

    def on_headers_complete(self) -> None:
        """The head is complete: which lane?"""
        self._in_head = self._head_begun = False
        self._head_size = 0
        if self._application is not None and self.parser.get_method() == b"POST":
            path = self.url.partition(b"?")[0].decode("latin-1")
            handler = self._application.direct.get(path)
            if handler is not None:
                modern = self.parser.get_http_version() != "1.0"
                self._reading = DirectExchange(
                    self,
                    handler,
                    self._application.intake,
                    path,
                    self.client[0] if self.client else "",
                    self.headers,
                    keep_alive=modern and self.parser.should_keep_alive(),
                    modern=modern,
                    expects=self.expect_100_continue,
                )
                self._waiting.append(self._reading)
                return
        self._hand_to_asgi()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        if self._reading is None:
            super().on_body(body)
        else:
            self._reading.take(body)

    def on_message_complete(self) -> None:
        """The next bytes are a head again."""
        self._in_head = True
        if self._reading is None:
            super().on_message_complete()
        else:
            self._reading.arrived()
            self._reading = None

    # ------------------------------------------------------------------ uvicorn's side

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; in the middle of an answer there is only the end of the connection."""
        del msg  # plain text, while every error has one form here
        self._refuse(_UNREADABLE)

    def on_response_complete(self) -> None:
        """An answer is complete: the next in line, or wait for more."""
        self._current = None
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._advancing:
            return
        self._advance()
        if not self._waiting:
            self.flow.resume_reading()

    def shutdown(self) -> None:
        """The server stops: close when the answers under way are complete."""
        if self._current is None:
            self.transport.close()
        else:
            (self._waiting[-1] if self._waiting else self._current).last()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._waiting.append(_AsgiTurn(cycle, lambda: HttpToolsProtocol._start_asgi_task(self, cycle, app)))

    # ------------------------------------------------------------------ the direct lane's side

    @property
    def crowded(self) -> bool:
        """See `direct.Line`."""
        return self.flow.write_paused

    def preamble(self) -> bytes:
        """See `direct.Line`. uvicorn replaces its list of headers once a second, for the date."""
        headers = self.server_state.default_headers
        if headers is not self._preamble_of:
            self._preamble_of = headers
            self._preamble = b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._preamble

    def answered(self) -> None:
        """See `direct.Line`."""
        self.on_response_complete()

    def linger(self) -> None:
        """See `direct.Line`."""
        self._clock.watch("linger", LINGER, self.transport.close)

    # ------------------------------------------------------------------ inside

    def _hand_to_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        self.scope["extensions"] = {CUT_EXTENSION: {"cut": self.transport.abort}}
        self.cycle = None  # type: ignore[assignment]  # the line is kept here, not in uvicorn's pipeline
        super().on_headers_complete()

    def _advance(self) -> None:
        """Let everybody do what can be done now; answers that are complete at once let the next one in."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while not self.transport.is_closing():
                if self._current is None:
                    if not self._waiting:
                        break
                    self._current = self._waiting.popleft()
                current = self._current
                current.proceed()
                if self._current is current:
                    break
        finally:
            self._advancing = False
        self._watch()

    def _watch(self) -> None:
        """What is to be waited for now, and how long."""
        clock, current = self._clock, self._current
        if self.transport.is_closing() or clock.waits_for == "linger":
            return
        if current is None and self._head_begun:
            clock.watch("head", HEAD_TIMEOUT, self.transport.abort)
        elif current is None:
            clock.watch("request", self.timeout_keep_alive, self.transport.close, anew=True)
        elif self._reading is current and self._application is not None:
            clock.watch(current, self._application.intake.settings.body_timeout, self._give_up_body)
        else:
            clock.rest()

    def _give_up_body(self) -> None:
        if self._reading is not None and self._application is not None:
            self._reading.reject(body_too_slow(self._application.intake.settings.body_timeout))
            self._advance()

    def _look_for_stall(self, size: int, since: float) -> None:
        """Cut off a caller that has taken nothing for too long; look again later otherwise."""
        assert self._application is not None
        now, timeout = self.loop.time(), self._application.intake.settings.stall_timeout
        held = self.transport.get_write_buffer_size()
        if held >= size and now - since >= timeout:
            self.transport.abort()
            return
        since = now if held < size else since
        self._stall_timer = self.loop.call_later(timeout / STALL_LOOKS, self._look_for_stall, held, since)

    def _refuse(self, answer: bytes) -> None:
        if self._current is None or not self._current.started:
            self.transport.write(answer)
        self.transport.close()


class _AsgiTurn:
    """A request that uvicorn serves, in line with the others."""

    __slots__ = ("_begun", "_cycle", "_start")

    def __init__(self, cycle: RequestResponseCycle, start: Callable[[], None]) -> None:
        self._cycle = cycle
        self._start = start
        self._begun = False

    @property
    def started(self) -> bool:
        """Whether the answer has begun."""
        return self._cycle.response_started

    def proceed(self) -> None:
        """It is this request's turn."""
        if not self._begun:
            self._begun = True
            self._start()

    def last(self) -> None:
        """The connection is closed after this answer."""
        self._cycle.keep_alive = False

    def leave(self) -> None:
        """The caller has gone."""
        if not self._cycle.response_complete:
            self._cycle.disconnected = True
            self._cycle.message_event.set()


class _Clock:
    """One timer that is late rather than moved: when it fires too early it is set for the rest."""

    __slots__ = ("_action", "_due", "_loop", "_timer", "waits_for")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._action: Callable[[], None] | None = None
        self._due = 0.0
        self.waits_for: object = None

    def watch(self, what: object, seconds: float, action: Callable[[], None], *, anew: bool = False) -> None:
        """Call `action` in `seconds`. What is waited for already keeps its time, unless it starts `anew`."""
        if what == self.waits_for and not anew:
            return
        self.waits_for, self._action = what, action
        self._due = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= self._due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._fire)

    def rest(self) -> None:
        """Nothing is waited for. The timer goes on; it will find nothing to do."""
        self.waits_for = self._action = None

    def stop(self) -> None:
        """The connection is gone."""
        self.rest()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        action = self._action
        if action is None:
            return
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._fire)
            return
        self.rest()
        action()
