"""A streamed answer as one body, and one body as a stream.

Needed where callers of one shared answer want it in different forms, and when a stored answer is played back. Both
directions keep what they do not know: fields beside the known ones are carried over, so that reasoning, tool calls, log
probabilities and engines' extras survive the round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from headrace.wire import sse
from headrace.wire.frames import Frame
from headrace.wire.json_text import JsonObject, JsonValue, decode_answer, encode_answer
from headrace.wire.openai_call import OpenAICall
from headrace.wire.openai_tools import ToolCallNumbers

_OBJECTS = {"chat": ("chat.completion", "chat.completion.chunk"), "completions": ("text_completion", "text_completion")}
"""By endpoint: what `object` says in a whole answer and in a chunk."""

_SET_ONCE = frozenset({"role", "id", "type", "name", "index"})
"""Strings of a delta that name something. All others are pieces to be joined."""


def assemble(call: OpenAICall, frames: Iterable[Frame]) -> bytes:
    """The body that a whole answer would have had.

    `frames` are those of a complete stream as a decoder made them. Text is joined, tool calls are put together by
    number, usage is the last reported. Fields beside the known ones are taken from the first chunk that has them.
    """
    body: JsonObject = {}
    choices: dict[int, _Choice] = {}
    usage: JsonValue = None
    for chunk in _chunks(frames):
        for name, value in chunk.items():
            if name not in ("choices", "usage") and body.get(name) is None:
                body[name] = value
        usage = chunk.get("usage") or usage
        for choice in _objects(chunk.get("choices")):
            index = choice.get("index")
            number = index if isinstance(index, int) else 0
            choices.setdefault(number, _Choice()).add(choice)
    body["object"] = _OBJECTS[call.endpoint][0]
    body["choices"] = [choices[number].whole(number, call.endpoint) for number in sorted(choices)]
    if usage:
        body["usage"] = usage
    return encode_answer(body)


def split(call: OpenAICall, body: bytes) -> tuple[Frame, ...]:
    """The frames of a stream with the words of the whole answer `body`, usage and `[DONE]` included."""
    whole = cast("JsonObject", decode_answer(body))
    usage = whole.get("usage")
    top = {name: value for name, value in whole.items() if name not in ("choices", "usage")}
    top["object"] = _OBJECTS[call.endpoint][1]
    pieces = _chat_pieces if call.endpoint == "chat" else _text_pieces
    frames = [
        Frame(sse.event(encode_answer({**top, "choices": [piece]})))
        for choice in _objects(whole.get("choices"))
        for piece in pieces(choice)
    ]
    if usage:
        frames.append(Frame(sse.event(encode_answer({**top, "choices": [], "usage": usage})), usage_only=True))
    return (*frames, Frame(sse.event(b"[DONE]")))


def _chunks(frames: Iterable[Frame]) -> Iterator[JsonObject]:
    reader = sse.SseReader()
    for frame in frames:
        for event in reader.feed(frame.data):
            if event.data != b"[DONE]":
                yield cast("JsonObject", decode_answer(event.data))


def _objects(value: JsonValue) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


class _Choice:
    """One alternative while its pieces come in."""

    def __init__(self) -> None:
        self._message: JsonObject = {}
        self._tool_calls: dict[int, JsonObject] = {}
        self._numbers = ToolCallNumbers()
        self._rest: JsonObject = {}
        self._text: list[str] = []

    def add(self, choice: JsonObject) -> None:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._add_calls(_objects(delta.get("tool_calls")))
            _merge(self._message, {name: value for name, value in delta.items() if name != "tool_calls"})
        text = choice.get("text")
        if isinstance(text, str):
            self._text.append(text)
        logprobs = choice.get("logprobs")
        if logprobs is not None or "logprobs" in choice:
            _merge(self._rest, {"logprobs": logprobs})
        for name, value in choice.items():
            if name not in ("index", "delta", "text", "logprobs") and (value is not None or name not in self._rest):
                self._rest[name] = value

    def _add_calls(self, calls: list[JsonObject]) -> None:
        for call in calls:
            number, call_id = call.get("index"), call.get("id")
            place = self._numbers.place(
                number if isinstance(number, int) else None, call_id if isinstance(call_id, str) else None
            )
            _merge(
                self._tool_calls.setdefault(place, {}), {name: value for name, value in call.items() if name != "index"}
            )

    def whole(self, index: int, endpoint: str) -> JsonObject:
        if endpoint == "completions":
            return {"index": index, "text": "".join(self._text), **self._rest}
        message: JsonObject = {"role": "assistant", "content": None, **self._message}
        for call in self._tool_calls.values():
            function = call.get("function")
            if isinstance(function, dict):
                function.setdefault("arguments", "")
        if self._tool_calls:
            message["tool_calls"] = [self._tool_calls[place] for place in sorted(self._tool_calls)]
        elif message["content"] is None and not message.keys() & {"function_call", "audio", "refusal"}:
            message["content"] = ""
        return {"index": index, "message": message, **self._rest}


def _merge(into: JsonObject, delta: JsonObject) -> None:
    """Add the pieces in `delta`: strings are joined, lists put one after the other, objects merged key by key."""
    for name, piece in delta.items():
        known = into.get(name)
        if known is None:
            into[name] = piece
        elif isinstance(known, str) and isinstance(piece, str):
            into[name] = (piece or known) if name in _SET_ONCE else known + piece
        elif isinstance(known, list) and isinstance(piece, list):
            into[name] = [*known, *piece]
        elif isinstance(known, dict) and isinstance(piece, dict):
            _merge(known, piece)
        elif piece is not None:
            into[name] = piece


def _chat_pieces(choice: JsonObject) -> Iterator[JsonObject]:
    """The role, then one chunk for each thing the message holds, then the finish reason."""
    index = choice.get("index") or 0
    message = cast("JsonObject", choice.get("message") or {})
    rest = _ending(choice, "message")
    logprobs: JsonObject = {"logprobs": choice["logprobs"]} if choice.get("logprobs") else {}
    yield {"index": index, "delta": {"role": message.get("role") or "assistant"}, "finish_reason": None}
    for name, value in message.items():
        if name == "role" or value in (None, "", [], {}):
            continue
        piece = _numbered(value) if name == "tool_calls" else value
        extra = logprobs if name == "content" else {}
        yield {"index": index, "delta": {name: piece}, **extra, "finish_reason": None}
        logprobs = {} if extra else logprobs
    yield {"index": index, "delta": {}, **logprobs, **rest}


def _numbered(calls: JsonValue) -> JsonValue:
    return [{"index": number, **call} for number, call in enumerate(_objects(calls))]


def _text_pieces(choice: JsonObject) -> Iterator[JsonObject]:
    index = choice.get("index") or 0
    rest = _ending(choice, "text")
    yield {"index": index, "text": choice.get("text") or "", "logprobs": choice.get("logprobs"), "finish_reason": None}
    yield {"index": index, "text": "", "logprobs": None, **rest}


def _ending(choice: JsonObject, content: str) -> JsonObject:
    """What the last chunk of a choice says: the finish reason and the engine's extras."""
    rest = {name: value for name, value in choice.items() if name not in ("index", content, "logprobs")}
    return {**rest, "finish_reason": rest.get("finish_reason") or "stop"}
