"""Finished answers kept and given again: to whom they are, to whom they are not, and in what form."""

from __future__ import annotations

import json

import pytest

from headrace.testing import Script, ScriptedConnection, ScriptedEngine, steps
from tests.e2e.client import Heard, chat
from tests.e2e.front import Front, front
from tests.runtime.virtual import later, virtually

FULL = {"mode": "full"}
BASE = chat("same", temperature=0)
PIXEL = "data:image/png;base64,AAAA"

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
DIFFERENCES: dict[str, tuple[object, object]] = {
    "max_tokens": (10, 11),
    "max_completion_tokens": (10, 11),
    "top_p": (1, 0.9),
    "stop": (["a"], ["b"]),
    "n": (1, 2),
    "seed": (1, 2),
    "tools": ([TOOL], []),
    "tool_choice": ("auto", "none"),
    "response_format": ({"type": "text"}, {"type": "json_object"}),
    "logprobs": (True, False),
    "presence_penalty": (0, 0.5),
    "frequency_penalty": (0, 0.5),
    "reasoning_effort": ("low", "high"),
    "guided_json": ({"type": "object"}, {"type": "array"}),
    "model": ("m", "m2"),
    "messages": (
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
    ),
    "image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL[:-1] + "B"}}]}],
    ),
}


@pytest.mark.parametrize("field", DIFFERENCES)
async def test_requests_that_differ_in_one_thing_do_not_share(field: str) -> None:
    """Every field counts, known or not: two calls, and neither is given the other's answer."""
    name = "messages" if field == "image" else field
    both = [{**BASE, name: value} for value in DIFFERENCES[field]]
    async with ScriptedEngine() as engine, front(engine, dedup=FULL, instances={"models": ["m", "m2"]}) as gate:
        heard = [await gate.client.ask(body) for body in both]
        again = await gate.client.ask(both[0])
        await gate.idle()

    assert [answer.headers["x-headrace-cache"] for answer in heard] == ["miss", "miss"]
    assert again.headers["x-headrace-cache"] == "hit"
    assert len(engine.requests) == 2


async def test_the_same_request_in_another_spelling_is_the_same() -> None:
    """Order of keys, blanks and who asks make no difference: one call."""
    spelt = [
        json.dumps(BASE).encode(),
        json.dumps(dict(reversed(BASE.items())), indent=3).encode(),
        json.dumps({**BASE, "user": "somebody", "metadata": {"a": "b"}}).encode(),
    ]
    async with ScriptedEngine() as engine, front(engine, dedup=FULL) as gate:
        heard = [await gate.client.send(body) for body in spelt]
        await gate.idle()

    assert [answer.headers["x-headrace-cache"] for answer in heard] == ["miss", "hit", "hit"]
    assert len({answer.body for answer in heard}) == 1
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "body", [chat("same"), chat("same", temperature=0.7), chat("same", temperature=0, n=2, top_k=5)]
)
async def test_answers_drawn_by_chance_are_not_kept(body: dict[str, object]) -> None:
    """Without a temperature of 0 the caller wants a fresh answer each time: the engine is asked again."""
    chance = body.get("temperature") != 0
    async with ScriptedEngine() as engine, front(engine, dedup=FULL) as gate:
        await gate.client.ask(body)
        await gate.client.ask(body)
        await gate.idle()

    assert len(engine.requests) == (2 if chance else 1)


@virtually
async def test_an_answer_is_given_for_its_time_and_no_longer() -> None:
    """After its time to live an answer is made anew."""
    async with ScriptedEngine() as engine, front(engine, dedup={"mode": "full", "ttl_seconds": 100}) as gate:
        await gate.client.ask(BASE)
        await later(50.0)
        early = await gate.client.ask(BASE)
        await later(100.0)
        late = await gate.client.ask(BASE)
        await gate.idle()

    assert [answer.headers["x-headrace-cache"] for answer in (early, late)] == ["hit", "miss"]
    assert len(engine.requests) == 2


UNFINISHED: dict[str, Script] = {
    "cut": [steps.role(), steps.chunk("half"), steps.cut()],
    "ended without a finish": [steps.role(), steps.chunk("half"), steps.end()],
    "an error event": [steps.role(), steps.chunk("half"), steps.error()],
    "cut by its length": [steps.role(), steps.chunk("half"), steps.finish("length"), steps.done(), steps.end()],
}


@pytest.mark.parametrize("script", UNFINISHED.values(), ids=UNFINISHED.keys())
async def test_an_answer_that_is_not_complete_is_not_kept(script: Script) -> None:
    """Half an answer is nobody's answer: the next caller's request goes to the engine."""
    async with ScriptedEngine(steps.answer("all of it")) as engine, front(engine, dedup=FULL, **_patient()) as gate:
        engine.once(script)
        await gate.client.ask({**BASE, "stream": True})
        heard = await gate.client.ask({**BASE, "stream": True})
        await gate.idle()

    assert (heard.headers["x-headrace-cache"], heard.text) == ("miss", "all of it")
    assert len(engine.requests) == 2


