"""How long a prompt is, well enough to charge for it before an engine has counted.

Four bytes of UTF-8 count as a token: close for English and code, and for CJK scripts (three bytes a character) nearer
than counting characters. Pictures, sound and files are counted flat, not by their base64 text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.wire.json_text import JsonObject, JsonValue

ATTACHMENT_TOKENS = 600
"""Charged for a picture, sound or file whose real cost only the engine knows."""

_ATTACHMENTS = frozenset({"image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file"})


@dataclass(slots=True)
class PromptSize:
    """What a body holds."""

    keys: int = 0
    """Keys of all its objects."""
    text: int = 0
    """Bytes of the prompt's text."""
    tokens: int = 0
    """Tokens of the prompt that are no text: given as numbers, or attachments."""


def measure(body: JsonObject, prompt_fields: Sequence[str]) -> PromptSize:
    """Walk through `body` once; `prompt_fields` are the fields whose text is the prompt."""
    size = PromptSize(keys=len(body))
    for name, value in body.items():
        _walk(value, size, name in prompt_fields)
    return size


def _walk(top: JsonValue, size: PromptSize, counted: bool) -> None:
    """A loop with its own stack: nothing a client sends decides how deep Python recurses."""
    waiting: list[tuple[JsonValue, bool]] = [(top, counted)]
    while waiting:
        value, counts = waiting.pop()
        if isinstance(value, str):
            if counts:
                size.text += len(value) if value.isascii() else len(value.encode())
        elif isinstance(value, dict):
            size.keys += len(value)
            kind = value.get("type")
            if counts and isinstance(kind, str) and kind in _ATTACHMENTS:
                size.tokens += ATTACHMENT_TOKENS
                counts = False
            waiting.extend((item, counts) for item in value.values())
        elif isinstance(value, list):
            if value and isinstance(value[0], int):
                size.tokens += len(value) if counts else 0
            else:
                waiting.extend((item, counts) for item in value)
