"""The whole against a real engine: llama.cpp's server with SmolLM2, two instances, the official SDK in front."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e import llama
from tests.e2e.client import CHAT, Heard, client
from tests.e2e.process import Program, python, serving

TOKENS = 12
PATIENCE = 60.0
"""Seconds for anything the engine does: a busy machine is ten times slower than an idle one."""

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(llama.missing() is not None, reason=f"no real engine: {llama.missing()}"),
]


@dataclass(frozen=True, slots=True)
class Stand:
    """Two engines, a gateway in front of them, and an SDK in front of that."""

    engines: tuple[Program, Program]
    gateway: Program
    sdk: openai.AsyncOpenAI


@asynccontextmanager
async def _stand(directory: Path) -> AsyncIterator[Stand]:
    script = str(Path(llama.__file__))
    async with python(script, "0", cwd=directory) as one, python(script, "0", cwd=directory) as two:
        config = {
            "instances": [
                {
                    "id": name,
                    "engine": "llamacpp",
                    "address": await engine.listens(),
                    "models": [llama.ALIAS],
                    "max_concurrent": llama.SLOTS,
                }
                for name, engine in (("one", one), ("two", two))
            ],
        }
        async with (
            serving(json.dumps(config), directory) as gateway,
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE) as sdk,
        ):
            yield Stand((one, two), gateway, sdk)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    """One stand for all tests that leave it as it was."""
    async with _stand(tmp_path_factory.mktemp("real")) as standing:
        yield standing


def _ask(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


async def _busy(engine: Program) -> int:
    """Slots of an engine that are working."""
    async with client(engine.url) as caller:
        slots = json.loads((await caller.get("/slots")).body)
    return sum(slot["is_processing"] for slot in slots)


async def test_a_chat_is_answered_whole(stand: Stand) -> None:
    """Text, a finish reason, and the usage the engine counted."""
    answer = await stand.sdk.chat.completions.create(
        model=llama.ALIAS, messages=_ask("Name a colour."), max_tokens=TOKENS, temperature=0
    )

    assert answer.choices[0].message.content
    assert (answer.model, answer.choices[0].finish_reason in ("stop", "length")) == (llama.ALIAS, True)
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= TOKENS


async def test_a_chat_is_streamed_token_by_token(stand: Stand) -> None:
    """Several pieces, one finish reason, and the usage last."""
    stream = await stand.sdk.chat.completions.create(
        model=llama.ALIAS,
        messages=_ask("Count from one to ten."),
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]

    assert len(pieces) > 3
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert 0 < chunks[-1].usage.completion_tokens <= TOKENS


async def test_usage_is_not_shown_to_who_did_not_ask(stand: Stand) -> None:
    """The gateway asks the engine for usage on every stream, and keeps it to itself."""
    stream = await stand.sdk.chat.completions.create(
        model=llama.ALIAS, messages=_ask("Say hi."), max_tokens=TOKENS, temperature=0, stream=True
    )
    chunks = [chunk async for chunk in stream]

    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_plain_completions_work_in_both_forms(stand: Stand) -> None:
    """The older endpoint, whole and streamed."""
    prompt = "Once upon a time"
    whole = await stand.sdk.completions.create(model=llama.ALIAS, prompt=prompt, max_tokens=TOKENS, temperature=0)
    stream = await stand.sdk.completions.create(
        model=llama.ALIAS, prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True
    )
    text = "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

    assert whole.choices[0].text
    assert text


async def test_two_instances_share_the_load(stand: Stand) -> None:
    """Four requests at once, two slots each: both engines work on two of them."""
    raw = stand.sdk.chat.completions.with_raw_response
    answers = await asyncio.gather(
        *(
            raw.create(
                model=llama.ALIAS, messages=_ask(f"What is {number} plus one?"), max_tokens=TOKENS, temperature=0
            )
            for number in range(2 * llama.SLOTS)
        )
    )

    served = [answer.headers["x-headrace-instance"] for answer in answers]
    assert sorted(served) == ["one"] * llama.SLOTS + ["two"] * llama.SLOTS


async def test_a_caller_who_leaves_frees_the_slot(stand: Stand) -> None:
    """A long answer is given up after its first words: the engine stops working on it."""
    stream = await stand.sdk.chat.completions.create(
        model=llama.ALIAS,
        messages=_ask("Tell a long story."),
        max_tokens=400,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    working = [await _busy(engine) for engine in stand.engines]
    await stream.close()
    async with asyncio.timeout(PATIENCE):
        while any([await _busy(engine) for engine in stand.engines]):
            pass
    async with client(stand.gateway.url) as caller:
        health = (await caller.get("/health")).json

    assert sum(working) == 1
    assert [view["in_flight"] for view in health["instances"]] == [0, 0]
    assert health["totals"]["cancelled"] == 1


async def test_too_long_a_prompt_is_the_callers_mistake(stand: Stand) -> None:
    """More than the context holds: 400 with OpenAI's own code, and both engines stay in use."""
    with pytest.raises(openai.BadRequestError) as refused:
        await stand.sdk.chat.completions.create(
            model=llama.ALIAS, messages=_ask("word " * 2 * llama.CONTEXT), max_tokens=TOKENS
        )
    async with client(stand.gateway.url) as caller:
        health = (await caller.get("/health")).json

    assert refused.value.code == "context_length_exceeded"
    assert [view["breaker"] for view in health["instances"]] == ["closed", "closed"]


