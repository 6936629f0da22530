"""A gateway that does what a test tells it, a front door around it, and a client that controls every byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from headrace import errors
from headrace.errors import Fault
from headrace.model import (
    AnswerForm,
    BreakerState,
    CacheResult,
    Ending,
    Engine,
    Flow,
    InstanceView,
    Request,
    ServiceClass,
    Snapshot,
    Tier,
)
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.relay import Reader
from headrace.runtime.stores import DeadLetters
from headrace.runtime.stores.memory import MemoryDeadLetters
from headrace.server.app import Application, build_app
from headrace.server.connections import Connections
from headrace.server.health import Health
from headrace.server.settings import ServerSettings
from headrace.testing import Changes, guarded
from tests.patience import GUARD

if TYPE_CHECKING:
    from headrace.server.admin.ports import AdminPort

DOORS = ("direct", "asgi")
"""How the most used routes are served: on the connection, or as by any ASGI server."""
door = "direct"
"""The one that `front_door` opens; `conftest` lets tests run on both."""

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def chunk(text: str) -> bytes:
    """One content event of a chat stream."""
    fields = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


FINISH = (
    b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
WHOLE = json.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello back"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
).encode()


def instance_view(instance_id: str = "a", healthy: bool = True, models: Sequence[str] = ("m",)) -> InstanceView:
    """An instance as the snapshot shows it."""
    return InstanceView(
        id=instance_id,
        engine=Engine.VLLM,
        tier=Tier.LOCAL,
        models=tuple(models),
        healthy=healthy,
        draining=False,
        breaker=BreakerState.CLOSED,
        breaker_opens_in=0.0,
        cooldown=0.0,
        in_flight=0,
        max_concurrent=4,
        unstarted_tokens=0,
        speed=50.0,
        reliability=1.0,
        closed_because="",
        closed_seconds={"window": 1.5},
    )


class FakeReply:
    """One request at the fake gateway; the test plays the engine."""

    def __init__(self, gateway: FakeGateway, request: Request, reader: Reader) -> None:
        self.request = request
        self.reader = reader
        self.cancelled = 0
        self.resumed = 0
        self.went_on: tuple[str, int] | None = None
        self._gateway = gateway

    def cancel(self) -> None:
        self.cancelled += 1
        self._gateway.changes.notify()

    def resume(self) -> None:
        self.resumed += 1
        self._gateway.changes.notify()

    def own_seconds(self, queued: bool) -> float | None:
        return 0.25 if queued else 0.125

    def begin(self, form: AnswerForm = AnswerForm.STREAM, cache: CacheResult = CacheResult.MISS) -> None:
        self.reader.begin(AnswerHead("gpu-1", "real-model", 2, 0.25, form, cache))

    def write(self, data: bytes) -> bool:
        return self.reader.write(data)

    def end(self, ending: Ending = Ending.ANSWERED, fault: Fault | None = None) -> None:
        self.reader.end(ending, fault)


@dataclass
class FakeGateway:
    """Takes every request and keeps it for the test; or refuses all with `refusal`."""

    refusal: tuple[Ending, Fault] | None = None
    instances: tuple[InstanceView, ...] = (instance_view(),)
    waiting: Mapping[Flow, Sequence[tuple[str, int, float]]] = field(default_factory=dict)
    standing: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Places of requests by their ids."""
    several: Sequence[str] = ()
    """Models that several instances serve."""
    dead_letters: DeadLetters = field(default_factory=MemoryDeadLetters)
    draining: bool = False
    broken: bool = False
    replies: list[FakeReply] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    drained: list[float] = field(default_factory=list)
    drain_gate: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    administration: AdminPort | None = None

    def open(self, request: Request, reader: Reader) -> FakeReply:
        if self.broken:
            raise RuntimeError("secret detail of a bug")
        reply = FakeReply(self, request, reader)
        self.replies.append(reply)
        if self.refusal is not None:
            reader.end(*self.refusal)
        elif self.draining:
            reader.end(Ending.DRAINING, errors.draining())
        self.changes.notify()
        return reply

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now=0.0,
            draining=self.draining,
            queued=1,
            queue_size=512,
            running=2,
            waiting_retry=0,
            looking=0,
            following=0,
            queued_by_class={ServiceClass.BATCH: 1},
            queued_by_user={"default/secret-user": 1},
            instances=self.instances,
            totals={"accepted": 3},
            service={"default/secret-user": 77.0},
            jain=0.98654,
            spread=512.0,
            spread_seconds=0.25,
            refunded=64.0,
        )

    def places(self) -> Mapping[str, tuple[int, float]]:
        return self.standing

    def weighs_prefix(self, model: str) -> bool:
        return model in self.several

    def cancel(self, request_id: str, flow: Flow) -> bool:
        for reply in self.replies:
            if reply.request.id == request_id and reply.request.flow.user == flow.user:
                reply.end(Ending.CANCELLED)
                return True
        return False

    def positions(self, flow: Flow) -> Sequence[tuple[str, int, float]]:
        return self.waiting.get(flow, [])

    async def drain(self, grace: float) -> None:
        self.draining = True
        self.drained.append(grace)
        self.changes.notify()
        await self.drain_gate.wait()

    async def close(self) -> None:
        self.closed = True

    async def arrived(self, count: int = 1) -> FakeReply:
        """The `count`th request, once it is there."""
        await self.changes.until(lambda: len(self.replies) >= count, GUARD, f"request {count} arrives")
        return self.replies[count - 1]

    async def until_cancelled(self, reply: FakeReply) -> None:
        await self.changes.until(lambda: reply.cancelled > 0, GUARD, "the reply is cancelled")


