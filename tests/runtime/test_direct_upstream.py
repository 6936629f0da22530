"""The lean client, where it does itself what a library does for the other: links, heads, what is left over."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from headrace.runtime.client import STALE_WITHIN
from headrace.runtime.direct_upstream import DirectUpstream
from headrace.runtime.engine_address import opening, place_of
from headrace.runtime.failures import Failure
from headrace.runtime.unpacking import MOST_AT_ONCE
from headrace.testing import ScriptedConnection, ScriptedEngine, run_virtual, steps
from headrace.wire.adapters import EngineRequest
from tests.patience import GUARD
from tests.runtime.listener import ASK, Listener, ask, turns

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture
async def upstream() -> AsyncIterator[DirectUpstream]:
    """A client that must leave nothing behind."""
    client = DirectUpstream()
    yield client
    await client.close()
    assert client.running == 0


async def served(upstream: DirectUpstream, engine: ScriptedEngine) -> Listener:
    """An exchange that has ended."""
    listener, _ = ask(upstream, engine)
    await listener.ended()
    return listener


async def test_a_free_link_is_used_again_at_once(upstream: DirectUpstream, engine: ScriptedEngine) -> None:
    """A request that is sent from the end of another takes the link the other has just left."""
    first, second = Listener(), Listener()
    upstream.open(engine.url, ASK, first, 5.0)
    original = first.end

    def end(failure: Failure | None, detail: str) -> None:
        original(failure, detail)
        upstream.open(engine.url, ASK, second, 5.0)

    first.end = end  # type: ignore[method-assign]
    assert await second.ended() is None
    assert engine.connections == 1


async def test_requests_that_leave_together_leave_once_and_not_for_who_has_gone(
    upstream: DirectUpstream, engine: ScriptedEngine
) -> None:
    """Of three on kept links in one turn of the loop, the one that is given up in that turn is never heard of."""
    for listener, _ in [ask(upstream, engine) for _ in range(3)]:
        await listener.ended()
    asked = [ask(upstream, engine) for _ in range(3)]
    asked[1][1].abort()
    for listener, _ in (asked[0], asked[2]):
        assert await listener.ended() is None
    assert (engine.connections, len(engine.requests)) == (3, 5)


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER + b"HTTP/1.1 200 OK\r\n",
        ANSWER + b"HTTP/1.1 100 Continue\r\n\r\n",
        ANSWER + b"HTTP/1.1 500 No\r\ncontent-length: 0\r\nx: y\r\n\r\n",
        ANSWER + b"and more",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ],
    ids=["a second answer", "news afterwards", "a whole second answer", "bytes left over", "close", "old"],
)
async def test_a_link_that_cannot_be_trusted_is_not_used_again(
    upstream: DirectUpstream, engine: ScriptedEngine, answer: bytes
) -> None:
    """What nobody asked for is never taken for the next request's answer."""
    engine.once([steps.raw(answer), steps.hang()])
    listener = await served(upstream, engine)
    assert (listener.endings[0][0], listener.status, listener.body) == (None, 200, b"{}")
    assert "x" not in listener.headers
    await served(upstream, engine)
    assert engine.connections == 2
    assert upstream.replays == 0


async def test_unasked_bytes_on_a_free_link_close_it(upstream: DirectUpstream, engine: ScriptedEngine) -> None:
    """They come while the link waits; the next request goes over another."""
    late = asyncio.Event()

    async def script(conn: ScriptedConnection) -> None:
        await conn.raw(ANSWER)
        await conn.wait(late.wait())
        await conn.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad")
        await conn.hang()

    engine.once(script)
    await served(upstream, engine)
    late.set()
    await engine.until(lambda: engine.closed_by_peer == 1)
    assert (await served(upstream, engine)).body != b"bad"


async def test_news_before_the_answer_is_passed_over(upstream: DirectUpstream, engine: ScriptedEngine) -> None:
    """Any number of 1xx heads come before the one that counts (RFC 9110, 15.2)."""
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    engine.once([steps.raw(early), steps.raw(early + ANSWER), steps.hang()])
    listener = await served(upstream, engine)
    assert (listener.status, listener.body, listener.headers) == (200, b"{}", {"content-length": "2"})


async def test_news_without_end_are_no_answer(upstream: DirectUpstream, engine: ScriptedEngine) -> None:
    """Their bytes count against the bound of a head."""

    async def script(conn: ScriptedConnection) -> None:
        while True:
            await conn.raw(b"HTTP/1.1 102 Processing\r\n\r\n" * 500)

    engine.once(script)
    assert (await served(upstream, engine)).endings[0][0] is Failure.PROTOCOL


