"""A stream that breaks off and goes on at another instance, over real sockets: callers see one answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from structlog.testing import capture_logs

from headrace.runtime.stores import LetterFilter
from headrace.testing import Script, ScriptedConnection, ScriptedEngine, Step, steps
from tests.e2e.client import CHAT, Heard, chat
from tests.e2e.fault_scripts import play
from tests.e2e.front import Front, front
from tests.runtime.virtual import later, virtually
from tests.wire.halves import ENGINES, PROMPT, TEXT, Half

NOTE = b": headrace resumed times=%d\n\n"
TIMEOUTS = {"connect": 2, "first_token": 12, "idle": 8, "attempt": 100}
SSE = (("content-type", "text/event-stream"),)
SHARES = 10


def paths(kind: str) -> tuple[str, dict[str, object]]:
    """Where such an engine is asked, and with what."""
    usage = {"stream": True, "temperature": 0, "stream_options": {"include_usage": True}}
    if ENGINES[kind][1] == "chat":
        return CHAT, {**chat(), **usage}
    return "/v1/completions", {"model": "m", "prompt": PROMPT, **usage}


def first_half(kind: str, place: int, then: Step) -> Script:
    """The first so many bytes of the answer, then this."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.head(200, SSE)
        await conn.send(Half(kind, "first", model="m").rest("")[:place])
        await then(conn)

    return script


def second_half(kind: str) -> Script:
    """What of the answer the request does not hold yet."""

    async def script(conn: ScriptedConnection) -> None:
        engine = Half(kind, "another", model="m")
        part = engine.asked(json.loads(conn.request.body))
        await conn.head(200, SSE)
        await conn.send(engine.rest(part))
        await conn.end()

    return script


def up_to(text: str, kind: str = "vllm") -> int:
    """The place just after the event with this text."""
    stream = Half(kind, "first", model="m").rest("")
    return stream.index(b"\n\n", stream.index(text.encode())) + 2


@asynccontextmanager
async def before(
    *scripts: Script,
    kind: str = "vllm",
    instances: Mapping[str, object] | None = None,
    **sections: Any,
) -> AsyncIterator[tuple[Front, list[ScriptedEngine]]]:
    """A gateway before one engine for each script."""
    added = {"engine": ENGINES[kind][0].value, **(instances or {})}
    async with _engines(scripts) as engines:
        fixed: Mapping[str, Mapping[str, object]] = {
            "load_balancer": {"strategy": "round_robin"},
            "timeouts": TIMEOUTS,
            "metrics": {"enabled": False},
            "health_check": {"interval_seconds": 86_400, "deep_check_interval": 0},
            "instances": added,
        }
        async with front(*engines, **{**fixed, **sections}) as gate:
            yield gate, engines


@asynccontextmanager
async def _engines(scripts: tuple[Script, ...]) -> AsyncIterator[list[ScriptedEngine]]:
    if not scripts:
        yield []
        return
    async with ScriptedEngine(scripts[0], guard=10_000.0) as engine, _engines(scripts[1:]) as others:
        yield [engine, *others]


async def ask(gate: Front, kind: str = "vllm", **fields: Any) -> Heard:
    """The whole answer; afterwards nothing is held."""
    path, body = paths(kind)
    heard = await gate.client.ask({**body, **fields}, path=path)
    await gate.idle()
    return heard


def check_one_answer(heard: Heard, times: int = 1) -> None:
    """Complete, seamless, and marked."""
    assert (heard.status, heard.text, heard.done) == (200, TEXT, True)
    assert {event["id"] for event in heard.events} == {"first"}
    assert "error" not in heard.body.decode()
    assert heard.body.count(NOTE % times) == 1
    assert heard.body.endswith(NOTE % times + b"data: [DONE]\n\n")


def _positions(kind: str, every: int) -> range:
    return range(up_to("Well", kind), len(Half(kind, "first", model="m").rest("")), every)