@dataclass
class Front:
    """A front door on a free port of loopback."""

    gateway: FakeGateway
    health: Health
    registry: CollectorRegistry
    port: int
    state: ServerState

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        try:
            yield RawClient(reader, writer)
        finally:
            writer.close()


@asynccontextmanager
async def front_door(gateway: FakeGateway, settings: ServerSettings | None = None) -> AsyncIterator[Front]:
    """Serves `gateway` with the real application and the real HTTP protocol; no server loop, so it stops at once."""
    registry = CollectorRegistry()
    health = Health(gateway, registry)
    app = build_app(gateway, settings or ServerSettings(), registry, health)

    served = app if door == "direct" else Application(app, {}, app.intake)
    config = uvicorn.Config(served, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    connections = Connections(served, config.timeout_keep_alive)
    server = await loop.create_server(lambda: connections(config, state), "127.0.0.1", 0)
    try:
        yield Front(gateway, health, registry, server.sockets[0].getsockname()[1], state)
    finally:
        server.close()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        for connection in list(state.connections):
            connection.transport.abort()
        await guarded(server.wait_closed(), GUARD, "the front door closes")


@dataclass
class Answer:
    """A whole answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, object]:
        """The error in OpenAI's form; it must have all four fields."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error, dict)
        return error


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Write a request; without a content-length of its own it gets the right one when there is a body."""
        fields = {"host": "gateway", **(headers or {})}
        if body and "content-length" not in fields and "transfer-encoding" not in fields:
            fields["content-length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)

    def post(self, path: str, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> None:
        """Write a JSON request."""
        self.send("POST", path, {"content-type": "application/json", **(headers or {})}, json.dumps(body).encode())

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        text = (await guarded(self.reader.readuntil(b"\r\n\r\n"), GUARD, "an answer's head")).decode("latin-1")
        status, *lines = text.rstrip("\r\n").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert len(headers) == len(lines), "no header comes twice"
        return int(status.split(" ")[1]), headers

    async def piece(self) -> bytes:
        """The next chunk of a chunked body; b"" at its proper end."""
        size = int(await guarded(self.reader.readuntil(b"\r\n"), GUARD, "a chunk's size"), 16)
        data = await guarded(self.reader.readexactly(size + 2), GUARD, "a chunk")
        return data[:-2]

    async def rest(self) -> bytes:
        """A chunked body to its proper end."""
        parts = []
        while part := await self.piece():
            parts.append(part)
        return b"".join(parts)

    async def answer(self) -> Answer:
        """The next answer, whole."""
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, await self.rest())
        length = int(headers["content-length"])
        return Answer(status, headers, await guarded(self.reader.readexactly(length), GUARD, "a body"))

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """One GET."""
        self.send("GET", path, headers)
        return await self.answer()

    async def closed(self) -> bytes:
        """What still comes until the server closes."""
        return await guarded(self.reader.read(), GUARD, "the server closes")

    def leave(self) -> None:
        """Close at once."""
        self.writer.transport.abort()
