"""Names that stand for models, models that take over, and remote instances that help: over real sockets."""

from __future__ import annotations

import asyncio
import json

import pytest

from headrace.runtime.stores import LetterFilter
from headrace.testing import ScriptedEngine, Step, steps
from tests.e2e.client import chat
from tests.e2e.front import front
from tests.runtime.virtual import later, virtually

TOO_LONG = {"error": {"message": "This model's maximum context length is 8 tokens.", "type": "invalid_request_error"}}
FILTERED = {"error": {"message": "The content management policy says no.", "code": "content_filter"}}
TWO_MODELS = {"a": {"models": ["a-model"]}, "b": {"models": ["b-model"]}}
FAR = {"tier": "remote"}
BROKEN = steps.json(500, {"error": {"message": "boom"}})


def asked(engine: ScriptedEngine) -> list[str]:
    """The models that the engine was asked for."""
    return [json.loads(request.body)["model"] for request in engine.requests]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_alias_is_answered_under_its_own_name(stream: bool) -> None:
    """The engine is asked for the real model; the answer bears the name the client knows, the header the real one."""
    async with (
        ScriptedEngine(steps.answer("fine")) as engine,
        front(engine, each=TWO_MODELS, models={"gpt-4o": "a-model"}) as gate,
    ):
        heard = await gate.client.ask(chat(model="gpt-4o", stream=stream))
        listed = (await gate.client.get("/v1/models")).json["data"]
        known = await gate.client.get("/v1/models/gpt-4o")
        await gate.idle()

    assert (heard.status, heard.text) == (200, "fine")
    answers = heard.events if stream else [heard.json]
    assert {answer["model"] for answer in answers} == {"gpt-4o"}
    assert heard.headers["x-headrace-model"] == "a-model"
    assert asked(engine) == ["a-model"]
    assert [model["id"] for model in listed] == ["gpt-4o", "a-model"]
    assert known.status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "cause"),
    [(BROKEN, "exhausted"), (steps.json(400, TOO_LONG), "context_length"), (steps.cut(), "exhausted")],
)
async def test_another_model_takes_over_unseen(failure: Step, cause: str, stream: bool) -> None:
    """The client gets the second model's answer as if it were the first's; headers and metrics tell."""
    async with (
        ScriptedEngine(failure) as first,
        ScriptedEngine(steps.answer("second")) as second,
        front(first, second, fallbacks={"a-model": ["b-model"]}, each=TWO_MODELS) as gate,
    ):
        heard = await gate.client.ask(chat(model="a-model", stream=stream))
        metrics = (await gate.client.get("/metrics")).body.decode()
        await gate.idle()

    assert (heard.status, heard.text) == (200, "second")
    assert (heard.headers["x-headrace-model"], heard.headers["x-headrace-attempts"]) == ("b-model", "2")
    answers = heard.events if stream else [heard.json]
    assert {answer["model"] for answer in answers} == {"a-model"}
    assert (asked(first), asked(second)) == (["a-model"], ["b-model"])
    assert f'headrace_fallbacks_total{{cause="{cause}",model="a-model",to="b-model"}} 1.0' in metrics


@pytest.mark.parametrize(
    ("fallback", "status"), [(["b-model"], 400), ({"to": ["b-model"], "on": ["content_filter"]}, 200)]
)
async def test_a_filter_s_refusal_is_told_unless_it_was_chosen_to_go_on(fallback: object, status: int) -> None:
    """400 in the provider's words by default; the next model's answer where the file says so."""
    async with (
        ScriptedEngine(steps.json(400, FILTERED)) as first,
        ScriptedEngine(steps.answer("fine")) as second,
        front(first, second, fallbacks={"a-model": fallback}, each=TWO_MODELS) as gate,
    ):
        heard = await gate.client.ask(chat(model="a-model"))
        await gate.idle()
    assert heard.status == status


async def test_after_the_first_word_no_other_model_is_asked() -> None:
    """A stream that breaks off ends with its error."""
    async with (
        ScriptedEngine([steps.role(), steps.chunk("Hello"), steps.cut()]) as first,
        ScriptedEngine() as second,
        front(first, second, fallbacks={"a-model": ["b-model"]}, each=TWO_MODELS) as gate,
    ):
        heard = await gate.client.ask(chat(model="a-model", stream=True))
        await gate.idle()

    assert (heard.text, heard.error["code"], asked(second)) == ("Hello", "stream_incomplete", [])


async def test_when_the_whole_chain_fails_the_letter_tells_all_of_it() -> None:
    """One error for the caller, one letter with each attempt and its model."""
    async with (
        ScriptedEngine(BROKEN) as first,
        ScriptedEngine(BROKEN) as second,
        front(
            first, second, models={"smart": ["a-model", "b-model"]}, routing={"max_retries": 0}, each=TWO_MODELS
        ) as gate,
    ):
        heard = await gate.client.ask(chat(model="smart"))
        await gate.idle()
        (letter,) = await gate.headrace.dead_letters.list(LetterFilter())

    assert (heard.status, heard.headers["x-headrace-attempts"]) == (502, "2")
    assert [(attempt.instance, attempt.model) for attempt in letter.attempts] == [("a", "a-model"), ("b", "b-model")]


@pytest.mark.parametrize("stream", [False, True])
@virtually
async def test_when_local_is_exhausted_remote_answers(stream: bool) -> None:
    """Two local instances fail, the remote one answers; while they cool down it is asked at once; then local again."""
    async with (
        ScriptedEngine(BROKEN) as first,
        ScriptedEngine(BROKEN) as second,
        ScriptedEngine(steps.answer("far")) as cloud,
        front(first, second, cloud, each={"c": FAR}) as gate,
    ):
        heard = await gate.client.ask(chat(stream=stream))
        again = await gate.client.ask(chat(stream=stream))
        counts = [len(engine.requests) for engine in (first, second, cloud)]
        first.default = second.default = steps.answer("near")
        await later(6.0)
        third = await gate.client.ask(chat(stream=stream))
        await gate.idle()

    assert (heard.text, heard.headers["x-headrace-attempts"]) == ("far", "3")
    assert (again.text, again.headers["x-headrace-attempts"]) == ("far", "1")
    assert counts == [1, 1, 2]
    assert third.text == "near"


@virtually
async def test_remote_helps_only_who_waited_long_enough() -> None:
    """Local is full: the second request goes to the remote one after its wait, the third finds local free again."""
    gone = asyncio.Event()
    async with ScriptedEngine(steps.answer("near")) as near, ScriptedEngine(steps.answer("far")) as cloud:
        near.once([steps.wait(gone.wait), steps.answer("near")])
        async with front(
            near, cloud, each={"b": FAR}, instances={"max_concurrent": 1}, routing={"spill_after_seconds": 3}
        ) as gate:
            first = asyncio.create_task(gate.client.ask(chat("one")))
            await near.got(1)
            second = asyncio.create_task(gate.client.ask(chat("two")))
            await later(2.9)
            assert len(cloud.requests) == 0
            heard = await second
            gone.set()
            await first
            third = await gate.client.ask(chat("three"))
            await gate.idle()

    assert (heard.text, third.text) == ("far", "near")
    assert 3000 <= int(heard.headers["x-headrace-queue-ms"]) <= 3200
