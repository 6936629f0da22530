"""An answer cut anywhere and gone on from elsewhere is the answer, once: nothing lost, nothing doubled."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import Cause, Instance, Outcome, Usage
from headrace.wire.adapters import adapter_for
from headrace.wire.continuation import KEPT_BYTES, Continuation, Transcript
from headrace.wire.openai import OpenAICall
from tests.wire.answers import Decoded, content, decode, event, recorded
from tests.wire.halves import ENGINES, PROMPT_TOKENS, TEXT, TOKENS, Half, call_for


class Play:
    """One answer in several halves: what callers got, and what the engines were asked."""

    def __init__(self, kind: str, call: OpenAICall) -> None:
        self._adapter = adapter_for(ENGINES[kind][0])
        self._instance = Instance(id="i", address="http://engine", engine=ENGINES[kind][0])
        self.call = call
        self.transcript = Transcript()
        self.part: Continuation | None = None
        self.frames: list[Any] = []
        self.outcome = Outcome(Cause.OK)

    def body(self) -> dict[str, Any]:
        """What the engine is asked now."""
        request = self._adapter.encode(self._asked, self._instance, self.call.model, None)
        found: dict[str, Any] = json.loads(request.body)
        return found

    def half(self, pieces: Sequence[bytes], *, clean: bool) -> bool:
        """What one engine sends, up to its end or its break; whether the answer can go on elsewhere."""
        decoded = decode(pieces, decoder=self._adapter.decoder(self._asked), clean=clean)
        for frame in decoded.frames:
            self.transcript.add(frame.data)
        self.frames += decoded.frames
        self.outcome = decoded.outcome
        if decoded.outcome.cause is Cause.OK or not decoded.outcome.committed:
            return False
        assert decoded.outcome.usage is not None
        times = 1 if self.part is None else self.part.times + 1
        self.part = self.transcript.continuation(self.call, decoded.outcome.usage, times)
        return self.part is not None

    def seen(self) -> Decoded:
        """What a client sees, the comment at its end taken off."""
        notes = [frame for frame in self.frames if frame.data.startswith(b":")]
        assert len(notes) <= 1
        return Decoded([frame for frame in self.frames if frame not in notes], self.outcome, 0)

    @property
    def _asked(self) -> OpenAICall:
        return self.call if self.part is None else OpenAICall(**{**_fields(self.call), "continuation": self.part})


def _fields(call: OpenAICall) -> dict[str, Any]:
    return {name: getattr(call, name) for name in OpenAICall.__struct_fields__}


def check_whole(seen: Decoded, first: str = "first") -> None:
    """One answer: the text, one role, one end, one id, one usage that sums up to it."""
    assert seen.text == TEXT
    events = seen.payloads
    assert {chunk["id"] for chunk in events} == {first}
    assert {chunk["created"] for chunk in events} == {len(first)}
    choices = [choice for chunk in events for choice in chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert sum("role" in choice.get("delta", {}) for choice in choices) <= 1
    assert seen.data.count(b"[DONE]") == 1
    assert seen.data.endswith(b"data: [DONE]\n\n")
    for usage in [chunk["usage"] for chunk in events if chunk.get("usage")]:
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, len(TOKENS))
        assert seen.outcome.usage is not None
        assert seen.outcome.usage.completion == usage["completion_tokens"]


@pytest.mark.parametrize("kind", ENGINES)
def test_a_stream_cut_at_any_byte_goes_on_without_a_seam(kind: str) -> None:
    """Every place there is: inside events, inside characters, between the text and its end."""
    first = Half(kind, "first").rest("")
    resumed = 0
    for place in range(len(first) + 1):
        play = Play(kind, call_for(kind))
        if not play.half([first[:place]], clean=False):
            assert not play.outcome.committed or play.outcome.cause is Cause.OK, "what was read can always be gone on"
            continue
        second = Half(kind, "another")
        play.half([second.rest(second.asked(play.body()))], clean=True)
        assert play.outcome.cause is Cause.OK
        check_whole(play.seen())
        assert any(chunk.get("usage") for chunk in play.seen().payloads)
        assert sum(frame.data == b": headrace resumed times=1\n\n" for frame in play.frames) == 1
        resumed += 1
    assert resumed > len(first) / 2


@pytest.mark.parametrize("kind", ENGINES)
@given(data=st.data())
def test_a_stream_may_be_cut_again_and_come_in_any_pieces(kind: str, data: st.DataObject) -> None:
    """Both halves break, and the network cuts all three as it likes."""
    play = Play(kind, call_for(kind))
    for name in ("first", "another", "the third"):
        engine = Half(kind, name)
        stream = engine.rest(engine.asked(play.body()))
        end = len(stream) if name == "the third" else data.draw(st.integers(0, len(stream)), label="cut")
        places = sorted(data.draw(st.lists(st.integers(0, end), max_size=6), label="pieces"))
        pieces = [stream[a:b] for a, b in zip([0, *places], [*places, end], strict=True)]
        if not play.half(pieces, clean=False) and play.outcome.committed:
            break
    assert play.outcome.cause is Cause.OK
    check_whole(play.seen(), first=str(play.seen().payloads[0]["id"]))


def test_a_recorded_stream_cut_at_any_event_goes_on() -> None:
    """Bytes of a real llama.cpp server: its first chunk has a content of null, its last an empty delta."""
    whole = recorded("llamacpp-chat-usage.sse")
    text = decode([whole]).text
    for place in (found.end() for found in re.finditer(rb"\n\n", whole)):
        play = Play("llamacpp", call_for("llamacpp"))
        if not play.half([whole[:place]], clean=False):
            continue
        engine = Half("llamacpp", "another", [text])
        play.half([engine.rest(engine.asked(play.body()))], clean=True)
        assert play.seen().text == text
        assert len({chunk["id"] for chunk in play.seen().payloads}) == 1


# ------------------------------------------------------------------------------------------------- what is asked


def test_the_answers_bound_is_lowered_by_what_there_is() -> None:
    """Ten were allowed and three are there: seven are left; a least length shrinks in the same way."""
    play = Play("vllm", call_for("vllm", max_tokens=10, max_completion_tokens=10, min_tokens=5))
    assert play.half([content("a"), content(" b"), content(" c")], clean=False)
    body = play.body()
    assert (body["max_tokens"], body["max_completion_tokens"], body["min_tokens"]) == (7, 7, 2)


def test_an_answer_that_only_lacks_its_end_gets_it() -> None:
    """All tokens that were allowed are there: one is asked for, because none cannot be, and not shown."""
    play = Play("vllm", call_for("vllm", max_tokens=2))
    assert play.half([content("a"), content(" b")], clean=False)
    assert play.body()["max_tokens"] == 1
    play.half([Half("vllm", "another", ["a b", " c"]).rest("a b")], clean=True)
    seen = play.seen()
    assert seen.text == "a b"
    assert [choice["finish_reason"] for chunk in seen.payloads for choice in chunk["choices"]][-1] == "length"
    assert seen.outcome.usage is not None
    assert (seen.outcome.usage.completion, seen.outcome.cacheable) == (2, False)


def test_everything_else_reaches_the_engine_as_the_client_wrote_it() -> None:
    """Numbers, unknown fields and earlier messages keep their very form."""
    play = Play(
        "vllm", call_for("vllm", temperature=1e-05, own={"x": [1.50]}, messages=[{"role": "user", "content": "é"}])
    )
    assert play.half([content("a")], clean=False)
    body = play.body()
    assert body["own"] == {"x": [1.5]}
    assert body["temperature"] == 1e-05
    assert body["messages"] == [{"role": "user", "content": "é"}, {"role": "assistant", "content": "a"}]


def test_an_engine_that_sends_the_given_text_once_more_is_cut_short() -> None:
    """The whole of it as the first piece; a model that repeats a word is left alone."""
    long = "The sea is a vast and mysterious realm."
    play = Play("sglang", call_for("sglang"))
    assert play.half([content(long)], clean=False)
    play.half([content(long + " It"), content(" is"), content(" deep.", finish_reason=None)], clean=False)
    assert play.seen().text == long + " It is deep."
    play = Play("sglang", call_for("sglang"))
    assert play.half([content("ha")], clean=False)
    play.half([content("ha"), content("ha")], clean=False)
    assert play.seen().text == "hahaha"


# ------------------------------------------------------------------------------------ what cannot be taken up again

_TOOL = {"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": ""}}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a+"},
        {"continue_final_message": True},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ],
)
def test_requests_whose_second_half_would_not_fit_are_left_alone(fields: dict[str, object]) -> None:
    """Several choices, probabilities, grammars that begin anew, beginnings the caller wrote."""
    assert not Play("vllm", call_for("vllm", **fields)).half([content("a")], clean=False)


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "z"}, {"prompt": ["a", "b"]}, {"prompt": [1, 2]}])
def test_so_are_such_completions(fields: dict[str, object]) -> None:
    """A prompt that is repeated, text to be filled in, and prompts that are no one text."""
    play = Play("completions", call_for("completions", **fields))
    assert not play.half([event({"choices": [{"index": 0, "text": "a"}]})], clean=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "logprobs": False, "response_format": {"type": "text"}, "tool_choice": "auto"},
        {"logprobs": None, "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"echo": False, "response_format": None},
    ],
)
def test_fields_that_ask_for_nothing_special_do_not_hinder(fields: dict[str, object]) -> None:
    """SDKs write defaults out; tools that were not called are no matter."""
    assert Play("vllm", call_for("vllm", **fields)).half([content("a")], clean=False)


@pytest.mark.parametrize(
    "events",
    [
        [event({"choices": [{"index": 0, "delta": {"tool_calls": [_TOOL]}}]})],
        [content("a"), event({"choices": [{"index": 0, "delta": {"tool_calls": [_TOOL]}}]})],
        [event({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}), content("a")],
        [event({"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]})],
        [content("<think>hm"), content(" so")],
        [event({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{}]}}]})],
        [event({"choices": [{"index": 1, "delta": {"content": "a"}}]})],
        [b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n'],
    ],
)
def test_answers_with_more_than_text_in_them_are_left_alone(events: list[bytes]) -> None:
    """Calls, reasoning, probabilities, another choice, half a character: an engine could not be given them back."""
    assert not Play("vllm", call_for("vllm")).half(events, clean=False)


def test_what_is_kept_is_bounded() -> None:
    """An answer longer than the bound is let go."""
    kept = Transcript()
    kept.add(content("a"))
    assert kept.continuation(call_for("vllm"), Usage(1, 1), 1) is not None
    for _ in range(KEPT_BYTES // 1000 + 1):
        kept.add(content("b" * 1000))
    assert kept.continuation(call_for("vllm"), Usage(1, 1), 1) is None
    assert kept._frames == []
