"""A server that speaks OpenAI's API as a worker: what it is asked, and what becomes of what it says."""

from __future__ import annotations

import json

import pytest

from headrace.errors import UpstreamError
from headrace.runtime.openai_worker import OpenAIWorker
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.prompts import PromptRequest
from headrace.testing import ScriptedEngine, steps
from tests.runtime.virtual import virtually

KEY = "Zk7Qx9Wv2Lp4Tn8R"


@virtually
@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_is_asked_and_answered(stream: bool) -> None:
    """One chat request with the model, the bound and the key; its text and its usage come back, in either form."""
    async with (
        ScriptedEngine(steps.answer("to be or not", tokens=(7, 4)), guard=10_000.0) as engine,
        Pipeline(OpenAIWorker(f"{engine.url}/v1", model="m", key=KEY, stream=stream)) as pipe,
    ):
        answer = await pipe.submit(PromptRequest("be?", max_tokens=9))

    assert answer.text == "to be or not"
    assert answer.usage is not None
    assert (answer.usage.prompt, answer.usage.completion, answer.usage.estimated) == (7, 4, False)
    (request,) = engine.requests
    assert (request.path, request.header("authorization")) == ("/v1/chat/completions", f"Bearer {KEY}")
    asked = json.loads(request.body)
    assert (asked["model"], asked["stream"], asked["max_completion_tokens"]) == ("m", stream, 9)
    assert asked["messages"] == [{"role": "user", "content": "be?"}]


@virtually
async def test_text_streams_as_it_comes() -> None:
    """Each piece of the engine's answer is one of the caller's; chunks without text are none."""
    async with (
        ScriptedEngine(
            [steps.role(), steps.chunk("a"), steps.chunk(" b"), steps.finish(), steps.done(), steps.end()]
        ) as engine,
        Pipeline(OpenAIWorker(engine.url)) as pipe,
    ):
        pieces = [piece async for piece in pipe.stream(PromptRequest("q", model="m"))]

    assert "".join(pieces) == "a b"
    assert engine.requests[0].json()["model"] == "m"


@virtually
async def test_a_refused_key_is_told_to_nobody() -> None:
    """The caller learns that the engine refused the credentials, neither the key nor the engine's words about it."""
    script = steps.json(401, {"error": {"message": f"bad key {KEY}", "type": "x", "param": None, "code": None}})
    async with (
        ScriptedEngine(script, guard=10_000.0) as engine,
        Pipeline(OpenAIWorker(engine.url, model="m", key=KEY), retries=0) as pipe,
    ):
        with pytest.raises(UpstreamError) as caught:
            await pipe.submit(PromptRequest("q"))
        (letter,) = pipe.dlq.drain()

    assert (caught.value.fault.status, caught.value.fault.code) == (502, "upstream_auth")
    assert KEY not in f"{caught.value}{letter}"
