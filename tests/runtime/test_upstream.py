"""The HTTP client: bytes as they come, and every way an engine can break off."""

from __future__ import annotations

import asyncio
import errno
import gzip
import socket
import ssl
import zlib

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from headrace.runtime.aiohttp_failures import translated
from headrace.runtime.failures import ours
from headrace.runtime.upstream import Client, Failure, UpstreamFailed
from headrace.testing import Script, ScriptedConnection, ScriptedEngine, steps
from headrace.wire.adapters import EngineRequest
from tests.runtime.listener import ASK, Listener, ask, turns
from tests.runtime.shortage import none_left

# ---------------------------------------------------------------------------------------------- what goes out and in


async def test_pieces_arrive_as_the_engine_makes_them(upstream: Client, engine: ScriptedEngine) -> None:
    """The first piece is here before the engine has made the second."""
    heard = asyncio.Event()
    engine.once([steps.chunk("one"), steps.wait(heard.wait), steps.chunk("two"), steps.done(), steps.end()])
    listener, _ = ask(upstream, engine)
    await listener.until(lambda: b"one" in listener.body)
    assert b"two" not in listener.body
    heard.set()
    assert await listener.ended() is None
    assert listener.body.endswith(b"data: [DONE]\n\n")
    assert listener.status == 200
    assert listener.headers["content-type"].startswith("text/event-stream")


async def test_what_the_engine_is_told(upstream: Client, engine: ScriptedEngine) -> None:
    """One length, no chunking, our own name and nothing of the framing an adapter might have copied."""
    engine.default = steps.whole(200, b"{}", (("Set-Cookie", "a=b"),))
    request = EngineRequest(
        "POST", "/v1/x?y=%2F", (("Content-Length", "9"), ("TE", "trailers"), ("Authorization", "Bearer k")), b"12345"
    )
    for _ in range(2):
        listener, _ = ask(upstream, engine, request)
        assert await listener.ended() is None
    sent = engine.requests[1]
    names = [name for name, _ in sent.headers]
    assert (sent.path, sent.body) == ("/v1/x?y=%2F", b"12345")
    assert names.count("content-length") == 1
    assert sent.header("user-agent") == "headrace"
    assert sent.header("authorization") == "Bearer k"
    assert not {"transfer-encoding", "te", "cookie", "referer"} & set(names)
    assert engine.connections == 1, "the second request uses the first one's connection"


async def test_headers_are_lower_case_and_repeated_ones_joined(upstream: Client, engine: ScriptedEngine) -> None:
    """Both of two `Retry-After` can be read, whatever their case."""
    engine.once(steps.whole(429, b"no", (("Retry-After", "2"), ("retry-after", "5"))))
    listener, _ = ask(upstream, engine)
    assert await listener.ended() is None
    assert (listener.status, listener.headers["retry-after"], listener.body) == (429, "2, 5", b"no")


async def test_a_redirect_is_an_answer_like_any_other(upstream: Client, engine: ScriptedEngine) -> None:
    """Nobody is sent elsewhere with our key."""
    engine.once(steps.whole(307, b"", (("Location", f"{engine.url}/elsewhere"),)))
    listener, _ = ask(upstream, engine)
    assert await listener.ended() is None
    assert listener.status == 307
    assert len(engine.requests) == 1


async def test_a_packed_answer_is_unpacked(upstream: Client, engine: ScriptedEngine) -> None:
    """An engine that compresses unasked is understood; neither encoding nor packed length is passed on."""
    engine.once(steps.whole(200, gzip.compress(b'{"a":1}'), (("Content-Encoding", "gzip"),)))
    listener, _ = ask(upstream, engine)
    assert await listener.ended() is None
    assert listener.body == b'{"a":1}'
    assert not {"content-encoding", "content-length"} & set(listener.headers)
    assert engine.requests[0].header("accept-encoding") == "identity"


async def test_a_packed_stream_is_unpacked_frame_by_frame(upstream: Client, engine: ScriptedEngine) -> None:
    """A frame the engine flushed is not held back until the next one."""
    packer = zlib.compressobj(wbits=31)
    heard = asyncio.Event()

    async def script(conn: ScriptedConnection) -> None:
        await conn.head(200, (("content-encoding", "gzip"),))
        await conn.send(packer.compress(b"data: one\n\n") + packer.flush(zlib.Z_SYNC_FLUSH))
        await conn.wait(heard.wait())
        await conn.send(packer.compress(b"data: two\n\n") + packer.flush())
        await conn.end()

    engine.once(script)
    listener, _ = ask(upstream, engine)
    await listener.until(lambda: listener.body == b"data: one\n\n")
    heard.set()
    assert await listener.ended() is None
    assert listener.body == b"data: one\n\ndata: two\n\n"


