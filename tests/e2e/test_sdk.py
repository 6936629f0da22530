"""The official OpenAI client against a gateway that was started the way a newcomer starts it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from headrace.testing import ScriptedEngine, steps
from tests.e2e.process import Program, program, serving
from tests.patience import GUARD

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello from the SDK"}]


@asynccontextmanager
async def _sdk(url: str, retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=retries, timeout=GUARD) as sdk:
        yield sdk


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def newcomer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    """`headrace serve` without a file and without engines in the environment: the built-in echo answers."""
    async with program("serve", "--port", "0", cwd=tmp_path_factory.mktemp("newcomer")) as running:
        await running.listens()
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sdk(newcomer: Program) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK as it comes, pointed at the newcomer's gateway."""
    async with _sdk(newcomer.url) as client:
        yield client


async def test_models_can_be_listed_and_looked_up(sdk: openai.AsyncOpenAI) -> None:
    """What is listed can be retrieved by the same name; any other name is not found."""
    listed = [model.id async for model in sdk.models.list()]
    found = await sdk.models.retrieve(listed[0])
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.models.retrieve("no/such:model")

    assert (listed, found.id) == (["echo"], "echo")
    assert missing.value.code == "model_not_found"


async def test_a_chat_answers_with_usage(sdk: openai.AsyncOpenAI) -> None:
    """A whole answer: text, finish reason, the asked model's name, and token counts that add up."""
    answer = await sdk.chat.completions.create(model="echo", messages=HELLO)

    assert "Hello from the SDK" in str(answer.choices[0].message.content)
    assert (answer.choices[0].finish_reason, answer.model) == ("stop", "echo")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


@pytest.mark.parametrize("wants_usage", [True, False])
async def test_a_chat_streams_with_usage_exactly_when_asked(sdk: openai.AsyncOpenAI, wants_usage: bool) -> None:
    """Several pieces that make up the same text; the usage chunk has no choices and comes only to who asked for it."""
    options: dict[str, object] = {"stream_options": {"include_usage": True}} if wants_usage else {}
    whole = await sdk.chat.completions.create(model="echo", messages=HELLO)
    stream = await sdk.chat.completions.create(model="echo", messages=HELLO, stream=True, extra_body=options)
    chunks = [chunk async for chunk in stream]

    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 1
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert [usage.total_tokens for usage in usages] == (
        [whole.usage.total_tokens] if wants_usage and whole.usage else []
    )


async def test_plain_completions_answer_whole_and_streamed(sdk: openai.AsyncOpenAI) -> None:
    """The older endpoint, in both forms."""
    whole = await sdk.completions.create(model="echo", prompt="Once upon a time")
    stream = await sdk.completions.create(model="echo", prompt="Once upon a time", stream=True)
    text = "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

    assert "Once upon a time" in whole.choices[0].text
    assert text == whole.choices[0].text


async def test_embeddings_of_an_engine_without_them_are_a_clear_refusal(sdk: openai.AsyncOpenAI) -> None:
    """The echo engine has no vectors: an error that says so and that no client tries again, not a made-up answer."""
    with pytest.raises(openai.APIStatusError) as refused:
        await sdk.embeddings.create(model="echo", input="text")

    assert 400 <= refused.value.status_code < 500
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert refused.value.response.headers["x-request-id"]


async def test_mistakes_are_the_classes_the_sdk_has_for_them(sdk: openai.AsyncOpenAI) -> None:
    """An unknown model and a malformed request become the exceptions that programs catch."""
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.chat.completions.create(model="nope", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as malformed:
        await sdk.chat.completions.create(model="echo", messages="not a list")  # type: ignore[arg-type]

    assert (missing.value.code, missing.value.param, missing.value.type) == (
        "model_not_found",
        "model",
        "not_found_error",
    )
    assert (malformed.value.param, malformed.value.type) == ("messages", "invalid_request_error")


async def test_limits_and_outages_are_the_classes_the_sdk_has_for_them(tmp_path: Path) -> None:
    """429 for the caller's own limit, 503 when no engine is there; each with the time to wait."""
    config = {
        "instances": [
            {"id": "echo", "engine": "echo", "models": ["echo"]},
            {"id": "away", "address": "http://127.0.0.1:9", "models": ["away"]},
        ],
        "limits": {"per_user": {"requests_per_minute": 2}},
        "health_check": {"unhealthy_threshold": 1},
    }
    async with serving(json.dumps(config), tmp_path) as running, _sdk(running.url) as sdk:
        await running.logged("health check")
        with pytest.raises(openai.InternalServerError) as away:
            await sdk.chat.completions.create(model="away", messages=HELLO)
        for _ in range(2):
            await sdk.chat.completions.create(model="echo", messages=HELLO)
        with pytest.raises(openai.RateLimitError) as limited:
            await sdk.chat.completions.create(model="echo", messages=HELLO)

    assert (away.value.status_code, away.value.code) == (503, "no_instance")
    assert (limited.value.code, limited.value.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert "window resets in" in limited.value.message
    for error in (away.value, limited.value):
        assert int(error.response.headers["retry-after"]) >= 1


async def test_the_sdk_waits_as_long_as_it_is_told_and_then_succeeds(tmp_path: Path) -> None:
    """Too many at once: the SDK reads our headers, comes back after the time they give, and gets its answer."""
    times: list[float] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with ScriptedEngine() as engine:
        engine.once([steps.wait(done.wait), steps.answer("first")])
        config = {
            "instances": [{"address": engine.url, "models": ["m"]}],
            "limits": {"per_user": {"concurrency": 1}},
            "health_check": {"interval_seconds": 86_400},
        }
        async with serving(json.dumps(config), tmp_path) as running, _sdk(running.url, retries=2) as sdk:
            first = asyncio.create_task(sdk.chat.completions.create(model="m", messages=HELLO))
            await engine.got(1)
            times.append(loop.time())
            other: list[ChatCompletionMessageParam] = [{"role": "user", "content": "other"}]
            second = asyncio.create_task(sdk.chat.completions.create(model="m", messages=other))
            await running.logged('"status":429')
            done.set()
            await first
            answer = await second
            times.append(loop.time())

    assert answer.choices[0].message.content == "Hello from the script"
    assert times[1] - times[0] >= 0.9
    assert len(engine.requests) == 2


async def test_the_sdk_does_not_repeat_what_we_say_is_not_worth_it(tmp_path: Path) -> None:
    """A 502 that will stay one says so, and the SDK, which would try it twice more, leaves it."""
    async with ScriptedEngine(steps.json(401, {"error": {"message": "bad key"}})) as engine:
        config = {"instances": [{"address": engine.url, "models": ["m"]}], "dedup": {"mode": "off"}}
        async with serving(json.dumps(config), tmp_path) as running, _sdk(running.url, retries=2) as sdk:
            with pytest.raises(openai.InternalServerError) as refused:
                await sdk.chat.completions.create(model="m", messages=HELLO)

    assert (refused.value.status_code, refused.value.code) == (502, "upstream_auth")
    assert len(engine.requests) == 1
