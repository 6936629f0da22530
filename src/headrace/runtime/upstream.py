"""The HTTP client to the engines: one task per call, bytes pushed to a sink, library errors translated only here.

No timeout lives here but the one for connecting; who drives an attempt decides how long it may take and aborts it.
An abort closes the socket at once, without flushing what the engine has not read. Reading stops while paused: the
socket's buffers fill and the engine itself is slowed down.

A pooled connection may have been closed by the engine at the moment it is used again (RFC 9112 section 9.3.1). Such a
call is sent once more, on a fresh connection, if the connection ended at once and not one byte of an answer came; one
that ends later, and a fresh one that ends without an answer, is a failure.

Bounds: 64 KiB of read buffer per connection (twice that before reading stops), 16 KiB per header line, 128 headers,
connections idle for `keepalive` seconds are closed. The number of connections is bounded by the gates, not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from io import BytesIO
from types import SimpleNamespace
from typing import TYPE_CHECKING

import aiohttp
import structlog
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection as PooledConnection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.tracing import Trace
from yarl import URL

from headrace.runtime.aiohttp_failures import BREAKAGE, translated, unanswered
from headrace.runtime.client import KEEPALIVE, STALE_WITHIN, Client, Connection, Sink
from headrace.runtime.failures import Failure, UpstreamFailed
from headrace.runtime.guarded_resolver import GuardedResolver

if TYPE_CHECKING:
    from headrace.wire.adapters import EngineRequest

__all__ = ["Client", "Connection", "Failure", "Sink", "Upstream", "UpstreamFailed"]

READ_BUFFER = 64 * 1024
HEADER_LINE = 16 * 1024
HEADERS = 128
ONE_WRITE = 256 * 1024

_log = structlog.get_logger(__name__)


class Upstream:
    """Sends requests to engines.

    `keepalive` is how long an unused connection is kept, in seconds; `proxy` names the HTTP proxy to ask for an
    address, None: none. Must be used from one event loop; nothing is created before the first call.
    """

    def __init__(self, *, keepalive: float = KEEPALIVE, proxy: Callable[[str], str | None] = lambda _: None) -> None:
        self._keepalive = keepalive
        self._proxy = proxy
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._running: set[_Exchange] = set()
        self.replays = 0
        """Calls sent a second time because their pooled connection turned out to be closed."""

    @property
    def running(self) -> int:
        """Exchanges that have not ended."""
        return len(self._running)

    def open(self, address: str, request: EngineRequest, sink: Sink, connect_timeout: float) -> Connection:
        """Starts to send `request` to the engine at `address` (scheme, host, port, perhaps a base path).

        Returns at once; everything else is told to `sink`. `connect_timeout` is in seconds and covers resolving,
        connecting and TLS.
        """
        exchange = _Exchange(sink)
        self._running.add(exchange)
        exchange.task = asyncio.get_running_loop().create_task(self._carry(exchange, address, request, connect_timeout))
        # Not in the task's own `finally`: one cancelled before its first step never gets there.
        exchange.task.add_done_callback(lambda _: self._running.discard(exchange))
        return exchange

    async def fetch(
        self,
        address: str,
        request: EngineRequest,
        timeout: float,  # noqa: ASYNC109 - one number is simpler for probes than a context to open
        limit: int,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """The whole answer to a small request, such as a probe.

        `timeout` in seconds covers everything, `limit` bounds the body in bytes. Raises UpstreamFailed.
        """
        wire = _Wire()
        try:
            async with asyncio.timeout(timeout):
                response = await self._answer(wire, address, request, None)
                body = await _whole(response, limit)
        except TimeoutError:
            raise UpstreamFailed(Failure.TIMEOUT, "no complete answer in time") from None
        finally:
            wire.cut()
        return response.status, _lower(response.headers.items()), body

    async def close(self) -> None:
        """Aborts what is under way and closes every connection."""
        running = tuple(self._running)
        for exchange in running:
            exchange.abort()
        await asyncio.gather(*(exchange.task for exchange in running), return_exceptions=True)
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()
        self._pooled = self._fresh = None

    async def _carry(self, exchange: _Exchange, address: str, request: EngineRequest, connect_timeout: float) -> None:
        try:
            try:
                response = await self._answer(exchange.wire, address, request, connect_timeout)
                await exchange.deliver(response)
            except UpstreamFailed as failed:
                await exchange.gate()
                exchange.finish(failed.failure, failed.detail)
        except Exception:  # noqa: BLE001 - the task's outer edge: a sink's fault ends this attempt and nothing else
            _log.exception("upstream_sink_failed")
            exchange.finish_after_fault()
        finally:
            exchange.wire.cut()
            exchange.over = True

    async def _answer(
        self, wire: _Wire, address: str, request: EngineRequest, connect_timeout: float | None
    ) -> aiohttp.ClientResponse:
        """The head of the answer; raises UpstreamFailed."""
        try:
            return await self._send(self._session(fresh=False), wire, address, request, connect_timeout)
        except _StaleConnection:
            self.replays += 1
        return await self._send(self._session(fresh=True), wire, address, request, connect_timeout)

    async def _send(
        self,
        session: aiohttp.ClientSession,
        wire: _Wire,
        address: str,
        request: EngineRequest,
        connect_timeout: float | None,
    ) -> aiohttp.ClientResponse:
        wire.reused, loop = False, asyncio.get_running_loop()
        began = loop.time()
        token = _WIRE.set(wire)
        try:
            response = await session.request(
                request.method,
                URL(address.rstrip("/") + request.path, encoded=True),
                data=_payload(request.body),
                headers=[(name, value) for name, value in request.headers if name.lower() not in _FRAMING],
                allow_redirects=False,
                proxy=self._proxy(address),
                timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout),
                trace_request_ctx=wire,
            )
        except BREAKAGE as error:
            if wire.reused and unanswered(error) and loop.time() - began < STALE_WITHIN:
                raise _StaleConnection from error
            raise translated(error) from error
        finally:
            _WIRE.reset(token)
        wire.response = response
        wire.heed_breaches()
        return response

    def _session(self, *, fresh: bool) -> aiohttp.ClientSession:
        """The session with the pool, or the one that never uses a connection twice."""
        if fresh:
            if self._fresh is None:
                self._fresh = _session(_Connector(force_close=True), traced=False)
            return self._fresh
        if self._pooled is None:
            self._pooled = _session(_Connector(keepalive_timeout=self._keepalive), traced=True)
        return self._pooled


# Content-Length is the body's; the others belong to the connection.
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive", "te", "upgrade", "expect"})


class _Wire:
    """The socket an exchange uses at the moment, so that it can be closed without ceremony."""

    __slots__ = ("_closed", "_protocol", "response", "reused", "transport")

    def __init__(self) -> None:
        self._closed: asyncio.Future[None] | None = None
        self._protocol: ResponseHandler | None = None
        self.reused = False
        self.transport: asyncio.Transport | None = None
        self.response: aiohttp.ClientResponse | None = None

    def heed_breaches(self) -> None:
        """Let a breach of HTTP in the middle of the body end it; the library would leave the body's reader waiting."""
        connection = None if self.response is None else self.response.connection
        if connection is None or connection.protocol is None:
            return
        self._protocol = connection.protocol
        self._closed = connection.protocol.closed
        if self._closed is not None:
            self._closed.remove_done_callback(_retrieved)
            self._closed.add_done_callback(_retrieved)
            self._closed.add_done_callback(self._end_body)

    def _end_body(self, _: asyncio.Future[None]) -> None:
        breach = None if self._protocol is None else self._protocol.exception()
        content = None if self.response is None else self.response.content
        if isinstance(breach, HttpProcessingError) and content is not None and content.exception() is None:
            content.set_exception(breach)

    def cut(self) -> None:
        """Closes the socket, unless it went back to the pool after a complete answer."""
        if self._closed is not None:
            self._closed.remove_done_callback(self._end_body)
            self._closed = self._protocol = None
        transport = self.transport
        self.transport = None
        if self.response is not None:
            pooled = self.response.connection
            transport = None if pooled is None else pooled.transport
            self.response.close()
        if transport is not None:
            transport.abort()


