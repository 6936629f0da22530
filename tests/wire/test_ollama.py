"""Ollama's own API: calls in its words, its lines as chunks, and a refusal where it cannot do what is asked."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from headrace.errors import InvalidRequest
from headrace.model import Cause, Engine, Instance, Usage
from headrace.wire import sse
from headrace.wire.adapters import adapter_for
from headrace.wire.openai import OpenAICall, assemble, parse
from tests.wire.answers import DONE, Decoded, chat_call, completion_call, cuts, decode

OLLAMA = adapter_for(Engine.OLLAMA)
AT = Instance(id="o", engine=Engine.OLLAMA, address="http://127.0.0.1:11434")
CREATED = "2023-08-04T08:52:19.385406455-07:00"


def sent(call: OpenAICall) -> dict[str, Any]:
    """The body Ollama gets for `call`."""
    body: dict[str, Any] = json.loads(OLLAMA.encode(call, AT, "llama3.2", None).body)
    return body


def line(**fields: object) -> bytes:
    """One line of an answer."""
    return json.dumps({"model": "llama3.2", "created_at": CREATED, "done": False, **fields}).encode() + b"\n"


def says(content: str, **message: object) -> bytes:
    """One line of a chat answer."""
    return line(message={"role": "assistant", "content": content, "images": None, **message})


def last(reason: str = "stop", **fields: object) -> bytes:
    """The last line of a chat answer."""
    counts = {"total_duration": 5, "prompt_eval_count": 26, "eval_count": 282, **fields}
    return line(message={"role": "assistant", "content": ""}, **{"done": True, "done_reason": reason, **counts})


def played(pieces: list[bytes], call: OpenAICall | None = None, *, clean: bool = True) -> Decoded:
    """What comes out of Ollama's decoder."""
    asked = call or chat_call("llama")
    return decode(pieces, asked, clean=clean, decoder=OLLAMA.decoder(asked))


# ------------------------------------------------------------------------------------------------------ requests


def test_settings_become_options() -> None:
    """OpenAI's fields are found under Ollama's names; its own options go through and win; the rest is left out."""
    call = chat_call(
        temperature=0.5,
        top_p=0.9,
        seed=1,
        stop="x",
        max_tokens=9,
        frequency_penalty=0.1,
        options={"num_ctx": 4096, "seed": 2},
        keep_alive="5m",
        user="u",
        metadata={},
        n=1,
        logprobs=False,
    )
    assert sent(call) == {
        "model": "llama3.2",
        "stream": True,
        "messages": [{"role": "user", "content": "Say hi"}],
        "options": {
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 2,
            "stop": ["x"],
            "num_predict": 9,
            "frequency_penalty": 0.1,
            "num_ctx": 4096,
        },
        "keep_alive": "5m",
    }


def test_a_whole_answer_is_asked_for_aloud() -> None:
    """Ollama streams unless told otherwise."""
    assert sent(chat_call(stream=False))["stream"] is False


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "json_object"}, "json"),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
)
def test_the_response_format_becomes_the_format(given: object, wanted: object) -> None:
    """JSON, a schema, or nothing."""
    assert sent(chat_call(response_format=given)).get("format") == wanted


@pytest.mark.parametrize(("effort", "think"), [("low", "low"), ("minimal", "low"), ("none", False), ("high", "high")])
def test_the_effort_becomes_thinking(effort: str, think: object) -> None:
    """Reasoning effort is Ollama's `think`."""
    assert sent(chat_call(reasoning_effort=effort))["think"] == think


