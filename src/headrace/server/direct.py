"""An exchange straight on its connection: no task, no future, no timer and no message object per request.

A whole answer is a single write. What handlers push of a stream in one turn of the loop leaves as one write and one
chunk. A handler's `write` never waits; past `HIGH_WATER`, or while the socket takes no more, it returns False, and
`on_drain` follows when there is room. What is held for one caller is bounded by that mark, one frame, and the
transport's own buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import structlog

from headrace.errors import Fault, HeadraceError, internal_error
from headrace.server.exchange import HIGH_WATER, Handler, header_line
from headrace.server.identity import request_id_of
from headrace.server.intake import Hold, unreadable
from headrace.server.refusals import refuse, refuse_early
from headrace.server.turns import Line, Shared

_log = structlog.get_logger("headrace.server")
_PIECE = 4096
"""Bytes from which on a piece of a body stays as it came: many small ones would take far more than they hold."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
Route: TypeAlias = tuple[str, Handler]
"""The path of a route, and who answers there."""
_NO_PARAMS: Mapping[str, str] = {}
_NO_HEADERS: Mapping[bytes, bytes] = {}


class DirectExchange:
    """An `Exchange` on a connection. The connection tells it of its body, its turn, room, and the caller's leaving."""

    __slots__ = (
        "_arrived",
        "_chunked",
        "_crowded",
        "_expects",
        "_fault",
        "_finished",
        "_full",
        "_gone",
        "_handler",
        "_head",
        "_hold",
        "_keep_alive",
        "_line",
        "_pending",
        "_scheduled",
        "_served",
        "_shared",
        "_size",
        "_speaks_chunks",
        "body",
        "headers",
        "method",
        "on_disconnect",
        "on_drain",
        "params",
        "path",
        "started",
    )

    def __init__(
        self,
        line: Line,
        shared: Shared,
        route: Route,
        headers: Mapping[bytes, bytes],
        keep_alive: bool,
        modern: bool,
    ) -> None:
        """`modern`: the caller speaks HTTP/1.1, which knows chunks."""
        self.method = "POST"
        self.path, self._handler = route
        self.params = _NO_PARAMS
        self.headers = headers
        self.body = b""
        self.on_disconnect: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None
        self.started = False
        """Whether the answer has begun."""
        self._line = line
        self._shared = shared
        self._hold = Hold(shared.intake)
        self._keep_alive = keep_alive
        self._speaks_chunks = modern
        self._expects = modern and headers.get(b"expect", b"").lower() == b"100-continue"
        self._pending: list[bytes | bytearray] = []
        """Parts of the body until it is complete, then of the answer; `_size` bytes in all."""
        self._size = 0
        self._head = b""
        self._arrived = self._served = self._finished = self._gone = False
        self._chunked = self._crowded = self._full = self._scheduled = False
        self._fault = self._objection()

    # ------------------------------------------------------------------ for handlers

    @property
    def peer(self) -> str:
        """See `Exchange`."""
        return self._line.peer

    def answer(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """See `Exchange`. Raises RuntimeError when it was started before."""
        if self.started:
            raise RuntimeError("an answer is started once")
        self.started = self._finished = True
        if not self._gone:
            head = self._head_of(status, headers, b"content-length: %d\r\n" % len(body))
            if self._keep_alive and self._arrived:
                self._line.write_soon(head + body)
            else:
                self._line.write(head + body)
            self._over()

    def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """See `Exchange`. Raises RuntimeError when it was started before."""
        if self.started:
            raise RuntimeError("an answer is started once")
        self.started = True
        self._chunked = self._speaks_chunks
        self._keep_alive = self._keep_alive and self._chunked
        self._head = self._head_of(status, headers, b"transfer-encoding: chunked\r\n" if self._chunked else b"")
        self._schedule()

    def write(self, data: bytes) -> bool:
        """See `Exchange`. Raises RuntimeError before `start` and after `finish`."""
        if not self.started or self._finished:
            raise RuntimeError("bytes belong between start and finish")
        if self._gone:
            return True
        self._pending.append(data)
        self._size += len(data)
        if not self._scheduled:
            self._schedule()
        if self._crowded or self._size > HIGH_WATER:
            self._full = True
        return not self._full

    def finish(self, data: bytes = b"") -> None:
        """See `Exchange`."""
        if not self.started or self._finished:
            raise RuntimeError("an answer ends once, after its start")
        self._finished = True
        if not self._gone:
            if data:
                self._pending.append(data)
            self._push()
            self._over()

    def abort(self) -> None:
        """See `Exchange`."""
        self.on_disconnect = None
        self.leave()
        self._line.transport.abort()

    # ------------------------------------------------------------------ for the connection

    def take(self, data: bytes) -> None:
        """A piece of the body. Nothing is kept once the request is refused."""
        if self._fault is not None:
            return
        self._size += len(data)
        pending = self._pending
        last = pending[-1] if pending else b""
        if type(last) is bytearray and len(last) < _PIECE:
            last += data
        else:
            pending.append(bytearray(data) if pending and len(data) < _PIECE else data)
        if self._size > self._hold.size:
            try:
                self._hold.reserve(self._size)
            except HeadraceError as error:
                self.reject(error.fault)

    def arrived(self) -> None:
        """The body is complete."""
        self._arrived = True

    def reject(self, fault: Fault) -> None:
        """The request will be refused, whatever else comes of it."""
        if not self._served:
            self._fault = fault
            self._pending.clear()

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
            parts = self._pending
            self.body = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
            parts.clear()
            self._serve()
        elif self._expects:
            self._expects = False
            self._line.write(_CONTINUE)

    def flush(self) -> None:
        """Everything that came together in one turn of the loop leaves together."""
        self._scheduled = False
        if not self._finished and not self._gone:
            self._push()
            self._drained()

    def crowd(self) -> None:
        """The socket takes no more for now."""
        self._crowded = True

    def room(self) -> None:
        """The socket takes more."""
        self._crowded = False
        self._drained()

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
        self._head = b""
        if self.on_disconnect is not None and not self._finished:
            try:
                self.on_disconnect()
            except Exception:  # noqa: BLE001 - the outer edge: there is nobody left to tell
                _log.exception("a disconnect was not handled", path=self.path)

    # ------------------------------------------------------------------ inside

    def _objection(self) -> Fault | None:
        """What the head alone says against the body."""
        fault = unreadable(self.headers)
        length = self.headers.get(b"content-length")
        if fault is None and length is not None:
            try:
                self._hold.reserve(int(length))  # no head has come this far in which it is anything but digits
            except HeadraceError as error:
                fault = error.fault
        return fault

    def _serve(self) -> None:
        try:
            self._handler(self)
        except Exception:  # noqa: BLE001 - the request's outer edge: a mistake of ours ends this request only
            _log.exception("request failed", path=self.path)
            self._apologise()
        self.headers = _NO_HEADERS

    def _apologise(self) -> None:
        if self.on_disconnect is not None:
            self.on_disconnect()
            self.on_disconnect = None
        if self.started:
            self.abort()
        else:
            refuse(self, internal_error(), [("x-request-id", request_id_of(self))])

    def _head_of(self, status: int, headers: Sequence[tuple[str, str]], framing: bytes) -> bytes:
        close = b"" if self._keep_alive else b"connection: close\r\n"
        return b"".join((self._shared.opening(status), *map(header_line, headers), framing, close, b"\r\n"))

    def _drained(self) -> None:
        if self._full and not self._pending and not self._crowded:
            self._full = False
            if self.on_drain is not None:
                self.on_drain()

    def _schedule(self) -> None:
        self._scheduled = True
        self._shared.flush_soon(self)

    def _push(self) -> None:
        """Everything that is there, as one write; in a stream with its end when that has come."""
        pending = self._pending
        data = bytes(pending[0]) if len(pending) == 1 else b"".join(pending)
        pending.clear()
        self._size = 0
        head, self._head = self._head, b""
        if self._chunked:
            end = b"0\r\n\r\n" if self._finished else b""
            data = b"%b%x\r\n%b\r\n%b" % (head, len(data), data, end) if data else head + end
        elif head:
            data = head + data
        if data:
            self._line.write(data)

    def _over(self) -> None:
        """The answer is complete."""
        self._hold.release()
        self.on_disconnect = self.on_drain = None
        if not self._arrived:
            self._line.linger()
            return
        if not self._keep_alive:
            self._line.transport.close()
        self._line.answered()
