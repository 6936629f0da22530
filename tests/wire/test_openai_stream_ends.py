"""How streams of OpenAI-shaped engines end: complete or not, with usage from odd places, with errors inside a 200."""

from __future__ import annotations

import pytest

from headrace.model import Cause, OutcomeKind, Usage
from headrace.wire import sse
from headrace.wire.openai_stream import OpenAIDecoder
from tests.wire.answers import (
    DONE,
    chat_call,
    chunk,
    content,
    decode,
    event,
    payloads,
    recorded,
    usage,
)

ROLE = chunk({"role": "assistant", "content": None})
FIN = chunk(finish="stop")

# ------------------------------------------------------------------------------------------------------ endings


@pytest.mark.parametrize(
    ("stream", "complete"),
    [
        (content("x"), False),
        (content("x") + DONE, True),
        (content("x") + FIN, True),
        (content("x") + FIN + usage(1, 2) + DONE, True),
        (content("x") + usage(1, 2) + DONE, True),
        (content("x") + FIN[:-2], True),
        (content("x") + FIN[:-1], True),
        (content("x") + DONE[:-2], True),
        (chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a'}}]}), False),
        (ROLE, False),
        (ROLE + DONE, True),
        (b"", False),
        (DONE, False),
        (b"<html>busy</html>", False),
    ],
)
@pytest.mark.parametrize("clean", [True, False])
def test_what_counts_as_finished(stream: bytes, complete: bool, clean: bool) -> None:
    """A finish reason or `[DONE]` is an end, also without its blank line; an end of the body alone is none."""
    out = decode([stream], clean=clean)
    assert (out.outcome.cause is Cause.OK) is complete
    assert out.data.count(DONE) == complete
    assert out.data.endswith(DONE) is complete
    assert out.outcome.kind is (OutcomeKind.SUCCESS if complete else OutcomeKind.FAILURE)


SECOND = chunk({"content": "b"}, index=1)
SECOND_ROLE = chunk({"role": "assistant", "content": ""}, index=1)


@pytest.mark.parametrize(
    ("parts", "complete"),
    [
        ([content("a"), SECOND, chunk(finish="stop", index=1)], False),
        ([content("a"), SECOND, FIN], False),
        ([content("a"), SECOND, FIN, chunk(finish="stop", index=1)], True),
        ([content("a"), SECOND, chunk(finish="stop", index=1), content("c"), FIN], True),
        ([content("a"), SECOND, chunk(finish="stop", index=1), DONE], True),
        ([SECOND, content("a"), chunk(finish="stop", index=1)], False),
        ([SECOND, chunk(finish="stop", index=1)], True),
        ([content("a"), SECOND_ROLE, FIN], True),
        ([content("a") + SECOND + SECOND, FIN], False),
    ],
)
@pytest.mark.parametrize("joined", [True, False], ids=["one read", "many reads"])
def test_every_choice_that_has_begun_must_finish(parts: list[bytes], complete: bool, joined: bool) -> None:
    """Of several choices none may be left half told, however the reads are cut; `[DONE]` ends them all."""
    for clean in (True, False):
        out = decode([b"".join(parts)] if joined else parts, clean=clean)
        assert (out.outcome.cause is Cause.OK) is complete
        assert out.data.endswith(DONE) is complete


def test_a_broken_stream_invents_nothing() -> None:
    """After content: no finish reason, no `[DONE]`; the caller is told that the answer is incomplete."""
    for clean in (True, False):
        out = decode([ROLE + content("a") + content("b")[:40]], clean=clean)
        assert out.text == "a"
        assert all(choice["finish_reason"] is None for payload in out.payloads for choice in payload["choices"])
        assert out.outcome.committed
        assert out.outcome.fault is not None
        assert out.outcome.fault.code == "stream_incomplete"
        assert out.outcome.usage == Usage(prompt=2, completion=1, estimated=True)


def test_an_answer_cut_by_its_length_is_complete_but_not_to_be_kept() -> None:
    """`length` is a success; neither it nor an answer without any finish reason belongs into a cache."""
    assert decode([content("a"), FIN, DONE]).outcome.cacheable
    for stream in (content("a") + chunk(finish="length") + DONE, content("a") + DONE):
        assert decode([stream]).outcome.cause is Cause.OK
        assert not decode([stream]).outcome.cacheable


def test_nothing_is_read_after_the_end() -> None:
    """What an engine sends behind `[DONE]` is ignored."""
    decoder = OpenAIDecoder(chat_call())
    decoder.feed(content("a") + FIN + DONE + content("b"))
    assert decoder.ended
    assert decoder.feed(content("c")) == ()
    frames, outcome = decoder.finish(clean=True)
    assert frames == []
    assert outcome.cause is Cause.OK


# -------------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    "stream",
    [
        content("a") + chunk(finish="stop", usage={"prompt_tokens": 26, "completion_tokens": 7}) + DONE,
        content("a") + FIN + usage(26, 7) + DONE,
        content("a")
        + content("b", usage={"prompt_tokens": 26, "completion_tokens": 7})
        + FIN.replace(b"}\n", b',"usage":null}\n')
        + DONE,
        content("a") + usage(26, 7) + content("b") + FIN + DONE,
        content("a") + usage(1, 1) + FIN + usage(26, 7) + DONE,
        content("a") + FIN + usage(26, 7),
        content("a", usage={"prompt_tokens": 26, "completion_tokens": 1}) + FIN + usage(26, 7) + DONE,
    ],
    ids=["on the finish", "after it", "in the middle", "before the end", "twice", "no mark", "continuous"],
)
def test_usage_is_found_where_engines_put_it(stream: bytes) -> None:
    """Counted once; one chunk with `choices: []` just before `[DONE]` for those who asked, none for the others."""
    out = decode([stream])
    assert out.outcome.usage == Usage(prompt=26, completion=7)
    assert out.tokens == 7
    assert [frame.usage_only for frame in out.frames[-2:]] == [True, False]
    assert sum(frame.usage_only for frame in out.frames) == 1
    assert out.payloads[-1]["choices"] == []
    assert out.payloads[-1]["usage"]["prompt_tokens"] == 26
    assert out.payloads[-1]["id"] == "c-1"
    assert all(payload["choices"] for payload in payloads(out.without_usage))
    assert out.without_usage.endswith(DONE)


