"""A raw-socket HTTP/1.1 engine for tests that decides about every write.

    async with ScriptedEngine() as engine:
        engine.once([steps.role(), steps.chunk("Hel"), steps.cut()])      # the first request
        engine.default = steps.answer("Hello there")                      # all others
        ...                                                               # point the code under test at engine.url
        await engine.until(lambda: engine.closed_by_peer == 1)

Every wait is an event, every wait has a guard: a broken test fails with a sentence instead of hanging. A script that
raises makes the engine's exit raise the same.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from headrace.testing import steps
from headrace.testing.connection import Script, ScriptedConnection
from headrace.testing.http_reader import ReceivedRequest
from headrace.testing.link import Link, PeerGone
from headrace.testing.waiting import Changes

PROBE_PATHS = frozenset({"/health", "/metrics", "/v1/models", "/api/tags", "/api/version"})
"""GET requests for these are answered 200 without using up a script, while `answers_probes` is set."""

_BACKLOG = 2048
"""Connections the kernel holds until they are accepted: a burst is not to wait for a second try."""
_RECORD_LIMIT = 10_000
"""Most requests, probes and connections of which a record is kept."""


class ScriptedEngine:
    """An engine on loopback. Enter it as an async context manager; then `url` is where it listens.

    `guard`: the longest wait, in seconds of the loop's clock, of any verb of a script and of `until`. `tls`: what it
    speaks TLS with; None: it does not.
    """

    def __init__(
        self,
        default: Script | None = None,
        *,
        guard: float = 120.0,
        name: str = "scripted",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.default: Script = default if default is not None else steps.answer("Hello from the script")
        self.name = name
        self.answers_probes = True
        self.requests: list[ReceivedRequest] = []
        """Every request but the probes, in the order in which they were complete (at most 10,000)."""
        self.probes: list[ReceivedRequest] = []
        self.links: list[Link] = []
        self.failures: list[BaseException] = []
        """What scripts raised; the first one is raised again on exit."""
        self.answering = 0
        """Scripts that are being played, probes apart."""
        self._guard = guard
        self._tls = tls
        self._scripts: deque[Script] = deque()
        self._refusals = 0
        self._accepted = 0
        self._changes = Changes()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    # -- what the test tells it

    def once(self, *scripts: Script) -> None:
        """Queue scripts, each for one request; when they are used up `default` plays."""
        self._scripts.extend(scripts)

    def refuse(self, connections: int = 1) -> None:
        """Close the next so many connections right after they are accepted."""
        self._refusals += connections

    async def stop_listening(self) -> None:
        """From now on connecting fails; open connections go on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await asyncio.sleep(0)

    async def listen(self) -> None:
        """Listen (again) at the same port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._make_link, "127.0.0.1", self._port, ssl=self._tls, backlog=_BACKLOG
        )
        self._port = self._server.sockets[0].getsockname()[1]

    def close_connections(self) -> None:
        """Close every open connection from this side, in order."""
        for link in self.links:
            if not link.gone:
                link.close()

    # -- what it tells the test

    @property
    def url(self) -> str:
        """`http://127.0.0.1:<port>`, or https."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """Connections accepted so far."""
        return self._accepted

    @property
    def open_connections(self) -> int:
        """Connections that neither side has closed."""
        return sum(not link.gone for link in self.links)

    @property
    def closed_by_peer(self) -> int:
        """Connections that the peer closed before this side did."""
        return sum(link.peer_closed for link in self.links)

    @property
    def received(self) -> bytes:
        """All raw bytes, connection after connection in the order of acceptance."""
        return b"".join(link.received for link in self.links)

    async def until(self, condition: Callable[[], bool], within: float | None = None, what: str = "") -> None:
        """Wait until `condition()` holds; raises `GuardExpired` after `within` seconds (default: the guard)."""
        seconds = self._guard if within is None else within
        await self._changes.until(condition, seconds, what or f"what is expected of engine {self.name}")

    async def got(self, requests: int, within: float | None = None) -> ReceivedRequest:
        """Wait until so many requests (probes apart) are here; returns the last of them."""
        await self.until(lambda: len(self.requests) >= requests, within, f"request number {requests}")
        return self.requests[requests - 1]

    # -- life

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self.links:
            link.abort()
        await asyncio.sleep(0)
        if kind is None and self.failures:
            raise self.failures[0]

    def _make_link(self) -> Link:
        return Link(self._changes, self._opened)

    def _opened(self, link: Link) -> None:
        self._accepted += 1
        if len(self.links) >= _RECORD_LIMIT:
            self.links = [known for known in self.links if not known.gone]
        self.links.append(link)
        self._changes.notify()
        if self._refusals > 0:
            self._refusals -= 1
            link.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(link), name=f"{self.name}-{self._accepted}")
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)
        self._changes.notify()

    async def _serve(self, link: Link) -> None:
        try:
            while await self._next_request(link):
                request = link.requests.popleft()
                if not await self._answer(link, request) or not request.keeps_alive:
                    break
        except PeerGone:
            pass
        finally:
            link.close()

    async def _next_request(self, link: Link) -> bool:
        await self._changes.until(lambda: bool(link.requests) or link.gone, None, "the next request")
        return bool(link.requests) and not link.gone

    async def _answer(self, link: Link, request: ReceivedRequest) -> bool:
        """Play one script; False when the connection must not be used again."""
        if self.answers_probes and request.method == "GET" and request.path in PROBE_PATHS:
            _record(self.probes, request)
            conn = ScriptedConnection(link, self._changes, request, len(self.probes) - 1, self._guard)
            self._changes.notify()
            await conn.json(200, {"object": "list", "data": [], "models": [], "version": "0.0.0", "status": "ok"})
            return True
        _record(self.requests, request)
        conn = ScriptedConnection(link, self._changes, request, len(self.requests) - 1, self._guard)
        script = self._scripts.popleft() if self._scripts else self.default
        self.answering += 1
        self._changes.notify()
        try:
            await _play(script, conn)
        finally:
            self.answering -= 1
            self._changes.notify()
        return conn.ended and not link.gone


def _record(records: list[ReceivedRequest], request: ReceivedRequest) -> None:
    if len(records) < _RECORD_LIMIT:
        records.append(request)


async def _play(script: Script, conn: ScriptedConnection) -> None:
    for step in script if isinstance(script, Sequence) else (script,):
        await step(conn)
