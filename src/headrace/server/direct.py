"""An exchange straight on its connection: no task, no future, no timer and no message object per request.

What handlers push in one turn of the loop leaves as one write and, in a stream, as one chunk; an answer that is
complete at once is a single write together with its head. A handler's `write` never waits; past `HIGH_WATER`, or while
the socket takes no more, it returns False, and `on_drain` follows when there is room. What is held for one caller is
bounded by that mark, one frame, and the transport's own buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

import structlog

from headrace.errors import Fault, HeadraceError, internal_error
from headrace.server.exchange import HIGH_WATER, Handler, header_value, headers_of
from headrace.server.identity import request_id_of
from headrace.server.intake import Hold, Intake, announced, unreadable
from headrace.server.refusals import refuse, refuse_early

_log = structlog.get_logger("headrace.server")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_PARAMS: Mapping[str, str] = {}


class Line(Protocol):
    """The connection an exchange answers on."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    @property
    def crowded(self) -> bool:
        """The socket takes no more for now; `DirectExchange.room` is called when it does."""
        ...

    def preamble(self) -> bytes:
        """The headers every answer of this server has."""
        ...

    def answered(self) -> None:
        """The answer is complete: the next request's turn has come."""
        ...

    def linger(self) -> None:
        """The answer is complete, the request is not: read on for a moment, then close."""
        ...


