"""Answers in another form than the engine gave them: nothing is lost on the way, in either direction."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Fault, model_not_found
from headrace.model import Cause, Usage
from headrace.wire.frames import Frame
from headrace.wire.openai import TextAnswer, assemble, error_body, error_frame, model_body, models_body, split
from headrace.wire.openai_whole import read_whole
from tests.wire.answers import DONE, chat_call, chunk, completion_call, content, decode, payloads, recorded, usage


def whole(stream: Iterable[bytes]) -> Any:
    """A decoded chat stream as one body."""
    return json.loads(assemble(chat_call(), decode(stream).frames))


@pytest.mark.parametrize("name", ["llamacpp-chat.json", "llamacpp-logprobs-n2.json", "llamacpp-completions.json"])
def test_a_whole_answer_survives_as_a_stream(name: str) -> None:
    """Split and put together again, a recorded answer is what it was: choices, log probabilities, usage, extras."""
    call = completion_call() if "completions" in name else chat_call()
    body = recorded(name)
    frames = split(call, body)
    assert json.loads(assemble(call, frames)) == json.loads(body)
    assert frames[-1].data == DONE
    assert [frame.usage_only for frame in frames[-2:]] == [True, False]


@pytest.mark.parametrize("name", ["llamacpp-chat-usage.sse", "llamacpp-completions.sse"])
def test_a_stream_survives_as_a_whole_answer(name: str) -> None:
    """A recorded stream put together holds all its text, its finish reason and its usage with details."""
    call = completion_call() if "completions" in name else chat_call()
    out = decode([recorded(name)], call)
    body = json.loads(assemble(call, out.frames))
    choice = body["choices"][0]
    assert (choice["text"] if "text" in choice else choice["message"]["content"]) == out.text
    assert choice["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens_details"] is not None
    assert body["object"] == ("text_completion" if "completions" in name else "chat.completion")
    replayed = split(call, json.dumps(body).encode())
    assert json.loads(assemble(call, replayed)) == body


MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.text(min_size=1)},
    optional={
        "reasoning_content": st.text(min_size=1),
        "refusal": st.text(min_size=1),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {
                    "id": st.uuids().map(str),
                    "type": st.just("function"),
                    "function": st.fixed_dictionaries({"name": st.just("f"), "arguments": st.text()}),
                }
            ),
            min_size=1,
            max_size=3,
        ),
        "annotations": st.lists(st.integers(), min_size=1, max_size=2),
    },
)


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.booleans())
def test_any_answer_survives_the_round_trip(messages: list[dict[str, object]], counted: bool) -> None:
    """Several choices with reasoning, refusals, tool calls and unknown fields: the same after both conversions."""
    choices = [
        {
            "index": index,
            "message": message,
            "logprobs": {"content": [index]},
            "finish_reason": "stop",
            "stop_reason": 7,
        }
        for index, message in enumerate(messages)
    ]
    answer: dict[str, object] = {"id": "x", "object": "chat.completion", "model": "m", "extra": {"a": 1}}
    answer["choices"] = choices
    if counted:
        answer["usage"] = {
            "prompt_tokens": 1,
            "completion_tokens": 2,
            "completion_tokens_details": {"reasoning_tokens": 1},
        }
    frames = split(chat_call(), json.dumps(answer).encode())
    assert json.loads(assemble(chat_call(), frames)) == answer
    assert all(payload["object"] == "chat.completion.chunk" for payload in payloads(b"".join(f.data for f in frames)))


def test_text_reasoning_and_tools_are_joined() -> None:
    """Pieces of every kind are put together under their own names; calls by number, without it in the result."""
    body = whole(
        [
            chunk({"role": "assistant", "content": None}, service_tier="default"),
            chunk({"reasoning": "let "}),
            chunk({"reasoning": "me"}),
            content("a"),
            content("b"),
            chunk(
                {
                    "tool_calls": [
                        {"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": ""}}
                    ]
                }
            ),
            chunk(
                {
                    "tool_calls": [
                        {"index": 1, "id": "y", "type": "function", "function": {"name": "g", "arguments": "["}}
                    ]
                }
            ),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
            chunk({"tool_calls": [{"index": 1, "function": {"arguments": "]"}}]}),
            chunk(finish="tool_calls"),
            usage(1, 2),
            DONE,
        ]
    )
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("let me", "ab")
    assert message["tool_calls"] == [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "y", "type": "function", "function": {"name": "g", "arguments": "[]"}},
    ]
    assert body["service_tier"] == "default"
    assert body["usage"]["completion_tokens"] == 2


def test_several_choices_keep_their_own_texts() -> None:
    """With n = 2 there are two texts and two finish reasons, in order of their numbers."""
    pieces = [chunk({"content": text}, index=index) for index, text in ((1, "b"), (0, "a"), (1, "d"), (0, "c"))]
    body = whole([*pieces, chunk(finish="stop", index=1), chunk(finish="length", index=0), DONE])
    assert [choice["message"]["content"] for choice in body["choices"]] == ["ac", "bd"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "stop"]


def test_log_probabilities_are_put_in_a_row() -> None:
    """The lists of all chunks follow one another."""
    choices = [
        {"index": 0, "delta": {"content": text}, "logprobs": {"content": [{"token": text}]}, "finish_reason": None}
        for text in "ab"
    ]
    body = whole([b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" for choice in choices] + [DONE])
    assert body["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}


def test_halves_of_a_character_in_two_chunks_are_joined() -> None:
    """Half an emoji escaped in one chunk and half in the next, as engines that count UTF-16 do, comes out whole."""
    halves = [content("H").replace(b"H", half) for half in (b"\\ud83c", b"\\udf0d")]
    body = whole([*halves, chunk(finish="stop"), DONE])
    assert body["choices"][0]["message"]["content"] == "🌍"
    tool = chunk({"tool_calls": [{"id": "a", "function": {"arguments": "H"}}]}).replace(b"H", b"\\ud83c")
    assert b"\\ud83c" in decode([tool, DONE]).data
    half = recorded("llamacpp-chat.json").replace(b"assistant", b"\\ud83c")
    assert b"\\ud83c" in read_whole(chat_call("other"), half)[0]


PLAIN_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
PLAIN = {"id": "c", "object": "chat.completion", "model": "smollm2", "choices": [PLAIN_CHOICE]}


@pytest.mark.parametrize(
    ("changes", "cause", "usage", "cacheable"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}, Cause.OK, Usage(3, 2), True),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 2.5}}, Cause.OK, None, True),
        ({"usage": {"prompt_tokens": -3, "completion_tokens": 2}}, Cause.OK, None, True),
        ({"usage": None, "error": None}, Cause.OK, None, True),
        (
            {"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}},
            Cause.OK,
            Usage(3, 0, 2),
            True,
        ),
        ({"usage": {"completion_tokens": 9, "completion_tokens_details": None}}, Cause.OK, Usage(0, 9), True),
        ({"choices": [{**PLAIN_CHOICE, "finish_reason": "length"}]}, Cause.OK, None, False),
        ({"choices": [PLAIN_CHOICE, {**PLAIN_CHOICE, "index": 1, "finish_reason": "length"}]}, Cause.OK, None, False),
        ({"choices": [{**PLAIN_CHOICE, "finish_reason": 7}]}, Cause.OK, None, True),
        ({"error": ""}, Cause.OK, None, True),
        ({"error": {"message": "no"}}, Cause.SERVER_ERROR, None, True),
        ({"object": "error", "message": "no"}, Cause.SERVER_ERROR, None, True),
        ({"choices": []}, Cause.PROTOCOL, None, True),
        ({"choices": None}, Cause.PROTOCOL, None, True),
    ],
)
def test_what_a_whole_answer_says_of_itself(
    changes: dict[str, object], cause: Cause, usage: Usage | None, cacheable: bool
) -> None:
    """Counts that cannot be counts are estimated, a cut answer is not stored, an error inside a 200 is no answer."""
    body = json.dumps({**PLAIN, **changes}).encode()
    read, outcome = read_whole(chat_call(), body)
    assert read == (body if cause is Cause.OK else b"")
    assert (outcome.cause, outcome.cacheable) == (cause, cacheable)
    if cause is Cause.OK:
        estimate = Usage(chat_call().prompt_tokens, len(body) // 4, estimated=True)
        assert outcome.usage == (usage or estimate)


def test_an_answer_without_content_says_so() -> None:
    """Null beside tool calls, as clients send it back; an empty text otherwise."""
    call = {"index": 0, "id": "x", "function": {"name": "f"}}
    assert whole([chunk({"tool_calls": [call]}), DONE])["choices"][0]["message"]["content"] is None
    assert whole([chunk({"role": "assistant"}), chunk(finish="stop")])["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize("call", [chat_call(), completion_call()])
def test_plain_text_becomes_the_same_answer_in_both_forms(call: Any) -> None:
    """A worker's text, streamed and put together, is its text rendered whole; a decoder finds it complete."""
    answer = TextAnswer(call, "id-1", 1700000000)
    counts = Usage(prompt=3, completion=2, cached=1, reasoning=1)
    text = 'He said: "ü\n"'
    frames = [Frame(piece) for piece in (answer.opening(), answer.piece(text[:4]), answer.piece(text[4:])) if piece]
    frames += answer.closing("stop", counts)
    body = json.loads(answer.whole(text, "stop", counts))
    assert json.loads(assemble(call, frames)) == body
    assert body["model"] == call.model
    assert body["usage"]["total_tokens"] == 5
    out = decode([frame.data for frame in frames], call)
    assert (out.text, out.outcome.usage, out.outcome.cacheable) == (text, counts, True)


def test_errors_have_all_four_fields() -> None:
    """Message, type, param and code are always there; an engine's own body goes out as it came."""
    body = json.loads(error_body(model_not_found("m")))
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == "model_not_found"
    fault = Fault(400, "t", None, "m", body=b'{"error":\n{}}')
    assert error_body(fault) == fault.body
    assert error_frame(fault) == b'data: {"error": {}}\n\n'
    assert json.loads(error_frame(model_not_found("m"))[6:]) == body


def test_models_are_listed() -> None:
    """The list and the single model have OpenAI's shape, and names may hold slashes."""
    listed = json.loads(models_body(["org/m:7b", "x"], 1700000000))
    assert [model["id"] for model in listed["data"]] == ["org/m:7b", "x"]
    assert json.loads(model_body("org/m:7b", 1700000000)) == listed["data"][0]
    assert listed["data"][0]["object"] == "model"
