"""What an answer other than 2xx means for the attempt, for the instance and for the caller.

Whose fault it is decides: a 4xx is the caller's and goes back to him in OpenAI's form; a bad key is the operator's;
408, 429, 529 and an overloaded 503 speak of the moment; the rest is the engine's failure. Two exceptions: 501 is the
caller's, since it says that the engine has no such function, and asking for it must not look like a failing engine;
402 and 407 are the operator's, like 401.

`Retry-After`: RFC 9110 section 10.2.3; `retry-after-ms` is what OpenAI sends beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime

from headrace import errors
from headrace.errors import Fault
from headrace.model import Cause, Outcome
from headrace.wire.engine_errors import EngineError, read_error
from headrace.wire.scrub import scrub

_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{0,9})?")
_DAY = re.compile(r"(mon|tue|wed|thu|fri|sat|sun)[a-z]*", re.IGNORECASE)
_CONTEXT = re.compile(
    r"context (length|size|window)|context_length|context_size|max_model_len"
    r"|(prompt|input)\S* (is|are) too long|longer than the model",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"model\b.{0,300}\b(not found|does not exist|not exist|unknown|not available)", re.IGNORECASE)
_TYPES = {404: "not_found_error", 409: "conflict_error", 413: "invalid_request_error"}
_OPERATORS = frozenset({401, 402, 403, 407})
_FAILED = frozenset({424})
"""TGI's status for a generation that failed."""


def refused(
    status: int, headers: Mapping[str, str], body: bytes, now_wall: float, secrets: Sequence[str] = ()
) -> Outcome:
    """The outcome of an attempt that an engine answered with a status other than 2xx.

    `headers` have lower-case names; `now_wall` is Unix time in seconds; `secrets` are strings that must not reach the
    caller.
    """
    error = read_error(body)
    detail = f"HTTP {status}, {error.known_type}" if error.known_type else f"HTTP {status}"
    if status < 400:
        return Outcome(Cause.PROTOCOL, status=status, detail=detail)
    if status in _OPERATORS:
        return Outcome(Cause.UPSTREAM_AUTH, status=status, detail=detail, fault=errors.upstream_auth())
    if status == 408:
        return Outcome(Cause.TIMEOUT, status=status, detail=detail)
    wait = retry_after(headers, now_wall)
    if status in (429, 529) or (status == 503 and (wait is not None or error.limited)):
        return Outcome(Cause.RATE_LIMITED, status=status, detail=detail, retry_after=wait)
    if status in _FAILED or (status >= 500 and status != 501):
        return Outcome(Cause.SERVER_ERROR, status=status, detail=detail, retry_after=wait)
    return Outcome(Cause.REJECTED, status=status, detail=detail, fault=_callers_fault(status, error, secrets))


def retry_after(headers: Mapping[str, str], now_wall: float) -> float | None:
    """The longest wait in seconds that `retry-after` or `retry-after-ms` ask for; None when neither says a usable one.

    Seconds, also with a fraction, or an HTTP date; several values joined by commas. A date in the past and a negative
    number are 0. What is no finite number and no date is ignored. The caller sets the cap.
    """
    waits = [wait for wait in _waits(headers.get("retry-after", "")[:1000], now_wall) if wait is not None]
    for text in headers.get("retry-after-ms", "")[:1000].split(","):
        milliseconds = _number(text)
        if milliseconds is not None:
            waits.append(milliseconds / 1000)
    return max(0.0, *waits) if waits else None


def _waits(value: str, now_wall: float) -> Iterator[float | None]:
    """Each value of the header. The comma after a date's day of the week does not part values."""
    texts = iter(value.split(","))
    for part in texts:
        text = part.strip()
        if _DAY.fullmatch(text):
            text = f"{text},{next(texts, '')}"
        yield _date(text, now_wall) if _DAY.match(text) else _number(text)


def _number(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _date(text: str, now_wall: float) -> float | None:
    try:
        wait = parsedate_to_datetime(text).timestamp() - now_wall
    except (ValueError, TypeError, OverflowError):
        return None
    return wait if math.isfinite(wait) else None


def _callers_fault(status: int, error: EngineError, secrets: Sequence[str]) -> Fault:
    message = scrub(error.message, secrets) or f"The engine refused the request with status {status}."
    kind = scrub(error.known_type, secrets) or _TYPES.get(status, "invalid_request_error")
    code = scrub(error.code, secrets) if error.code and not error.code.lstrip("-").isdigit() else None
    if "context" in error.type or _CONTEXT.search(error.message) or error.code == "context_length_exceeded":
        kind, code = "invalid_request_error", "context_length_exceeded"
    elif status == 404 and _NO_MODEL.search(error.message):
        kind, code = "not_found_error", "model_not_found"
    param = scrub(error.param, secrets) if error.param else None
    return Fault(status, kind, code, message, param=param, retryable=False)