class DirectExchange:
    """An `Exchange` on a connection. The connection tells it of its body, its turn, room, and the caller's leaving."""

    __slots__ = (
        "_aborted",
        "_arrived",
        "_chunked",
        "_expects",
        "_fault",
        "_finished",
        "_full",
        "_gone",
        "_handler",
        "_head",
        "_headers",
        "_hold",
        "_keep_alive",
        "_line",
        "_parts",
        "_pending",
        "_raw_headers",
        "_scheduled",
        "_served",
        "_size",
        "_speaks_chunks",
        "_started",
        "body",
        "method",
        "on_disconnect",
        "on_drain",
        "params",
        "path",
        "peer",
    )

    def __init__(
        self,
        line: Line,
        handler: Handler,
        intake: Intake,
        path: str,
        peer: str,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        keep_alive: bool,
        modern: bool,
        expects: bool,
    ) -> None:
        """`modern`: HTTP/1.1, which knows chunks; `expects`: the caller waits for a word before it sends the body."""
        self.method = "POST"
        self.path = path
        self.params = _NO_PARAMS
        self.body = b""
        self.peer = peer
        self.on_disconnect: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None
        self._line = line
        self._handler = handler
        self._hold = Hold(intake)
        self._raw_headers = headers
        self._headers: dict[str, str] | None = None
        self._keep_alive = keep_alive
        self._speaks_chunks = modern
        self._expects = expects and modern
        self._parts: list[bytes] = []
        self._size = 0
        self._pending: list[bytes] = []
        self._head = b""
        self._fault: Fault | None = None
        self._arrived = self._served = self._started = self._finished = False
        self._chunked = self._full = self._scheduled = self._gone = self._aborted = False
        self._admit()

    # ------------------------------------------------------------------ for handlers

    def header(self, name: str) -> str | None:
        """See `Exchange`."""
        if self._headers is None:
            self._headers = headers_of(self._raw_headers)
        return self._headers.get(name)

    def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """See `Exchange`. Raises RuntimeError when it was started before."""
        if self._started:
            raise RuntimeError("an answer is started once")
        self._started = True
        values = "".join([value for _, value in headers])
        if not (values.isascii() and values.isprintable()):
            headers = [(name, header_value(value)) for name, value in headers]
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        if not lines.startswith("content-length: ") and "\r\ncontent-length: " not in lines:
            self._chunked = self._speaks_chunks
            self._keep_alive = self._keep_alive and self._speaks_chunks
            if self._chunked:
                lines += "transfer-encoding: chunked\r\n"
            self._schedule()  # the head of a body whose length is known leaves with its first byte
        if not self._keep_alive:
            lines += "connection: close\r\n"
        self._head = b"%b%b%b\r\n" % (_status_line(status), self._line.preamble(), lines.encode("ascii"))

    def write(self, data: bytes) -> bool:
        """See `Exchange`. Raises RuntimeError before `start` and after `finish`."""
        if not self._started or self._finished:
            raise RuntimeError("bytes belong between start and finish")
        if self._gone or self._aborted:
            return True
        self._pending.append(data)
        self._size += len(data)
        self._schedule()
        if self._size > HIGH_WATER or self._line.crowded:
            self._full = True
        return not self._full

    def finish(self, data: bytes = b"") -> None:
        """See `Exchange`."""
        if not self._started or self._finished:
            raise RuntimeError("an answer ends once, after its start")
        self._finished = True
        if self._gone or self._aborted:
            return
        if data:
            self._pending.append(data)
        self._push()
        self._hold.release()
        self.on_disconnect = self.on_drain = None
        if not self._arrived:
            self._line.linger()
            return
        if not self._keep_alive:
            self._line.transport.close()
        self._line.answered()

    def abort(self) -> None:
        """See `Exchange`."""
        self._aborted = True
        self._head = b""
        self._pending.clear()
        self._line.transport.abort()

    # ------------------------------------------------------------------ for the connection

    @property
    def started(self) -> bool:
        """Whether the answer has begun."""
        return self._started

    def take(self, data: bytes) -> None:
        """A piece of the body. Nothing is kept once the request is refused."""
        if self._fault is not None:
            return
        self._size += len(data)
        try:
            self._hold.reserve(self._size)
        except HeadraceError as error:
            self.reject(error.fault)
        else:
            self._parts.append(data)

    def arrived(self) -> None:
        """The body is complete."""
        self._arrived = True

    def reject(self, fault: Fault) -> None:
        """The request will be refused, whatever else comes of it."""
        if not self._served:
            self._fault = fault
            self._parts.clear()

    def proceed(self) -> None:
        """It is this request's turn: do what can be done now."""
        if self._served:
            if self._finished and self._arrived and not self._gone:
                self._line.transport.close()
        elif self._fault is not None:
            self._served = True
            self._size = 0
            self._keep_alive = self._keep_alive and self._arrived
            refuse_early(self, self._fault)
        elif self._arrived:
            self._served = True
            self._size = 0
            self.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            self._serve()
        elif self._expects:
            self._expects = False
            self._line.transport.write(_CONTINUE)

    def room(self) -> None:
        """The socket takes more."""
        if self._full and not self._pending and not self._line.crowded:
            self._full = False
            if self.on_drain is not None:
                self.on_drain()

    def last(self) -> None:
        """The connection is closed after this answer."""
        self._keep_alive = False

    def leave(self) -> None:
        """The caller has gone."""
        if self._gone:
            return
        self._gone = True
        self._hold.release()
        self._pending.clear()
        if self.on_disconnect is not None and not self._finished and not self._aborted:
            try:
                self.on_disconnect()
            except Exception:  # noqa: BLE001 - the outer edge: there is nobody left to tell
                _log.exception("a disconnect was not handled", path=self.path)

    # ------------------------------------------------------------------ inside

    def _admit(self) -> None:
        """What the head alone says against the body."""
        self._fault = unreadable(self)
        length = announced(self)
        if self._fault is None and length is not None:
            try:
                self._hold.reserve(length)
            except HeadraceError as error:
                self._fault = error.fault

    def _serve(self) -> None:
        try:
            self._handler(self)
        except Exception:  # noqa: BLE001 - the request's outer edge: a mistake of ours ends this request only
            _log.exception("request failed", path=self.path)
            self._apologise()

    def _apologise(self) -> None:
        if self.on_disconnect is not None:
            self.on_disconnect()
            self.on_disconnect = None
        if self._started:
            self.abort()
        else:
            refuse(self, internal_error(), [("x-request-id", request_id_of(self))])

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._line.loop.call_soon(self._turn_over)

    def _turn_over(self) -> None:
        """Everything that came together in one turn of the loop leaves together."""
        self._scheduled = False
        if not self._finished and not self._gone and not self._aborted:
            self._push()
            self.room()

    def _push(self) -> None:
        pending = self._pending
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        pending.clear()
        self._size = 0
        head, self._head = self._head, b""
        if self._chunked:
            end = b"0\r\n\r\n" if self._finished else b""
            data = b"%b%x\r\n%b\r\n%b" % (head, len(data), data, end) if data else head + end
        elif head:
            data = head + data
        if data:
            self._line.transport.write(data)


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")
