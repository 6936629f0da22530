"""The HTTP client under control: aborted, paused, with faulty sinks, and bounded probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from headrace.runtime.upstream import Client, Failure, UpstreamFailed
from headrace.testing import Script, ScriptedConnection, ScriptedEngine, guarded, run_virtual, steps
from headrace.wire.adapters import EngineRequest
from tests.patience import GUARD
from tests.runtime.listener import ASK, CLIENTS, Listener, ask, turns

# ------------------------------------------------------------------------------------------------------------ aborting


async def test_abort_before_the_head(upstream: Client, engine: ScriptedEngine) -> None:
    """An engine that is still thinking sees its peer close; the sink hears nothing."""
    engine.once(steps.hang())
    listener, connection = ask(upstream, engine)
    await engine.got(1)
    connection.abort()
    connection.abort()
    await engine.until(lambda: engine.closed_by_peer == 1)
    assert (listener.status, listener.pieces, listener.endings) == (0, [], [])


@pytest.mark.parametrize("paused", [False, True])
async def test_abort_in_the_middle(upstream: Client, engine: ScriptedEngine, paused: bool) -> None:
    """A running stream is closed at once, also while nothing is read of it."""
    engine.once([steps.chunk("one"), steps.hang()])
    listener, connection = ask(upstream, engine)
    await listener.until(lambda: bool(listener.pieces))
    if paused:
        connection.pause()
    connection.abort()
    await engine.until(lambda: engine.closed_by_peer == 1)
    connection.resume()
    await turns()
    assert not listener.endings


async def test_abort_while_the_engine_floods_a_paused_reader(upstream: Client, engine: ScriptedEngine) -> None:
    """Unread bytes do not delay the close."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.head(200)
        while True:
            await conn.send(b"x" * 65536)

    engine.once(script)
    listener, connection = ask(upstream, engine)
    listener.on_data = connection.pause
    await listener.until(lambda: bool(listener.pieces))
    connection.abort()
    await engine.until(lambda: engine.closed_by_peer == 1)
    assert not listener.endings


async def test_abort_while_a_large_request_is_not_being_read(upstream: Client) -> None:
    """An engine that does not read the request is not waited for: its socket ends at once, the rest unsent."""
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda *ends: accepted.put_nowait(ends), "127.0.0.1", 0, limit=1024)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    size = 32 * 1024 * 1024
    listener = Listener()
    connection = upstream.open(address, EngineRequest("POST", "/", (), b"x" * size), listener, 5.0)
    reader, writer = await guarded(accepted.get(), GUARD, "the connection")
    await turns()
    connection.abort()
    arrived = 0
    with suppress(ConnectionResetError):
        while data := await guarded(reader.read(1 << 20), GUARD, "the close"):
            arrived += len(data)
    assert arrived < size
    assert not listener.endings
    writer.close()
    server.close()
    await server.wait_closed()


async def test_abort_at_once(upstream: Client, engine: ScriptedEngine) -> None:
    """A call given up before its task ran leaves nothing behind."""
    listener, connection = ask(upstream, engine)
    connection.abort()
    await turns()
    assert upstream.running == 0
    assert not listener.endings


async def test_abort_from_inside_the_sink(upstream: Client, engine: ScriptedEngine) -> None:
    """A sink that has had enough hears nothing after its own abort."""
    engine.once([steps.chunk("one"), steps.hang()], [steps.chunk("one"), steps.hang()])
    for callback in ("on_head", "on_data"):
        listener, connection = ask(upstream, engine)
        setattr(listener, callback, connection.abort)
        await listener.until(lambda listener=listener: bool(listener.status))  # type: ignore[misc]
        await engine.until(lambda: engine.open_connections == 0)
        assert not listener.endings


async def test_abort_after_the_end_does_not_touch_the_pooled_connection(
    upstream: Client, engine: ScriptedEngine
) -> None:
    """A late abort must not close a connection that another request may be using by now."""
    listener, connection = ask(upstream, engine)
    listener.on_data = connection.pause
    await listener.until(lambda: bool(listener.pieces))
    second, _ = ask(upstream, engine)
    assert await second.ended() is None
    connection.abort()
    third, _ = ask(upstream, engine)
    assert await third.ended() is None
    assert engine.connections == 1


async def test_closing_aborts_what_runs(upstream: Client, engine: ScriptedEngine) -> None:
    """At shutdown every engine sees its peer close."""
    engine.default = steps.hang()
    for _ in range(3):
        ask(upstream, engine)
    await engine.got(3)
    await upstream.close()
    await engine.until(lambda: engine.closed_by_peer == 3)
    assert upstream.running == 0


# ------------------------------------------------------------------------------------------------------- backpressure


