"""The decoder of OpenAI-shaped streams: what clients see, and how attempts end, whatever engine and network do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import Cause, OutcomeKind, Usage
from headrace.wire import sse
from headrace.wire.openai_stream import OpenAIDecoder, regular
from tests.wire.answers import (
    DONE,
    chat_call,
    chunk,
    completion_call,
    content,
    cuts,
    decode,
    event,
    payloads,
    recorded,
    usage,
)

ROLE = chunk({"role": "assistant", "content": None})
FIN = chunk(finish="stop")
RECORDED = [
    ("llamacpp-chat-usage.sse", "I'm glad you're here", Usage(prompt=32, completion=6, cached=31)),
    ("llamacpp-completions.sse", "-in-a", Usage(prompt=1, completion=4)),
    ("transformers-chat-no-done.sse", "pfor��\u001e\u000e", Usage(prompt=23, completion=6)),
    ("transformers-completions-no-done.sse", "E:U", Usage(prompt=4, completion=4)),
    ("llamacpp-python-cut-but-done.sse", "I'm here you", None),
]


# ------------------------------------------------------------------------------------------------ cuts and forms


@pytest.mark.parametrize(("name", "text", "counts"), RECORDED)
def test_a_recorded_stream_is_the_same_however_it_is_cut(name: str, text: str, counts: Usage | None) -> None:
    """Real streams, cut at every place: the same bytes, outcome and usage; text complete; `[DONE]` once, at the end."""
    stream = recorded(name)
    call = completion_call() if "completions" in name else chat_call()
    model = payloads(stream[: stream.index(b"\n\n") + 2])[0]["model"]

    def run(pieces: list[bytes]) -> tuple[bytes, object, int]:
        out = decode(pieces, call, decoder=OpenAIDecoder(call, model))
        return out.data, out.outcome, out.tokens

    whole = decode([stream], call)
    assert whole.outcome.cause is Cause.OK
    assert whole.text == text
    assert whole.data.endswith(DONE)
    assert whole.data.count(DONE) == 1
    assert {payload["model"] for payload in whole.payloads} == {"smollm2"}
    assert counts is None or whole.outcome.usage == counts
    for pieces in cuts(stream):
        assert run(pieces) == (whole.data, whole.outcome, whole.tokens)


EVERY_FORM = (
    b": OPENROUTER PROCESSING\n\n"
    + event({"choices": [{"index": 0, "delta": {"content": "你好🌍"}}]})
    .replace(b"data: ", b"data:")
    .replace(b"\n", b"\r\n")
    + b"data:\n\n"
    + FIN
    + DONE
)


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_no_character_breaks_and_no_comment_becomes_data(ends: bytes) -> None:
    """Every legal form of events, cut at every byte: the text is exact, each payload is JSON, none is empty."""
    stream = EVERY_FORM.replace(b"\r\n", b"\n").replace(b"\n", ends) if ends != b"\n" else EVERY_FORM
    for pieces in cuts(stream):
        out = decode(pieces)
        assert out.text == "你好🌍"
        assert b"\xef\xbf\xbd" not in out.data
        assert len(out.payloads) == 2
        assert out.data.count(DONE) == 1


PARTS = st.lists(
    st.sampled_from(
        [
            content("a"),
            content("你"),
            content('say "usage": {"x":1} or \\" }\n\n'),
            chunk({"reasoning": "hm"}),
            chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{"}}]}),
            b": ping\n\n",
            b"data:\n\n",
            content("crlf").replace(b"\n", b"\r\n"),
            content("cr").replace(b"\n", b"\r"),
            content("tight").replace(b"data: ", b"data:"),
            content("counted", usage={"prompt_tokens": 3, "completion_tokens": 9}),
            content("null", usage=None),
            usage(3, 4),
        ]
    ),
    max_size=12,
)


@given(PARTS, st.booleans(), st.booleans(), st.data())
def test_any_stream_is_the_same_however_it_is_cut(
    parts: list[bytes], finished: bool, done: bool, data: st.DataObject
) -> None:
    """Random streams in random pieces give what they give in one piece: bytes, outcome and count of tokens."""
    stream = b"".join([ROLE, *parts, FIN if finished else b"", DONE if done else b""])
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:stop] for start, stop in zip([0, *places], [*places, len(stream)], strict=True)]
    whole, cut = decode([stream]), decode(pieces)
    assert (cut.data, cut.without_usage, cut.outcome, cut.tokens) == (
        whole.data,
        whole.without_usage,
        whole.outcome,
        whole.tokens,
    )
    assert whole.data.count(DONE) == (whole.outcome.cause is Cause.OK)


# -------------------------------------------------------------------------------------------------- pass-through


def test_a_regular_read_goes_out_as_the_same_object() -> None:
    """After the commit point nothing is decoded, split or copied: the very bytes object comes out, in one frame."""
    decoder = OpenAIDecoder(chat_call(), "smollm2")
    decoder.feed(ROLE + content("a"))
    for read in (content("b"), content("c") * 20, content('"usage":{"error":1} "finish_reason":"stop" [DONE]')):
        frames = decoder.feed(read)
        assert len(frames) == 1
        assert frames[0].data is read
    assert decoder.tokens == 23


@pytest.mark.parametrize(
    "read",
    [
        b"",
        content("x")[:-1],
        content("x")[1:],
        content("x").replace(b"data: ", b"data:"),
        content("x").replace(b"\n", b"\r\n"),
        b": ping\n\n" + content("x"),
        content("x") + b": ping\n\n" + content("y"),
        content("x") + b"data:\n\n" + content("y"),
        content("x") + DONE,
        content("x") + FIN,
        chunk({"content": "x"}, "stop").replace(b'"finish_reason":', b'"finish_reason" : '),
        content("x", usage={"prompt_tokens": 1}),
        content("x", error={"message": "x"}),
        event({"error": "x"}),
        chunk({"tool_calls": [{"id": "a"}]}),
        b"data: {\ndata: }\n\n",
    ],
    ids=lambda read: repr(read[-40:]),
)
def test_what_is_not_regular_is_taken_apart(read: bytes) -> None:
    """Cut events, other forms, ends, usage, errors and tool calls never pass unread."""
    assert regular(read) == 0


def test_a_read_that_ends_inside_an_event_passes_its_whole_events() -> None:
    """The whole events go on at once; half an event is kept until it is complete."""
    decoder = OpenAIDecoder(chat_call(), "smollm2")
    decoder.feed(content("a"))
    second = content("d")
    first = decoder.feed(content("b") + content("c") + second[:20])
    assert b"".join(frame.data for frame in first) == content("b") + content("c")
    rest = decoder.feed(second[20:] + content("e"))
    assert b"".join(frame.data for frame in rest) == second + content("e")
    assert decoder.tokens == 5


def test_the_model_is_the_one_the_client_asked_for() -> None:
    """Every chunk names the asked model, whatever the engine calls itself; text that looks like one is left alone."""
    call = chat_call("asked/name")
    pieces = [
        ROLE,
        content('"model":"smollm2"'),
        content("b"),
        content("c")[:30],
        content("c")[30:],
        FIN,
        usage(1, 2),
        DONE,
    ]
    out = decode(pieces, call, decoder=OpenAIDecoder(call, "smollm2"))
    assert {payload["model"] for payload in out.payloads} == {"asked/name"}
    assert out.text == '"model":"smollm2"bc'


@pytest.mark.parametrize("form", [b'"model": "smollm2"', b'"model" :\t"smol\\u006cm2"'])
def test_the_model_is_found_however_it_is_written(form: bytes) -> None:
    """Blanks and escapes in the engine's own writing are no obstacle."""
    pieces = [part.replace(b'"model":"smollm2"', form) for part in (ROLE, content("a"), content("b"), FIN)]
    assert {payload["model"] for payload in decode(pieces, chat_call("asked")).payloads} == {"asked"}


