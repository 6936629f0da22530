"""Reading one streamed chat answer as far as measuring needs it: when content comes, how much, and whether it ended."""

from __future__ import annotations

import msgspec

from headrace.model import Usage
from headrace.wire.sse import SseReader

LONGEST_TEXT = 256 * 1024
"""Most characters of an answer that are remembered for the next turn of a conversation."""

_CONTENT = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


class AnswerReader:
    """Takes the bytes of an event stream as they come.

    A chunk counts as content when it carries text, reasoning, a refusal or a tool call; one that only names the role
    and an empty one do not. An answer is finished when a finish reason or `[DONE]` was seen, and no error.
    """

    def __init__(self) -> None:
        self._events = SseReader()
        self._text: list[str] = []
        self._length = 0
        self._finished = False
        self.pieces = 0
        """Chunks with content."""
        self.usage: Usage | None = None
        self.error = ""
        """What an error event said it was: its code, its type, or just `error`."""

    @property
    def finished(self) -> bool:
        """The answer is complete."""
        return self._finished and not self.error

    @property
    def text(self) -> str:
        """What was said, reasoning apart."""
        return "".join(self._text)

    def feed(self, data: bytes) -> int:
        """The number of chunks with content that these bytes complete."""
        before = self.pieces
        for event in self._events.feed(data):
            if event.data == b"[DONE]":
                self._finished = True
            else:
                self._chunk(event.data)
        if self._events.overflowed:
            self.error = "event_too_large"
        return self.pieces - before

    def _chunk(self, data: bytes) -> None:
        try:
            chunk: object = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.error = self.error or "no_json"
            return
        if not isinstance(chunk, dict):
            return
        if chunk.get("error") is not None:
            self.error = error_name(chunk) or "error"
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = _usage(usage)
        choices = chunk.get("choices")
        if isinstance(choices, list) and any([self._choice(choice) for choice in choices]):  # noqa: C419 - read them all
            self.pieces += 1

    def _choice(self, choice: object) -> bool:
        """Whether there is content in a choice."""
        if not isinstance(choice, dict):
            return False
        if choice.get("finish_reason") is not None:
            self._finished = True
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return False
        text = delta.get("content")
        if isinstance(text, str) and self._length < LONGEST_TEXT:
            self._text.append(text)
            self._length += len(text)
        return any(delta.get(name) for name in _CONTENT)


def error_name(body: object) -> str:
    """The code, else the type, of an OpenAI-shaped error body; "" when there is none."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ""
    for field in ("code", "type"):
        name = error.get(field)
        if isinstance(name, str) and name.isprintable() and 0 < len(name) <= 48:
            return name
    return ""


def _usage(usage: dict[object, object]) -> Usage:
    details = usage.get("prompt_tokens_details")
    cached = _whole(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return Usage(_whole(usage.get("prompt_tokens")), _whole(usage.get("completion_tokens")), cached)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