class Breaking:
    """The script of two engines: whichever is asked first breaks off at `place`, the other one gives the rest."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.place = 0
        self.asked = 0

    async def __call__(self, conn: ScriptedConnection) -> None:
        self.asked += 1
        if self.asked == 1:
            await play(first_half(self._kind, self.place, steps.cut()), conn)
        else:
            await play(second_half(self._kind), conn)


async def _cut_at(kind: str, places: range) -> int:
    """How many of the streams that were cut at these places had to go on elsewhere: all of them did, without a seam."""
    resumed = 0
    breaking = Breaking(kind)
    async with before(breaking, breaking, kind=kind, routing={"retry_reserve": 1e6}) as (gate, _):
        for place in places:
            breaking.place, breaking.asked = place, 0
            heard = await ask(gate, kind)
            if breaking.asked == 1:
                assert (heard.text, heard.done) == (TEXT, True), "only the mark was missing"
            else:
                check_one_answer(heard)
                resumed += 1
            await later(6.0)  # the one that broke off is asked again
    return resumed


@pytest.mark.parametrize("kind", ENGINES)
@virtually
async def test_a_stream_cut_anywhere_is_one_answer_to_its_caller(kind: str) -> None:
    """Bytes of every kind of place: in the middle of events, of characters, before the end."""
    places = _positions(kind, 61)
    assert await _cut_at(kind, places) >= len(places) * 2 // 3


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("kind", ENGINES)
@virtually
async def test_a_stream_cut_at_each_byte_is_one_answer_to_its_caller(kind: str, share: int) -> None:
    """The same for all of them, some at a time: what runs on virtual time may not take for ever in real time."""
    places = _positions(kind, 1)[share::SHARES]
    assert await _cut_at(kind, places) >= len(places) * 2 // 3


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        (steps.cut(), "broken_stream"),
        (steps.reset(), "broken_stream"),
        (steps.end(), "broken_stream"),
        (steps.hang(), "timeout"),
        (steps.error("dead", "api_error"), "broken_stream"),
        (steps.error("busy", "overloaded_error"), "rate_limited"),
        (steps.send(b"data: {no json\n\n"), "broken_stream"),
    ],
)
@virtually
async def test_whatever_breaks_a_stream_it_goes_on(ends: Step, cause: str) -> None:
    """Cut, reset, ended too soon, silent, failed in band, garbled: the rest comes from the other instance."""
    async with before(first_half("vllm", up_to("你"), ends), second_half("vllm")) as (gate, engines):
        check_one_answer(await ask(gate))
        assert [len(engine.requests) for engine in engines] == [1, 1]
        assert (gate.totals["resumes"], gate.totals["answered"]) == (1, 1)
        metrics = (await gate.client.get("/metrics")).body.decode()
        assert f'headrace_retries_total{{cause="{cause}"}} 1.0' in metrics
        assert 'headrace_resumed_requests_total{ending="answered"} 1.0' in metrics
        assert gate.instance("b").reliability == 1.0


@pytest.mark.parametrize(("part", "ending"), [(1.0, "answered"), (0.5, "stream_broken")])
@virtually
async def test_the_log_names_who_answered_at_last(part: float, ending: str) -> None:
    """The request's line has the instance that went on and all attempts; also where it broke off again."""

    async def rest(conn: ScriptedConnection) -> None:
        engine = Half("vllm", "another", model="m")
        rest = engine.rest(engine.asked(json.loads(conn.request.body)))
        await conn.head(200, SSE)
        await conn.send(rest[: int(part * len(rest))])
        await conn.end()

    with capture_logs() as lines:
        async with before(first_half("vllm", up_to("你"), steps.cut()), rest, routing={"max_resumes": 1}) as (gate, _):
            await ask(gate)
    (line,) = [line for line in lines if line["event"] == "request"]
    assert (line["instance"], line["attempts"], line["ending"]) == ("b", 2, ending)


@virtually
async def test_usage_is_that_of_the_whole_answer() -> None:
    """The prompt once, the answer's tokens summed; in the metrics too."""
    async with before(first_half("vllm", up_to("你"), steps.cut()), second_half("vllm")) as (gate, _):
        heard = await ask(gate)
        usage = next(event["usage"] for event in heard.events if event.get("usage"))
        alone = await ask(gate, temperature=0.0)
        whole = next(event["usage"] for event in alone.events if event.get("usage"))
        metrics = (await gate.client.get("/metrics")).body.decode()
    assert usage == whole
    assert f'headrace_tokens_total{{kind="completion"}} {2.0 * whole["completion_tokens"]}' in metrics
    assert f'headrace_tokens_total{{kind="prompt"}} {2.0 * whole["prompt_tokens"]}' in metrics


@virtually
async def test_an_answer_may_break_off_twice() -> None:
    """The third instance gives what the second did not."""

    async def middle(conn: ScriptedConnection) -> None:
        engine = Half("vllm", "the second", model="m")
        rest = engine.rest(engine.asked(json.loads(conn.request.body)))
        await conn.head(200, SSE)
        await conn.send(rest[: rest.index(b"Two") + 9])
        await conn.cut()

    async with before(first_half("vllm", up_to("你"), steps.cut()), middle, second_half("vllm")) as (gate, _):
        check_one_answer(await ask(gate), times=2)


@virtually
async def test_where_the_rest_cannot_be_had_one_error_ends_the_stream() -> None:
    """As without this: what was read stays read, an error event, no `[DONE]`, one dead letter that tells of both."""
    refuses = steps.json(400, {"error": {"message": "no prefill here", "type": "x", "param": None, "code": 400}})
    async with before(first_half("vllm", up_to("你"), steps.cut()), refuses) as (gate, engines):
        heard = await ask(gate)
        letters = await gate.headrace.dead_letters.list(LetterFilter())
    assert (heard.status, heard.done) == (200, False)
    assert heard.error["code"] == "stream_incomplete"
    assert TEXT.startswith(heard.text)
    assert len(engines[1].requests) == 1
    assert b"no prefill" not in heard.body
    (letter,) = letters
    assert [(record.cause.value, record.produced > 0) for record in letter.attempts] == [
        ("broken_stream", True),
        ("rejected", False),
    ]


