"""How long a prompt is, well enough to charge for it before an engine has counted.

Four bytes of UTF-8 count as a token: close for English and code, and for CJK scripts (three bytes a character) nearer
than counting characters. Pictures, sound and files are counted flat, not by their base64 text.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeAlias

from headrace.wire.json_text import JsonObject, JsonValue

ATTACHMENT_TOKENS = 600
"""Charged for a picture, sound or file whose real cost only the engine knows."""

_ATTACHMENTS = frozenset({"image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file"})
_NUMBERS = frozenset({int, float})


_Nest: TypeAlias = "JsonObject | list[JsonValue]"


def measure(body: JsonObject, prompt_fields: Container[str]) -> tuple[int, int, int, int]:
    """Look at `body` once, level by level: nothing a client sends decides how deep Python recurses.

    `prompt_fields` are the fields whose text is the prompt. Returns

    * the levels of lists and objects; 1: nothing but plain values,
    * the keys of all objects,
    * the bytes of the prompt's text,
    * the tokens of the prompt that are no text: given as numbers, or attachments.
    """
    depth, keys, text, tokens = 1, len(body), 0, 0
    prompt: list[_Nest] = []
    others: list[_Nest] = []
    for name, value in body.items():
        if type(value) is str:
            if name in prompt_fields:
                text += len(value) if value.isascii() else len(value.encode())
        elif type(value) is dict or type(value) is list:
            (prompt if name in prompt_fields else others).append(value)
    while prompt or others:
        depth += 1
        inner: list[_Nest] = []
        outer: list[_Nest] = []
        for nest in prompt:
            if isinstance(nest, dict):
                if "type" in nest and _attaches(nest):
                    tokens += ATTACHMENT_TOKENS
                    others.append(nest)
                    continue
                keys += len(nest)
            elif nest and type(nest[0]) is int and _NUMBERS.issuperset(map(type, nest)):
                tokens += len(nest)  # a prompt in token numbers, of which there may be very many
                continue
            for value in nest.values() if isinstance(nest, dict) else nest:
                if type(value) is str:
                    text += len(value) if value.isascii() else len(value.encode())
                elif type(value) is dict or type(value) is list:
                    inner.append(value)
        for nest in others:
            if isinstance(nest, dict):
                keys += len(nest)
            values = nest.values() if isinstance(nest, dict) else nest
            outer += [value for value in values if type(value) is dict or type(value) is list]
        prompt, others = inner, outer
    return depth, keys, text, tokens


def _attaches(part: JsonObject) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and kind in _ATTACHMENTS
