"""The bench's own reading of a stream: content is content, an end is an end, and cuts change nothing."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.answer import AnswerReader, error_name
from headrace.model import Usage


def chunk(*deltas: object, finish: str | None = None, **fields: object) -> bytes:
    """One event with a choice for each delta."""
    choices = [{"index": n, "delta": delta, "finish_reason": finish} for n, delta in enumerate(deltas)]
    return b"data: " + json.dumps({"choices": choices, **fields}).encode() + b"\n\n"


USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
DONE = b"data: [DONE]\n\n"
WHOLE = (
    chunk({"role": "assistant", "content": ""})
    + b": waiting\n\n"
    + chunk({"content": "Hel"})
    + chunk({"content": "lo \u00e9"})
    + chunk({}, finish="stop")
    + b"data: "
    + json.dumps({"choices": [], "usage": USAGE}).encode()
    + b"\n\n"
    + DONE
)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_the_cuts_of_the_network_change_nothing(cuts: list[int]) -> None:
    """However the bytes are cut: two pieces, the text, the usage, the end."""
    reader = AnswerReader()
    borders = sorted([0, *cuts, len(WHOLE)])
    pieces = [reader.feed(WHOLE[start:end]) for start, end in pairwise(borders)]
    assert sum(pieces) == reader.pieces == 2
    assert (reader.text, reader.usage, reader.finished) == ("Hello \u00e9", Usage(7, 2, 4), True)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"content": [{"type": "text", "text": "a"}]},
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0}]},
    ],
)
def test_all_kinds_of_content_count(delta: object) -> None:
    """The first token may be thought, a refusal or a tool call as well."""
    assert AnswerReader().feed(chunk(delta)) == 1


@pytest.mark.parametrize(
    "data",
    [
        chunk({"role": "assistant"}),
        chunk({"content": ""}),
        chunk({"content": None, "tool_calls": []}),
        chunk({}, finish="stop"),
        chunk(),
        b'data: {"choices": null}\n\n',
        b'data: {"choices": [null, 3]}\n\n',
        b"data: 5\n\n",
        b": comment\n\n",
    ],
)
def test_what_carries_nothing_is_no_token(data: bytes) -> None:
    """A role, an empty text, a comment or a finish reason is no first token."""
    assert AnswerReader().feed(data) == 0


def test_an_answer_ends_with_a_finish_reason_or_done_only() -> None:
    """A stream that stops is not finished, whatever it had brought."""
    for end, finished in ((b"", False), (chunk({}, finish="length"), True), (DONE, True)):
        reader = AnswerReader()
        reader.feed(chunk({"content": "a"}) + end)
        assert reader.finished is finished


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'data: {"error": {"message": "m", "code": "upstream_error", "type": "server_error"}}\n\n', "upstream_error"),
        (b'data: {"error": {"message": "m", "code": 500, "type": "server_error"}}\n\n', "server_error"),
        (b'data: {"error": "boom"}\n\n', "error"),
        (b"data: {nonsense\n\n", "no_json"),
    ],
)
def test_an_error_in_the_stream_is_no_answer(data: bytes, name: str) -> None:
    """It is named by its code or type, and a [DONE] after it does not make it well."""
    reader = AnswerReader()
    reader.feed(chunk({"content": "a"}) + data + DONE)
    assert (reader.error, reader.finished) == (name, False)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_garbage_never_raises(data: bytes, cut: int) -> None:
    """Whatever an endpoint sends is read or named."""
    reader = AnswerReader()
    reader.feed(b"data: " + data[:cut])
    reader.feed(data[cut:] + b"\n\n")


def test_only_short_names_are_taken_from_error_bodies() -> None:
    """They become rows of a table: no page of HTML, no control characters."""
    assert error_name({"error": {"code": "queue_full"}}) == "queue_full"
    assert error_name({"error": {"code": "x" * 100, "type": "a\nb"}}) == ""
    assert error_name(["error"]) == error_name({"error": 5}) == ""
