"""From an application to a listening process that stops well.

The first SIGTERM or SIGINT: `/ready` turns 503 at once while connections are still accepted, so that a load balancer
can take its time; new work is answered 503, the running get their grace, the waiting are answered; then the process
ends with exit code 0. The second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Protocol, cast

import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from headrace.server.app import Application, build_app
from headrace.server.health import Health
from headrace.server.ports import GatewayPort
from headrace.server.settings import ServerSettings
from headrace.server.siblings import Siblings

KEEP_ALIVE = 75
"""Seconds an idle connection is kept: longer than clients keep theirs, so that they never write into a dead one."""
FLUSH_GRACE = 5
"""Seconds slow callers get to take their last bytes once everything is answered."""

OVERTIME = 5
"""Seconds beyond its grace that the gateway gets to drain, and to close, before the process ends without it."""

_MOST_SOCKETS = 1 << 20
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = structlog.get_logger("headrace.server")


class Stoppable(Protocol):
    """What is told to drain."""

    async def drain(self, grace: float) -> None:
        """See `GatewayPort`."""
        ...


class DrainingServer(uvicorn.Server):
    """uvicorn, with a stop that lets work end first."""

    def __init__(self, config: uvicorn.Config, gateway: Stoppable, health: Health, grace: float) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._health = health
        self._grace = grace
        self._stopping: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Begin to drain; called again, end at once."""
        if self._stopping is not None:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            self._stopping.cancel()
            self.force_exit = self.should_exit = True
            return
        self._health.stopping = True
        self._stopping = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            _log.info("draining", grace=self._grace)
            async with asyncio.timeout(self._grace + OVERTIME):
                await self._gateway.drain(self._grace)
        except Exception:  # noqa: BLE001 - the task's outer edge: the process ends all the same
            _log.exception("draining failed")
        finally:
            self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replaces uvicorn's way, which would raise the signal again at the end and so spoil the exit code."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


def reserve(host: str, port: int) -> socket.socket:
    """A socket that holds an address for several that will `listen` there with `shared`, and itself takes nothing.

    Port 0 takes a free one. Raises OSError when it cannot be had, or when somebody listens there already.
    """
    listen(host, port).close()
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    holder = socket.socket(family, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        holder.bind(address[:2])
    except OSError:
        holder.close()
        raise
    return holder


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises OSError when it cannot be had.

    Several processes may listen at the same address if each says `shared`; the system deals connections out to them.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server(address[:2], family=family, backlog=2048, reuse_port=shared)
    listener.setblocking(False)
    # Connections inherit it. asyncio sets it only for sockets that were made with the protocol's number; without it an
    # answer whose head and body are two writes waits 40 ms for the peer's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def tls_context(certificate: str, key: str | None = None) -> ssl.SSLContext:
    """What callers are spoken to with over TLS. `certificate` and `key` are PEM files; without `key` both are in one.

    Raises OSError (ssl.SSLError among them) for files that cannot be read or do not hold that, and for a key that asks
    for a password.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key, password="")
    context.set_alpn_protocols(["http/1.1"])
    return context


def make_server(
    gateway: GatewayPort, settings: ServerSettings, registry: CollectorRegistry, health: Health | None = None
) -> DrainingServer:
    """A server in front of `gateway`, made in its loop; serve it with `await server.serve(sockets=[listen(...)])`."""
    health = health or Health(gateway, registry)
    application = build_app(gateway, settings, registry, health)
    config = uvicorn.Config(
        application,
        http=_http_protocol(application),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=FLUSH_GRACE,
    )
    config.load()
    config.ssl = settings.tls  # which uvicorn would make with ciphers of long ago
    return DrainingServer(config, gateway, health, settings.drain_grace)


@contextlib.asynccontextmanager
async def hosted(gateway: GatewayPort, settings: ServerSettings, registry: CollectorRegistry) -> AsyncIterator[str]:
    """The front door inside the caller's loop, on a free loopback port; yields its base URL.

    For programs that bring the loop themselves, as demos and tests do: no signals are taken and nothing ticks. At the
    end all connections are cut; the gateway stays open.
    """
    config = make_server(gateway, settings, registry).config
    state, loop, listener = ServerState(), asyncio.get_running_loop(), listen("127.0.0.1", 0)

    def connection() -> asyncio.Protocol:
        protocol = config.http_protocol_class
        return protocol(config=config, server_state=state, app_state={}, _loop=loop)  # type: ignore[call-arg]

    server = await loop.create_server(connection, sock=listener, ssl=settings.tls, backlog=2048)
    try:
        yield f"{'http' if settings.tls is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.close()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        for open_connection in list(state.connections):
            open_connection.transport.abort()
        await server.wait_closed()


async def serve(
    gateway: GatewayPort,
    settings: ServerSettings,
    registry: CollectorRegistry,
    listener: socket.socket,
    siblings: Siblings | None = None,
) -> None:
    """Serve until told to stop, then close the gateway. Signals are handled in the main thread only.

    `siblings` are the other workers, where there are any.
    """
    health = Health(gateway, registry, siblings)
    try:
        if siblings is not None:
            await siblings.open(health.page)
        await make_server(gateway, settings, registry, health).serve(sockets=[listener])
    finally:
        if siblings is not None:
            await siblings.close()
        try:
            async with asyncio.timeout(OVERTIME):
                await gateway.close()
        except TimeoutError:
            _log.error("the gateway did not close in time")


def spare_the_collector() -> None:
    """Let the garbage collector leave alone what stays, and look for garbage less often.

    What is here when the process begins to serve stays. Afterwards nearly everything goes by its count of references; a
    look each 700 new objects, Python's default, costs a request more than the few cycles it finds. At most some ten
    thousand small objects wait to be found.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def open_many_sockets() -> None:
    """Let the process hold as many sockets as the system allows it, up to `_MOST_SOCKETS`.

    A stream takes two of them, and what most systems grant at first, 1,024, is meant for programs that cannot do with
    more: past it callers are cut off, and engines seem not to answer.
    """
    try:
        import resource  # noqa: PLC0415 - there is none on Windows, nor such a limit
    except ImportError:
        return
    granted, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_SOCKETS if most == resource.RLIM_INFINITY else min(most, _MOST_SOCKETS)
    if granted == resource.RLIM_INFINITY or granted >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    except (OSError, ValueError) as refused:
        _log.warning("the system grants no more sockets", granted=granted, reason=str(refused))


def run(
    open_gateway: Callable[[], Awaitable[GatewayPort]],
    settings: ServerSettings,
    registry: CollectorRegistry,
    listener: socket.socket,
    siblings: Siblings | None = None,
) -> int:
    """Serve in a new event loop (uvloop where there is one); returns the exit code.

    `open_gateway` is awaited inside that loop.
    """

    async def main() -> None:
        open_many_sockets()
        gateway = await open_gateway()
        spare_the_collector()
        await serve(gateway, settings, registry, listener, siblings)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _http_protocol(application: Application) -> type[asyncio.Protocol] | str:
    try:
        from headrace.server.connections import Connections  # noqa: PLC0415 - needs httptools
    except ImportError:
        return "h11"
    # uvicorn calls what makes a connection, and asks nothing else of it.
    return cast("type[asyncio.Protocol]", Connections(application, KEEP_ALIVE))
