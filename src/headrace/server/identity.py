"""Who asks, how urgently, and until when: what the headers of a request say about it.

No keys exist yet, so every caller belongs to the tenant `default` and names himself. Names come from outside and end up
as keys of maps and in logs: they are cut to `NAME_LIMIT` characters and cleaned of what cannot be shown.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Final

from headrace.errors import InvalidRequest, invalid_request
from headrace.model import Flow, ServiceClass
from headrace.server.exchange import Exchange

NAME_LIMIT = 128
"""Most characters of a user's or session's name, or of a request id."""
TENANT = "default"
ANONYMOUS = "anonymous"

_USER_HEADERS = (b"x-headrace-user", b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
_SESSION_HEADERS = (b"x-session-id", b"x-claude-code-session-id")
_OF_FLOWS = frozenset({*_USER_HEADERS, *_SESSION_HEADERS, b"x-headrace-class", b"x-headrace-priority"})
_ID_HEADERS = (b"x-request-id", b"x-correlation-id", b"x-trace-id", b"request-id")
_ID = re.compile(rb"[A-Za-z0-9._:@=+/-]{1,128}")
_WALL_CLOCK_FROM = 1e9
_LAST_URGENT, _LAST_NORMAL, _LAST_RANK = 3, 7, 10
"""Ends of the ranges of `x-headrace-priority` that mean interactive, normal and batch."""
_NORMAL: Final = ServiceClass.NORMAL


def flow_of(exchange: Exchange, user: str | None = None, priority: int | None = None) -> Flow:
    """The caller's place in the share tree; `user` and `priority` are what the body says.

    The class is that of `x-headrace-class`, else that of `x-headrace-priority` (1 first, 10 last), else that of the
    body's `priority` (vLLM's: below 0 interactive, 0 normal, above batch), else normal.

    Raises InvalidRequest for a class or a priority header that does not exist.
    """
    headers = exchange.headers
    if _OF_FLOWS.isdisjoint(headers):
        return Flow(_by_sign(priority), TENANT, (user and clean(user)) or ANONYMOUS)
    name = _first(headers, _USER_HEADERS) or clean(user or "") or ANONYMOUS
    return Flow(_class_of(headers, priority), TENANT, name, _first(headers, _SESSION_HEADERS))


def request_id_of(exchange: Exchange) -> str:
    """The caller's id of the request when it gives a usable one, else a new one."""
    headers = exchange.headers
    for name in _ID_HEADERS:
        value = headers.get(name)
        if value is not None and _ID.fullmatch(value):
            return value.decode("ascii")
    return new_id()


def new_id() -> str:
    """An id nobody has used: `req-` and 24 hex digits. It is no secret."""
    return f"req-{_chance().getrandbits(96):024x}"


def deadline_of(exchange: Exchange, stream: bool, now: float, wall: float) -> float | None:
    """When the caller stops waiting, on the clock of `now`; None: not known.

    `x-headrace-deadline` counts: seconds from now, or a Unix time if larger than 1e9 (`wall` is the present one).
    Without it the read timeout that the official SDKs announce in `x-stainless-read-timeout` (seconds) stands for it,
    except on streams, where a read timeout bounds the gap between two chunks and not the answer.

    Raises InvalidRequest for an `x-headrace-deadline` that is no number of at least 0.
    """
    headers = exchange.headers
    asked = headers.get(b"x-headrace-deadline")
    if asked is not None:
        seconds = _number(asked)
        if seconds is None or seconds < 0:
            message = "x-headrace-deadline takes seconds from now, or a Unix time."
            raise InvalidRequest(invalid_request(message, param="x-headrace-deadline"))
        return now + (seconds - wall if seconds > _WALL_CLOCK_FROM else seconds)
    announced = headers.get(b"x-stainless-read-timeout")
    if announced is None or stream:
        return None
    seconds = _number(announced)
    return None if seconds is None or seconds <= 0 else now + seconds


def clean(name: str) -> str:
    """A name without what cannot be shown, without blanks around it, and not too long."""
    if not name.isprintable():
        name = "".join([character for character in name[: 4 * NAME_LIMIT] if character.isprintable()])
    return name.strip()[:NAME_LIMIT]


@lru_cache(maxsize=1)
def _chance() -> Random:
    """Seeded by the system once: asking it for every request costs a system call each."""
    return Random(secrets.token_bytes(32))


def _class_of(headers: Mapping[bytes, bytes], priority: int | None) -> ServiceClass:
    value = headers.get(b"x-headrace-class")
    if value is None:
        asked = headers.get(b"x-headrace-priority")
        return _by_sign(priority) if asked is None else _by_rank(asked)
    try:
        return ServiceClass(value.strip().lower().decode("latin-1"))
    except ValueError:
        message = f"x-headrace-class must be one of {', '.join(ServiceClass)}."
        raise InvalidRequest(invalid_request(message, param="x-headrace-class")) from None


def _by_sign(priority: int | None) -> ServiceClass:
    if not priority:
        return _NORMAL
    return ServiceClass.INTERACTIVE if priority < 0 else ServiceClass.BATCH


def _by_rank(asked: bytes) -> ServiceClass:
    text = asked.strip()
    rank = int(text) if text.isdigit() and len(text) <= 2 else 0
    if not 1 <= rank <= _LAST_RANK:
        message = f"x-headrace-priority takes a whole number from 1 (first) to {_LAST_RANK} (last)."
        raise InvalidRequest(invalid_request(message, param="x-headrace-priority"))
    if rank <= _LAST_URGENT:
        return ServiceClass.INTERACTIVE
    return ServiceClass.NORMAL if rank <= _LAST_NORMAL else ServiceClass.BATCH


def _first(headers: Mapping[bytes, bytes], names: Sequence[bytes]) -> str:
    for name in names:
        value = headers.get(name)
        if value and (cleaned := clean(_text(value))):
            return cleaned
    return ""


def _text(value: bytes) -> str:
    """Most clients send UTF-8; the others mean Latin-1."""
    try:
        return value.decode()
    except UnicodeError:
        return value.decode("latin-1")


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