_WIRE: ContextVar[_Wire] = ContextVar("headrace_upstream_wire")


class _Connector(aiohttp.TCPConnector):
    """Tells the exchange which socket it got: before the head of the answer nothing else would know."""

    def __init__(self, *, force_close: bool = False, keepalive_timeout: float | None = None) -> None:
        resolver = GuardedResolver()
        if force_close:
            super().__init__(limit=0, force_close=True, resolver=resolver)
        else:
            super().__init__(limit=0, keepalive_timeout=keepalive_timeout, resolver=resolver)

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> PooledConnection:
        connection = await super().connect(req, traces, timeout)
        _WIRE.get().transport = connection.transport
        return connection


async def _note_reuse(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceConnectionReuseconnParams
) -> None:
    context.trace_request_ctx.reused = True


def _session(connector: _Connector, *, traced: bool) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={hdrs.USER_AGENT: "headrace", hdrs.ACCEPT_ENCODING: "identity"},
        skip_auto_headers=(hdrs.CONTENT_TYPE,),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=READ_BUFFER,
        max_line_size=HEADER_LINE,
        max_field_size=HEADER_LINE,
        max_headers=HEADERS,
        trace_configs=[trace] if traced else None,
    )


class _Exchange:
    """One call: carries the answer to its sink, and is the `Connection` its owner holds."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.wire = _Wire()
        self.over = False
        self.task: asyncio.Task[None]
        self._paused: asyncio.Future[None] | None = None

    def abort(self) -> None:
        if not self.over:
            self.over = True
            self.wire.cut()
            self.task.cancel()

    def pause(self) -> None:
        if self._paused is None and not self.over:
            self._paused = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None and not paused.done():
            paused.set_result(None)

    async def gate(self) -> bool:
        """Returns when the sink takes more; False when it wants nothing any more."""
        while self._paused is not None:
            await self._paused
        return not self.over

    async def deliver(self, response: aiohttp.ClientResponse) -> None:
        """The head, each piece of the body as it comes, and the end; raises UpstreamFailed."""
        if not await self.gate():
            return
        self.sink.head(response.status, _lower(response.headers.items()))
        while True:
            data, broken = await _piece(response.content)
            if not await self.gate():
                return
            if data:
                self.sink.data(data)
            if broken is not None:
                raise broken
            if not data:
                self.finish(None, "")
                return

    def finish(self, failure: Failure | None, detail: str) -> None:
        if not self.over:
            self.over = True
            self.sink.end(failure, detail)

    def finish_after_fault(self) -> None:
        """The sink raised: it is told the end all the same, so that its attempt does not hang."""
        try:
            self.finish(Failure.PROTOCOL, "internal error")
        except Exception:  # noqa: BLE001 - the same edge
            _log.exception("upstream_sink_failed_again")


def _retrieved(closed: asyncio.Future[None]) -> None:
    """How the connection closed is told elsewhere; unasked, the future would complain."""
    if not closed.cancelled():
        closed.exception()


def _payload(body: bytes) -> bytes | BytesIO | None:
    """Large bodies go out in steps, so that writing one does not hold up the loop."""
    return BytesIO(body) if len(body) > ONE_WRITE else body or None


async def _whole(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    while True:
        data, broken = await _piece(response.content)
        body += data
        if len(body) > limit:
            raise UpstreamFailed(Failure.PROTOCOL, f"the answer is larger than {limit} bytes")
        if broken is not None:
            raise broken
        if not data:
            return bytes(body)


async def _piece(content: aiohttp.StreamReader) -> tuple[bytes, UpstreamFailed | None]:
    """The next bytes of a body, and how it broke, if it did. No bytes and no break are its proper end."""
    try:
        return await content.readany(), None
    except BREAKAGE as error:
        # The reader raises at once what broke the body and keeps what came before; callers must still see that.
        return content._read_nowait(-1), translated(error)


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Header names in lower case. Of a body that was unpacked, neither encoding nor packed length is told."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    if found.pop("content-encoding", "identity").lower() != "identity":
        found.pop("content-length", None)
    return found


class _StaleConnection(Exception):
    """The pooled connection was closed before a byte of the answer came."""
