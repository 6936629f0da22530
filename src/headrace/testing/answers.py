"""What the mock engine reads from a request and writes as an answer: OpenAI shapes as vLLM sends them.

A token is a word. The answer repeats the words of the last user message (or of the prompt) from the start until it is
long enough, so its text follows from the request alone and its usage can be counted in it. A chat with
`continue_final_message` goes on after the words that its last message, the assistant's, holds already.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

DEFAULT_TOKENS = 16
"""Length of an answer where neither the request nor the engine sets one."""

_ERROR_TYPES = {
    400: "BadRequestError",
    401: "Unauthorized",
    404: "NotFoundError",
    413: "RequestTooLarge",
    503: "ServiceUnavailableError",
}


class Refused(Exception):
    """The request cannot be answered; `body` is vLLM's error body."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, _ERROR_TYPES.get(status, "InternalServerError"), param)


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """An error body with vLLM's four fields; `code` is the status as an integer."""
    return _dump({"error": {"message": message, "type": kind, "param": param, "code": status}})


@dataclass(frozen=True, slots=True)
class Asked:
    """A completion request as far as the mock cares. Lengths are in tokens."""

    chat: bool
    model: str
    stream: bool
    include_usage: bool
    prompt_tokens: int
    words: tuple[str, ...]
    output: int
    finish_reason: str
    given: int
    """Words of the answer that the request holds already."""
    priority: int
    """Lower goes first, on an engine that looks at it."""


@dataclass(frozen=True, slots=True)
class AskedVectors:
    """An embeddings request."""

    model: str
    texts: tuple[str, ...]
    as_base64: bool

    @property
    def prompt_tokens(self) -> int:
        """Words in all texts, at least one."""
        return max(1, sum(len(text.split()) for text in self.texts))


def read_completion(body: bytes, *, chat: bool, model: str, eos_after: int | None) -> Asked:
    """Read a chat or completion request for an engine that serves `model`; raises `Refused` with 400 or 404.

    `eos_after`: where answers end by themselves; None: only at the request's own limit, or after 16 tokens without one.
    """
    fields = _object(body)
    _check_model(fields, model)
    if fields.get("n") not in (None, 1):
        raise Refused(400, "This engine gives one choice: n must be 1.", "n")
    text, total = _chat_text(fields) if chat else _prompt_text(fields)
    given = len(_given(fields).split()) if chat else 0
    cap = _limit(fields)
    natural = None
    if eos_after is not None and fields.get("ignore_eos") is not True:
        natural = max(1, eos_after - given)
    output = min(value for value in (cap, natural) if value is not None) if cap or natural else 0
    output = output or max(1, DEFAULT_TOKENS - given)
    options = fields.get("stream_options")
    return Asked(
        chat=chat,
        model=model,
        stream=fields.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        prompt_tokens=max(1, total),
        words=tuple(text.split()) or ("ok",),
        output=output,
        finish_reason="length" if output == cap and output != natural else "stop",
        given=given,
        priority=_priority(fields.get("priority")),
    )


def read_embeddings(body: bytes, model: str) -> AskedVectors:
    """Read an embeddings request; raises `Refused`."""
    fields = _object(body)
    _check_model(fields, model)
    given = fields.get("input")
    items: list[object] = given if isinstance(given, list) else [given]
    texts = tuple(item for item in items if isinstance(item, str))
    if not texts or len(texts) != len(items):
        raise Refused(400, "input must be a text or a list of texts.", "input")
    return AskedVectors(model, texts, fields.get("encoding_format") == "base64")


def vectors_body(asked: AskedVectors) -> bytes:
    """The embeddings answer: eight numbers for each text that follow from its SHA-256."""
    data: list[object] = []
    for index, text in enumerate(asked.texts):
        vector = [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:8]]
        packed = base64.b64encode(struct.pack("<8f", *vector)).decode() if asked.as_base64 else vector
        data.append({"object": "embedding", "index": index, "embedding": packed})
    usage = {"prompt_tokens": asked.prompt_tokens, "total_tokens": asked.prompt_tokens, "completion_tokens": 0}
    return _dump({"object": "list", "data": data, "model": asked.model, "usage": usage})