# ----------------------------------------------------------------------------------------------------- commitment


def test_nothing_comes_before_the_first_content() -> None:
    """Role-only, empty and usage-null chunks are held back; with the first content they come out before it."""
    decoder = OpenAIDecoder(chat_call(), "smollm2")
    empties = [ROLE, chunk({"content": ""}), chunk({"tool_calls": [], "refusal": None}), event({"choices": []})]
    for empty in empties:
        assert decoder.feed(empty) == []
        assert not decoder.started
    frames = decoder.feed(content("a"))
    assert decoder.started
    assert [frame.data for frame in frames] == [*empties, content("a")]
    assert decoder.tokens == 1


@pytest.mark.parametrize(
    "first",
    [
        content("a"),
        chunk({"reasoning_content": "a"}),
        chunk({"reasoning": "a"}),
        chunk({"refusal": "a"}),
        chunk({"audio": {"id": "a"}}),
        chunk({"tool_calls": [{"index": 0, "id": "a"}]}),
        chunk({"function_call": {"name": "f"}}),
        chunk({"some_new_field": 0}),
        chunk(finish="stop"),
    ],
    ids=lambda first: repr(first[60:110]),
)
def test_any_content_commits(first: bytes) -> None:
    """Whatever a caller could see begins the answer: text, reasoning, tools, audio, fields of tomorrow, a finish."""
    decoder = OpenAIDecoder(chat_call(), "smollm2")
    decoder.feed(ROLE)
    assert decoder.feed(first)[-1].data == first
    assert decoder.started