async def test_an_answer_whose_caller_left_is_not_kept() -> None:
    """The only caller left after a piece: the call is ended, and nothing of it is given to others."""
    async with ScriptedEngine(steps.answer("all of it")) as engine, front(engine, dedup=FULL) as gate:
        engine.once([steps.role(), steps.chunk("half"), steps.hang()])
        async with gate.client.open({**BASE, "stream": True}) as response:
            await response.content.readline()
        await engine.until(lambda: engine.closed_by_peer == 1, what="the engine sees the close")
        await gate.idle()
        heard = await gate.client.ask({**BASE, "stream": True})

    assert (heard.headers["x-headrace-cache"], heard.text) == ("miss", "all of it")
    assert len(engine.requests) == 2


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 7,
    "total_tokens": 16,
    "completion_tokens_details": {"reasoning_tokens": 4},
}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


async def _rich(conn: ScriptedConnection) -> None:
    """Reasoning, text, a tool call, a finish reason and usage with details."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas: list[dict[str, object]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "let me "},
        {"reasoning_content": "think"},
        {"content": "Calling"},
        {"tool_calls": [CALL]},
    ]
    for delta in deltas:
        await conn.sse({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    await conn.sse({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    await conn.sse({**head, "choices": [], "usage": USAGE})
    await conn.done()
    await conn.end()


async def _kept(gate: Front, **fields: object) -> Heard:
    """The rich answer out of the cache, asked for with `fields`."""
    await gate.client.ask({**BASE, "stream": True})
    heard = await gate.client.ask({**BASE, **fields})
    await gate.idle()
    assert (heard.status, heard.headers["x-headrace-cache"]) == (200, "hit")
    return heard


@pytest.mark.parametrize("wants_usage", [True, False])
async def test_a_kept_stream_comes_back_with_everything(wants_usage: bool) -> None:
    """A hit as a stream: role, reasoning, text, tool call with index and id, one finish, usage only if asked for."""
    options = {"stream_options": {"include_usage": True}} if wants_usage else {}
    async with ScriptedEngine(_rich) as engine, front(engine, dedup=FULL) as gate:
        heard = await _kept(gate, stream=True, **options)

    deltas = [event["choices"][0]["delta"] for event in heard.events if event["choices"]]
    finishes = [event["choices"][0]["finish_reason"] for event in heard.events if event["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "let me think"
    assert (heard.text, deltas[0]["role"], heard.done) == ("Calling", "assistant", True)
    assert [delta["tool_calls"] for delta in deltas if "tool_calls" in delta] == [[CALL]]
    assert [reason for reason in finishes if reason] == ["tool_calls"]
    assert [event["usage"] for event in heard.events if not event["choices"]] == ([USAGE] if wants_usage else [])
    assert len(engine.requests) == 1


async def test_a_kept_stream_can_be_had_whole() -> None:
    """A hit for a caller who wants no stream is one JSON object with the same text, tool call and usage."""
    async with ScriptedEngine(_rich) as engine, front(engine, dedup=FULL) as gate:
        heard = await _kept(gate)

    message = heard.json["choices"][0]["message"]
    assert heard.headers["content-type"].startswith("application/json")
    assert (message["content"], message["reasoning_content"]) == ("Calling", "let me think")
    assert [call["id"] for call in message["tool_calls"]] == ["call_1"]
    assert (heard.json["choices"][0]["finish_reason"], heard.json["usage"]) == ("tool_calls", USAGE)
    assert len(engine.requests) == 1


async def test_a_kept_whole_answer_can_be_had_as_a_stream() -> None:
    """The reverse: an answer that came whole is streamed to a caller who asks for that."""
    async with ScriptedEngine(steps.answer("all of it", tokens=(3, 4))) as engine, front(engine, dedup=FULL) as gate:
        await gate.client.ask(BASE)
        heard = await gate.client.ask({**BASE, "stream": True, "stream_options": {"include_usage": True}})
        await gate.idle()

    assert (heard.headers["x-headrace-cache"], heard.text, heard.done) == ("hit", "all of it", True)
    assert heard.events[-1]["usage"]["completion_tokens"] == 4
    assert len(engine.requests) == 1


async def test_no_store_and_no_cache_are_obeyed() -> None:
    """`no-cache` brings a fresh answer, which is kept; `no-store` neither takes a kept one nor leaves one."""
    async with ScriptedEngine() as engine, front(engine, dedup=FULL) as gate:
        secret = await gate.client.ask(BASE, {"cache-control": "no-store"})
        first = await gate.client.ask(BASE)
        fresh = await gate.client.ask(BASE, {"Cache-Control": "max-age=0, no-cache"})
        again = await gate.client.ask(BASE)
        await gate.idle()

    caches = [answer.headers["x-headrace-cache"] for answer in (secret, first, fresh, again)]
    assert caches == ["miss", "miss", "miss", "hit"]
    assert len(engine.requests) == 3


def _patient() -> dict[str, dict[str, object]]:
    """No cooldown to wait for after a failure."""
    return {"load_balancer": {"cooldown_seconds": 0.001}, "routing": {"max_retries": 0}}
