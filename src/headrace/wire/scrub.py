"""Takes out of an engine's words what a caller must not learn: addresses, paths and keys."""

from __future__ import annotations

import re
from collections.abc import Sequence

MESSAGE_LIMIT = 1000
"""Most characters of an engine's message that are passed on."""

_SECRET_PART = 5
"""A piece of a secret of this many characters is taken out; shorter ones say nothing."""

_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s'\"<>)\]}]+", re.IGNORECASE)
_KEY = re.compile(r"\b(?:Bearer\s+[^\s'\",;]+|(?:sk|pk|hf|gsk|xai)[-_][A-Za-z0-9_*.-]{6,})", re.IGNORECASE)
_HOST = re.compile(
    r"\[[0-9a-f:]*:[0-9a-f:.]*\](?::\d{1,5})?"  # [::1]:8000
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b"  # 10.0.0.7, with or without port
    r"|\b[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)*:\d{2,5}\b",  # gpu-7:8000, engine.example.com:443
    re.IGNORECASE,
)
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*|\b[A-Za-z]:\\[^\s'\"]+")


def scrub(text: str, secrets: Sequence[str] = ()) -> str:
    """`text` on one line, shortened, without URLs, hosts, file paths, keys and any piece of `secrets`."""
    text = " ".join(text[: 4 * MESSAGE_LIMIT].split())
    for secret in secrets:
        text = _without(text, secret)
    text = _KEY.sub("[key]", text)
    text = _URL.sub("[address]", text)
    text = _HOST.sub("[address]", text)
    text = _PATH.sub("[path]", text)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 3] + "..."


def _without(text: str, secret: str) -> str:
    """`text` with every stretch that also stands in `secret` masked, if it is long enough to tell something."""
    if not secret:
        return text
    width = min(_SECRET_PART, len(secret))
    parts = {secret[start : start + width] for start in range(len(secret) - width + 1)}
    hidden = [False] * len(text)
    for start in range(len(text) - width + 1):
        if text[start : start + width] in parts:
            hidden[start : start + width] = [True] * width
    masked = "".join("\0" if hide else character for character, hide in zip(text, hidden, strict=True))
    return re.sub("\0+", "[key]", masked)
