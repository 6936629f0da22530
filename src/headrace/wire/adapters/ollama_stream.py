"""Ollama's answers: one JSON object a line, the last with `done: true`, turned into OpenAI's chunks.

Text and reasoning become deltas, tool calls come whole and get numbers and ids, `done_reason` becomes the finish
reason, the evaluation counts become usage. A line `{"error": ...}` in the middle of a 200 is an error event. A whole
answer is one line with all of it. Bound: a line may hold `sse.EVENT_LIMIT` bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from headrace import errors
from headrace.model import Cause, Outcome, Usage
from headrace.wire import sse
from headrace.wire.engine_errors import EngineError, in_band
from headrace.wire.frames import Frame
from headrace.wire.openai_call import OpenAICall
from headrace.wire.openai_text import TextAnswer


class _Function(msgspec.Struct):
    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str = ""


class _Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Line(msgspec.Struct):
    created_at: str = ""
    message: _Message | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: str | None = None


_LINE = msgspec.json.Decoder(_Line)


class OllamaDecoder:
    """One streamed answer of Ollama's `/api/chat` or `/api/generate`."""

    def __init__(self, call: OpenAICall) -> None:
        self.started = False
        self.ended = False
        self.tokens = 0
        self.usage: Usage | None = None
        self._call = call
        self._open: list[bytes] = []
        self._open_size = 0
        self._answer: TextAnswer | None = None
        self._calls = 0
        self._outcome: Outcome | None = None

    def feed(self, data: bytes) -> Sequence[Frame]:
        """What clients may see of `data` and of what was kept before."""
        frames: list[Frame] = []
        first, *rest = data.split(b"\n")
        self._open.append(first)
        self._open_size += len(first)
        for part in rest:
            self._line(b"".join(self._open), frames)
            self._open = [part]
            self._open_size = len(part)
        if self._open_size > sse.EVENT_LIMIT:
            self._open.clear()
            self._open_size = 0
            self._break("a line is longer than the limit")
        return frames

    def finish(self, clean: bool) -> tuple[Sequence[Frame], Outcome]:
        """The last frames, and how the attempt ended. `clean`: the body ended properly, it was not cut."""
        frames: list[Frame] = []
        last = b"".join(self._open)
        if clean or _read(last) is not None:
            self._line(last, frames)
        if self._outcome is None:
            self._broken("the body ended before the answer did" if clean else "the connection was cut")
        outcome = self._outcome or Outcome(Cause.PROTOCOL)
        usage = self.usage
        if usage is None and self.started:
            usage = Usage(prompt=self._call.prompt_tokens, completion=self.tokens, estimated=True)
        return frames, replace(outcome, usage=usage)

    def _line(self, text: bytes, frames: list[Frame]) -> None:
        if self.ended or not text.strip():
            return
        line = _read(text)
        if line is None:
            self._break("a line is not a part of an answer")
        elif line.error is not None:
            self._end(in_band(EngineError(line.error), committed=self.started))
        else:
            self._part(line, frames)

    def _part(self, line: _Line, frames: list[Frame]) -> None:
        answer = self._answer
        if answer is None:
            answer = self._answer = TextAnswer(self._call, _answer_id(line), _created(line))
        message = line.message or _Message(content=line.response, thinking=line.thinking)
        pieces: list[bytes] = []
        if message.thinking and self._call.endpoint == "chat":
            pieces.append(answer.delta({"reasoning_content": message.thinking}))
        if message.content:
            pieces.append(answer.piece(message.content))
        if message.tool_calls:
            pieces.append(answer.delta({"tool_calls": [self._tool_call(call, line) for call in message.tool_calls]}))
        if pieces or line.done:
            self._begin(answer, frames)
        frames.extend(Frame(piece) for piece in pieces)
        self.tokens += bool(pieces)
        if line.done:
            self._done(answer, line, frames)

    def _begin(self, answer: TextAnswer, frames: list[Frame]) -> None:
        if not self.started:
            self.started = True
            opening = answer.opening()
            if opening:
                frames.append(Frame(opening))

    def _tool_call(self, call: _ToolCall, line: _Line) -> dict[str, object]:
        number = self._calls
        self._calls += 1
        function = {"name": call.function.name, "arguments": bytes(call.function.arguments).decode()}
        call_id = call.id or f"call_{_answer_id(line)[-12:]}_{number}"
        return {"index": number, "id": call_id, "type": "function", "function": function}

    def _done(self, answer: TextAnswer, line: _Line, frames: list[Frame]) -> None:
        cut = line.done_reason == "length"
        if line.eval_count is not None:
            self.usage = Usage(prompt=max(0, line.prompt_eval_count or 0), completion=max(0, line.eval_count))
            self.tokens = self.usage.completion
        usage = self.usage or Usage(self._call.prompt_tokens, self.tokens, estimated=True)
        frames.extend(answer.closing("length" if cut else "tool_calls" if self._calls else "stop", usage))
        self._end(Outcome(Cause.OK, committed=True, status=200, cacheable=not cut))

    def _break(self, detail: str) -> None:
        if self.started:
            self._broken(detail)
        else:
            self._end(Outcome(Cause.PROTOCOL, status=200, detail=detail))

    def _broken(self, detail: str) -> None:
        fault = errors.stream_incomplete() if self.started else None
        self._end(Outcome(Cause.BROKEN_STREAM, committed=self.started, status=200, detail=detail, fault=fault))

    def _end(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self.ended = True


def _read(text: bytes) -> _Line | None:
    try:
        return _LINE.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _answer_id(line: _Line) -> str:
    """Ollama's answers have no id; the moment they were made, to the nanosecond, stands for one."""
    return "chatcmpl-" + hashlib.sha256(line.created_at.encode()).hexdigest()[:24]


def _created(line: _Line) -> int:
    """Unix time in whole seconds; 0 when the line does not say."""
    try:
        return int(datetime.fromisoformat(line.created_at).timestamp())
    except (ValueError, OverflowError):
        return 0