def test_a_stream_cut_before_content_shows_nothing() -> None:
    """The preamble of a failed attempt is never seen, so that another may be made."""
    out = decode([ROLE], clean=False)
    assert out.frames == []
    assert out.outcome.cause is Cause.BROKEN_STREAM
    assert not out.outcome.committed
    assert out.outcome.fault is None


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
    decoder = OpenAIDecoder(chat_call(), "smollm2")
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


# ------------------------------------------------------------------------------------------------ tool calls


def call_piece(index: int | None, call_id: str | None, arguments: str) -> dict[str, object]:
    """A piece of a tool call; None leaves a field out."""
    piece: dict[str, object] = {"function": {"arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if call_id is not None:
        piece["id"] = call_id
    return piece


@pytest.mark.parametrize(
    "deltas",
    [
        [[(0, "a", "1")], [(1, "b", "2")], [(0, None, "3")], [(1, None, "4")]],
        [[(0, "a", "1")], [(0, None, "3")], [(0, "b", "2")], [(0, None, "4")]],
        [[(0, "a", "1")], [(0, "b", "2")], [(0, "a", "3")], [(0, "b", "4")]],
        [[(None, "a", "1"), (None, "b", "2")], [(None, "a", "3"), (None, "b", "4")]],
        [[(None, "a", "1")], [(None, None, "3")], [(None, "b", "2")], [(None, None, "4")]],
    ],
    ids=["numbered", "all 0", "all 0, mixed", "no numbers", "no numbers, one after the other"],
)
def test_tool_calls_can_be_told_apart(deltas: list[list[tuple[int | None, str | None, str]]]) -> None:
    """Calls numbered 0 throughout or not at all come out as 0 and 1, each with its own arguments."""
    stream = [chunk({"tool_calls": [call_piece(*piece) for piece in delta]}) for delta in deltas]
    out = decode([*stream, chunk(finish="tool_calls"), DONE])
    joined = {0: "", 1: ""}
    for payload in out.payloads[:-1]:
        for call in payload["choices"][0]["delta"]["tool_calls"]:
            joined[call["index"]] += call["function"]["arguments"]
    assert joined == {0: "13", 1: "24"}


def test_well_numbered_tool_calls_are_not_rewritten() -> None:
    """Pieces that need no repair keep the engine's own bytes."""
    piece = chunk({"tool_calls": [call_piece(0, "a", "{}")]}).replace(b'"index":0', b'"index": 0')
    assert piece in decode([piece, FIN, DONE]).data


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
    decoder = OpenAIDecoder(chat_call(), "smollm2")
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


@pytest.mark.parametrize("broken", [b'data: {"choices":[{"index":0,"del\n\n', b"data: [1]\n\n", b"data: hello\n\n"])
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
    decoder = OpenAIDecoder(chat_call(), "smollm2")
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