# ------------------------------------------------------------------------------------------------ how engines break off


@pytest.mark.parametrize(
    ("script", "failure", "body"),
    [
        ([steps.head(200), steps.send(b"a"), steps.send(b"b"), steps.cut()], Failure.CUT, b"ab"),
        ([steps.head(200), steps.raw(b"5\r\nab"), steps.cut()], Failure.CUT, b"ab"),
        ([steps.head(200, (("content-length", "9"),)), steps.send(b"ab"), steps.cut()], Failure.CUT, b"ab"),
        (
            [steps.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"), steps.cut()],
            Failure.CUT,
            b"a",
        ),
        (steps.close(), Failure.CUT, b""),
        (steps.reset(), Failure.CUT, b""),
        ([steps.raw(b"HTTP/1.1 200 OK\r\nX-Pa"), steps.cut()], Failure.CUT, b""),
        ([steps.raw(b"what is this\r\n\r\n"), steps.close()], Failure.PROTOCOL, b""),
        ([steps.head(200, (("x", "y" * 1_000_000),)), steps.hang()], Failure.PROTOCOL, b""),
        ([steps.raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 500 + b"\r\n"), steps.hang()], Failure.PROTOCOL, b""),
        ([steps.head(200), steps.send(b"a"), steps.raw(b"zz\r\nb"), steps.hang()], Failure.PROTOCOL, b"a"),
        (steps.whole(200, b"not packed at all", (("content-encoding", "gzip"),)), Failure.PROTOCOL, b""),
        ([steps.raw(b"HTTP/1.0 200 OK\r\n\r\nall of it"), steps.close()], None, b"all of it"),
    ],
    ids=[
        *("cut", "in a chunk", "short", "at once", "no answer", "no answer but reset", "half a head", "no http"),
        *("huge header", "many headers", "no chunk", "not gzip", "length by close"),
    ],
)
async def test_every_way_to_break_off(
    upstream: Client, engine: ScriptedEngine, script: Script, failure: Failure | None, body: bytes
) -> None:
    """What came before the break is delivered, the failure has one name, and the text names nothing secret."""
    engine.once(script)
    listener, _ = ask(upstream, engine)
    assert await listener.ended() is failure
    assert listener.body == body
    assert "127.0.0.1" not in listener.endings[0][1]
    assert engine.url.rpartition(":")[2] not in listener.endings[0][1]
    assert len(engine.requests) == 1
    assert upstream.replays == 0


async def test_a_reset_in_the_middle_is_a_cut(upstream: Client, engine: ScriptedEngine) -> None:
    """A reset after content is told as a cut, after that content."""
    heard = asyncio.Event()
    engine.once([steps.chunk("one"), steps.wait(heard.wait), steps.reset()])
    listener, _ = ask(upstream, engine)
    await listener.until(lambda: bool(listener.pieces))
    heard.set()
    assert await listener.ended() is Failure.CUT


async def test_nobody_listens(upstream: Client, engine: ScriptedEngine) -> None:
    """A refused connection is told as such, without saying where."""
    await engine.stop_listening()
    listener, _ = ask(upstream, engine)
    assert await listener.ended() is Failure.CONNECT
    assert listener.endings[0][1] == "no connection (ECONNREFUSED)"


@pytest.mark.parametrize("address", ["nonsense", "ftp://127.0.0.1", "http://", "http://[::bad"])
async def test_an_address_that_is_none(upstream: Client, address: str) -> None:
    """An unusable address ends the attempt; it does not raise into the caller."""
    listener = Listener()
    upstream.open(address, ASK, listener, 5.0)
    assert await listener.ended() in (Failure.CONNECT, Failure.PROTOCOL)


def test_what_cannot_be_staged_here_is_translated_too() -> None:
    """Names that do not resolve, TLS that fails, connections that take too long: connect failures of few words."""
    where = ConnectionKey("secret-host", 4711, True, True, None, None, None, None)
    for error in (
        aiohttp.ConnectionTimeoutError("Connection timeout to host secret-host:4711"),
        aiohttp.ClientConnectorDNSError(where, OSError("secret-host")),
        aiohttp.ClientConnectorCertificateError(where, ssl.CertificateError("secret-host")),
        aiohttp.ClientConnectorError(where, OSError(113, "secret-host")),
    ):
        failed = translated(error)
        assert failed.failure is Failure.CONNECT
        assert "secret" not in str(failed)
        assert "4711" not in str(failed)


