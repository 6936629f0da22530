"""What goes to the engine, what comes back to the caller, and what neither may ever see."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
import structlog
from structlog.testing import capture_logs

from headrace.runtime.stores import LetterFilter
from headrace.testing import Script, ScriptedConnection, ScriptedEngine, steps
from tests.e2e.client import CHAT, chat
from tests.e2e.front import front
from tests.e2e.raw import Headers, asked, got, head, raw_caller
from tests.runtime.virtual import virtually

STREAM = {**chat(), "stream": True}
ONCE = {"max_retries": 0}
CALLERS_KEY = "sk-gw-Zk7Qx9Wv2Lp4Tn8R"
ENGINE_KEY = "sk-up-Hy3Bm6Jd1Cf5Gs0V"
KEYED = {"api_key_env": "ENGINE_KEY"}
ENV = {"ENGINE_KEY": ENGINE_KEY}


# ------------------------------------------------------------------------------------------------ packed answers


def deflated(data: bytes) -> bytes:
    """zlib's form, which is what HTTP calls deflate."""
    return zlib.compress(data)


PACKED = pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", deflated)])
ACCEPTS: list[Headers] = [(), (("accept-encoding", "gzip"),), (("accept-encoding", "identity"),)]


@PACKED
@pytest.mark.parametrize("accepts", ACCEPTS, ids=["nothing", "gzip", "identity"])
async def test_a_packed_answer_reaches_every_caller_unpacked(
    encoding: str, pack: Callable[[bytes], bytes], accepts: Headers
) -> None:
    """An engine that packs unasked: the caller gets the JSON with its real length and no word of an encoding."""
    body = json.dumps({"model": "m", "choices": [{"index": 0, "message": {"content": "x" * 500}}]}).encode()
    script = steps.whole(200, pack(body), (("content-encoding", encoding), ("content-type", "application/json")))
    async with ScriptedEngine(script) as engine, front(engine) as gate:
        answer = await asked(gate.client.url, chat(), accepts)
        assert engine.requests[0].header("accept-encoding") == "identity"
    assert answer.json == json.loads(body)
    assert answer.header("content-encoding") is None


@PACKED
async def test_a_packed_refusal_is_understood(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    """The engine's reason is read out of the packed body, and the caller gets it plain."""
    body = json.dumps(
        {"error": {"message": "temperature is too hot", "type": "BadRequestError", "param": "t"}}
    ).encode()
    script = steps.whole(400, pack(body), (("content-encoding", encoding), ("content-type", "application/json")))
    async with ScriptedEngine(script) as engine, front(engine) as gate:
        answer = await asked(gate.client.url, chat(), (("accept-encoding", "gzip"),))
    assert answer.status == 400
    assert (answer.error["message"], answer.error["type"]) == ("temperature is too hot", "BadRequestError")


@PACKED
async def test_a_packed_stream_flows(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    """Each frame reaches the caller once the engine has flushed it, not when the block is full."""
    taken = [asyncio.Event() for _ in range(2)]
    packer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)

    async def say(conn: ScriptedConnection, text: str, reason: str | None = None) -> None:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
        event = b"data: " + json.dumps({"model": "m", "choices": [choice]}).encode() + b"\n\n"
        await conn.send(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH))

    async def script(conn: ScriptedConnection) -> None:
        await conn.head(200, (("content-type", "text/event-stream"), ("content-encoding", encoding)))
        for number, event in enumerate(taken):
            await say(conn, f"<{number}>")
            await conn.wait(event.wait())
        await say(conn, "end", "stop")
        await conn.send(packer.flush())
        await conn.end()

    del pack
    async with ScriptedEngine(script) as engine, front(engine) as gate, raw_caller(gate.client.url) as caller:
        caller.ask(STREAM, (("accept-encoding", "gzip"),))
        for number, event in enumerate(taken):
            await caller.sees(b"<%d>" % number)
            event.set()
        answer = await caller.answer()
    assert (answer.text, answer.done) == ("<0><1>end", True)
    assert answer.header("content-encoding") is None