async def test_when_one_is_killed_the_other_answers(tmp_path: Path) -> None:
    """One engine dies without a word: every request is answered by the other, and no caller notices."""
    async with _stand(tmp_path) as own:
        await own.engines[0].kill()
        raw = own.sdk.chat.completions.with_raw_response
        answers = [
            await raw.create(model=llama.ALIAS, messages=_ask(f"Say {word}."), max_tokens=4, temperature=0)
            for word in ("yes", "no", "maybe")
        ]
        tracebacks = own.gateway.tracebacks

    assert [answer.headers["x-headrace-instance"] for answer in answers] == ["two"] * 3
    assert tracebacks == []


async def _killed_after(own: Stand, words: int, path: str, asked: dict[str, Any]) -> tuple[str, bytes]:
    """A stream whose engine dies after so many words of it: its text, and all that was read."""
    async with (
        client(own.gateway.url, PATIENCE) as caller,
        caller.open({**asked, "stream": True}, path=path) as response,
    ):
        name, read = response.headers["x-headrace-instance"], b""
        async for line in response.content:
            read += line
            words -= line.startswith(b"data: ") and b'"role"' not in line
            if words == 0:
                await own.engines[("one", "two").index(name)].kill()
        return Heard(response.status, {"content-type": "text/event-stream"}, read).text, read


_CHAT = {"messages": _ask("Describe the sea.")}
_PLAIN = {"prompt": "Once upon a time"}


@pytest.mark.parametrize(
    ("path", "prompt", "words"), [(CHAT, _CHAT, 3), (CHAT, _CHAT, 9), ("/v1/completions", _PLAIN, 5)]
)
async def test_a_stream_whose_engine_is_killed_goes_on_at_the_other(
    tmp_path: Path, path: str, prompt: dict[str, Any], words: int
) -> None:
    """At temperature 0 its text is the one that a single engine gives, once, with one id and one end."""
    asked = {"model": llama.ALIAS, "max_tokens": 24, "temperature": 0, **prompt}
    async with _stand(tmp_path) as own, client(own.gateway.url, PATIENCE) as caller:
        whole = (await caller.ask(asked, path=path)).text
        text, read = await _killed_after(own, words, path, asked)
        totals = (await caller.get("/health")).json["totals"]
        tracebacks = own.gateway.tracebacks
    assert totals["resumes"] == 1
    assert read.endswith(b": headrace resumed times=1\n\ndata: [DONE]\n\n")
    assert len(set(re.findall(rb'"id":"([^"]+)"', read))) == 1
    assert read.count(b'"finish_reason":"length"') == 1
    assert text == whole
    assert tracebacks == []
