"""The process: signals, draining, and what remains for those who still wait."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from headrace.server import ServerSettings, listen, run, serve
from headrace.server import serving as serving_module
from headrace.server.serving import DrainingServer, make_server
from headrace.testing import guarded
from tests.patience import GUARD
from tests.server.fakes import CHAT, DONE, FakeGateway, RawClient, chunk

STREAM = {**CHAT, "stream": True}


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[RawClient]:
    """A client of a real server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def serving(gateway: FakeGateway) -> AsyncIterator[tuple[asyncio.Task[None], int]]:
    """A serving task in this process; signals go to it."""
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    task = asyncio.ensure_future(serve(gateway, ServerSettings(drain_grace=7.0), CollectorRegistry(), listener))
    async with connect(port) as client:
        assert (await client.get("/live")).status == 200
    try:
        yield task, port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_first_signal_drains_and_then_ends_well() -> None:
    """Not ready at once, still accepting, new work answered 503, the running stream completes, then the end."""
    gateway = FakeGateway()
    async with serving(gateway) as (task, port), connect(port) as streaming, connect(port) as other:
        streaming.post("/v1/chat/completions", STREAM)
        reply = await gateway.arrived()
        reply.begin()
        reply.write(chunk("one"))
        await streaming.head()
        os.kill(os.getpid(), signal.SIGTERM)
        await gateway.changes.until(lambda: gateway.drained == [7.0], GUARD, "the gateway is told to drain")
        async with connect(port) as late:
            assert (await late.get("/ready")).status == 503
            assert (await late.get("/live")).status == 200
            late.post("/v1/chat/completions", CHAT)
            answer = await late.answer()
            assert (answer.status, answer.error["code"]) == (503, "draining")
            assert int(answer.headers["retry-after"]) >= 1
        assert json.loads((await other.get("/ready")).body) == {"status": "draining"}
        reply.write(chunk("two"))
        reply.write(DONE)
        reply.end()
        assert await streaming.rest() == chunk("one") + chunk("two") + DONE
        gateway.drain_gate.set()
        await guarded(task, GUARD, "the server ends")
        assert gateway.closed


async def test_the_second_signal_ends_it_at_once() -> None:
    """An impatient operator does not wait for a stream that never ends."""
    gateway = FakeGateway()
    async with serving(gateway) as (task, port), connect(port) as streaming:
        streaming.post("/v1/chat/completions", STREAM)
        reply = await gateway.arrived()
        reply.begin()
        reply.write(chunk("one"))
        os.kill(os.getpid(), signal.SIGINT)
        await gateway.changes.until(lambda: bool(gateway.drained), GUARD, "the gateway is told to drain")
        os.kill(os.getpid(), signal.SIGINT)
        await guarded(task, GUARD, "the server ends")
        assert gateway.closed


async def test_a_failing_drain_still_ends_the_server() -> None:
    """Whatever goes wrong while stopping, the process stops."""

    class Broken(FakeGateway):
        async def drain(self, grace: float) -> None:
            raise ConnectionError("lost")

    gateway = Broken()
    async with serving(gateway) as (task, _):
        os.kill(os.getpid(), signal.SIGTERM)
        await guarded(task, GUARD, "the server ends")
        assert gateway.closed


@pytest.mark.parametrize("stuck", ["drain", "close"])
async def test_a_gateway_that_hangs_does_not_keep_the_process(stuck: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its grace the process waits a moment, and then ends without it."""
    monkeypatch.setattr(serving_module, "OVERTIME", -6.9 if stuck == "drain" else 0.05)

    class Stuck(FakeGateway):
        async def close(self) -> None:
            self.closed = True
            if stuck == "close":
                await asyncio.Event().wait()

    gateway = Stuck()
    if stuck == "close":
        gateway.drain_gate.set()
    async with serving(gateway) as (task, _):
        os.kill(os.getpid(), signal.SIGTERM)
        await guarded(task, GUARD, "the server ends")
        assert gateway.closed


def test_run_returns_0_after_a_signal() -> None:
    """The exit code of a process that was asked to stop is success; the gateway is opened inside the loop."""
    gateway = FakeGateway()
    listener = listen("127.0.0.1", 0)
    stopping: list[asyncio.Task[None]] = []

    async def stop() -> None:
        async with connect(listener.getsockname()[1]) as client:
            await client.get("/live")
        os.kill(os.getpid(), signal.SIGTERM)

    async def open_gateway() -> FakeGateway:
        gateway.drain_gate.set()
        stopping.append(asyncio.ensure_future(stop()))
        return gateway

    assert run(open_gateway, ServerSettings(), CollectorRegistry(), listener) == 0
    assert gateway.drained == [30.0]
    assert gateway.closed


async def test_outside_the_main_thread_signals_are_left_alone() -> None:
    """A server embedded in somebody else's thread does not take over the process."""

    def in_thread() -> bool:
        async def look() -> bool:
            server = make_server(FakeGateway(), ServerSettings(), CollectorRegistry())
            with server.capture_signals():
                return isinstance(server, DrainingServer)

        return asyncio.run(look())

    before = signal.getsignal(signal.SIGTERM)
    assert await asyncio.to_thread(in_thread)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_port_in_use_is_an_os_error() -> None:
    """The caller of `listen` can say what is wrong in his own words."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_listening_on_localhost_works_by_name() -> None:
    """A host name is resolved once, to one address."""
    with listen("localhost", 0) as listener:
        assert listener.getsockname()[1] > 0


async def test_a_connection_does_not_wait_to_fill_its_packets() -> None:
    """An answer in two writes leaves at once, whichever event loop runs: accepted sockets have no Nagle delay."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2]):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
