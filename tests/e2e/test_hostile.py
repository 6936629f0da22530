"""Engines and callers that mean harm, or are merely broken: bounded, refused, and survived."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import thread_time

import pytest

from headrace.testing import Script, ScriptedConnection, ScriptedEngine, steps
from tests.e2e.client import CHAT, chat
from tests.e2e.front import Front, front
from tests.e2e.raw import asked, got, head, raw_caller
from tests.runtime.virtual import later, virtually

STREAM = {**chat(), "stream": True}
ONCE = {"max_retries": 0}
MIB = 1024 * 1024
SOCKETS = 12 * MIB
"""What the buffers of two sockets on loopback may hold beside what was read."""


class Endless:
    """A script that never ends what it has begun, and counts what it could send."""

    def __init__(self, status: int, media: str, begin: bytes, more: bytes) -> None:
        self.sent = 0
        self._status, self._media, self._begin, self._more = status, media, begin, more

    async def __call__(self, conn: ScriptedConnection) -> None:
        await conn.head(self._status, (("content-type", self._media), ("retry-after", "1")))
        await conn.send(self._begin)
        while self.sent < 256 * MIB:
            await conn.send(self._more)
            self.sent += len(self._more)


TOKEN = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
PIECE = 64 * 1024
SSE = "text/event-stream"
ENDLESS: dict[str, tuple[Callable[[], Endless], bool, int]] = {
    "a line": (lambda: Endless(200, SSE, TOKEN + b"data: ", b"x" * PIECE), True, 4 * MIB),
    "an event of many lines": (lambda: Endless(200, SSE, TOKEN, b"data: x\n" * (PIECE // 8)), True, 4 * MIB),
    "a line before any content": (lambda: Endless(200, SSE, b"data: ", b"x" * PIECE), True, 4 * MIB),
    "comments": (lambda: Endless(200, SSE, TOKEN + b": ", b"x" * PIECE), True, 4 * MIB),
    "a body instead of a stream": (lambda: Endless(200, "application/json", b'{"a":"', b"x" * PIECE), True, 4 * MIB),
    "a whole answer": (lambda: Endless(200, "application/json", b'{"a":"', b"x" * PIECE), False, 32 * MIB),
    "a refusal": (lambda: Endless(429, "application/json", b'{"error":"', b"x" * PIECE), False, 64 * 1024),
    "an error page": (lambda: Endless(500, "text/html", b"<html>", b"x" * PIECE), True, 64 * 1024),
}


@pytest.mark.parametrize("kind", ENDLESS)
@virtually
async def test_an_engine_without_end(kind: str) -> None:
    """What has no end is read up to its bound, then the engine is left; the caller is told, and others are served."""
    make, stream, bound = ENDLESS[kind]
    script = make()
    async with ScriptedEngine() as engine, front(engine, routing=ONCE, load_balancer=_FORGIVING) as gate:
        engine.once(script)
        answer = await asked(gate.client.url, {**chat(), "stream": stream}, within=60.0)
        await engine.until(lambda: engine.answering == 0)
        assert script.sent <= bound + SOCKETS
        if answer.status == 200:
            assert answer.broken
            assert answer.text == "a"
        else:
            assert answer.status == (429 if kind == "a refusal" else 502)
            assert answer.error["message"]
        await _still_serves(gate)


_FORGIVING = {"cooldown_seconds": 0.001, "cooldown_cap_seconds": 0.001}


async def _still_serves(gate: Front) -> None:
    await gate.idle()
    await later(1.0)
    assert (await asked(gate.client.url)).status == 200


BROKEN_HEADS: dict[str, Script] = {
    "a header of a mebibyte": steps.raw(b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * MIB + b"\r\n\r\n"),
    "ten thousand headers": steps.raw(b"HTTP/1.1 200 OK\r\n" + b"x-many: 1\r\n" * 10_000 + b"\r\n"),
    "no HTTP": steps.raw(b"SSH-2.0-OpenSSH_9.6\r\n" * 3),
    "two lengths": steps.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}   "),
    "a negative length": steps.raw(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}"),
    "a chunk of nonsense": [steps.head(200, ()), steps.raw(b"zz\r\n{}\r\n0\r\n\r\n")],
    "a body too short": steps.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{}"),
}


@pytest.mark.parametrize("kind", BROKEN_HEADS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@virtually
async def test_an_engine_that_speaks_no_http(kind: str, stream: bool) -> None:
    """Every breach of HTTP is the engine's failure: 502 without a word of what it said."""
    script = BROKEN_HEADS[kind]
    played = [*script, steps.close()] if not callable(script) else [script, steps.close()]
    async with ScriptedEngine() as engine, front(engine, routing=ONCE, load_balancer=_FORGIVING) as gate:
        engine.once(played)
        answer = await asked(gate.client.url, {**chat(), "stream": stream})
        assert (answer.status, answer.error["type"]) == (502, "server_error")
        assert "SSH" not in answer.body.decode()
        await _still_serves(gate)


