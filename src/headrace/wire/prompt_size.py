"""How long a prompt is, well enough to charge for it before an engine has counted.

Four bytes of UTF-8 count as a token: close for English and code, and for CJK scripts (three bytes a character) nearer
than counting characters. Pictures, sound and files are counted flat, not by their base64 text.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple, TypeAlias

from headrace.wire.json_text import JsonObject, JsonValue

ATTACHMENT_TOKENS = 600
"""Charged for a picture, sound or file whose real cost only the engine knows."""

_ATTACHMENTS = frozenset({"image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file"})
_NUMBERS = frozenset({int, float})


_Nest: TypeAlias = "JsonObject | list[JsonValue]"


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
    depth, keys, text, tokens = 1, len(body), 0, 0
    prompt: list[_Nest] = []
    others: list[_Nest] = []
    for name, value in body.items():
        if type(value) is dict or type(value) is list:
            (prompt if name in prompt_fields else others).append(value)
        elif type(value) is str and name in prompt_fields:
            text += _size(value)
    while prompt or others:
        depth += 1
        inner: list[_Nest] = []
        outer: list[_Nest] = []
        for nest in prompt:
            if isinstance(nest, dict):
                if _attaches(nest):
                    tokens += ATTACHMENT_TOKENS
                    others.append(nest)
                    continue
                keys += len(nest)
            elif _is_numbers(nest):
                tokens += len(nest)
                continue
            for value in nest.values() if isinstance(nest, dict) else nest:
                if type(value) is str:
                    text += _size(value)
                elif type(value) is dict or type(value) is list:
                    inner.append(value)
        for nest in others:
            if isinstance(nest, dict):
                keys += len(nest)
            values = nest.values() if isinstance(nest, dict) else nest
            outer += [value for value in values if type(value) is dict or type(value) is list]
        prompt, others = inner, outer
    return PromptSize(depth, keys, text, tokens)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _attaches(part: JsonObject) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and kind in _ATTACHMENTS


def _is_numbers(values: list[JsonValue]) -> bool:
    """Whether a list is a prompt in token numbers, of which there may be very many."""
    return bool(values) and isinstance(values[0], int) and _NUMBERS.issuperset(map(type, values))