def test_messages_are_rewritten_in_ollamas_form() -> None:
    """Pictures as base64, null content as empty text, arguments as objects, tools named in their results."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "text", "text": "this"}, picture]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    tools = [{"type": "function", "function": {"name": "add"}}]
    body = sent(chat_call(messages=messages, tools=tools, tool_choice="auto"))
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "see\nthis", "images": ["QUJD"]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1", "tool_name": "add"},
    ]
    assert body["tools"] == tools
    assert "tools" not in sent(chat_call(tools=tools, tool_choice="none"))


def test_each_endpoint_has_its_own_body() -> None:
    """Completions go to generate, embeddings to embed; a list with one prompt is that prompt."""
    generate = OLLAMA.encode(completion_call(prompt=["one"], suffix="end"), AT, "m", "k")
    assert generate.path == "/api/generate"
    assert json.loads(generate.body) == {"model": "m", "stream": True, "prompt": "one", "suffix": "end"}
    embed = OLLAMA.encode(parse("embeddings", b'{"model":"m","input":["a","b"],"dimensions":5}'), AT, "m", None)
    assert embed.path == "/api/embed"
    assert json.loads(embed.body) == {"model": "m", "input": ["a", "b"], "truncate": False, "dimensions": 5}
    assert OLLAMA.encode(chat_call(), AT, "m", None).path == "/api/chat"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h/x"}}]}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "messages[0].tool_calls",
        ),
    ],
)
def test_what_ollama_cannot_do_is_refused(fields: dict[str, Any], param: str) -> None:
    """Leaving a wish out in silence would give another answer than was asked for: it is a 400 that names it."""
    with pytest.raises(InvalidRequest) as caught:
        sent(chat_call(**fields))
    assert (caught.value.fault.status, caught.value.fault.param) == (400, param)


def test_prompts_ollama_cannot_take_are_refused() -> None:
    """Several prompts, echo, and token numbers in place of text."""
    for call in (completion_call(prompt=["a", "b"]), completion_call(prompt=[1, 2]), completion_call(echo=True)):
        with pytest.raises(InvalidRequest):
            sent(call)
    with pytest.raises(InvalidRequest):
        sent(parse("embeddings", b'{"model":"m","input":[1,2]}'))


# ------------------------------------------------------------------------------------------------------- answers


def test_a_chat_answer_is_the_same_however_it_is_cut() -> None:
    """Role, text, finish, usage and mark, under the asked name; cut at every byte."""
    stream = says("The ") + says("sky 🌍") + last()
    whole = played([stream])
    for pieces in cuts(stream):
        assert played(pieces) == whole
    assert whole.text == "The sky 🌍"
    assert whole.outcome.cause is Cause.OK
    assert whole.outcome.cacheable
    assert whole.outcome.usage == Usage(prompt=26, completion=282)
    assert whole.tokens == 282
    first = whole.payloads[0]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"
    assert first["created"] == 1691164339
    assert {payload["model"] for payload in whole.payloads} == {"llama"}
    assert len({payload["id"] for payload in whole.payloads}) == 1
    assert [frame.usage_only for frame in whole.frames[-2:]] == [True, False]
    assert whole.data.count(DONE) == 1


def test_thinking_becomes_reasoning() -> None:
    """Thinking commits the answer and arrives as `reasoning_content`, before the text."""
    out = played([says("", thinking="hm "), says("", thinking="ok"), says("yes"), last()])
    message = json.loads(assemble(chat_call(), out.frames))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm ok", "yes")


def test_tool_calls_get_numbers_ids_and_their_finish_reason() -> None:
    """Arguments become a JSON text, each call has its own id and number, and agents see `tool_calls` as the end."""
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("f", "g")]
    out = played([says("", tool_calls=calls), says("", tool_calls=calls[:1]), last()])
    body = json.loads(assemble(chat_call(), out.frames))
    found = body["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in found] == ["f", "g", "f"]
    assert all(json.loads(call["function"]["arguments"]) == {"a": 1} for call in found)
    assert len({call["id"] for call in found}) == 3
    assert body["choices"][0]["finish_reason"] == "tool_calls"


def test_generated_text_becomes_completions() -> None:
    """`response` is the text; there is no role, and thinking has no place in this kind of answer."""
    lines = [line(response="a", thinking="no"), line(response="b"), line(response="", done=True, done_reason="length")]
    out = played(lines, completion_call("llama"))
    assert out.text == "ab"
    assert out.payloads[0]["object"] == "text_completion"
    assert out.outcome.usage == Usage(prompt=1, completion=2, estimated=True)
    assert not out.outcome.cacheable


def test_nothing_comes_before_content() -> None:
    """Lines without content commit nothing."""
    decoder = OLLAMA.decoder(chat_call())
    assert list(decoder.feed(says(""))) == []
    assert not decoder.started
    assert len(decoder.feed(says("a"))) == 2
    assert decoder.started


@pytest.mark.parametrize(
    ("lines", "clean", "cause"),
    [
        ([says("a"), last()[:-1]], True, Cause.OK),
        ([says("a"), last()[:-1]], False, Cause.OK),
        ([last()], True, Cause.OK),
        ([says("a")], True, Cause.BROKEN_STREAM),
        ([says("a"), says("b")[:30]], False, Cause.BROKEN_STREAM),
        ([says("a"), b"garbage\n"], True, Cause.BROKEN_STREAM),
        ([b"garbage\n", says("a")], True, Cause.PROTOCOL),
        ([b"<html>"], True, Cause.PROTOCOL),
        ([], True, Cause.BROKEN_STREAM),
        ([b'{"error":"the model failed"}\n'], True, Cause.SERVER_ERROR),
        ([b'{"error":"server busy, please try again."}\n'], True, Cause.RATE_LIMITED),
        ([says("a"), b'{"error":"the model failed"}\n'], True, Cause.BROKEN_STREAM),
    ],
)
def test_how_a_stream_of_lines_ends(lines: list[bytes], clean: bool, cause: Cause) -> None:
    """`done` is the end, also without its line end; an error line or a missing end is a failure, and is not shown."""
    out = played(lines, clean=clean)
    assert out.outcome.cause is cause
    assert out.data.count(DONE) == (cause is Cause.OK)
    assert out.outcome.committed is bool(out.frames)
    assert b"failed" not in out.data


def test_a_line_without_end_is_cut_off() -> None:
    """At the bound the attempt ends and nothing is kept."""
    decoder = OLLAMA.decoder(chat_call())
    for _ in range(sse.EVENT_LIMIT // 65536 + 2):
        decoder.feed(b"x" * 65536)
    assert decoder.ended
    assert decoder.finish(clean=False)[1].cause is Cause.PROTOCOL


def test_a_whole_answer_has_everything() -> None:
    """One line with text and thinking becomes one body in OpenAI's form."""
    call = chat_call("llama", stream=False)
    answer = line(
        message={"role": "assistant", "content": "yes", "thinking": "hm"}, done=True, prompt_eval_count=3, eval_count=4
    )
    body, outcome = OLLAMA.whole(call, answer)
    choice = json.loads(body)["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    assert choice["finish_reason"] == "stop"
    assert json.loads(body)["model"] == "llama"
    assert (outcome.cause, outcome.usage) == (Cause.OK, Usage(prompt=3, completion=4))


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"", Cause.PROTOCOL),
        (b"<html>", Cause.PROTOCOL),
        (says("half"), Cause.PROTOCOL),
        (b'{"error":"server busy"}', Cause.RATE_LIMITED),
        (b'{"error":"boom"}', Cause.SERVER_ERROR),
    ],
)
def test_what_is_no_whole_answer_is_not_passed_on(answer: bytes, cause: Cause) -> None:
    """Nothing for the client, and another attempt may be made; the same for embeddings."""
    for call in (chat_call(stream=False), parse("embeddings", b'{"model":"m","input":"x"}')):
        body, outcome = OLLAMA.whole(call, answer)
        assert (body, outcome.cause, outcome.committed) == (b"", cause, False)


def test_embeddings_come_in_the_encoding_that_was_asked_for() -> None:
    """As numbers, or as base64 of 32-bit floats, which official clients ask for unasked."""
    answer = b'{"model":"m","embeddings":[[0.5,-1.0]],"prompt_eval_count":2}'
    body, outcome = OLLAMA.whole(parse("embeddings", b'{"model":"m","input":"x"}'), answer)
    assert json.loads(body)["data"] == [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
    assert json.loads(body)["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert outcome.usage == Usage(prompt=2)
    packed, _ = OLLAMA.whole(parse("embeddings", b'{"model":"m","input":"x","encoding_format":"base64"}'), answer)
    text = json.loads(packed)["data"][0]["embedding"]
    assert struct.unpack("<2f", base64.b64decode(text)) == (0.5, -1.0)
