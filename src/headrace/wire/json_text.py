"""What can be said of a JSON text without building it: how deep it nests, how many keys it writes.

Depth is limited here, at the same number on every Python, because parsers give up at depths of their own, and with
errors that are easy to miss. Keys are counted to notice one that is written twice: a gateway that reads the first and
an engine that reads the last would not speak of the same request.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias, cast

import msgspec

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
JsonObject: TypeAlias = dict[str, JsonValue]

DEPTH_LIMIT = 100
"""Most levels of lists and objects in a request."""

NEST_LIMIT = 100_000
"""Most lists and objects in a request: millions of them would keep everybody waiting while they are looked at."""

_KEY_ENDS = re.compile(rb'"[ \t\r\n]*:')
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))


def decode(text: bytes) -> JsonValue:
    """The value that `text` writes.

    Raises:
        msgspec.MsgspecError: it is no JSON, not UTF-8, or has a number out of range.
    """
    return cast("JsonValue", msgspec.json.decode(text))


def decode_answer(text: bytes) -> JsonValue:
    """The value that an engine's JSON `text` writes: bytes that are no UTF-8 become U+FFFD, halves of pairs are kept.

    Engines that cut text by UTF-16 units escape one half in one chunk and the other in the next.
    """
    try:
        return decode(text)
    except (msgspec.MsgspecError, ValueError):
        return cast("JsonValue", json.loads(text.decode("utf-8", "replace")))


def encode_answer(value: JsonValue) -> bytes:
    """`value` as JSON; with escapes where it holds halves of surrogate pairs."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def skeleton(text: bytes) -> bytes:
    """`text` without its strings. Exact for valid JSON, and for an invalid one up to its first fault."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2])


def too_deep(text: bytes, limit: int = DEPTH_LIMIT) -> bool:
    """Whether lists and objects nest deeper than `limit`.

    Each pass takes away the innermost pairs, so the passes count the levels. A text whose brackets do not match is left
    to the parser, unless what remains is itself longer than the limit.
    """
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    brackets = skeleton(text).translate(_BRACKETS, _NOT_BRACKETS)
    for _ in range(limit):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            break
        brackets = inner
    return len(brackets) > limit or b"[]" in brackets


def too_many(text: bytes, limit: int = NEST_LIMIT) -> bool:
    """Whether there are more lists and objects than `limit`."""
    if len(text) <= limit or text.count(b"[") + text.count(b"{") <= limit:
        return False
    bare = skeleton(text)
    return bare.count(b"[") + bare.count(b"{") > limit


def repeats_a_key(text: bytes, keys: int) -> bool:
    """Whether valid JSON `text`, which built objects with `keys` keys in all, writes more of them than were kept.

    Each key has its colon, so as many colons as keys are in order. Where strings hold others, quotes with a colon
    behind them are counted; where strings hold such, it is counted exactly, which takes ten times as long, as it is
    where there are too many of them without any blanks.
    """
    if text.count(b":") == keys:
        return False
    if text.count(b'":') <= keys and len(_KEY_ENDS.findall(text)) == keys:
        return False
    return skeleton(text).count(b":") != keys


def repeated_key(text: bytes) -> str | None:
    """The first key that an object of valid JSON `text` has twice; None: there is none."""
    found: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    json.loads(text, object_pairs_hook=look)
    return found[0] if found else None
