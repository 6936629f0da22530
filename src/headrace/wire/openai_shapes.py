"""The parts of OpenAI-shaped answers that the gateway reads; every other field is skipped without being built."""

from __future__ import annotations

import re
from typing import Literal, cast

import msgspec

from headrace.model import Usage
from headrace.wire.json_text import JsonObject, decode_answer, encode_answer

EMPTY = frozenset({b"", b"null", b'""', b"[]", b"{}"})
"""Raw values that carry nothing. Engines send them to fill a delta."""

NOTHING = msgspec.Raw()


class ToolCall(msgspec.Struct, gc=False):
    """A piece of a tool call in a delta."""

    index: int | None = None
    id: str | None = None


class Choice(msgspec.Struct, gc=False):
    """One alternative in a chunk or in a whole body."""

    index: int | None = None
    delta: dict[str, msgspec.Raw] | None = None
    text: msgspec.Raw = NOTHING
    finish_reason: msgspec.Raw = NOTHING

    @property
    def finished(self) -> bool:
        """It has a finish reason."""
        return bytes(self.finish_reason) not in EMPTY

    @property
    def has_content(self) -> bool:
        """It carries something a caller would see: any field of the delta but the role."""
        if self.delta is not None:
            for name, value in self.delta.items():
                if name != "role" and bytes(value) not in EMPTY:
                    return True
        return bytes(self.text) not in EMPTY

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the delta; none if they have no known shape."""
        raw = (self.delta or {}).get("tool_calls", NOTHING)
        if bytes(raw) in EMPTY:
            return []
        try:
            return _TOOL_CALLS.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return []


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream, or a whole body."""

    id: msgspec.Raw = NOTHING
    object: msgspec.Raw = NOTHING
    created: msgspec.Raw = NOTHING
    model: str | None = None
    choices: list[Choice] | None = None
    data: msgspec.Raw = NOTHING
    """The vectors of a whole embeddings body."""
    usage: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING

    @property
    def failed(self) -> bool:
        """It reports an error instead of an answer, in today's form or in the one of older vLLM."""
        return bytes(self.error) not in EMPTY or bytes(self.object) == b'"error"'


class _PlainDelta(msgspec.Struct, gc=False):
    tool_calls: None = None


class _PlainChoice(msgspec.Struct, gc=False):
    index: Literal[0] | None = None
    finish_reason: None = None
    delta: _PlainDelta | None = None


class _Plain(msgspec.Struct, gc=False):
    """What may be in a plain chunk: where something would have to be read, nothing may stand. The rest is skipped."""

    choices: list[_PlainChoice]
    model: str | None = None
    usage: None = None
    error: None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Ended(msgspec.Struct, gc=False):
    finish_reason: str | None = None


class PlainAnswer(msgspec.Struct, gc=False):
    """What is read of a whole answer in the form that nearly all have; what has another does not decode as this."""

    choices: list[_Ended]
    model: str | None = None
    object: str | None = None
    usage: _Usage | None = None
    error: None = None


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CHUNK = msgspec.json.Decoder(Chunk)
_PLAIN = msgspec.json.Decoder(_Plain)
_PLAIN_ANSWER = msgspec.json.Decoder(PlainAnswer)
_USAGE = msgspec.json.Decoder(_Usage)
_TOOL_CALLS = msgspec.json.Decoder(list[ToolCall])


def is_plain(payload: bytes, model: str | None) -> bool:
    """Whether `payload` is a valid chunk of `model` with nothing to look at.

    That is: no finish reason, usage, error, tool call, or choice but the first.
    """
    try:
        return _PLAIN.decode(payload).model == model
    except (msgspec.MsgspecError, RecursionError):
        return False


def plain_answer(body: bytes) -> PlainAnswer | None:
    """The whole answer that `body` writes; None for whatever needs a closer look, errors among it."""
    try:
        answer = _PLAIN_ANSWER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return answer if answer.choices and answer.object != "error" else None


def chunk(payload: bytes) -> Chunk | None:
    """The chunk or body that `payload` writes; None when it is no JSON object of that shape."""
    try:
        return _CHUNK.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    # Half a surrogate pair and a byte that is no UTF-8 spoil the text they stand in, which nobody reads here.
    readable = _SURROGATE.sub(rb"\\ufffd", payload.decode("utf-8", "replace").encode())
    return None if readable == payload else chunk(readable)


def usage(raw: msgspec.Raw | bytes) -> Usage | None:
    """The token counts that `raw` reports; None for null, for nothing, and for what cannot be counts."""
    if bytes(raw) in EMPTY:
        return None
    try:
        return counted(_USAGE.decode(raw))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def counted(counts: _Usage) -> Usage | None:
    """`counts` as usage; None for what cannot be counts."""
    prompt, completion = counts.prompt_tokens or 0, counts.completion_tokens or 0
    read, made = counts.prompt_tokens_details, counts.completion_tokens_details
    cached = 0 if read is None else read.cached_tokens or 0
    reasoning = 0 if made is None else made.reasoning_tokens or 0
    if prompt < 0 or completion < 0 or cached < 0 or reasoning < 0:
        return None
    return Usage(prompt, completion, cached, reasoning)


def model_in(member: bytes) -> str:
    """The name in `"model": "name"`, read as `chunk` reads it; "" if it cannot be read."""
    named = chunk(b"{" + member + b"}")
    return "" if named is None else named.model or ""


def usage_chunk(payload: bytes, model: str) -> bytes:
    """The usage that the chunk `payload` reports, in a chunk of its own."""
    like = chunk(payload)
    assert like is not None, "it was read before"
    fields: dict[str, object] = {"id": like.id, "object": like.object, "created": like.created}
    fields = {name: value for name, value in fields.items() if value is not NOTHING}
    return msgspec.json.encode({**fields, "model": model, "choices": [], "usage": like.usage})


def renumbered(payload: bytes, places: list[list[int]]) -> bytes:
    """The chunk `payload` with the tool calls of each choice numbered as `places` say."""
    chunk = cast("JsonObject", decode_answer(payload))
    for choice, numbers in zip(cast("list[JsonObject]", chunk["choices"]), places, strict=True):
        if not numbers:
            continue
        delta = cast("JsonObject", choice["delta"])
        for call, number in zip(cast("list[JsonObject]", delta["tool_calls"]), numbers, strict=True):
            call["index"] = number
    return encode_answer(chunk)
