"""Reads the rest of an answer that broke off, and writes it so that callers see one answer.

The chunks keep the id and the time of the first half; the role that opens every answer is left out, and so is what
repeats the end of the text: the blanks the engine was not given (`continuation`), and the given text itself where an
engine sends it once more. Usage is that of the whole: the prompt once, the answer's tokens summed. A comment before the
end says that the answer was taken up again.

The rest is taken apart chunk by chunk: this is rare, and exactness counts for more than speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from headrace.model import Cause, Outcome, Usage
from headrace.wire import openai_shapes as shapes
from headrace.wire import sse
from headrace.wire.continuation import Continuation, resumed_note
from headrace.wire.frames import Frame
from headrace.wire.json_text import JsonObject, decode_answer, encode_answer
from headrace.wire.openai_call import OpenAICall
from headrace.wire.openai_stream import DONE, OpenAIDecoder

_LONGEST_TOKEN = 32
"""Characters. A first piece that begins with more than this of the given text is the text sent once more, and no model
that repeats itself, which it would do token by token."""


class ContinuedDecoder:
    """The second half of a streamed answer. Feed it what the network brings, then `finish` it once."""

    __slots__ = (
        "_chat",
        "_inner",
        "_known",
        "_part",
        "_repeated",
        "_spent",
        "_twice",
        "ended",
        "started",
        "tokens",
        "usage",
    )

    def __init__(self, call: OpenAICall, part: Continuation) -> None:
        self._inner = OpenAIDecoder(call)
        self._part = part
        self._chat = call.endpoint == "chat"
        self._known = part.given(call.endpoint)
        """What the engine might send once more; "" once it has begun otherwise."""
        self._repeated = part.text[len(self._known) :]
        """What it makes anew although callers have it."""
        self._twice = 0
        """Tokens that were made anew, as far as they stood alone in their chunks."""
        self._spent = part.spent(call.output_cap)
        self.started = self.ended = False
        self.tokens = 0
        """Of this half alone."""
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> Sequence[Frame]:
        """What callers may see of `data`."""
        frames = self._inner.feed(data)
        self._follow()
        return self._rewritten(frames)

    def finish(self, clean: bool) -> tuple[Sequence[Frame], Outcome]:
        """The last frames, and how the attempt ended, with the usage of the whole answer."""
        rest, outcome = self._inner.finish(clean)
        self._follow()
        frames = self._rewritten(rest)
        if outcome.usage is not None:
            outcome = replace(outcome, usage=self._total(outcome.usage))
        if outcome.cause is Cause.OK and self._spent:
            outcome = replace(outcome, cacheable=False)
        return frames, outcome

    def _follow(self) -> None:
        inner = self._inner
        self.started, self.ended, self.tokens, self.usage = inner.started, inner.ended, inner.tokens, inner.usage

    def _rewritten(self, frames: Sequence[Frame]) -> list[Frame]:
        found: list[Frame] = []
        for frame in frames:
            if frame.data == DONE:
                found += (Frame(resumed_note(self._part.times)), frame)
                continue
            for event in sse.SseReader().feed(frame.data):
                chunk = self._chunk(cast("JsonObject", decode_answer(event.data)))
                if chunk is not None:
                    found.append(Frame(sse.event(encode_answer(chunk)), frame.usage_only))
        return found

    def _chunk(self, chunk: JsonObject) -> JsonObject | None:
        """`chunk` as a part of the first half's answer; None: it says nothing that callers do not have."""
        choices = cast("list[JsonObject]", chunk.get("choices") or [])
        says = [self._choice(choice) for choice in choices]
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._sum(usage)
        elif not any(says):
            return None
        return {**chunk, **self._part.stamps}

    def _choice(self, choice: JsonObject) -> bool:
        """Take off what callers have already; whether anything is left."""
        delta = choice.get("delta")
        holder, name = (delta, "content") if isinstance(delta, dict) else (choice, "text")
        holder.pop("role", None)
        text = holder.get(name)
        if isinstance(text, str) and text:
            holder[name] = self._fresh(text)
        reason = choice.get("finish_reason")
        if reason and self._spent:
            choice["finish_reason"] = "length"
        return bool(reason or holder.get(name) or (isinstance(delta, dict) and any(delta.values())))

    def _fresh(self, text: str) -> str:
        """What of the next piece of text callers do not have yet."""
        if self._spent:
            return ""
        known, self._known = self._known, ""
        if len(known) >= _LONGEST_TOKEN and text.startswith(known):
            text = text[len(known) :]
        if not self._repeated:
            return text
        same = 0
        while same < min(len(text), len(self._repeated)) and text[same] == self._repeated[same]:
            same += 1
        self._repeated = self._repeated[same:] if same == len(text) else ""
        self._twice += same == len(text)
        return text[same:]

    def _total(self, usage: Usage) -> Usage:
        """The usage of both halves; the engine read the first half's text as a part of its prompt."""
        before = self._part.usage
        prompt = before.prompt
        if before.estimated and not usage.estimated:
            prompt = max(1, usage.prompt - (before.completion - self._twice))
        made = 0 if self._spent else max(0, usage.completion - self._twice)
        return Usage(
            prompt=prompt,
            completion=before.completion + made,
            cached=min(usage.cached, prompt),
            reasoning=before.reasoning + usage.reasoning,
            estimated=before.estimated or usage.estimated,
        )

    def _sum(self, usage: JsonObject) -> None:
        """Put the counts of the whole answer in place of the second half's."""
        own = shapes.usage(encode_answer(usage))
        if own is None:
            return
        total = self._total(own)
        usage["prompt_tokens"], usage["completion_tokens"] = total.prompt, total.completion
        usage["total_tokens"] = total.prompt + total.completion
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and "cached_tokens" in details:
            details["cached_tokens"] = total.cached
