"""The door to the admin API: it judges before it loads, loads once, and holds nobody up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from headrace.server.admin.door import AdminDoor
from headrace.server.app import Application
from headrace.server.connections import Connections
from headrace.server.intake import Intake
from headrace.server.settings import ServerSettings
from headrace.testing import guarded
from tests.patience import GUARD
from tests.server.fakes import RawClient

HERE = {"host": "127.0.0.1"}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the length of what it got."""
    message = await receive()
    await PlainTextResponse(f"{len(message['body'])} {message['more_body']}")(scope, receive, send)


class Loading:
    """Makes the application when a test lets it; counts how often it is asked."""

    def __init__(self, app: ASGIApp = echo) -> None:
        self.asked = 0
        self.go = threading.Event()
        self.go.set()
        self.fails = False
        self._app = app

    def __call__(self) -> ASGIApp:
        self.asked += 1
        assert self.go.wait(GUARD)
        if self.fails:
            raise RuntimeError("secret detail of a bug")
        return self._app


@asynccontextmanager
async def behind(
    load: Callable[[], ASGIApp], key: str | None = None, body_timeout: float = GUARD
) -> AsyncIterator[Callable[[], asyncio.Future[RawClient]]]:
    """A server with nothing but the door; yields what connects to it."""
    bounds = ServerSettings(body_limit=1000, body_timeout=body_timeout)
    intake = Intake(bounds)
    router = Router(AdminDoor(load, key, intake).routes(), redirect_slashes=False)
    application = Application(router, {}, intake)
    config = uvicorn.Config(application, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    connections = Connections(application, config.timeout_keep_alive)
    server = await loop.create_server(lambda: connections(config, state), "127.0.0.1", 0)
    clients: list[RawClient] = []

    async def connect() -> RawClient:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        clients.append(RawClient(reader, writer))
        return clients[-1]

    try:
        yield lambda: asyncio.ensure_future(connect())
    finally:
        for client in clients:
            client.writer.close()
        server.close()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        for connection in list(state.connections):
            connection.transport.abort()


async def test_whoever_is_not_let_in_loads_nothing() -> None:
    """Refusals cost a gateway nothing that nobody administers."""
    load = Loading()
    async with behind(load, "the-key") as connect:
        client = await connect()
        for path in ("/admin", "/admin/instances", "/admin/x/y/z"):
            assert (await client.get(path, HERE)).status == 401
        assert load.asked == 0
        assert (await client.get("/admin/x", {**HERE, "x-api-key": "the-key"})).status == 200
        assert (await client.get("/docs", HERE)).status == 200
        assert load.asked == 1


async def test_those_who_come_first_wait_together() -> None:
    """The application is made once, in a thread; one of them may leave; the event loop goes on meanwhile."""
    load = Loading()
    load.go.clear()
    async with behind(load) as connect:
        clients = [await connect() for _ in range(5)]
        for client in clients:
            client.send("GET", "/admin/x", HERE)
        while load.asked == 0:  # noqa: ASYNC110 - the thread has no event of this loop's
            await asyncio.sleep(0)
        clients[0].leave()
        load.go.set()
        for client in clients[1:]:
            assert (await client.answer()).body == b"0 False"
        assert load.asked == 1


async def test_what_cannot_be_loaded_is_an_error_of_ours_and_tried_again() -> None:
    """500 without a detail; the next request finds it mended."""
    load = Loading()
    load.fails = True
    async with behind(load) as connect:
        client = await connect()
        broken = await client.get("/admin/x", HERE)
        assert (broken.status, broken.error["code"]) == (500, "internal_error")
        assert b"secret detail" not in broken.body
        load.fails = False
        assert (await client.get("/admin/x", HERE)).status == 200


async def test_a_mistake_behind_it_ends_one_request_only() -> None:
    """Before the answer has begun it is 500; the connection can be used again."""

    async def wrong(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret detail of a bug")

    async with behind(Loading(wrong)) as connect:
        client = await connect()
        for _ in range(2):
            answer = await client.get("/admin/x", HERE)
            assert (answer.status, answer.error["code"]) == (500, "internal_error")
            assert b"secret detail" not in answer.body


async def test_bodies_are_bounded_before_anybody_sees_them() -> None:
    """Whole and in one piece behind the door; too large is 413, too slow 408, and neither is kept."""
    async with behind(Loading(), body_timeout=0.05) as connect:
        client = await connect()
        client.send("POST", "/admin/x", {**HERE, "content-type": "application/json"}, b" " * 1000)
        assert (await client.answer()).body == b"1000 False"
        client.send("POST", "/admin/x", {**HERE, "content-type": "application/json"}, b" " * 1001)
        assert (await client.answer()).status == 413
        slow = await connect()
        slow.send("POST", "/admin/x", {**HERE, "content-type": "application/json", "content-length": "9"}, b"{")
        assert (await slow.answer()).status == 408


async def test_a_caller_who_leaves_is_noticed_behind_it() -> None:
    """After the body comes the disconnect, so that an answer without an end, as events are, ends with its caller."""
    left = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with behind(Loading(endless)) as connect:
        client = await connect()
        client.send("GET", "/admin/x", HERE)
        await client.head()
        client.leave()
        await guarded(left.wait(), GUARD, "the application hears of it")


def test_a_gateway_that_nobody_administers_does_not_load_it() -> None:
    """What `headrace serve` imports holds neither FastAPI nor the page's package."""
    code = (
        "import sys, headrace.build, headrace.server, headrace.server.connection, headrace.cli.serve\n"
        "print(sorted(name for name in ('fastapi', 'fastapi_swagger', 'opentelemetry') if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=GUARD)
    assert run.stdout == "[]\n"
