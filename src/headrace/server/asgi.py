"""ASGI's side of an exchange: one coroutine per request moves what handlers push to the socket.

A handler's `write` never waits; it puts bytes into a list and wakes the coroutine, which sends everything that has
come together since as one message. ASGI's `send` returns only when the socket takes the bytes, so when the caller
reads slowly the list grows; past `HIGH_WATER` `write` says so by returning False, and `on_drain` follows when the
list is empty again. What is held for one caller is bounded by that mark plus one frame. A second task, made only when
the answer is not there at once, waits for the caller to leave.

`BaseHTTPMiddleware` must never be put around this: it hides disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError, internal_error
from headrace.server.exchange import HIGH_WATER, Handler, header, header_value, headers_of
from headrace.server.identity import request_id_of
from headrace.server.intake import CallerGone, Hold, Intake, announced, discard, unreadable
from headrace.server.refusals import refuse, refuse_early, wrong_method

CUT_EXTENSION = "headrace.cut"
"""An extension in the scope, where the server provides it: its value under "cut" resets the connection."""

_log = structlog.get_logger("headrace.server")


class AsgiExchange:
    """An `Exchange` over ASGI's send."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.params: Mapping[str, str] = scope.get("path_params", {})
        self.body = b""
        client = scope.get("client")
        self._peer: str = client[0] if client else ""
        self.on_disconnect: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None
        self.headers = headers_of(scope["headers"])
        self._cut: Callable[[], None] | None = (scope.get("extensions") or {}).get(CUT_EXTENSION, {}).get("cut")
        self._send = send
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._pending: list[bytes] = []
        self._size = 0
        self._full = False
        self._started = False
        self._finished = False
        self._gone = False
        self._aborted = False
        self._sending_since: float | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def started(self) -> bool:
        """Whether the answer has begun."""
        return self._started

    @property
    def peer(self) -> str:
        """See `Exchange`."""
        return self._peer

    def header(self, name: str) -> str | None:
        """The value of a header by its lower-case name, as text."""
        return header(self, name)

    def answer(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """See `Exchange`. Raises RuntimeError when it was started before."""
        self.start(status, [*headers, ("content-length", str(len(body)))])
        self.finish(body)

    def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """See `Exchange`. Raises RuntimeError when it was started before."""
        if self._started:
            raise RuntimeError("an answer is started once")
        self._started = True
        self._head = (
            status,
            [(name.encode("latin-1"), header_value(value).encode("ascii")) for name, value in headers],
        )
        self._wake()

    def write(self, data: bytes) -> bool:
        """See `Exchange`. Raises RuntimeError before `start` and after `finish`."""
        if not self._started or self._finished:
            raise RuntimeError("bytes belong between start and finish")
        if self._gone or self._aborted:
            return True
        self._pending.append(data)
        self._size += len(data)
        self._wake()
        if self._size > HIGH_WATER:
            self._full = True
        return not self._full

    def finish(self, data: bytes = b"") -> None:
        """See `Exchange`."""
        if data:
            self.write(data)
        self._finished = True
        self._wake()

    def abort(self) -> None:
        """See `Exchange`."""
        self._aborted = True
        self._head = None
        self._pending.clear()
        if self._cut is not None:
            self._cut()
        self._wake()

    async def run(self, receive: Receive, stall_timeout: float, linger: bool = False) -> None:
        """Move bytes until the answer is complete or the caller has gone.

        `linger`: the request's body was not read to its end; see `intake.discard`.
        """
        loop = asyncio.get_running_loop()
        watcher: asyncio.Task[None] | None = None
        self._stall_timer = loop.call_later(stall_timeout, self._check_stall, loop, stall_timeout)
        try:
            while not self._gone and not (self._aborted and self._cut is None):
                if self._head is not None or self._pending or (self._finished and not self._aborted):
                    if await self._flush(loop, receive if linger else None):
                        return
                    continue
                if watcher is None:
                    watcher = loop.create_task(self._watch(receive))
                self._waiter = loop.create_future()
                await self._waiter
                self._waiter = None
        finally:
            if self._stall_timer is not None:
                self._stall_timer.cancel()
            if watcher is not None:
                watcher.cancel()

    def leave(self) -> None:
        """The caller has gone."""
        if self._gone:
            return
        self._gone = True
        self._pending.clear()
        self._wake()
        if self.on_disconnect is not None and not self._finished and not self._aborted:
            self.on_disconnect()

    async def _flush(self, loop: asyncio.AbstractEventLoop, unread: Receive | None) -> bool:
        """Send what is there; True: the answer is complete."""
        self._sending_since = loop.time()
        if self._head is not None:
            (status, headers), self._head = self._head, None
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
        data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        complete = self._finished
        if unread is not None and complete:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            await discard(unread)
            data = b""
        if data or complete:
            await self._send({"type": "http.response.body", "body": data, "more_body": not complete})
        self._sending_since = None
        if self._full and self._size <= HIGH_WATER // 2 and not self._gone:
            self._full = False
            if self.on_drain is not None:
                self.on_drain()
        return complete

    async def _watch(self, receive: Receive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.leave()
        except Exception:  # noqa: BLE001 - the task's outer edge
            _log.exception("a disconnect was not handled", path=self.path)

    def _check_stall(self, loop: asyncio.AbstractEventLoop, stall_timeout: float) -> None:
        """Cut off a caller that has taken nothing for too long; look again later otherwise."""
        if self._gone or self._aborted:
            return
        since = self._sending_since
        if since is not None and loop.time() - since >= stall_timeout:
            if self.on_disconnect is not None and not self._finished:
                self.on_disconnect()
            self.abort()
            return
        due = (loop.time() if since is None else since) + stall_timeout
        self._stall_timer = loop.call_at(due, self._check_stall, loop, stall_timeout)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Endpoint:
    """The ASGI application behind one route: checks the method, reads the body, calls the handler, moves the bytes.

    With `reads_body` the body must be JSON (or of no stated type) and is complete when the handler is called.
    """

    def __init__(self, handler: Handler, methods: Sequence[str], intake: Intake, reads_body: bool = False) -> None:
        self._handler = handler
        self._methods = methods
        self._intake = intake
        self._reads_body = reads_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        exchange = AsgiExchange(scope, send)
        try:
            with self._intake.hold() as hold:
                await self._serve(exchange, hold, receive)
        except CallerGone:
            return
        except asyncio.CancelledError:
            exchange.leave()
            raise
        except Exception:  # noqa: BLE001 - the task's outer edge: a mistake of ours ends this request only
            _log.exception("request failed", path=exchange.path)
            await self._apologise(exchange, receive)

    async def _serve(self, exchange: AsgiExchange, hold: Hold, receive: Receive) -> None:
        unread = False
        if exchange.method not in self._methods:
            wrong_method(exchange, self._methods)
        elif not self._reads_body:
            self._handler(exchange)
        elif (fault := unreadable(exchange.headers)) is not None:
            refuse_early(exchange, fault)
        else:
            try:
                exchange.body = await self._intake.read(hold, announced(exchange.headers), receive)
            except HeadraceError as error:
                unread = True
                refuse_early(exchange, error.fault, ("connection", "close"))
            else:
                self._handler(exchange)
        await exchange.run(receive, self._intake.settings.stall_timeout, linger=unread)

    async def _apologise(self, exchange: AsgiExchange, receive: Receive) -> None:
        if exchange.on_disconnect is not None:
            exchange.on_disconnect()
            exchange.on_disconnect = None
        if exchange.started:
            exchange.abort()
        else:
            refuse(exchange, internal_error(), [("x-request-id", request_id_of(exchange))])
        await exchange.run(receive, self._intake.settings.stall_timeout)