async def test_a_pause_reaches_the_engine(upstream: Client, engine: ScriptedEngine) -> None:
    """While paused nothing is delivered and the engine cannot get rid of its bytes; then all arrive, and the end."""
    size = 32 * 1024 * 1024
    written = asyncio.Event()

    async def script(conn: ScriptedConnection) -> None:
        await conn.head(200, (("content-length", str(size)),))
        await conn.send(b"x" * size)
        written.set()

    engine.once(script)
    listener, connection = ask(upstream, engine)
    listener.on_data = connection.pause
    await listener.until(lambda: bool(listener.pieces))
    before = len(listener.body)
    await turns(300)
    assert len(listener.body) == before
    assert not written.is_set()
    listener.on_data = None
    connection.resume()
    assert await listener.ended() is None
    assert len(listener.body) == size


async def test_the_end_waits_while_paused(upstream: Client, engine: ScriptedEngine) -> None:
    """A sink that takes nothing is not told the end either."""
    engine.once(steps.whole(200, b"all"))
    listener, connection = ask(upstream, engine)
    listener.on_data = connection.pause
    await listener.until(lambda: bool(listener.pieces))
    await turns()
    assert not listener.endings
    connection.resume()
    assert await listener.ended() is None


# -------------------------------------------------------------------------------------------------------- faulty sinks


@pytest.mark.parametrize("callback", ["on_head", "on_data"])
async def test_a_sink_that_raises_ends_its_own_attempt_only(
    upstream: Client, engine: ScriptedEngine, callback: str
) -> None:
    """The fault is logged, the attempt ends, the engine's connection closes, other calls go on."""
    engine.once([steps.chunk("one"), steps.hang()])
    with capture_logs() as logs:
        listener, _ = ask(upstream, engine)

        def fail() -> None:
            raise LookupError("a bug")

        setattr(listener, callback, fail)
        assert await listener.ended() is Failure.PROTOCOL
    assert [entry["event"] for entry in logs] == ["upstream_sink_failed"]
    await engine.until(lambda: engine.closed_by_peer == 1)
    other, _ = ask(upstream, engine)
    assert await other.ended() is None


# --------------------------------------------------------------------------------------------------------------- fetch


async def test_fetch_gives_the_whole_answer(upstream: Client, engine: ScriptedEngine) -> None:
    """A probe gets status, headers and body of any answer."""
    engine.answers_probes = False
    engine.once(steps.json(503, {"status": "loading"}))
    status, headers, body = await upstream.fetch(engine.url, EngineRequest("GET", "/health", (), b""), GUARD, 1000)
    assert (status, headers["content-type"], body) == (503, "application/json", b'{"status": "loading"}')


async def test_fetch_is_bounded_in_bytes(upstream: Client, engine: ScriptedEngine) -> None:
    """An endless answer is given up at the limit and its connection closed."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.head(200)
        while True:
            await conn.send(b"x" * 65536)

    engine.once(script)
    with pytest.raises(UpstreamFailed) as raised:
        await upstream.fetch(engine.url, ASK, GUARD, 100_000)
    assert raised.value.failure is Failure.PROTOCOL
    await engine.until(lambda: engine.closed_by_peer == 1)


async def test_fetch_translates_what_breaks(upstream: Client, engine: ScriptedEngine) -> None:
    """A cut answer and a refused connection raise with their own names."""
    engine.once([steps.head(200), steps.send(b"a"), steps.cut()])
    with pytest.raises(UpstreamFailed, match="cut"):
        await upstream.fetch(engine.url, ASK, GUARD, 1000)
    await engine.stop_listening()
    engine.close_connections()
    with pytest.raises(UpstreamFailed, match="connect"):
        await upstream.fetch(engine.url, ASK, GUARD, 1000)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("script", [steps.hang(), [steps.head(200), steps.send(b"a"), steps.hang()]])
def test_fetch_is_bounded_in_time(client: Callable[[], Client], script: Script) -> None:
    """An engine that does not answer, or not to the end, is left after `timeout` seconds, and sees it."""

    async def story() -> None:
        upstream = client()
        async with ScriptedEngine(guard=100.0) as engine:
            engine.once(script)
            with pytest.raises(UpstreamFailed) as raised:
                await upstream.fetch(engine.url, ASK, 5.0, 1000)
            assert raised.value.failure is Failure.TIMEOUT
            assert 5.0 <= asyncio.get_running_loop().time() <= 6.0
            await engine.until(lambda: engine.closed_by_peer == 1)
            await upstream.close()

    run_virtual(story(), settle=0.02)


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_idle_connection_is_closed_after_a_while(
    client: Callable[..., Client], engine: ScriptedEngine
) -> None:
    """Connections nobody uses do not pile up."""
    upstream = client(keepalive=0.01)
    listener, _ = ask(upstream, engine)
    assert await listener.ended() is None
    await engine.until(lambda: engine.closed_by_peer == 1)
    await upstream.close()
