"""A streamed answer that broke off: what callers have of it, and how an engine is asked for the rest.

An engine goes on from a given text where its server can leave the last message open: vLLM and SGLang by fields of their
own, llama.cpp whenever the last message is the assistant's, and every engine where the prompt is plain text. The text
is what was really sent to callers, read back from the frames, so half an event or half a character that never went out
cannot be counted.

Blanks at the end of the text are left out of what the engine is given: chat templates strip them, and a model whose
prompt ends in a blank cannot begin with the word that has it in front. What the engine then makes of them anew is taken
off again (`openai_continued`).

Not taken up again: an answer with anything but text in it (tool calls, reasoning, log probabilities), several choices,
an answer under a grammar, which would begin anew, and one whose beginning the caller wrote himself.

Bound: `KEPT_BYTES` of frames are kept of an answer; a longer one is let go and cannot be taken up again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import msgspec

from headrace.model import Usage
from headrace.wire import openai_shapes as shapes
from headrace.wire import sse
from headrace.wire.json_text import JsonObject, JsonValue, decode_answer
from headrace.wire.openai_call import OpenAICall

KEPT_BYTES = 1024 * 1024
"""About 4,000 tokens as most engines write them."""

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ROLE = msgspec.json.Decoder(dict[str, msgspec.Raw])

_SINGLE = ("n", "best_of")
_NOTHING = shapes.EMPTY | {b"false", b"0"}
_HINDRANCES = frozenset(
    {
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "return_token_ids",
        "echo",
        "suffix",
        "n_predict",
        "continue_final_message",
        "add_generation_prompt",
        "functions",
        "function_call",
        "structured_outputs",
        "grammar",
        "json_schema",
        "regex",
        "ebnf",
        "structural_tag",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    }
)
"""Fields with which the second half would not fit to the first."""
_CAPS = ("max_tokens", "max_completion_tokens")
_STAMPS = ("id", "created", "system_fingerprint")
_THOUGHT = ("<think", "</think")


@dataclass(frozen=True, slots=True)
class Continuation:
    """The part of an answer that callers have."""

    text: str = field(repr=False)
    stamps: Mapping[str, JsonValue]
    """What is the same in every chunk of the answer: id and time."""
    usage: Usage
    """Prompt and completion tokens so far; `estimated` unless the engine had told them."""
    times: int = 1
    """How many times it has broken off."""

    def given(self, endpoint: str) -> str:
        """The text that the engine is given: without the blanks at its end that it will make anew."""
        return self.text.rstrip() if endpoint == "chat" else self.text.rstrip(" ")

    def spent(self, cap: int | None) -> bool:
        """The caller's bound was reached already; only the end of the answer is missing."""
        return cap is not None and self.usage.completion >= cap


class Transcript:
    """Keeps the frames of one answer as they go out. Nothing is read of them until the answer breaks off."""

    __slots__ = ("_frames", "_size")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        """Whole events that went out. Beyond `KEPT_BYTES` all is let go."""
        self._size += len(data)
        if self._size <= KEPT_BYTES:
            self._frames.append(data)
        elif self._frames:
            self._frames.clear()

    def continuation(self, call: OpenAICall, usage: Usage, times: int) -> Continuation | None:
        """Where the answer to `call` broke off; None: it cannot be taken up again.

        `usage` is what the attempts so far have made of it, `times` how many of them broke off.
        """
        if not self._frames or not _fits(call):
            return None
        read = _read(self._frames)
        if read is None:
            return None
        text, stamps = read
        return Continuation(text, stamps, usage, times)


def continued(call: OpenAICall, fields: Mapping[str, bool]) -> OpenAICall:
    """`call` asking for the rest of its answer; `fields` make the engine go on from the last message of a chat.

    The bound on the answer is lowered by what there is already; where nothing is left of it one token is asked for,
    because none cannot be.
    """
    part = call.continuation
    assert part is not None
    body: dict[str, object] = dict(_FIELDS.decode(call.body))
    given, made = part.given(call.endpoint), part.usage.completion
    if given and call.endpoint == "chat":
        message = {"role": "assistant", "content": given}
        body["messages"] = [*_LIST.decode(cast("msgspec.Raw", body["messages"])), message]
        body.update(fields)
    elif given:
        body["prompt"] = _prompt(cast("msgspec.Raw", body["prompt"])) + given
    for name in _CAPS:
        cap = _count(body.get(name))
        if cap is not None:
            body[name] = max(1, cap - made)
    least = _count(body.get("min_tokens"))
    if least is not None:
        body["min_tokens"] = max(0, least - made)
    return msgspec.structs.replace(call, body=msgspec.json.encode(body))


def resumed_note(times: int) -> bytes:
    """The comment in a stream that broke off and was taken up again, so many times."""
    return b": headrace resumed times=%d\n\n" % times


def _fits(call: OpenAICall) -> bool:
    """Whether an answer to `call` could be given in two halves at all."""
    fields = _FIELDS.decode(call.body)
    if any(bytes(fields.get(name, shapes.NOTHING)) not in (b"", b"null", b"1") for name in _SINGLE):
        return False
    if any(bytes(fields[name]) not in _NOTHING for name in fields.keys() & _HINDRANCES):
        return False
    if _kind(fields.get("response_format")) not in ("", "text") or _forces_a_tool(fields.get("tool_choice")):
        return False
    if call.endpoint == "chat":
        messages = _LIST.decode(fields["messages"])
        return bytes(_ROLE.decode(messages[-1]).get("role", shapes.NOTHING)) != b'"assistant"'
    prompt = decode_answer(bytes(fields.get("prompt", b"null")))
    return call.endpoint == "completions" and isinstance(prompt, str) and _is_text(prompt)


def _kind(raw: msgspec.Raw | None) -> str:
    value = None if raw is None else decode_answer(bytes(raw))
    return str(value.get("type")) if isinstance(value, dict) else ""


def _forces_a_tool(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw) not in (b"null", b'"auto"', b'"none"')


def _prompt(raw: msgspec.Raw) -> str:
    return cast("str", decode_answer(bytes(raw)))


def _count(raw: object) -> int | None:
    """The whole number that a field holds; None: it holds none."""
    value = decode_answer(bytes(raw)) if isinstance(raw, msgspec.Raw) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read(frames: Iterable[bytes]) -> tuple[str, Mapping[str, JsonValue]] | None:
    """The text in the frames and the stamps of their answer; None: there is more in them than text."""
    reader, text, stamps = sse.SseReader(), list[str](), dict[str, JsonValue]()
    for data in frames:
        for event in reader.feed(data):
            chunk = decode_answer(event.data)
            if not isinstance(chunk, dict):
                return None
            for name in _STAMPS:
                if chunk.get(name) is not None:
                    stamps.setdefault(name, chunk[name])
            for choice in cast("list[JsonObject]", chunk.get("choices") or []):
                piece = _piece(choice)
                if piece is None:
                    return None
                text.append(piece)
    whole = "".join(text)
    if any(mark in whole for mark in _THOUGHT) or not _is_text(whole):
        return None
    return whole, stamps


def _piece(choice: JsonObject) -> str | None:
    """The text that a chunk's choice adds; None: it says something else as well."""
    if choice.get("index") or choice.get("finish_reason") or choice.get("logprobs"):
        return None
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        piece = choice.get("text")
        return piece if isinstance(piece, str) else ""
    if any(value for name, value in delta.items() if name not in ("role", "content")):
        return None
    piece = delta.get("content")
    return piece if isinstance(piece, str) else None if piece else ""


def _is_text(text: str) -> bool:
    """It holds no half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
