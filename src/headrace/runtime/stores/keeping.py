"""How much of a request is kept with its dead letter."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from headrace.wire.redaction import redacted


class Keeping(StrEnum):
    """WHOLE can be sent again; REDACTED tells its shape, not what was said; NOTHING is safest."""

    WHOLE = "whole"
    REDACTED = "redacted"
    NOTHING = "nothing"


class Kept(NamedTuple):
    """What is kept of one request."""

    body: bytes | None
    redacted: bool = False


def kept_of(payload: object, keeping: Keeping) -> Kept:
    """What is kept of a request with this payload: of its `body`, where it has one."""
    body: object = getattr(payload, "body", None)
    if not isinstance(body, bytes) or keeping is Keeping.NOTHING:
        return Kept(None)
    if keeping is Keeping.WHOLE:
        return Kept(body)
    without = redacted(body)
    return Kept(without, redacted=without is not None)