def test_the_details_of_usage_are_read_and_kept() -> None:
    """Cached and reasoning tokens are counted, and unknown details reach the client also in a made-up usage chunk."""
    counts = {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": None},
        "cost": 0.5,
    }
    out = decode([content("a") + chunk(finish="stop", usage=counts)])
    assert out.outcome.usage == Usage(prompt=5, completion=6, cached=3, reasoning=2)
    assert out.payloads[-1]["usage"] == counts


@pytest.mark.parametrize("counts", [None, {}, "many", {"prompt_tokens": "x"}, {"prompt_tokens": -5}])
def test_odd_usage_does_not_harm(counts: object) -> None:
    """Null is nothing, and nonsense is not believed: the answer goes on."""
    out = decode([content("a"), content("b", usage=counts), FIN, DONE])
    assert out.text == "ab"
    assert out.outcome.usage == Usage(prompt=2, completion=2, estimated=True)


def test_several_choices_stay_apart() -> None:
    """With n = 2 every index is kept and both finish reasons arrive."""
    pieces = [chunk({"content": str(index)}, index=index) for index in (0, 1, 0, 1)]
    out = decode([*pieces, chunk(finish="stop", index=1), chunk(finish="length", index=0), DONE])
    choices = [choice for payload in out.payloads for choice in payload["choices"]]
    assert [choice["index"] for choice in choices] == [0, 1, 0, 1, 1, 0]
    assert not out.outcome.cacheable