# ---------------------------------------------------------------------------------------------------- stale connections


async def test_an_idle_connection_that_was_closed_costs_nobody_an_error(
    upstream: Client, engine: ScriptedEngine
) -> None:
    """The engine closed the idle connection: the next request goes over a new one."""
    first, _ = ask(upstream, engine)
    assert await first.ended() is None
    engine.close_connections()
    await turns()
    second, _ = ask(upstream, engine)
    assert await second.ended() is None
    assert (engine.connections, len(engine.requests)) == (2, 2)


async def test_a_reused_connection_that_closes_without_an_answer_is_replayed_once(
    upstream: Client, engine: ScriptedEngine
) -> None:
    """The request goes once more over a fresh connection; if that breaks off, too, it is a failure."""
    engine.once(steps.answer("one"), steps.close(), steps.answer("two"))
    engine.once(steps.answer("three"), steps.close(), steps.close())
    for failure in (None, None, None, Failure.CUT):
        listener, _ = ask(upstream, engine)
        assert await listener.ended() is failure
    assert upstream.replays == 2
    assert len(engine.requests) == 6


async def test_a_reused_connection_that_began_to_answer_is_not_replayed(
    upstream: Client, engine: ScriptedEngine
) -> None:
    """Half a head is a sign that the engine took the request."""
    engine.once(steps.answer("one"), [steps.raw(b"HTTP/1.1 200 OK\r\nX-Pa"), steps.cut()])
    for failure in (None, Failure.CUT):
        listener, _ = ask(upstream, engine)
        assert await listener.ended() is failure
    assert upstream.replays == 0


async def test_a_large_request_arrives_whole(upstream: Client, engine: ScriptedEngine) -> None:
    """A body of many megabytes has one length, no chunking, and every byte."""
    body = bytes(range(256)) * 40_000
    listener, _ = ask(upstream, engine, EngineRequest("POST", "/", (("Content-Type", "application/json"),), body))
    assert await listener.ended() is None
    assert engine.requests[0].body == body
    assert engine.requests[0].header("content-length") == str(len(body))
    assert engine.requests[0].header("transfer-encoding") is None
    assert engine.requests[0].header("content-type") == "application/json"


# --------------------------------------------------------------------------------------------- nothing of our own left


async def test_without_a_descriptor_left_it_is_not_the_engine(upstream: Client, engine: ScriptedEngine) -> None:
    """A call that found no socket is told apart from an engine that cannot be reached; with sockets again it goes."""
    with none_left():
        listener, _ = ask(upstream, engine)
        failure = await listener.ended()
        with pytest.raises(UpstreamFailed) as failed:
            await upstream.fetch(engine.url, ASK, 5.0, 1000)
    assert (failure, failed.value.failure) == (Failure.SHORTAGE, Failure.SHORTAGE)
    assert listener.endings[0][1] == "no socket to connect with (EMFILE)"
    again, _ = ask(upstream, engine)
    assert await again.ended() is None


@pytest.mark.parametrize(
    ("error", "ipv4", "expected"),
    [
        (OSError(errno.EMFILE, ""), False, True),
        (OSError(errno.ENFILE, ""), True, True),
        (OSError(errno.EADDRNOTAVAIL, ""), True, True),
        (OSError(errno.EADDRNOTAVAIL, ""), False, False),
        (OSError(errno.ECONNREFUSED, ""), True, False),
        (socket.gaierror(socket.EAI_NONAME, ""), True, False),
    ],
)
def test_what_we_lack_is_told_from_what_the_engine_lacks(error: OSError, ipv4: bool, expected: bool) -> None:
    """Ports run out for IPv4 addresses; of IPv6 ones the same is said by machines that have no IPv6."""
    assert ours(error, ipv4=ipv4) is expected


def test_a_name_that_cannot_be_looked_up_for_lack_of_descriptors_is_our_own_lack() -> None:
    """The system says there is no such name when it could not open what it looks names up in."""
    with none_left():
        assert ours(socket.gaierror(socket.EAI_NONAME, ""), ipv4=True)
