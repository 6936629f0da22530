"""The decoder of OpenAI-shaped streams: what clients see, and how attempts end, whatever engine and network do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import Cause, Usage
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

    def run(pieces: list[bytes]) -> tuple[bytes, object, int]:
        out = decode(pieces, call, decoder=OpenAIDecoder(call))
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
    decoder = OpenAIDecoder(chat_call())
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
        content("x", model="other"),
        content("x", error={"message": "x"}),
        event({"error": "x"}),
        chunk({"tool_calls": [{"id": "a"}]}),
        b"data: {\ndata: }\n\n",
        b"data: {broken}\n\n",
        content("x") + b"data: {broken}\n\n",
    ],
    ids=lambda read: repr(read[-40:]),
)
def test_what_is_not_regular_is_taken_apart(read: bytes) -> None:
    """Cut events, other forms, ends, usage, errors and tool calls never pass unread."""
    assert regular(read, "smollm2") == 0


def test_a_read_that_ends_inside_an_event_passes_its_whole_events() -> None:
    """The whole events go on at once; half an event is kept until it is complete."""
    decoder = OpenAIDecoder(chat_call())
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
    out = decode(pieces, call, decoder=OpenAIDecoder(call))
    assert {payload["model"] for payload in out.payloads} == {"asked/name"}
    assert out.text == '"model":"smollm2"bc'


@pytest.mark.parametrize("form", [b'"model": "smollm2"', b'"model" :\t"smol\\u006cm2"'])
def test_the_model_is_found_however_it_is_written(form: bytes) -> None:
    """Blanks and escapes in the engine's own writing are no obstacle."""
    pieces = [part.replace(b'"model":"smollm2"', form) for part in (ROLE, content("a"), content("b"), FIN)]
    assert {payload["model"] for payload in decode(pieces, chat_call("asked")).payloads} == {"asked"}


def test_an_engine_that_changes_its_name_is_followed() -> None:
    """A router behind the engine may name another model in mid-stream; the client still reads the asked name."""
    pieces = [content("a"), content("b", model="x"), content("c", model="x"), content("d", model="y"), FIN]
    assert {payload["model"] for payload in decode(pieces).payloads} == {"smollm2"}


def test_bytes_that_are_no_utf_8_do_not_end_the_answer() -> None:
    """An engine that cuts a character in two hurts that character, wherever it stands, and nothing else."""
    broken = content("H").replace(b"H", b"\xf0\x9f")
    for pieces in (
        [broken, content("a"), broken, FIN],
        [content("a"), broken, broken.replace(b"content", b"\xff"), FIN],
    ):
        out = decode(pieces)
        assert out.outcome.cause is Cause.OK
        assert out.data.count(broken) >= 1


# ----------------------------------------------------------------------------------------------------- commitment


def test_nothing_comes_before_the_first_content() -> None:
    """Role-only, empty and usage-null chunks are held back; with the first content they come out before it."""
    decoder = OpenAIDecoder(chat_call())
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
    decoder = OpenAIDecoder(chat_call())
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
