"""The exchange over ASGI, driven by hand on virtual time: a server whose `send` waits when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.server.asgi import CUT_EXTENSION, AsgiExchange, Endpoint
from headrace.server.exchange import HIGH_WATER, Exchange, Handler, header
from headrace.server.intake import Intake
from headrace.server.settings import ServerSettings
from headrace.testing import on_virtual_time

Message = MutableMapping[str, Any]


class Asgi:
    """An ASGI server's side of one request."""

    def __init__(self, method: str = "GET", cuttable: bool = True, headers: dict[str, str] | None = None) -> None:
        self.sent: list[Message] = []
        self.room = asyncio.Event()
        self.room.set()
        self.gone = asyncio.Event()
        self.cuts = 0
        self.to_receive: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]
        self.scope: Message = {
            "type": "http",
            "method": method,
            "path": "/",
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("192.0.2.1", 5),
        }
        if cuttable:
            self.scope["extensions"] = {CUT_EXTENSION: {"cut": self.cut}}

    def cut(self) -> None:
        self.cuts += 1
        self.leave()

    def leave(self) -> None:
        self.gone.set()
        self.room.set()

    async def receive(self) -> Message:
        if self.to_receive:
            return self.to_receive.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.room.wait()
        self.sent.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]

    def serve(self, handler: Handler, stall_timeout: float = 120.0) -> asyncio.Task[None]:
        """The request's task, begun."""
        endpoint = Endpoint(handler, ("GET",), Intake(ServerSettings(stall_timeout=stall_timeout)))
        return asyncio.ensure_future(_run(endpoint, self))


async def _run(endpoint: Endpoint, asgi: Asgi) -> None:
    await endpoint(asgi.scope, asgi.receive, asgi.send)


class Kept:
    """A handler that starts a stream and keeps the exchange for the test."""

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.drains = 0
        self.left = 0

    def __call__(self, exchange: Exchange) -> None:
        exchange.start(200, [])
        exchange.on_drain = self._drained
        exchange.on_disconnect = self._gone
        self.exchange = exchange

    def _drained(self) -> None:
        self.drains += 1

    def _gone(self) -> None:
        self.left += 1

    @property
    def open(self) -> Exchange:
        assert self.exchange is not None
        return self.exchange


async def turns(count: int = 10) -> None:
    """Let everything that is ready happen; no time passes."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


async def passes(seconds: float) -> None:
    """Virtual time passes."""
    loop = asyncio.get_running_loop()
    later = loop.create_future()
    loop.call_later(seconds, later.set_result, None)
    await later


@on_virtual_time
async def test_room_is_announced_only_when_the_socket_has_taken_all() -> None:
    """While `send` waits there is no room, however long; then exactly one `on_drain`."""
    asgi, kept = Asgi(), Kept()
    task = asgi.serve(kept)
    await turns()
    asgi.room.clear()
    assert kept.open.write(b"a")
    await turns()
    assert kept.open.write(b"b" * HIGH_WATER)
    assert not kept.open.write(b"c")
    assert not kept.open.write(b"d")
    await passes(60.0)
    assert kept.drains == 0
    asgi.room.set()
    await turns()
    assert kept.drains == 1
    assert asgi.bodies == [b"a", b"b" * HIGH_WATER + b"cd"]
    kept.open.finish(b"e")
    await task
    assert asgi.bodies[2:] == [b"e"]
    assert asgi.sent[-1]["more_body"] is False


@on_virtual_time
async def test_a_stalled_caller_is_cut_off_and_reported_once() -> None:
    """When `send` has waited for the whole of the stall timeout the connection is reset."""
    asgi, kept = Asgi(), Kept()
    task = asgi.serve(kept, stall_timeout=100.0)
    await passes(70.0)
    asgi.room.clear()
    kept.open.write(b"a")
    await passes(99.0)
    assert kept.left == 0
    await passes(2.0)
    await task
    assert (kept.left, asgi.cuts) == (1, 1)
    assert kept.open.write(b"dropped")


@on_virtual_time
async def test_a_quiet_stream_is_not_a_stalled_one() -> None:
    """Time in which nothing is ready for the caller does not count against him."""
    asgi, kept = Asgi(), Kept()
    task = asgi.serve(kept, stall_timeout=10.0)
    for _ in range(5):
        await passes(1000.0)
        kept.open.write(b"a")
    kept.open.finish()
    await task
    assert (kept.left, asgi.cuts) == (0, 0)
    assert asgi.bodies == [b"a"] * 4 + [b"a"]


@on_virtual_time
async def test_leaving_is_reported_once_and_what_is_written_then_is_dropped() -> None:
    """After a disconnect the exchange accepts everything and sends nothing."""
    asgi, kept = Asgi(), Kept()
    task = asgi.serve(kept)
    await turns()
    asgi.leave()
    await task
    sent = len(asgi.sent)
    assert kept.open.write(b"x" * 2 * HIGH_WATER)
    kept.open.finish()
    await turns()
    assert kept.left == 1
    assert len(asgi.sent) == sent


@on_virtual_time
async def test_leaving_after_the_end_is_no_disconnect() -> None:
    """A caller who closes when he has everything is nobody's loss."""
    asgi, kept = Asgi(), Kept()
    task = asgi.serve(kept)
    await turns()
    kept.open.finish(b"all")
    asgi.leave()
    await task
    assert kept.left == 0


