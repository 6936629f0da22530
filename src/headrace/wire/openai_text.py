"""Plain text as an answer in OpenAI's form, for engines in the gateway's own process; and the list of models."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.model import Usage
from headrace.wire import sse
from headrace.wire.frames import Frame
from headrace.wire.openai_call import OpenAICall


class TextAnswer:
    """Renders one answer, piece by piece or whole. `created` is Unix time in whole seconds."""

    def __init__(self, call: OpenAICall, answer_id: str, created: int) -> None:
        self._chat = call.endpoint == "chat"
        chunk, whole = ("chat.completion.chunk", "chat.completion") if self._chat else ("text_completion",) * 2
        self._whole: dict[str, object] = {"id": answer_id, "object": whole, "created": created, "model": call.model}
        self._top: dict[str, object] = {**self._whole, "object": chunk}
        before, _, after = self._event({"content": "\0"} if self._chat else "\0").rpartition(rb'"\u0000"')
        self._before, self._after = before, after

    def opening(self) -> bytes:
        """The event with the role; empty for completions, which have none."""
        return self._event({"role": "assistant", "content": ""}) if self._chat else b""

    def piece(self, text: str) -> bytes:
        """The event with the next piece of text."""
        return self._before + msgspec.json.encode(text) + self._after

    def delta(self, fields: dict[str, object]) -> bytes:
        """The event with other fields of a chat delta, such as reasoning or tool calls."""
        return self._event(fields)

    def closing(self, finish_reason: str, usage: Usage) -> tuple[Frame, ...]:
        """The end: the finish reason, usage, and `[DONE]`."""
        last = self._event({} if self._chat else "", finish_reason)
        counts = sse.event(msgspec.json.encode({**self._top, "choices": [], "usage": usage_fields(usage)}))
        return Frame(last), Frame(counts, usage_only=True), Frame(sse.event(b"[DONE]"))

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        """The answer as one body."""
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        return msgspec.json.encode({**self._whole, "choices": [choice], "usage": usage_fields(usage)})

    def _event(self, content: dict[str, object] | dict[str, str] | str, finish_reason: str | None = None) -> bytes:
        name = "delta" if self._chat else "text"
        choice = {"index": 0, name: content, "logprobs": None, "finish_reason": finish_reason}
        return sse.event(msgspec.json.encode({**self._top, "choices": [choice]}))


def usage_fields(usage: Usage) -> dict[str, object]:
    """`usage` as OpenAI writes it; details only where there are any."""
    fields: dict[str, object] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }
    if usage.cached:
        fields["prompt_tokens_details"] = {"cached_tokens": usage.cached}
    if usage.reasoning:
        fields["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return fields


def models_body(models: Sequence[str], created: int) -> bytes:
    """The answer to `GET /v1/models`."""
    return msgspec.json.encode({"object": "list", "data": [_model(model, created) for model in models]})


def model_body(model: str, created: int) -> bytes:
    """The answer to `GET /v1/models/{id}`."""
    return msgspec.json.encode(_model(model, created))


def _model(model: str, created: int) -> dict[str, object]:
    return {"id": model, "object": "model", "created": created, "owned_by": "headrace"}
