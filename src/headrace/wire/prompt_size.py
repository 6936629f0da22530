"""How long a prompt is, well enough to charge for it before an engine has counted.

Four bytes of UTF-8 count as a token: close for English and code, and for CJK scripts (three bytes a character) nearer
than counting characters. Pictures, sound and files are counted flat, not by their base64 text.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from headrace.wire.json_text import JsonObject, JsonValue

ATTACHMENT_TOKENS = 600
"""Charged for a picture, sound or file whose real cost only the engine knows."""

_ATTACHMENTS = frozenset({"image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file"})
_NUMBERS = frozenset({int, float})


class PromptSize(NamedTuple):
    """What a body holds."""

    depth: int
    """Levels of its lists and objects; 1: nothing but plain values."""
    keys: int
    """Keys of all its objects."""
    text: int
    """Bytes of the prompt's text."""
    tokens: int
    """Tokens of the prompt that are no text: given as numbers, or attachments."""


def measure(body: JsonObject, prompt_fields: Container[str]) -> PromptSize:
    """Look at `body` once, level by level: nothing a client sends decides how deep Python recurses.

    `prompt_fields` are the fields whose text is the prompt.
    """
    prompt: list[JsonValue] = []
    others: list[JsonValue] = []
    for name, value in body.items():
        (prompt if name in prompt_fields else others).append(value)
    depth, keys, text, tokens = 0, len(body), 0, 0
    nested = True
    while nested:
        depth += 1
        nested = False
        inner: list[JsonValue] = []
        outer: list[JsonValue] = []
        for value in prompt:
            if isinstance(value, str):
                text += len(value) if value.isascii() else len(value.encode())
            elif isinstance(value, dict):
                nested = True
                keys += len(value)
                attached = _attaches(value)
                tokens += ATTACHMENT_TOKENS if attached else 0
                (outer if attached else inner).extend(value.values())
            elif isinstance(value, list):
                nested = True
                if _is_numbers(value):
                    tokens += len(value)
                else:
                    inner.extend(value)
        for value in others:
            if isinstance(value, dict):
                nested = True
                keys += len(value)
                outer.extend(value.values())
            elif isinstance(value, list):
                nested = True
                outer.extend(value)
        prompt, others = inner, outer
    return PromptSize(depth, keys, text, tokens)


def _attaches(part: JsonObject) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and kind in _ATTACHMENTS


def _is_numbers(values: list[JsonValue]) -> bool:
    """Whether a list is a prompt in token numbers, of which there may be very many."""
    return bool(values) and isinstance(values[0], int) and _NUMBERS.issuperset(map(type, values))