@pytest.mark.parametrize("cuttable", [True, False])
@on_virtual_time
async def test_abort_sends_no_end(cuttable: bool) -> None:
    """An answer that is cut never looks complete, whether or not the server can reset connections."""
    asgi, kept = Asgi(cuttable=cuttable), Kept()
    task = asgi.serve(kept)
    await turns()
    kept.open.write(b"half")
    await turns()
    kept.open.abort()
    await task
    assert asgi.cuts == int(cuttable)
    assert all(message.get("more_body", True) for message in asgi.sent)
    assert kept.left == 0


@on_virtual_time
async def test_a_handlers_mistake_after_the_start_cuts_the_connection() -> None:
    """Half an answer followed by silence would be taken for a slow one."""

    def broken(exchange: Exchange) -> None:
        exchange.start(200, [])
        exchange.write(b"half")
        raise RuntimeError("a bug")

    asgi = Asgi()
    await asgi.serve(broken)
    assert asgi.cuts == 1
    assert all(message.get("more_body", True) for message in asgi.sent)


@on_virtual_time
async def test_a_mistake_on_leaving_does_not_keep_the_request_alive() -> None:
    """Whatever the gateway does when it is told, the request's task ends, and the log says why it was wrong."""
    asgi, kept = Asgi(), Kept()
    task = asgi.serve(kept)
    await turns()

    def broken() -> None:
        raise RuntimeError("a bug")

    kept.open.on_disconnect = broken
    with capture_logs() as lines:
        asgi.leave()
        await task
        await turns()
    assert [line["event"] for line in lines] == ["a disconnect was not handled"]


@on_virtual_time
async def test_cancelling_the_task_reports_the_caller_as_gone() -> None:
    """A server that gives up on its tasks frees what they hold."""
    asgi, kept = Asgi(), Kept()
    task = asgi.serve(kept)
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kept.left == 1


@on_virtual_time
async def test_headers_are_read_by_name_and_written_safely() -> None:
    """Repeated headers are joined; what a header cannot carry is percent-encoded, so nothing can be smuggled in."""

    def handler(exchange: Exchange) -> None:
        assert header(exchange, "x-one") == "1"
        assert header(exchange, "x-none") is None
        exchange.start(200, [("x-model", "käse\r\nx-evil: 1"), ("x-plain", "a b/c%20")])
        exchange.finish()

    asgi = Asgi(headers={"x-one": "1"})
    await asgi.serve(handler)
    assert asgi.sent[0]["headers"] == [
        (b"x-model", b"k%C3%A4se%0D%0Ax-evil: 1"),
        (b"x-plain", b"a b/c%20"),
    ]


@on_virtual_time
async def test_repeated_headers_are_joined() -> None:
    """Several values of one name read as one list."""
    asgi = Asgi()
    asgi.scope["headers"] = [(b"cache-control", b"no-store"), (b"cache-control", b"no-cache")]
    exchange = AsgiExchange(asgi.scope, asgi.send)
    assert exchange.header("cache-control") == "no-store, no-cache"


@on_virtual_time
async def test_calls_out_of_order_are_mistakes() -> None:
    """Two starts, or bytes before the start or after the end, raise."""
    asgi = Asgi()
    exchange = AsgiExchange(asgi.scope, asgi.send)
    with pytest.raises(RuntimeError):
        exchange.write(b"early")
    exchange.start(200, [])
    with pytest.raises(RuntimeError):
        exchange.start(200, [])
    exchange.finish()
    with pytest.raises(RuntimeError):
        exchange.write(b"late")
