"""What a worker raises, as the outcome of its attempt: the one place where that is decided."""

from __future__ import annotations

import logging
import traceback

from msgspec.structs import replace

from headrace.errors import Fault, HeadraceError, invalid_request, upstream_error
from headrace.model import Cause, Outcome, Usage
from headrace.wire.refusals import refused

_log = logging.getLogger(__name__)


class WorkerError(Exception):
    """A worker could not answer; `status` is an HTTP status and means what it means there.

    429 and 529, and a 503 that says when to come back, are no failure: the worker is left alone for `retry_after`
    seconds. Other 4xx are the caller's fault, who is told `message`. 5xx are the worker's failure, which may be made
    good by another worker.
    """

    def __init__(self, message: str = "", *, status: int = 503, retry_after: float | None = None) -> None:
        super().__init__(message or f"status {status}")
        self.message = message
        self.status = status
        self.retry_after = retry_after


def outcome_of(error: BaseException, usage: Usage | None, committed: bool) -> Outcome:
    """How an attempt ended that raised `error`.

    What nobody expected is logged, with its place but without its words: they may quote a prompt.
    """
    match error:
        case WorkerError():
            outcome = _by_status(error.status, error.retry_after, error.message)
        case HeadraceError():
            outcome = replace(_by_status(error.fault.status, error.fault.retry_after, ""), fault=error.fault)
        case TimeoutError():
            outcome = Outcome(Cause.TIMEOUT, detail="the worker timed out")
        case ConnectionError():
            outcome = Outcome(Cause.CONNECT, detail=type(error).__name__)
        case _:
            place = "".join(traceback.format_tb(error.__traceback__))
            _log.error("a worker failed with %s at\n%s", type(error).__qualname__, place)
            outcome = Outcome(Cause.SERVER_ERROR, detail=type(error).__name__)
    if committed and outcome.cause is Cause.CONNECT:
        outcome = replace(outcome, cause=Cause.BROKEN_STREAM)
    return replace(outcome, usage=usage, committed=committed)


def _by_status(status: int, retry_after: float | None, message: str) -> Outcome:
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:.3f}"}
    outcome = refused(status, headers, b"", 0.0)
    outcome = replace(outcome, detail=f"status {status}")
    if outcome.cause is Cause.REJECTED and message:
        return replace(outcome, fault=invalid_request(message, status=status))
    if outcome.cause is Cause.SERVER_ERROR and status == 503:
        return replace(outcome, fault=unavailable())
    return outcome


def unavailable() -> Fault:
    """What the caller of a worker that is down is told, if no other can answer."""
    return replace(upstream_error("The worker that was asked is not available."), status=503)
