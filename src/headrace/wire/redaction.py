"""A request without what was said in it: its shape, its numbers and its settings, and of each text only the length.

Every text goes that is not one of a few settings, so a field nobody knows is not kept by mistake; and so does every
list of numbers, since prompts and audio can be written as numbers. Names of fields stay.
"""

from __future__ import annotations

import msgspec

from headrace.wire.json_text import JsonValue, decode, too_deep

SETTINGS = frozenset(
    {"model", "role", "type", "reasoning_effort", "effort", "verbosity", "service_tier", "encoding_format", "detail"}
)
"""Fields whose texts say how to answer, not what about."""
LONGEST_SETTING = 256
"""Characters; what is longer is no setting, whatever its field is called."""
LONGEST_BODY = 256 * 1024
"""Bytes of a body that is looked through; of a longer one nothing is kept, since that would take too long."""


def redacted(body: bytes) -> bytes | None:
    """The body as JSON with each text as `[N characters]` and each list of numbers as `[N numbers]`.

    None where nothing can be kept: it is longer than `LONGEST_BODY`, or no JSON.
    """
    if len(body) > LONGEST_BODY or too_deep(body):
        return None
    try:
        value = decode(body)
    except (msgspec.MsgspecError, ValueError):
        return None
    return msgspec.json.encode(_without_texts(value, ""))


def _without_texts(value: JsonValue, name: str) -> JsonValue:
    if isinstance(value, str):
        return value if name in SETTINGS and len(value) <= LONGEST_SETTING else f"[{len(value)} characters]"
    if isinstance(value, dict):
        return {key: _without_texts(item, key) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, int | float) and not isinstance(item, bool) for item in value):
            return f"[{len(value)} numbers]"
        return [_without_texts(item, "") for item in value]
    return value