# ------------------------------------------------------------------------------------------------ callers

DEEP = b'{"model":"m","messages":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
TOOLS = b'{"a":' * 1000 + b"1" + b"}" * 1000
HOSTILE: dict[str, bytes] = {
    "20,000 nested lists": DEEP,
    "tools 1,000 deep": b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":' + TOOLS + b"}",
    "a number of 5,000 digits": b'{"model":"m","messages":[{"role":"user","content":"x"}],"n":' + b"1" * 5000 + b"}",
    "not UTF-8": b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
    "half a character": b'{"model":"\xc3","messages":[]}',
    "UTF-16": json.dumps(chat()).encode("utf-16"),
    "empty": b"",
    "blanks": b"   \r\n",
    "a list": b"[]",
    "null": b"null",
    "a number": b"7",
    "messages a string": b'{"model":"m","messages":"hello"}',
    "messages of numbers": b'{"model":"m","messages":[1,2]}',
    "no messages": b'{"model":"m"}',
    "no model": b'{"messages":[{"role":"user","content":"x"}]}',
    "stream a string": b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":"true"}',
    "stream_options a list": b'{"model":"m","messages":[{"role":"user"}],"stream":true,"stream_options":[]}',
    "NaN": b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "Infinity": b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1e999}',
    "a negative limit": b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":-1}',
    "a key twice": b'{"model":"m","model":"n","messages":[{"role":"user","content":"x"}]}',
    "an address": b'{"model":"m","messages":[{"role":"user","content":"x"}],"api_base":"http://169.254.169.254/"}',
    "a user of no type": b'{"model":"m","messages":[{"role":"user","content":"x"}],"user":{}}',
    "more after the end": b'{"model":"m","messages":[{"role":"user","content":"x"}]}{}',
}


async def test_hostile_bodies_never_reach_an_engine() -> None:
    """Each is 400 in the API's form, names no insides, and leaves the connection fit for a good request."""
    async with ScriptedEngine() as engine, front(engine) as gate, raw_caller(gate.client.url) as caller:
        for kind, body in HOSTILE.items():
            caller.forget()
            caller.ask(body)
            answer = await caller.answer()
            assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), kind
            assert not any(word in answer.body.decode() for word in ("Traceback", "File ", "msgspec", "Error(")), kind
            caller.forget()
            caller.ask()
            assert (await caller.answer()).status == 200, kind
        await gate.idle()
        assert len(engine.requests) == len(HOSTILE)
        assert gate.totals["accepted"] == len(HOSTILE)


@pytest.mark.parametrize(
    "fields",
    [
        (("authorization", "Bearer caf\xe9"),),
        (("authorization", "Bearer \xf0\x9f\x94\x91"),),
        (("authorization", "Bearer"),),
        (("authorization", "Bearer x "), ("authorization", "Bearer y")),
        (("authorization", "Bearer " + "x" * 30_000),),
        (("x-headrace-user", "\x01\x02\xff"), ("x-session-id", "s" * 10_000)),
        (("cookie", "a=" + "b" * 20_000),),
        (("traceparent", "00-zz"), ("idempotency-key", "\xff")),
    ],
    ids=["Latin-1", "emoji", "no key", "two keys", "a long key", "odd names", "a long cookie", "odd ids"],
)
@virtually
async def test_hostile_headers_are_no_mistake_of_ours(fields: tuple[tuple[str, str], ...]) -> None:
    """Whatever stands in a header, the answer is no 500, and nothing of it comes back."""
    async with ScriptedEngine() as engine, front(engine) as gate:
        answer = await asked(gate.client.url, chat(), fields)
        assert answer.status < 500
        assert not any(value in str(answer.fields) for _, value in fields)
        await _still_serves(gate)


@pytest.mark.parametrize(
    "path",
    [
        "/health/%2e%2e/v1/chat/completions",
        "//v1/chat/completions",
        "/health/../v1/chat/completions",
        "/v1/chat%2fcompletions/",
        "/V1/chat/completions",
        "/v1/chat/completions;x",
        "/v1/chat/completions/",
        "/v1/models/..%2f..%2fv1/chat/completions",
        "/metrics/../v1/chat/completions",
    ],
)
async def test_no_spelling_of_a_path_reaches_an_engine(path: str) -> None:
    """What is not exactly a served path is 404 or 405, and no engine hears of it."""
    async with ScriptedEngine() as engine, front(engine) as gate, raw_caller(gate.client.url) as caller:
        caller.ask(path=path)
        answer = await caller.answer()
        assert answer.status in {404, 405}
        assert answer.error["type"] in {"invalid_request_error", "not_found_error"}
        assert not engine.requests


