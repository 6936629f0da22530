"""Errors as HTTP answers in OpenAI's dialect, with the headers that client libraries obey.

The official SDKs look at `x-should-retry` first, then at `retry-after-ms`, then at `retry-after`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog

from headrace.errors import Fault, invalid_request
from headrace.server.exchange import Exchange, status_line
from headrace.server.identity import request_id_of
from headrace.wire.openai import error_body

_log = structlog.get_logger("headrace.server")

_SHOWN_PATH = 200
"""Characters of a path that nobody serves in the log and the answer: it is the caller's."""

LONGEST_OBEYED = 60.0
"""Seconds of `retry-after` that the official SDKs wait; a longer one they ignore, and try again within seconds."""
JSON = ("content-type", "application/json")


def answer_json(exchange: Exchange, status: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
    """A whole JSON answer."""
    exchange.answer(status, (JSON, *headers), body)


def refuse(exchange: Exchange, fault: Fault, headers: Sequence[tuple[str, str]] = ()) -> None:
    """Tell a caller what went wrong; the exchange must not have been started."""
    body = error_body(fault)
    answer_json(exchange, fault.status, body, [*headers, *_advice(fault)])


def refuse_early(exchange: Exchange, fault: Fault, *headers: tuple[str, str]) -> None:
    """Refuse, and log, what does not become a request to the gateway."""
    request_id = request_id_of(exchange)
    refuse(exchange, fault, [("x-request-id", request_id), *headers])
    _log.info("request", id=request_id, path=exchange.path[:_SHOWN_PATH], status=fault.status, code=fault.code)


def last_words(fault: Fault) -> bytes:
    """A whole answer, for a connection on which there is no request to answer; it is to be closed then."""
    body = error_body(fault)
    head = "content-type: application/json\r\nconnection: close\r\n"
    return f"{status_line(fault.status)}{head}content-length: {len(body)}\r\n\r\n".encode() + body


def unknown_route(exchange: Exchange) -> None:
    """404 for a path that leads nowhere: mostly a base URL that is not as the client wants it."""
    message = (
        f"There is nothing at {exchange.path[:_SHOWN_PATH]}. For clients of the OpenAI API the base URL ends in /v1, "
        "without a slash; the API's paths are /v1/models, /v1/chat/completions, /v1/completions and /v1/embeddings. "
        "The admin API's page is /docs."
    )
    refuse_early(exchange, invalid_request(message, status=404))


def wrong_method(exchange: Exchange, allowed: Sequence[str]) -> None:
    """405 with the methods that the path knows."""
    message = f"{exchange.method} is not possible here. Use {' or '.join(allowed)}."
    refuse_early(exchange, invalid_request(message, status=405), ("allow", ", ".join(allowed)))


def _advice(fault: Fault) -> list[tuple[str, str]]:
    """When and whether to try again."""
    headers: list[tuple[str, str]] = []
    seconds = fault.retry_after_seconds
    if seconds is not None and fault.retry_after is not None:
        headers.append(("retry-after", str(seconds)))
        headers.append(("retry-after-ms", str(max(1, math.ceil(fault.retry_after * 1000)))))
    retryable = fault.retryable
    if retryable is None and fault.retry_after is not None and fault.retry_after > LONGEST_OBEYED:
        retryable = False
    if retryable is not None:
        headers.append(("x-should-retry", "true" if retryable else "false"))
    return headers
