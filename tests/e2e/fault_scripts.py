"""What engines do wrong, as scripts: bytes, silences and endings for the fault matrix."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import zlib
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from time import time
from types import TracebackType
from typing import Self

import trustme

from headrace.testing import Script, ScriptedConnection, ScriptedEngine, Step, steps
from tests.runtime.virtual import later

PATIENCE = 10_000.0
"""Virtual seconds; longer than any limit."""
WORDS = "kernel panic in sector seven"
"""What engines say when they fail. Callers hear it only if the mistake is their own."""
JSON = ("content-type", "application/json")
SSE = ("content-type", "text/event-stream")
HTML = b"<html><body><h1>Welcome to the proxy</h1></body></html>"
HALF = b'{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"mess'
BROKEN_EVENT = b'data: {"model":"m","choices":[{"index":\n\n'
TWO_FRAMINGS = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
TOKENS = (26, 7)
_PIECE = 64 * 1024


# ------------------------------------------------------------------------------------------------ engines


class FaultyEngine(ScriptedEngine):
    """Plays its script to every request for an answer. Health checks are answered, on connections of their own."""

    mends = True
    """Whether `mend` makes it a good engine at the same address."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(_beside_checks(script), guard=PATIENCE, tls=tls)
        self.answers_probes = False

    async def mend(self) -> None:
        """From now on all is well."""
        self.default = _beside_checks(steps.answer("mended"))

    @property
    def asked(self) -> int:
        """Requests for an answer that reached it."""
        return sum(request.method == "POST" for request in self.requests)


class NobodyListens(FaultyEngine):
    """Connections are refused."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.stop_listening()
        return self

    async def mend(self) -> None:
        await super().mend()
        await self.listen()


class HangsUp(FaultyEngine):
    """Accepts the first three connections, a request's between two health checks', and closes them unread."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.refuse(3)
        return self


class SpeaksNoTls(FaultyEngine):
    """Its address says https, and it does not speak it."""

    mends = False

    @property
    def url(self) -> str:
        return super().url.replace("http:", "https:")


class NobodyVouchesFor(FaultyEngine):
    """It speaks TLS, with a certificate of an authority that nobody knows."""

    mends = False

    def __init__(self, script: Script) -> None:
        super().__init__(script, tls=certified(trustme.CA(), "127.0.0.1"))


class BlackHole(FaultyEngine):
    """Its listener's queue is full: connecting takes for ever."""

    mends = False

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._filler = socket.create_connection(self._listener.getsockname())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._filler.close()
        self._listener.close()
        await super().__aexit__(kind, error, trace)


def certified(authority: trustme.CA, name: str) -> ssl.SSLContext:
    """What a server speaks TLS with whose certificate this authority signed for this name or address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


def _beside_checks(script: Script) -> Script:
    async def play_or_report(conn: ScriptedConnection) -> None:
        if conn.request.method == "GET":
            await conn.json(200, {"object": "list", "data": []}, [("connection", "close")])
        else:
            await play(script, conn)

    return play_or_report


# ------------------------------------------------------------------------------------------------ building blocks


async def play(script: Script, conn: ScriptedConnection) -> None:
    """Every step of a script, in order."""
    for step in script if isinstance(script, Sequence) else (script,):
        await step(conn)


def by_form(*, stream: Script, whole: Script) -> Script:
    """One script for those who asked for a stream, another for those who asked for a whole answer."""

    async def either(conn: ScriptedConnection) -> None:
        await play(stream if conn.request.streams else whole, conn)

    return either


def says(status: int, *headers: tuple[str, str], kind: str = "some_error") -> Script:
    """A refusal in OpenAI's form."""
    return steps.json(status, {"error": {"message": WORDS, "type": kind, "param": None, "code": None}}, headers)


def limited(*values: str) -> Script:
    """429 with these `Retry-After` headers."""
    return says(429, *(("retry-after", value) for value in values))


async def limited_until(conn: ScriptedConnection) -> None:
    """429 with the date that is half a minute away."""
    await play(limited(formatdate(time() + 30.0, usegmt=True)), conn)


def half_refusal(status: int) -> list[Step]:
    """The head of a refusal, which wants to be left alone for half a minute if it is 429, and nothing of its body."""
    wait = [("retry-after", "30")] if status == 429 else []
    return [steps.head(status, [JSON, *wait])]


async def packed_refusal(conn: ScriptedConnection) -> None:
    """A refusal whose words nobody can read."""
    await conn.whole(429, b"\x8b\x05\x80", (("content-encoding", "br"), ("retry-after", "30")))


def empty(conn: ScriptedConnection) -> bytes:
    """The form of an answer, and nothing in it."""
    return piece(conn, "", None, {"choices": []}) if conn.request.streams else body(conn, more={"choices": []})


def body(conn: ScriptedConnection, text: str = "fine", more: Mapping[str, object] | None = None) -> bytes:
    """A whole answer to the request."""
    chat = "/chat/" in conn.request.path
    choice: dict[str, object] = {"index": 0, "message": {"role": "assistant", "content": text}}
    choice = {**(choice if chat else {"index": 0, "text": text}), "finish_reason": "stop"}
    kind = "chat.completion" if chat else "text_completion"
    return json.dumps(
        {"id": "x", "object": kind, "created": 1, "model": "m", "choices": [choice], **(more or {})}
    ).encode()