# ------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ({"message": "key sk-abcdef123 at 10.0.0.7:8000", "type": "server_error", "code": None}, Cause.SERVER_ERROR),
        ({"message": "x", "type": "rate_limit_error", "code": None}, Cause.RATE_LIMITED),
        ({"message": "x", "type": "overloaded_error"}, Cause.RATE_LIMITED),
        ({"message": "x", "type": "x", "code": 429}, Cause.RATE_LIMITED),
        ({"message": "x", "code": "529"}, Cause.RATE_LIMITED),
        ({"message": "server busy, please try again", "type": "api_error"}, Cause.RATE_LIMITED),
        ("the model failed", Cause.SERVER_ERROR),
    ],
)
@pytest.mark.parametrize("committed", [False, True])
def test_an_error_event_is_judged_by_its_type(error: object, cause: Cause, committed: bool) -> None:
    """Inside a 200: overload is a rate limit, all else a failure; the event itself and its words stay here."""
    decoder = OpenAIDecoder(chat_call())
    start = [*decoder.feed(ROLE), *(decoder.feed(content("a")) if committed else [])]
    assert decoder.feed(event({"error": error}) + content("b")) == []
    assert decoder.ended
    frames, outcome = decoder.finish(clean=True)
    assert frames == []
    assert len(start) == (2 if committed else 0)
    assert outcome.cause is (Cause.BROKEN_STREAM if committed and cause is Cause.SERVER_ERROR else cause)
    assert outcome.committed is committed
    assert outcome.fault is not None
    assert outcome.fault.type == (error.get("type", "server_error") if isinstance(error, dict) else "server_error")
    before = "rate_limit_exceeded" if cause is Cause.RATE_LIMITED else "upstream_error"
    assert outcome.fault.code == ("stream_incomplete" if committed else before)
    for said in (outcome.fault.message, outcome.detail):
        assert not any(secret in said for secret in ("sk-", "10.0.0.7", "busy, please"))


def test_errors_in_other_shapes_are_errors() -> None:
    """A named event, and the older form with the fields at the top."""
    for stream in (
        b'event: error\ndata: {"message":"x","type":"overloaded"}\n\n',
        event({"object": "error", "message": "x", "type": "overloaded", "code": 503}),
    ):
        assert decode([stream]).outcome.cause is Cause.RATE_LIMITED


@pytest.mark.parametrize(
    "broken", [b'data: {"choices":[{"index":0,"del\n\n', b"data: {broken}\n\n", b"data: [1]\n\n", b"data: hello\n\n"]
)
def test_a_broken_event_is_never_passed_on(broken: bytes) -> None:
    """Before content the engine does not speak the protocol; after it the stream is broken. The event is not shown."""
    assert decode([ROLE, broken, content("a")]).outcome.cause is Cause.PROTOCOL
    assert decode([ROLE, broken, content("a")]).frames == []
    out = decode([content("a"), broken, content("b"), DONE])
    assert out.outcome.cause is Cause.BROKEN_STREAM
    assert out.data == content("a")


@pytest.mark.parametrize(
    "piece", [b"x" * 65536, b"data: " + b"x" * 65536 + b"\n", ROLE * 500, b'{"a":"' + b"x" * 65536]
)
def test_an_endless_beginning_ends_the_attempt(piece: bytes) -> None:
    """A line, an event, a preamble or a body without end is cut at the bound."""
    decoder = OpenAIDecoder(chat_call())
    fed = 0
    while not decoder.ended:
        assert list(decoder.feed(piece)) == []
        fed += len(piece)
        assert fed <= sse.EVENT_LIMIT + 2 * len(piece)
    assert decoder.finish(clean=False)[1].cause is Cause.PROTOCOL


def test_a_whole_body_instead_of_a_stream_is_played_as_one() -> None:
    """An engine that ignores `stream` still answers: its body comes as chunks, with usage and `[DONE]`."""
    body = recorded("llamacpp-chat.json")
    for pieces in ([body], [body[:1], body[1:]]):
        out = decode(pieces)
        assert out.outcome.cause is Cause.OK
        assert out.text
        assert out.data.endswith(DONE)
        assert sum(frame.usage_only for frame in out.frames) == 1
    assert decode([body[:50]]).outcome.cause is Cause.PROTOCOL
    assert decode([body], clean=False).outcome.cause is Cause.BROKEN_STREAM
    assert decode([b'{"error":{"type":"overloaded","message":"x"}}']).outcome.cause is Cause.RATE_LIMITED