@pytest.mark.parametrize(
    ("instances", "sections", "fields"),
    [
        ({"resume": "off"}, {}, {}),
        ({"engine": "openai"}, {}, {}),
        ({"tier": "remote"}, {}, {}),
        ({}, {"routing": {"resume": False}}, {}),
        ({}, {"routing": {"max_retries": 0}}, {}),
        ({}, {}, {"logprobs": True}),
        ({}, {}, {"response_format": {"type": "json_object"}}),
    ],
)
@virtually
async def test_it_is_not_done_where_it_may_not_be(
    instances: dict[str, object], sections: dict[str, Any], fields: dict[str, Any]
) -> None:
    """Switched off, a cloud provider, an unknown server, no retry left, a request it does not fit."""
    scripts = first_half("vllm", up_to("你"), steps.cut()), second_half("vllm")
    async with before(*scripts, instances=instances, **sections) as (gate, engines):
        heard = await ask(gate, **fields)
    assert heard.error["code"] == "stream_incomplete"
    assert engines[1].requests == []


@virtually
async def test_what_one_that_may_not_began_does_not_go_on_at_one_that_may() -> None:
    """Also where the request was first sent to one that may, and failed there unseen."""
    refuses = steps.json(500, {"error": {"message": "no"}})
    first = first_half("vllm", up_to("你"), steps.cut())
    async with before(refuses, first, second_half("vllm"), each={"b": {"resume": "off"}}) as (gate, engines):
        heard = await ask(gate)
    assert heard.error["code"] == "stream_incomplete"
    assert engines[2].requests == []


@virtually
async def test_a_server_of_unknown_make_may_be_told_to() -> None:
    """`resume: on` for one that calls itself openai and does as vLLM does."""
    scripts = first_half("vllm", up_to("你"), steps.cut()), second_half("vllm")
    async with before(*scripts, instances={"engine": "openai", "resume": True}) as (gate, _):
        check_one_answer(await ask(gate))


@virtually
async def test_all_who_share_an_answer_get_it_whole_and_so_does_the_cache() -> None:
    """One streams from the start, one wants it whole, one comes between the halves, one after the end."""
    cut = asyncio.Event()
    path, body = paths("vllm")
    whole = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    scripts = (first_half("vllm", up_to("你"), steps.wait(cut.wait)),)
    async with before(*scripts, dedup={"mode": "full"}) as (gate, engines):
        early = asyncio.create_task(gate.client.ask(body, path=path))
        await gate.until(lambda: gate.totals["model_calls"] == 1, "it runs")
        in_whole = asyncio.create_task(gate.client.ask(whole, path=path))
        await gate.until(lambda: gate.totals["joined"] == 1, "it is shared")
        engines[0].default = second_half("vllm")
        cut.set()
        await gate.until(lambda: gate.headrace.snapshot().waiting_retry == 1, "it broke off")
        late = asyncio.create_task(gate.client.ask(body, path=path))
        answers = await asyncio.gather(early, in_whole, late)
        await gate.idle()
        after = await gate.client.ask(body, path=path)
    assert [answer.text for answer in answers] == [TEXT] * 3
    assert [answer.headers["x-headrace-cache"] for answer in (*answers, after)] == ["miss", "joined", "joined", "hit"]
    check_one_answer(answers[0])
    check_one_answer(answers[2])
    assert (after.text, after.done, b"resumed" in after.body) == (TEXT, True, False)


@pytest.mark.parametrize("when", ["between the halves", "in the second half"])
@virtually
async def test_a_caller_who_leaves_ends_it(when: str) -> None:
    """Nothing is asked for any more, and what was is given back."""
    async with before(first_half("vllm", up_to("你"), steps.cut())) as (gate, engines):
        (engine,) = engines
        path, body = paths("vllm")
        async with gate.client.open(body, path=path) as response:
            await gate.until(lambda: gate.totals["resumes"] == 1, "it broke off")
            engine.default = steps.hang()
            if when == "in the second half":
                await later(20.0)
                await engine.got(2, 30.0)
            assert response.status == 200
        await gate.idle()
        await engine.until(lambda: not engine.answering, 30.0)
        await later(60.0)
        assert len(engine.requests) == (2 if when == "in the second half" else 1)
        assert gate.totals["cancelled"] == 1


@pytest.mark.asyncio
async def test_the_official_client_sees_one_answer() -> None:
    """The SDK reads over the seam and the comment without a word."""
    scripts = first_half("vllm", up_to("你"), steps.cut()), second_half("vllm")
    async with before(*scripts) as (gate, _):
        sdk = openai.AsyncOpenAI(base_url=f"{gate.client.url}/v1", api_key="unused", max_retries=0)
        async with sdk:
            stream = await sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], temperature=0, stream=True
            )
            chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert {chunk.id for chunk in chunks} == {"first"}
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
