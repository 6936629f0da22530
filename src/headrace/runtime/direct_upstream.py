"""The lean client to the engines: links of its own, pushed bytes, no task or future for a request on a kept link.

The same promises as `upstream.Upstream`, at a third of its cost per request. A task exists only while a new link is
being made. Of the links that are free the one used last is taken first, so that the others grow old and are closed.

A kept link may have been closed by the engine at the moment it is used again (RFC 9112 section 9.3.1). Such a call is
sent once more, on a new link, if the link ended at once and not one byte of an answer came; one that ends later, and a
new link that ends without an answer, is a failure.

Bounds: those of a link; while paused, what one read brought; links free for `keepalive` seconds are closed. The number
of links is bounded by the gates, not here.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Mapping, Sequence
from functools import lru_cache
from socket import AF_INET, SOCK_STREAM
from typing import TYPE_CHECKING

import aiohappyeyeballs

from headrace.runtime.addresses import reachable
from headrace.runtime.client import KEEPALIVE, Connection, Sink
from headrace.runtime.engine_address import NoAddress, Place, opening
from headrace.runtime.engine_exchange import EngineExchange
from headrace.runtime.engine_link import Link
from headrace.runtime.failures import Failure, NoSocket, UpstreamFailed, ours
from headrace.runtime.outbox import Outbox

if TYPE_CHECKING:
    from headrace.wire.adapters import EngineRequest

EYEBALLS = 0.25
"""Seconds one of an engine's addresses gets before the next is tried beside it (RFC 8305)."""