@pytest.mark.parametrize("encoding", ["br", "x-unknown", "gzip"])
async def test_a_body_that_cannot_be_unpacked_is_the_engines_fault(encoding: str) -> None:
    """An encoding nobody asked for and nobody knows, or one that is a lie, is 502 and never passed on as text."""
    script = steps.whole(200, b"\x8b\x05\x80not packed at all", (("content-encoding", encoding),))
    async with ScriptedEngine(script) as engine, front(engine, routing=ONCE) as gate:
        answer = await asked(gate.client.url)
        await gate.idle()
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")


# ------------------------------------------------------------------------------------------------ to the engine

PLACES: dict[str, tuple[str, Headers]] = {
    "authorization": (CHAT, (("authorization", f"Bearer {CALLERS_KEY}"),)),
    "x-api-key": (CHAT, (("x-api-key", CALLERS_KEY),)),
    "api-key": (CHAT, (("api-key", CALLERS_KEY),)),
    "query": (f"{CHAT}?key={CALLERS_KEY}", ()),
    "cookie": (CHAT, (("cookie", f"session={CALLERS_KEY}"),)),
    "proxy-authorization": (CHAT, (("proxy-authorization", f"Basic {CALLERS_KEY}"),)),
}
NEVER = {"connection", "keep-alive", "te", "proxy-authorization", "upgrade", "x-foo", "cookie", "transfer-encoding"}
HOPS: Headers = (("connection", "x-foo, keep-alive"), ("x-foo", "1"), ("te", "trailers"), ("cookie", "a=b"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("keyed", [True, False], ids=["engine with a key", "engine without"])
async def test_the_callers_key_goes_nowhere(place: str, keyed: bool) -> None:
    """Wherever the caller puts his key, no byte of it reaches an engine: it sees its own key, or none at all."""
    path, headers = PLACES[place]
    extra = KEYED if keyed else {}
    async with ScriptedEngine() as engine, front(engine, env=ENV, instances=extra) as gate:
        answer = await asked(gate.client.url, chat(), headers, path)
        assert answer.status == 200
        assert CALLERS_KEY.encode() not in engine.received
        assert engine.requests[0].header("authorization") == (f"Bearer {ENGINE_KEY}" if keyed else None)
        assert engine.requests[0].path == CHAT


@pytest.mark.parametrize("model", ["m=a-much-longer-name-than-before", "m-long-alias=s", "m"])
@pytest.mark.parametrize("body", [chat(), STREAM], ids=["whole", "streamed"])
async def test_an_engine_gets_clean_requests(model: str, body: dict[str, object]) -> None:
    """Its own host, one length that is the body's whatever was renamed, and nothing that belongs to another hop."""
    asked_name, _, sent_name = model.partition("=")
    async with ScriptedEngine() as engine, front(engine, instances={"models": [model]}) as gate:
        answer = await asked(gate.client.url, {**body, "model": asked_name}, HOPS)
        assert answer.status == 200
        request = engine.requests[0]
    names = [name for name, _ in request.headers]
    assert request.header("host") == urlsplit(engine.url).netloc
    assert names.count("content-length") == 1
    assert request.header("content-length") == str(len(request.body))
    assert request.json()["model"] == (sent_name or asked_name)
    assert not NEVER & set(names)
    models = [chunk["model"] for chunk in answer.chunks] if body is STREAM else [answer.json["model"]]
    assert set(models) == {asked_name}, "the caller reads the name he asked for"
    assert answer.header("x-headrace-model") == (sent_name or asked_name)


async def test_a_body_in_chunks_and_on_demand() -> None:
    """A caller that announces no length, or waits to be told to go on, is served; the engine gets a plain length."""
    body = json.dumps(chat()).encode()
    fields = [("host", "g"), ("content-type", "application/json"), ("expect", "100-continue")]
    chunked = [*fields, ("transfer-encoding", "chunked")]
    async with ScriptedEngine() as engine, front(engine) as gate, raw_caller(gate.client.url) as caller:
        caller.send(head("POST", CHAT, chunked))
        await caller.sees(b"100 Continue\r\n\r\n")
        caller.forget()
        for byte in body:
            caller.send(b"1\r\n%c\r\n" % byte)
        caller.send(b"0\r\n\r\n")
        assert (await caller.answer()).status == 200
        request = engine.requests[0]
    assert (request.body, request.header("content-length")) == (body, str(len(body)))
    assert not {"expect", "transfer-encoding"} & {name for name, _ in request.headers}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    """Nobody sends our caller's words and our key elsewhere: 502, and the other host is not asked."""
    async with ScriptedEngine() as elsewhere, ScriptedEngine() as engine:
        engine.default = steps.whole(status, b"", (("location", f"{elsewhere.url}{CHAT}"),))
        async with front(engine, env=ENV, instances=KEYED, routing=ONCE) as gate:
            answer = await asked(gate.client.url)
        assert elsewhere.connections == 0
    assert (answer.status, answer.header("location")) == (502, None)
    assert "127.0.0.1" not in answer.body.decode()


async def test_each_attempt_has_its_own_key() -> None:
    """When one instance fails and the other answers, both saw only the key that is theirs."""
    async with ScriptedEngine(steps.json(500, {})) as first, ScriptedEngine() as second:
        keys = {"KEY_a": "key-of-a", "KEY_b": "key-of-b"}
        async with front(first, second, env=keys, instances={"api_key_env": "KEY_{}"}) as gate:
            assert (await asked(gate.client.url)).status == 200
    assert (b"key-of-a" in first.received, b"key-of-b" in first.received) == (True, False)
    assert (b"key-of-a" in second.received, b"key-of-b" in second.received) == (False, True)


# ------------------------------------------------------------------------------------------------ to the caller


@pytest.mark.parametrize("body", [chat(), STREAM], ids=["whole", "streamed"])
async def test_an_answer_says_where_it_came_from(body: dict[str, object]) -> None:
    """Instance, model, attempts, time in the queue, cache and class are in the head; the caller's id comes back."""
    headers = (("x-request-id", "my-id-7"), ("x-headrace-class", "interactive"))
    async with ScriptedEngine() as engine, front(engine) as gate:
        answer = await asked(gate.client.url, body, headers)
        other = await asked(gate.client.url, body)
    told = {name: value for name, value in answer.fields if name.startswith(("x-headrace-", "x-request"))}
    assert told.pop("x-headrace-queue-ms").isdecimal()
    assert told == {
        "x-request-id": "my-id-7",
        "x-headrace-class": "interactive",
        "x-headrace-instance": "a",
        "x-headrace-model": "m",
        "x-headrace-attempts": "1",
        "x-headrace-cache": "miss",
    }
    assert answer.header("server") is None
    made = other.header("x-request-id")
    assert made is not None
    assert made.startswith("req-")


async def test_an_unusable_id_is_not_taken_over() -> None:
    """An id that could not stand in a log line or in a header is replaced by one of ours."""
    async with ScriptedEngine() as engine, front(engine) as gate:
        for bad in ("a b", "x" * 200, "caf\xe9", '"quoted"', "<tag>"):
            answer = await asked(gate.client.url, chat(), (("x-request-id", bad),))
            assert answer.status == 200
            assert (answer.header("x-request-id") or "").startswith("req-")


async def test_a_limit_says_when_to_come_back() -> None:
    """A full queue: whole seconds of at least 1, milliseconds beside them, why, and the id to ask about."""
    async with (
        ScriptedEngine(steps.hang()) as engine,
        front(engine, instances={"max_concurrent": 1}, scheduling={"queue_size": 1}) as gate,
        raw_caller(gate.client.url) as one,
        raw_caller(gate.client.url) as two,
    ):
        one.ask(chat("1"))
        await engine.got(1)
        two.ask(chat("2"))
        await gate.until(lambda: gate.headrace.snapshot().queued == 1, "the queue is full")
        answer = await asked(gate.client.url, chat("3"), (("x-request-id", "late"),))
    assert (answer.status, answer.error["code"]) == (503, "queue_full")
    assert int(answer.header("retry-after") or 0) >= 1
    assert int(answer.header("retry-after-ms") or 0) >= 1
    assert answer.header("x-headrace-drop-reason") == "backpressure"
    assert answer.header("x-request-id") == "late"


@pytest.mark.parametrize(
    ("body", "status", "code", "reason"),
    [
        ({**chat(), "model": "nobody-has-it"}, 404, "model_not_found", "model_not_found"),
        (b"{", 400, None, None),
    ],
    ids=["unknown model", "no JSON"],
)
async def test_the_callers_own_mistake_is_not_to_be_repeated(
    body: dict[str, object] | bytes, status: int, code: str | None, reason: str | None
) -> None:
    """Client libraries are told not to try again, and every error bears the request's id."""
    async with ScriptedEngine() as engine, front(engine) as gate:
        answer = await asked(gate.client.url, body, (("x-request-id", "mine"),))
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.header("x-should-retry") == "false"
    assert answer.header("x-headrace-drop-reason") == reason
    assert answer.header("x-request-id") == "mine"
    assert answer.header("content-type") == "application/json"


# ------------------------------------------------------------------------------------------------ secrets

MARKER = "marker-text-of-a-prompt"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """Everything that is logged at any level, exceptions in full, as text."""
    caplog.set_level(logging.DEBUG)
    with capture_logs(processors=[structlog.processors.format_exc_info]) as entries:
        yield lambda: "\n".join(map(str, entries)) + caplog.text


def _pieces(secret: str) -> list[str]:
    return [secret[at : at + 5] for at in range(len(secret) - 4)]


LEAKS: dict[str, Script] = {
    "the key refused": steps.json(401, {"error": {"message": f"Incorrect API key provided: {ENGINE_KEY}."}}),
    "the key in a refusal": steps.json(
        400, {"error": {"message": f"bad: {ENGINE_KEY[4:]} at http://10.1.2.3:8000/v1"}}
    ),
    "an error page": steps.json(500, {"detail": f"/srv/app/engine.py line 7: {ENGINE_KEY}"}),
    "an error event": [steps.chunk("a"), steps.error(f"{ENGINE_KEY} on gpu-7.internal:8000"), steps.end()],
    "an error event at first": [steps.error(f"{ENGINE_KEY} on gpu-7.internal:8000"), steps.end()],
    "no answer": steps.cut(),
}


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@virtually
async def test_no_secret_leaves(leak: str, stream: bool, logged: Callable[[], str]) -> None:
    """Whatever an engine blurts out, no caller, log line, dead letter or metric shows a key, a host or a prompt."""
    letters_kept = {"path": None, "keep_bodies": False}
    async with (
        ScriptedEngine(LEAKS[leak]) as engine,
        front(engine, env=ENV, instances=KEYED, dead_letters=letters_kept, routing=ONCE) as gate,
    ):
        mine = (("authorization", f"Bearer {CALLERS_KEY}"),)
        answer = await asked(gate.client.url, {**chat(MARKER), "stream": stream}, mine)
        await gate.idle()
        letters = str(await gate.headrace.dead_letters.list(LetterFilter()))
        pages = [(await got(gate.client.url, path)).body.decode() for path in ("/metrics", "/health")]
    written = logged()
    assert answer.status in {200, 400, 502}
    assert "'event': 'request'" in written
    places = {"answer": answer.body.decode() + str(answer.fields), "letters": letters, "pages": "".join(pages)}
    secret = [*_pieces(ENGINE_KEY[6:]), *_pieces(CALLERS_KEY[6:]), "10.1.2.3", "gpu-7", "engine.py", "/srv"]
    for place, text in {**places, "log": written}.items():
        leaked = [word for word in (*secret, MARKER, urlsplit(engine.url).netloc) if word in text]
        assert leaked == [], place
