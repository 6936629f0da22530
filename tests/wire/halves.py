"""Engines that answer with a known text, or with what of it the request holds not yet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from headrace.model import Engine
from headrace.wire.openai import OpenAICall
from tests.wire.answers import chat_call, completion_call, event

TEXT = "Well, 你 🌍!  Two:\n\n  - 👩‍👧 \n\nend."
TOKENS = re.findall(r" ?\w+|\n+|.", TEXT, re.DOTALL)
PROMPT = "one two"
PROMPT_TOKENS = 7
ENGINES = {
    "vllm": (Engine.VLLM, "chat"),
    "sglang": (Engine.SGLANG, "chat"),
    "llamacpp": (Engine.LLAMACPP, "chat"),
    "completions": (Engine.VLLM, "completions"),
}


class Half:
    """An engine that answers with `TEXT`, or with what of it the request does not hold already."""

    def __init__(self, kind: str, ident: str, tokens: Sequence[str] = TOKENS, **top: Any) -> None:
        self.engine, self.endpoint = ENGINES[kind]
        self._tokens = list(tokens)
        chat = self.endpoint == "chat"
        form = "chat.completion.chunk" if chat else "text_completion"
        self._top = {"id": ident, "created": len(ident), "object": form, "model": "smollm2", **top}

    def asked(self, body: dict[str, Any]) -> str:
        """The part of the answer that a request holds; checks that it is asked for as the engine wants it."""
        if self.endpoint == "completions":
            assert body["prompt"].startswith(PROMPT)
            return str(body["prompt"].removeprefix(PROMPT))
        *_, last = body["messages"]
        part = last["content"] if last["role"] == "assistant" else ""
        fields = {"continue_final_message": True, "add_generation_prompt": False}
        wanted = fields if part and self.engine is not Engine.LLAMACPP else {}
        assert {name: body[name] for name in fields if name in body} == wanted
        return str(part)

    def rest(self, part: str, reason: str = "stop") -> bytes:
        """The stream after `part`."""
        text = "".join(self._tokens)
        assert text.startswith(part)
        pieces = re.findall(r" ?\w+|\n+|.", text[len(part) :], re.DOTALL)
        made = [self._chunk({"role": "assistant", "content": ""}, None)] if self.endpoint == "chat" else []
        made += [self._chunk({"content": piece}, None) for piece in pieces]
        read = PROMPT_TOKENS + len(re.findall(r" ?\w+|\n+|.", part, re.DOTALL))
        counts = {"prompt_tokens": read, "completion_tokens": len(pieces), "total_tokens": read + len(pieces)}
        usage = event({**self._top, "choices": [], "usage": counts})
        return b"".join([*made, self._chunk({}, reason), usage, b"data: [DONE]\n\n"])

    def _chunk(self, delta: dict[str, str], reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        if self.endpoint == "completions":
            choice = {"index": 0, "text": delta.get("content", ""), "finish_reason": reason}
        return event({**self._top, "choices": [choice]})


def call_for(kind: str, **more: object) -> OpenAICall:
    """A streamed call to that kind of engine."""
    fields: dict[str, Any] = {"temperature": 0, "stream_options": {"include_usage": True}, **more}
    return chat_call(**fields) if ENGINES[kind][1] == "chat" else completion_call(**fields)
