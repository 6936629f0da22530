"""Calls to ask with, recorded answers, and a way to decode them cut in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from headrace.model import Outcome
from headrace.wire.adapters import Decoder
from headrace.wire.frames import Frame
from headrace.wire.openai import OpenAICall, parse
from headrace.wire.openai_stream import OpenAIDecoder

DATA = Path(__file__).parent / "data"
DONE = b"data: [DONE]\n\n"


def recorded(name: str) -> bytes:
    """What a real engine sent, without its HTTP head."""
    return (DATA / name).read_bytes()


def chat_call(model: str = "smollm2", **fields: object) -> OpenAICall:
    """A streamed chat call, with more fields if wanted."""
    body = {"model": model, "messages": [{"role": "user", "content": "Say hi"}], "stream": True, **fields}
    return parse("chat", json.dumps(body).encode())


def completion_call(model: str = "smollm2", **fields: object) -> OpenAICall:
    """A streamed completions call, with more fields if wanted."""
    return parse("completions", json.dumps({"model": model, "prompt": "one two", "stream": True, **fields}).encode())


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, *, index: int = 0, **top: Any) -> bytes:
    """One chat chunk as an event."""
    choice = {"index": index, "delta": {} if delta is None else delta, "finish_reason": finish}
    named = {"id": "c-1", "object": "chat.completion.chunk", "model": "smollm2"}
    return event({**named, "choices": [choice], **top})


def content(text: str, **top: Any) -> bytes:
    """A chat chunk with a piece of text."""
    return chunk({"content": text}, **top)


def usage(prompt: int, completion: int) -> bytes:
    """The chunk with nothing but usage."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"id": "c-1", "object": "chat.completion.chunk", "model": "smollm2", "choices": [], "usage": counts})


def event(value: object) -> bytes:
    """`value` as compact JSON in an event."""
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


class Decoded(NamedTuple):
    """What came out of a decoder."""

    frames: list[Frame]
    outcome: Outcome
    tokens: int

    @property
    def data(self) -> bytes:
        """All bytes, as a client that asked for usage would get them."""
        return b"".join(frame.data for frame in self.frames)

    @property
    def without_usage(self) -> bytes:
        """All bytes, as a client that did not ask for usage would get them."""
        return b"".join(frame.data for frame in self.frames if not frame.usage_only)

    @property
    def payloads(self) -> list[Any]:
        """The parsed events without `[DONE]`; fails on what is neither JSON nor the mark."""
        return payloads(self.data)

    @property
    def text(self) -> str:
        """The joined content of choice 0."""
        choices = [choice for payload in self.payloads for choice in payload["choices"] if choice["index"] == 0]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def payloads(data: bytes) -> list[Any]:
    """The parsed events of `data` without `[DONE]`, read as the simplest clients do: only `data: ` and blank lines."""
    events = data.split(b"\n\n")
    assert events.pop() == b""
    assert all(event.startswith(b"data: ") for event in events)
    return [json.loads(event[6:]) for event in events if event != b"data: [DONE]"]


def decode(
    pieces: Iterable[bytes], call: OpenAICall | None = None, *, clean: bool = True, decoder: Decoder | None = None
) -> Decoded:
    """Feed `pieces` to a decoder and finish it."""
    asked = call or chat_call()
    under_test = decoder or OpenAIDecoder(asked)
    frames = [frame for piece in pieces for frame in under_test.feed(piece)]
    last, outcome = under_test.finish(clean)
    return Decoded([*frames, *last], outcome, under_test.tokens)


def cuts(data: bytes) -> Iterable[list[bytes]]:
    """`data` in two pieces, cut at every place, and byte by byte."""
    for place in range(len(data) + 1):
        yield [data[:place], data[place:]]
    yield [data[place : place + 1] for place in range(len(data))]
