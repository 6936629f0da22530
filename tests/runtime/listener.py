"""A sink that can be waited for, and what every test of the HTTP client begins with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from headrace.runtime.direct_upstream import DirectUpstream
from headrace.runtime.upstream import Client, Connection, Failure, Upstream
from headrace.testing import ScriptedEngine, guarded
from headrace.wire.adapters import EngineRequest
from tests.patience import GUARD

ASK = EngineRequest("POST", "/v1/chat/completions", (("Content-Type", "application/json"),), b'{"model":"m"}')
CLIENTS = (Upstream, DirectUpstream)
"""Both keep the same promises."""


class Listener:
    """A sink that writes down what it hears; waits are events, never sleeps."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.pieces: list[bytes] = []
        self.endings: list[tuple[Failure | None, str]] = []
        self.on_head: Callable[[], None] | None = None
        self.on_data: Callable[[], None] | None = None
        self._news = asyncio.Event()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers
        self._news.set()
        if self.on_head is not None:
            self.on_head()

    def data(self, data: bytes) -> None:
        assert not self.endings
        self.pieces.append(data)
        self._news.set()
        if self.on_data is not None:
            self.on_data()

    def end(self, failure: Failure | None, detail: str) -> None:
        self.endings.append((failure, detail))
        self._news.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    async def until(self, condition: Callable[[], bool]) -> None:
        async def hold() -> None:
            while not condition():
                self._news.clear()
                await self._news.wait()

        await guarded(hold(), GUARD, "what a sink waits for")

    async def ended(self) -> Failure | None:
        await self.until(lambda: bool(self.endings))
        assert len(self.endings) == 1
        return self.endings[0][0]


def ask(upstream: Client, engine: ScriptedEngine, request: EngineRequest = ASK) -> tuple[Listener, Connection]:
    """Sends a request and gives back who listens and the connection."""
    listener = Listener()
    return listener, upstream.open(engine.url, request, listener, 5.0)


async def turns(count: int = 50) -> None:
    """Lets everybody in the loop go on, without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)