def piece(
    conn: ScriptedConnection, text: str, reason: str | None = None, more: Mapping[str, object] | None = None
) -> bytes:
    """A chunk of a stream, as bytes."""
    chat = "/chat/" in conn.request.path
    said: dict[str, object] = {"delta": {"content": text}} if chat else {"text": text}
    choice = {"index": 0, **said, "finish_reason": reason}
    kind = "chat.completion.chunk" if chat else "text_completion"
    chunk = {"id": "x", "object": kind, "created": 1, "model": "m", "choices": [choice], **(more or {})}
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"


def stream(conn: ScriptedConnection, text: str = "fine") -> bytes:
    """A whole good stream, as bytes."""
    return piece(conn, text) + piece(conn, "", "stop") + b"data: [DONE]\n\n"


def good(conn: ScriptedConnection) -> bytes:
    """The body of a good answer in the form asked for."""
    return stream(conn) if conn.request.streams else body(conn)


def media(conn: ScriptedConnection) -> tuple[str, str]:
    """The right content type for the form asked for."""
    return SSE if conn.request.streams else JSON


Make = Callable[[ScriptedConnection], bytes]


def sends(make: Make, *headers: tuple[str, str], then: Script = steps.end()) -> Script:  # noqa: B008 - a step is a value
    """These bytes as one piece of the body, then what follows."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.head(200, (media(conn), *headers))
        await conn.send(make(conn))
        await play(then, conn)

    return script


def lasts(seconds: float) -> Step:
    """So much virtual time."""
    return lambda _: later(seconds)


def event(make: Make) -> Step:
    """A piece of a stream that depends on the request."""
    return lambda conn: conn.event(make(conn))


# ------------------------------------------------------------------------------------------------ misdeeds


async def only_pings(conn: ScriptedConnection) -> None:
    """Signs of life for ever, and no answer."""
    await conn.head(200, (media(conn),))
    while True:
        await conn.send(b": ping\n\n" if conn.request.streams else b" ")
        await later(5.0)


async def mislabelled(conn: ScriptedConnection) -> None:
    """A good answer under a wrong content type."""
    await conn.head(200, (("content-type", "text/html"),))
    await conn.send(good(conn))
    await conn.end()


async def packed(conn: ScriptedConnection) -> None:
    """A good answer, packed although nobody asked for it."""
    await conn.whole(200, gzip.compress(good(conn)), (media(conn), ("content-encoding", "gzip")))


def packed_half(then: Step) -> Script:
    """A packed answer of which only a half comes, flushed; then this."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.head(200, (media(conn), ("content-encoding", "gzip")))
        packer = zlib.compressobj(wbits=31)
        half = piece(conn, "a") if conn.request.streams else HALF
        await conn.send(packer.compress(half) + packer.flush(zlib.Z_SYNC_FLUSH))
        await then(conn)

    return script


def off_by(length: int, then: Step) -> Script:
    """A good answer under a `content-length` that is wrong by so many bytes; then this."""

    async def script(conn: ScriptedConnection) -> None:
        data = good(conn)
        await conn.head(200, (media(conn), ("content-length", str(len(data) + length))))
        await conn.send(data)
        await then(conn)

    return script


def unframed(make: Make) -> Script:
    """A body without any length, which ends with the connection."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.raw(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n\r\n" % media(conn)[1].encode())
        await conn.raw(make(conn))
        await conn.close()

    return script


async def twice(conn: ScriptedConnection) -> None:
    """A good answer, and another one that nobody asked for."""
    await conn.whole(200, good(conn), (media(conn),))
    await conn.whole(200, good(conn), (media(conn),))


async def drips(conn: ScriptedConnection) -> None:
    """A good answer with a character of several bytes, one byte at a time."""
    data = stream(conn, "你好🌍") if conn.request.streams else body(conn, "你好🌍")
    await conn.head(200, (media(conn),))
    await conn.drip(data)
    await conn.end()


async def endless_line(conn: ScriptedConnection) -> None:
    """An event that is longer than any may be."""
    await conn.event(b"data: ")
    for _ in range(80):
        await conn.event(b"x" * _PIECE)


def half_character(conn: ScriptedConnection) -> bytes:
    """The beginning of a good answer that ends inside a character."""
    data = piece(conn, "世") if conn.request.streams else body(conn, "x").replace(b"x", "世".encode())
    return data[: data.index("世".encode()) + 2]


def usage_where(*places: str) -> Script:
    """A stream with its usage at these places: `early` (with text), `finish`, `after`; whole answers have it anyway."""
    counts: Mapping[str, object] = {
        "usage": {"prompt_tokens": TOKENS[0], "completion_tokens": TOKENS[1], "total_tokens": sum(TOKENS)}
    }

    def at(place: str) -> Mapping[str, object]:
        return counts if place in places else {"usage": None}

    def told(conn: ScriptedConnection) -> bytes:
        if not conn.request.streams:
            return body(conn, more=counts)
        chunks = [piece(conn, "fi", None, at("early")), piece(conn, "ne"), piece(conn, "", "stop", at("finish"))]
        if "after" in places:
            chunks.append(piece(conn, "", None, {"choices": [], **counts}))
        return b"".join(chunks) + b"data: [DONE]\n\n"

    return sends(told)


def preceded(by: bytes, then: Script) -> Script:
    """These raw bytes, then a script."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.raw(by)
        await play(then, conn)

    return script