@dataclass(slots=True)
class Rendering:
    """One answer as bytes, piece by piece or whole. `created` is a wall time in whole seconds."""

    asked: Asked
    id: str
    created: int
    _words: Iterator[str] = field(init=False, repr=False)
    _before: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._words = itertools.islice(itertools.cycle(self.asked.words), self.asked.given, None)
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        envelope = {"id": self.id, "object": kind, "created": self.created, "model": self.asked.model}
        self._before = b"data: " + _dump(envelope)[:-1]

    def role(self) -> bytes:
        """The chunk that opens a chat answer; nothing for a completion."""
        return self._chunk({"role": "assistant", "content": ""}, None) if self.asked.chat else b""

    def piece(self, index: int) -> bytes:
        """The chunk of the token with that index, from 1; to be asked for in order."""
        text = next(self._words)
        return self._chunk({"content": text if index + self.asked.given == 1 else " " + text}, None)

    def closing(self) -> bytes:
        """Finish chunk, the usage chunk if it was asked for, and [DONE]."""
        usage = b""
        if self.asked.include_usage:
            usage = self._before + b',"choices":[],"usage":' + _dump(self._usage()) + b"}\n\n"
        return self._chunk({}, self.asked.finish_reason) + usage + b"data: [DONE]\n\n"

    def whole(self) -> bytes:
        """The answer as one body."""
        asked = self.asked
        words = itertools.islice(itertools.cycle(asked.words), asked.given, asked.given + asked.output)
        text = " ".join([*[""] * bool(asked.given), *words])
        choice: dict[str, object] = {"index": 0, "text": text}
        if asked.chat:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}}
        choice |= {"logprobs": None, "finish_reason": asked.finish_reason}
        return _dump(
            {
                "id": self.id,
                "object": "chat.completion" if asked.chat else "text_completion",
                "created": self.created,
                "model": asked.model,
                "choices": [choice],
                "usage": self._usage(),
            }
        )

    def _usage(self) -> dict[str, int]:
        prompt, completion = self.asked.prompt_tokens, self.asked.output
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _chunk(self, delta: Mapping[str, str], reason: str | None) -> bytes:
        choice: dict[str, object] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        if not self.asked.chat:
            choice = {"index": 0, "text": delta.get("content", ""), "logprobs": None, "finish_reason": reason}
        return self._before + b',"choices":[' + _dump(choice) + b"]}\n\n"


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _object(body: bytes) -> dict[str, object]:
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "The body is no JSON.") from None
    if not isinstance(value, dict):
        raise Refused(400, "The body is no JSON object.")
    return {str(key): item for key, item in value.items()}


def _check_model(fields: Mapping[str, object], model: str) -> None:
    asked = fields.get("model")
    if asked != model:
        raise Refused(404, f"The model `{str(asked)[:100]}` does not exist.", "model")


def _priority(value: object) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(400, "priority must be a whole number.", "priority")
    return value


def _limit(fields: Mapping[str, object]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Refused(400, f"{name} must be a whole number of at least 1.", name)
        return value
    return None


def _chat_text(fields: Mapping[str, object]) -> tuple[str, int]:
    """The last user message's text, and the words of all messages."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages must be a list with at least one message.", "messages")
    last, total = "", 0
    for message in messages:
        if not isinstance(message, dict):
            raise Refused(400, "Each message must be an object.", "messages")
        text = _content(message.get("content"))
        total += len(text.split())
        if message.get("role") == "user":
            last = text
    return last, total


def _given(fields: Mapping[str, object]) -> str:
    """The beginning of the answer that the engine is to go on from."""
    messages = fields.get("messages")
    last: object = messages[-1] if isinstance(messages, list) and messages else None
    if fields.get("continue_final_message") is not True or not isinstance(last, dict):
        return ""
    return _content(last.get("content")) if last.get("role") == "assistant" else ""


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)


def _prompt_text(fields: Mapping[str, object]) -> tuple[str, int]:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return "token", len(prompt)
    if not isinstance(prompt, str):
        raise Refused(400, "prompt must be one text or one list of token numbers.", "prompt")
    return prompt, len(prompt.split())