@pytest.mark.parametrize("endless", [b"1;", b"1\r\n{\r\n0\r\nx: "], ids=["extension", "trailer"])
async def test_what_comes_with_chunks_is_bounded(
    upstream: DirectUpstream, engine: ScriptedEngine, endless: bytes
) -> None:
    """Neither behind a chunk's size nor behind the last chunk can an engine go on for ever."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + endless)
        while True:
            await conn.raw(b"x" * 10_000)

    engine.once(script)
    assert (await served(upstream, engine)).endings[0][0] is Failure.PROTOCOL


async def test_an_upgrade_is_no_answer(upstream: DirectUpstream, engine: ScriptedEngine) -> None:
    """Nothing else than HTTP was asked for."""
    engine.once([steps.raw(b"HTTP/1.1 101 Go\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"), steps.hang()])
    assert (await served(upstream, engine)).endings[0][0] is Failure.PROTOCOL


async def test_an_answer_that_comes_before_the_request_is_read(upstream: DirectUpstream) -> None:
    """It is taken, and the link, on which the rest of the request is stuck, is closed."""
    closed = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionResetError:
            pass
        closed.set()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    listener = Listener()
    upstream.open(address, EngineRequest("POST", "/", (), b"x" * 64_000_000), listener, 5.0)
    assert await listener.ended() is None
    assert (listener.status, listener.body) == (413, b"no")
    await asyncio.wait_for(closed.wait(), GUARD)
    server.close()
    await server.wait_closed()


async def test_a_plain_server_behind_https_is_no_secure_connection(upstream: DirectUpstream) -> None:
    """What answers without TLS is told apart from what does not answer."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 This is plain\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    listener = Listener()
    upstream.open(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", ASK, listener, 5.0)
    assert await listener.ended() is Failure.CONNECT
    assert listener.endings[0][1] == "no secure connection"
    server.close()
    await server.wait_closed()


def test_connecting_is_bounded_in_time() -> None:
    """TLS with a server that says nothing is given up after the connect timeout."""

    async def story() -> None:
        upstream, listener = DirectUpstream(), Listener()
        async with ScriptedEngine(guard=100.0) as engine:
            upstream.open(engine.url.replace("http://", "https://"), ASK, listener, 5.0)
            assert await listener.ended() is Failure.CONNECT
            assert listener.endings[0][1] == "no connection in time"
            assert 5.0 <= asyncio.get_running_loop().time() <= 6.0
            await upstream.close()

    run_virtual(story(), settle=0.02)


def test_a_kept_link_that_ends_late_is_not_taken_for_a_stale_one() -> None:
    """An engine that dies over a call has had it: the call is not sent a second time behind the retry budget's back."""

    async def story() -> None:
        async with ScriptedEngine() as engine:
            upstream, dies = DirectUpstream(), asyncio.Event()
            engine.once(steps.answer("one"), [steps.wait(dies.wait), steps.cut()])
            await served(upstream, engine)
            listener, _ = ask(upstream, engine)
            asyncio.get_running_loop().call_later(2 * STALE_WITHIN, dies.set)
            assert await listener.ended() is Failure.CUT
            assert (upstream.replays, len(engine.requests)) == (0, 2)
            await upstream.close()

    run_virtual(story(), settle=0.02)


async def test_links_are_told_apart_by_where_they_lead(upstream: DirectUpstream, engine: ScriptedEngine) -> None:
    """Two spellings of one engine's address share its links, also when the first has been forgotten."""
    await served(upstream, engine)
    place_of.cache_clear()
    opening.cache_clear()
    listener = Listener()
    upstream.open(f"{engine.url}/", ASK, listener, GUARD)
    assert await listener.ended() is None
    assert engine.connections == 1


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("br", b"x"),
        ("gzip", gzip.compress(b"x" * 100)[:-9]),
        ("gzip", gzip.compress(b"x") + b"y"),
        ("gzip", gzip.compress(bytes(2 * MOST_AT_ONCE))),
    ],
    ids=["unknown", "cut short", "more behind it", "bomb"],
)
async def test_what_cannot_be_unpacked_is_no_answer(
    upstream: DirectUpstream, engine: ScriptedEngine, coding: str, body: bytes
) -> None:
    """An unknown coding, an end that is missing or not the end, and an answer that would fill the memory."""
    engine.once(steps.whole(200, body, (("content-encoding", coding),)))
    listener = await served(upstream, engine)
    assert listener.endings[0][0] is Failure.PROTOCOL


async def test_pausing_before_there_is_a_link_holds_back_everything(
    upstream: DirectUpstream, engine: ScriptedEngine
) -> None:
    """A sink that is paused from the start hears nothing until it resumes; then all of it, in order."""
    listener, connection = ask(upstream, engine)
    connection.pause()
    await engine.got(1)
    await turns()
    assert (listener.status, listener.pieces) == (0, [])
    connection.resume()
    assert await listener.ended() is None
    assert listener.status == 200


@pytest.mark.parametrize(
    ("address", "lines"),
    [
        ("http://gpu-1:8000", ("POST /v1/x?y=1 HTTP/1.1", "host: gpu-1:8000")),
        ("https://gpu-1/base/", ("POST /base/v1/x?y=1 HTTP/1.1", "host: gpu-1")),
        ("http://[::1]:80", ("POST /v1/x?y=1 HTTP/1.1", "host: [::1]")),
        ("http://a:p%40ss@gpu-1", ("authorization: Basic YTpwQHNz", "host: gpu-1")),
        ("http://käse.example", ("host: xn--kse-qla.example",)),
    ],
)
def test_a_request_names_its_engine(address: str, lines: tuple[str, ...]) -> None:
    """Base path, port, IPv6, credentials and other alphabets."""
    head = opening(address, "POST", "/v1/x?y=1", (("a", "b"),))[1].decode()
    assert set(lines) <= set(head.split("\r\n"))
    assert head.endswith("\r\na: b\r\ncontent-length: ")


@pytest.mark.parametrize("header", ["x\r\ny: z", "x\n", "x\0"])
async def test_a_header_cannot_carry_another(upstream: DirectUpstream, engine: ScriptedEngine, header: str) -> None:
    """A key with a line's end in it is a failure, not a second header."""
    listener, _ = ask(upstream, engine, EngineRequest("POST", "/", (("authorization", header),), b"{}"))
    assert await listener.ended() is Failure.PROTOCOL
    assert not engine.requests


def test_an_own_authorization_counts_more_than_the_address() -> None:
    """There is only ever one."""
    head = opening("http://a:b@h", "GET", "/", (("Authorization", "Bearer k"),))[1].decode()
    assert head.lower().count("authorization:") == 1
    assert "Bearer k" in head