async def test_methods_cannot_be_disguised() -> None:
    """A header that names another method is nothing; other methods on the data path ask no engine."""
    async with ScriptedEngine() as engine, front(engine) as gate:
        for method in ("GET", "OPTIONS", "PUT", "DELETE"):
            answer = await got(gate.client.url, CHAT, (("x-http-method-override", "POST"),), method)
            assert answer.status == 405
        assert not engine.requests


async def test_smuggled_requests_are_refused() -> None:
    """Two framings in one request: whatever the answer, only one request is understood, and none of it is sent on."""
    inner = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n"
    async with ScriptedEngine() as engine, front(engine) as gate, raw_caller(gate.client.url) as caller:
        fields = [("host", "g"), ("content-length", str(5 + len(inner))), ("transfer-encoding", "chunked")]
        caller.send(head("POST", CHAT, fields) + b"0\r\n\r\n" + inner)
        await caller.until(lambda: caller.heard is not None, "an answer")
        assert caller.received.count(b"HTTP/1.1 ") >= 1
        assert caller.received.startswith(b"HTTP/1.1 400")
        assert not engine.requests


async def test_many_who_leave_leave_nothing() -> None:
    """Hundreds of callers that break off at any moment: nothing of them is left, and the next one is served."""
    async with ScriptedEngine([steps.chunk("a"), steps.hang()]) as engine, front(engine) as gate:
        for number in range(200):
            async with raw_caller(gate.client.url) as caller:
                caller.ask({**STREAM, "user": f"user-{number}", "seed": number})
                if number % 4:
                    await caller.sees(b'"a"')
                (caller.reset if number % 2 else caller.close)()
        await gate.idle()
        await engine.until(lambda: engine.answering == 0)
        assert gate.headrace.gateway.flights == 0
        assert gate.headrace.exchanges == 0
        engine.default = steps.answer("fine")
        assert (await asked(gate.client.url)).status == 200


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 800_000}}
LARGE = json.dumps({"model": "m", "messages": [{"role": "user", "content": [IMAGE]}]}).encode()


async def test_large_bodies_beside_a_stream() -> None:
    """Bodies near the limit, good and bad, several at once: each has its answer, and a stream beside them is whole."""
    go = asyncio.Event()

    async def slow(conn: ScriptedConnection) -> None:
        for number in range(50):
            await conn.chunk(f"{number},")
        await conn.wait(go.wait())
        await conn.answer("end")

    async with ScriptedEngine() as engine, front(engine) as gate, raw_caller(gate.client.url) as steady:
        engine.once(slow)
        steady.ask(STREAM)
        await steady.sees(b'"0,"')
        uploads = [asked(gate.client.url, body) for body in (LARGE, LARGE[:-5], LARGE + b" ", LARGE[1:])]
        health = [got(gate.client.url, "/health") for _ in range(4)]
        answers = await asyncio.gather(*uploads, *health)
        go.set()
        answer = await steady.answer()
        await gate.idle()
    assert [heard.status for heard in answers] == [200, 400, 200, 400, *[200] * 4]
    assert answer.text == "".join(f"{number}," for number in range(50)) + "end"
    assert answer.done


@pytest.mark.slow
async def test_large_bodies_do_not_hold_up_the_loop() -> None:
    """While bodies near the limit are read, parsed and sent on, no more is done between a request for `/health` and its
    answer than the bodies cost one after the other: by the loop's own time, which does not count what else the machine
    has to do."""
    bodies, longest, over = 8, 0.0, False

    async with ScriptedEngine() as engine, front(engine) as gate:
        began = thread_time()
        await asked(gate.client.url, LARGE)
        one = thread_time() - began

        async def asks_health() -> None:
            nonlocal longest
            async with raw_caller(gate.client.url) as caller:
                while not over:
                    began = thread_time()
                    caller.forget()
                    caller.get("/health")
                    await caller.answer()
                    longest = max(longest, thread_time() - began)

        beat = asyncio.create_task(asks_health())
        await asyncio.gather(*(asked(gate.client.url, LARGE) for _ in range(bodies)))
        over = True
        await beat
    assert longest < bodies * one, "twice of what it takes, the callers' and the engine's part included"
