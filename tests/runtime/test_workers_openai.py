"""Workers as engines of the server: what they say in OpenAI's form."""

from __future__ import annotations

import json

import pytest

from headrace.model import AnswerForm, Cause
from headrace.runtime.workers import EchoWorker
from headrace.testing import on_virtual_time
from headrace.wire.openai import parse
from tests.runtime.gatherer import asked, begin

# ---------------------------------------------------------------------------------------- in OpenAI's form

CHAT = {"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Hello, there"}]}


@on_virtual_time
async def test_a_chat_is_streamed_as_chunks() -> None:
    """The server's echo engine speaks whole SSE events: role, text, finish reason, usage, `[DONE]`."""
    backend, port = begin(EchoWorker())
    call = parse("chat", json.dumps({**CHAT, "stream": True}).encode())
    backend.start(asked(call), port)
    assert (await port.ended()).cause is Cause.OK
    events = [event.removeprefix("data: ") for event in port.text.split("\n\n") if event]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    said = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]]
    assert "".join(said) == "Hello, there"
    assert len([text for text in said if text]) == 2, "word by word"
    assert chunks[0]["id"] == "chatcmpl-r1"
    assert chunks[0]["created"] == 1_700_000_000
    assert [frame.usage_only for frame in port.frames] == [False] * (len(port.frames) - 2) + [True, False]


@pytest.mark.parametrize(
    ("endpoint", "fields", "text"),
    [
        ("chat", CHAT, "Hello, there"),
        ("chat", {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "part"}]}]}, "part"),
        ("chat", {"model": "m", "messages": [{"role": "assistant", "content": None}]}, ""),
        ("completions", {"model": "m", "prompt": "Once"}, "Once"),
        ("completions", {"model": "m", "prompt": ["On", "ce"]}, "Once"),
    ],
)
def test_a_whole_body_is_one_frame(endpoint: str, fields: dict[str, object], text: str) -> None:
    """A call that does not stream gets one JSON body, at the end."""

    @on_virtual_time
    async def check() -> None:
        backend, port = begin(EchoWorker(delay=1.0))
        backend.start(asked(parse(endpoint, json.dumps(fields).encode()), AnswerForm.WHOLE), port)
        await port.ended()
        (frame,) = port.frames
        body = json.loads(frame.data)
        choice = body["choices"][0]
        assert (choice["message"]["content"] if endpoint == "chat" else choice["text"]) == text
        assert body["usage"]["prompt_tokens"] == 3

    check()


@on_virtual_time
async def test_embeddings_are_refused_as_the_callers_fault() -> None:
    """A worker of text makes no embeddings: 400, which neither harms the worker nor is tried again."""
    backend, port = begin(EchoWorker())
    backend.start(asked(parse("embeddings", b'{"model": "m", "input": "x"}'), AnswerForm.WHOLE), port)
    outcome = await port.ended()
    assert outcome.cause is Cause.REJECTED
    assert outcome.fault is not None
    assert outcome.fault.status == 400