class DirectUpstream:
    """See `client.Client`. `keepalive` is how long an unused link is kept, in seconds."""

    def __init__(self, *, keepalive: float = KEEPALIVE) -> None:
        self.replays = 0
        """Calls sent a second time because their kept link turned out to be closed."""
        self.outbox = Outbox()
        """See `engine_link.Owner`."""
        self._keepalive = keepalive
        self._free: dict[tuple[bool, str, int], list[Link]] = {}
        """Free links by endpoint, the one used last at the end; no empty lists."""
        self._links: set[Link] = set()
        self._running: set[EngineExchange] = set()
        self._probing: set[EngineExchange] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None

    @property
    def running(self) -> int:
        """Exchanges that have not ended, those of `fetch` apart."""
        return len(self._running)

    def open(self, address: str, request: EngineRequest, sink: Sink, connect_timeout: float) -> Connection:
        """See `client.Client`."""
        return self._open(address, request, sink, connect_timeout, self._running)

    async def fetch(
        self,
        address: str,
        request: EngineRequest,
        timeout: float,  # noqa: ASYNC109 - one number is simpler for probes than a context to open
        limit: int,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """See `client.Client`. Raises UpstreamFailed."""
        gathering = _Gathering(limit)
        connection = self._open(address, request, gathering, timeout, self._probing)
        try:
            async with asyncio.timeout(timeout):
                return await gathering.answer
        except TimeoutError:
            raise UpstreamFailed(Failure.TIMEOUT, "no complete answer in time") from None
        finally:
            connection.abort()

    async def close(self) -> None:
        """Aborts what is under way and closes every link."""
        exchanges = (*self._running, *self._probing)
        tasks = [exchange.connecting for exchange in exchanges if exchange.connecting is not None]
        for exchange in exchanges:
            exchange.abort()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for link in tuple(self._links):
            link.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._links:
            self._all_gone = asyncio.get_running_loop().create_future()
            await self._all_gone
        self._free.clear()

    # ------------------------------------------------------------------ the exchanges' side

    def take(self, place: Place) -> Link | None:
        """See `engine_exchange.Links`."""
        free = self._free.get(place.endpoint)
        while free:
            link = free.pop()
            if not free:
                del self._free[place.endpoint]
            if link.usable:
                return link
        return None

    async def connect(self, place: Place) -> Link:
        """See `engine_exchange.Links`."""
        ipv4 = ":" not in place.host
        try:
            if place.numeric:
                made = await self._connect(place, None)
            else:
                found = await self._look_up(asyncio.get_running_loop(), place)
                ipv4 = any(address[0] is AF_INET for address in found)
                made = await self._connect(place, found)
        except OSError as error:
            if ours(error, ipv4=ipv4):
                raise NoSocket(error.errno, "no socket to connect with") from error
            raise
        self._links.add(made)
        return made

    async def _connect(self, place: Place, found: Sequence[aiohappyeyeballs.AddrInfoType] | None) -> Link:
        """A link to `place` itself, where that is an address, or to one of those that were `found` for its name."""
        loop = asyncio.get_running_loop()
        context, name = (_tls(), place.host) if place.secure else (None, None)

        def link() -> Link:
            return Link(self, place, loop)

        if found is None:
            _, made = await loop.create_connection(link, place.host, place.port, ssl=context, server_hostname=name)
            return made
        sock = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=EYEBALLS)
        try:
            _, made = await loop.create_connection(link, sock=sock, ssl=context, server_hostname=name)
        except BaseException:
            sock.close()
            raise
        return made

    def replayed(self) -> None:
        """See `engine_exchange.Links`."""
        self.replays += 1

    @staticmethod
    async def _look_up(loop: asyncio.AbstractEventLoop, place: Place) -> Sequence[aiohappyeyeballs.AddrInfoType]:
        """Where a name leads, without what must not be connected to. Raises OSError when nothing is left."""
        found = reachable(await loop.getaddrinfo(place.host, place.port, type=SOCK_STREAM))
        if not found:
            raise OSError(errno.EHOSTUNREACH, "the name has no address that may be used")
        return found

    # ------------------------------------------------------------------ the links' side

    def freed(self, link: Link) -> None:
        """See `engine_link.Owner`."""
        assert isinstance(link.place, Place)
        loop = link.loop
        link.since = loop.time()
        self._free.setdefault(link.place.endpoint, []).append(link)
        if self._sweep is None:
            self._sweep = loop.call_later(self._keepalive, self._close_idle, loop)

    def gone(self, link: Link) -> None:
        """See `engine_link.Owner`."""
        assert isinstance(link.place, Place)
        self._links.discard(link)
        free = self._free.get(link.place.endpoint)
        if free is not None and link in free:
            free.remove(link)
            if not free:
                del self._free[link.place.endpoint]
        if self._all_gone is not None and not self._links and not self._all_gone.done():
            self._all_gone.set_result(None)

    # ------------------------------------------------------------------ inside

    def _open(
        self, address: str, request: EngineRequest, sink: Sink, connect_timeout: float, group: set[EngineExchange]
    ) -> EngineExchange:
        exchange = EngineExchange(self, sink, connect_timeout, group)
        try:
            place, head = opening(address, request.method, request.path, request.headers)
        except NoAddress:
            exchange.fail_soon(Failure.CONNECT, "the address is no HTTP address")
        except ValueError:
            exchange.fail_soon(Failure.PROTOCOL, "the request cannot be written")
        else:
            exchange.begin(place, b"%b%d\r\n\r\n" % (head, len(request.body)), request.body)
        return exchange

    def _close_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been free for too long; look again when the next could be."""
        now, oldest = loop.time(), None
        for free in self._free.values():
            while free and now >= free[0].since + self._keepalive:
                free.pop(0).transport.close()
            if free:
                oldest = free[0].since if oldest is None else min(oldest, free[0].since)
        self._sweep = None
        if oldest is not None:
            self._sweep = loop.call_at(oldest + self._keepalive, self._close_idle, loop)


class _Gathering:
    """A sink that gathers a small answer, at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.answer: asyncio.Future[tuple[int, Mapping[str, str], bytes]] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())  # or asyncio complains
        self._limit = limit
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers

    def data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._limit:
            self._fail(Failure.PROTOCOL, f"the answer is larger than {self._limit} bytes")

    def end(self, failure: Failure | None, detail: str) -> None:
        if failure is not None:
            self._fail(failure, detail)
        elif not self.answer.done():
            self.answer.set_result((self._status, self._headers, bytes(self._body)))

    def _fail(self, failure: Failure, detail: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(UpstreamFailed(failure, detail))


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Made when it is first needed: loading the certificates takes a while."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
