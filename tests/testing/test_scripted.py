"""The scripted engine, seen by a raw socket and by a real HTTP client."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from headrace.testing import GuardExpired, Script, ScriptedConnection, ScriptedEngine, run_virtual, steps
from tests.patience import GUARD

_CHAT = b'{"model":"m","stream":true}'


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """An engine that says hello."""
    async with ScriptedEngine() as engine:
        yield engine


class Peer:
    """A client that shows the bytes as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, engine: ScriptedEngine) -> "Peer":
        """A fresh connection to `engine`."""
        return cls(*await asyncio.open_connection("127.0.0.1", int(engine.url.rpartition(":")[2])))

    def ask(self, body: bytes = _CHAT, path: str = "/v1/chat/completions", method: str = "POST") -> None:
        """Send one request."""
        self.writer.write(f"{method} {path} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    async def read_all(self) -> bytes:
        """Everything until the engine closes; then this side closes too."""
        try:
            async with asyncio.timeout(GUARD):
                return await self.reader.read()
        finally:
            self.writer.close()


async def _ask(engine: ScriptedEngine, script: Script) -> bytes:
    engine.once(script)
    peer = await Peer.connect(engine)
    peer.ask()
    return await peer.read_all()


async def test_a_script_of_steps_writes_exactly_what_it_says(engine: ScriptedEngine) -> None:
    """Head, chunks and a cut appear on the wire byte for byte, and the last HTTP chunk is missing."""
    data = await _ask(engine, [steps.head(200, {"x-a": "1"}), steps.send(b"ab"), steps.drip(b"cd"), steps.cut()])

    assert data == b"HTTP/1.1 200 OK\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n1\r\nd\r\n"


async def test_a_peer_in_the_same_loop_reads_each_write_by_itself(engine: ScriptedEngine) -> None:
    """A drip is really a drip: no two writes meet in one read."""
    reads: list[bytes] = []

    class Recorder(asyncio.Protocol):
        def __init__(self) -> None:
            self.ended = asyncio.Event()

        def data_received(self, data: bytes) -> None:
            reads.append(data)

        def connection_lost(self, exc: Exception | None) -> None:
            self.ended.set()

    engine.once([steps.head(200, {"content-length": "5"}), steps.drip(b"hello"), steps.close()])
    port = int(engine.url.rpartition(":")[2])
    transport, recorder = await asyncio.get_running_loop().create_connection(Recorder, "127.0.0.1", port)
    transport.write(b"POST / HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(recorder.ended.wait(), GUARD)

    assert reads[1:] == [b"h", b"e", b"l", b"l", b"o"]


async def test_the_verbs_of_a_stream_are_what_openai_engines_send(engine: ScriptedEngine) -> None:
    """Role, text, finish, usage, comment, error and [DONE] have the shapes of chat chunks."""
    script = [
        steps.role(),
        steps.chunk("你"),
        steps.finish("length"),
        steps.usage(3, 2),
        steps.comment("ping"),
        steps.error("bad", code="x"),
        steps.done(),
        steps.end(),
        steps.close(),
    ]
    body = await _ask(engine, script)
    lines = [line for line in body.decode().split("\r\n") if line.startswith(("data:", ":"))]
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[0]["model"] == "m"
    assert chunks[1]["choices"][0]["delta"] == {"content": "你"}
    assert chunks[2]["choices"][0]["finish_reason"] == "length"
    assert (chunks[3]["choices"], chunks[3]["usage"]["total_tokens"]) == ([], 5)
    assert lines[4] == ": ping\n\n"
    assert chunks[4]["error"]["code"] == "x"
    assert lines[-1] == "data: [DONE]\n\n"
    assert body.endswith(b"0\r\n\r\n")


async def test_a_reset_is_a_reset(engine: ScriptedEngine) -> None:
    """After what was sent the peer's read fails with ECONNRESET, unlike after a cut."""
    engine.once([steps.chunk("a"), steps.reset()])
    peer = await Peer.connect(engine)
    peer.ask()

    with pytest.raises(ConnectionResetError):
        await peer.read_all()


async def test_hanging_ends_when_the_peer_closes(engine: ScriptedEngine) -> None:
    """The engine notices its peer's close and counts it; nothing fails."""
    engine.once([steps.chunk("a"), steps.hang()])
    peer = await Peer.connect(engine)
    peer.ask()
    await engine.got(1)
    assert (engine.closed_by_peer, engine.open_connections) == (0, 1)
    peer.writer.close()
    await engine.until(lambda: engine.closed_by_peer == 1)

    assert engine.open_connections == 0
    assert engine.failures == []


def test_a_hang_that_nobody_ends_fails_the_test() -> None:
    """A peer that stays makes the engine's exit raise, so a broken test fails instead of hanging."""

    async def broken() -> None:
        async with ScriptedEngine([steps.hang()], guard=3.0) as engine:
            peer = await Peer.connect(engine)
            peer.ask()
            await peer.read_all()

    with pytest.raises(GuardExpired, match="the peer closes"):
        run_virtual(broken(), settle=0.02)


async def test_an_assertion_in_a_script_fails_the_test() -> None:
    """What a script finds wrong comes out at the engine's exit."""

    async def script(conn: ScriptedConnection) -> None:
        assert conn.request.header("authorization") == "Bearer secret"

    async def broken() -> None:
        async with ScriptedEngine(script) as engine:
            peer = await Peer.connect(engine)
            peer.ask()
            await peer.read_all()

    with pytest.raises(AssertionError):
        await broken()


async def test_probes_use_up_no_script_unless_switched(engine: ScriptedEngine) -> None:
    """GET /health is answered by itself and kept apart; switched off, it plays scripts like any request."""
    engine.once([steps.json(503, {"status": "loading"}), steps.close()])
    peer = await Peer.connect(engine)
    peer.ask(b"", "/health", "GET")
    await peer.reader.readuntil(b"\r\n\r\n")
    assert (len(engine.probes), len(engine.requests)) == (1, 0)

    engine.answers_probes = False
    peer.ask(b"", "/health", "GET")
    assert b"503" in await peer.read_all()
    assert (len(engine.probes), len(engine.requests)) == (1, 1)


async def test_one_off_scripts_come_before_the_default(engine: ScriptedEngine) -> None:
    """Each queued script plays once, in order; then the default; the connection is kept alive throughout."""
    engine.once(steps.json(500, {"n": 1}), steps.json(429, {"n": 2}, {"retry-after": "7"}))
    engine.default = steps.answer("all is well", tokens=(4, 3))
    async with aiohttp.ClientSession() as session:
        answers = []
        for _ in range(3):
            async with session.post(f"{engine.url}/v1/chat/completions", json={"model": "m"}) as response:
                answers.append((response.status, response.headers.get("retry-after"), await response.json()))

    assert [answer[:2] for answer in answers] == [(500, None), (429, "7"), (200, None)]
    assert answers[2][2]["choices"][0]["message"]["content"] == "all is well"
    assert answers[2][2]["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    assert (engine.connections, len(engine.requests)) == (1, 3)
    assert engine.requests[0].json() == {"model": "m"}
    assert b"POST /v1/chat/completions HTTP/1.1\r\n" in engine.received


async def test_a_refused_connection_gets_no_answer(engine: ScriptedEngine) -> None:
    """`refuse` closes right after the accept; `stop_listening` makes connecting itself fail until `listen`."""
    engine.refuse()
    assert await (await Peer.connect(engine)).read_all() == b""

    await engine.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        await Peer.connect(engine)

    await engine.listen()
    peer = await Peer.connect(engine)
    peer.ask(b"{}")
    assert (await peer.reader.readline()).startswith(b"HTTP/1.1 200")
    peer.writer.close()


async def test_a_script_can_wait_for_the_test(engine: ScriptedEngine) -> None:
    """A script goes on when the test says so, so that order needs no clock."""
    go = asyncio.Event()
    engine.once([steps.head(), steps.wait(go.wait), steps.send(b"now"), steps.end(), steps.close()])
    peer = await Peer.connect(engine)
    peer.ask()
    await peer.reader.readuntil(b"\r\n\r\n")
    go.set()

    assert await peer.read_all() == b"3\r\nnow\r\n0\r\n\r\n"


async def test_writing_to_a_peer_that_left_ends_the_script_quietly(engine: ScriptedEngine) -> None:
    """A client's leaving is no failure of the script."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.chunk("a")
        await conn.peer_closed()
        await conn.chunk("b")

    engine.once(script)
    peer = await Peer.connect(engine)
    peer.ask()
    await engine.got(1)
    peer.writer.close()
    await engine.until(lambda: engine.closed_by_peer == 1)

    assert engine.failures == []


async def test_bytes_that_are_no_http_close_the_connection(engine: ScriptedEngine) -> None:
    """A malformed request is kept for inspection and its connection closed."""
    peer = await Peer.connect(engine)
    peer.writer.write(b"hello?\r\n\r\n")
    await peer.read_all()

    assert engine.links[0].malformed is not None
    assert engine.received == b"hello?\r\n\r\n"


async def test_idle_connections_can_be_closed_from_this_side(engine: ScriptedEngine) -> None:
    """An answer in any form keeps the connection; `close_connections` then ends it without announcement."""
    engine.once(steps.whole(200, b"hi", {"x-a": "1"}), [steps.raw(b"HTTP/1.1 204 Nothing\r\n\r\n"), steps.end()])
    peer = await Peer.connect(engine)
    peer.ask()
    assert await peer.reader.readexactly(48) == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-a: 1\r\n\r\nhi"
    peer.ask()
    await peer.reader.readuntil(b"Nothing\r\n\r\n")
    assert (engine.connections, engine.open_connections) == (1, 1)
    engine.close_connections()

    assert await peer.read_all() == b""
    assert engine.closed_by_peer == 0


async def test_a_completion_is_answered_as_a_completion(engine: ScriptedEngine) -> None:
    """On /v1/completions the ready-made answer has `text`, streamed and whole."""
    engine.default = [steps.answer("a b"), steps.close()]
    texts = []
    for body in (b'{"model":"m"}', b'{"model":"m","stream":true}'):
        peer = await Peer.connect(engine)
        peer.ask(body, "/v1/completions")
        data = (await peer.read_all()).decode()
        lines = [line.removeprefix("data: ") for line in data.split("\n") if line.startswith(("data: {", "{"))]
        texts.append("".join(choice["text"] for line in lines for choice in json.loads(line)["choices"]))

    assert texts == ["a b", "a b"]
