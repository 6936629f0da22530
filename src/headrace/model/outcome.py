"""How attempts and requests end."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from headrace.errors import Fault
from headrace.model.request import Request, Usage


class OutcomeKind(StrEnum):
    """Whether an attempt speaks for its instance, against it, or says nothing about it."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


class Cause(StrEnum):
    """Why an attempt ended as it did."""

    OK = "ok"
    CONNECT = "connect"
    TIMEOUT = "timeout"
    SERVER_ERROR = "server_error"
    BROKEN_STREAM = "broken_stream"
    PROTOCOL = "protocol"
    RATE_LIMITED = "rate_limited"
    REJECTED = "rejected"
    UPSTREAM_AUTH = "upstream_auth"
    ABORTED = "aborted"

    @property
    def kind(self) -> OutcomeKind:
        """The verdict on the instance; 429 and overload are judged by cooldown, not by the breaker."""
        if self is Cause.OK:
            return OutcomeKind.SUCCESS
        return OutcomeKind.NEUTRAL if self in _NEUTRAL else OutcomeKind.FAILURE


_NEUTRAL = frozenset({Cause.RATE_LIMITED, Cause.REJECTED, Cause.UPSTREAM_AUTH, Cause.ABORTED})


class FallbackCause(StrEnum):
    """Why another model may take over."""

    EXHAUSTED = "exhausted"
    """No instance of the model can take the request, or all that could be asked failed."""
    CONTEXT_LENGTH = "context_length"
    """The prompt is too long for the model."""
    CONTENT_FILTER = "content_filter"
    """The provider's filter refused the prompt."""


class Outcome(Struct, frozen=True, gc=False):
    """How one attempt ended."""

    cause: Cause
    usage: Usage | None = None
    committed: bool = False
    """A content byte reached the caller: nothing may be retried, at most resumed."""
    retry_after: float | None = None
    """Seconds the instance asked us to stay away."""
    status: int | None = None
    """HTTP status of the engine's answer, if there was one."""
    detail: str = ""
    """For operators and dead letters: no prompt, no key, no address."""
    fault: Fault | None = None
    """What to tell the caller if no further attempt is made; None: derived from the cause."""
    cacheable: bool = True
    """False for an answer that is complete but must not be stored (cut by a length limit)."""
    resumable: bool = False
    """The answer broke off, and all of it that the caller has is known: it could go on from there."""

    @property
    def kind(self) -> OutcomeKind:
        """The verdict on the instance."""
        return self.cause.kind


class Ending(StrEnum):
    """How a ticket ended: exactly one for every request. The label of metrics and the reason of dead letters."""

    ANSWERED = "answered"
    REJECTED = "rejected"
    """The caller's own fault, as the engine saw it (4xx)."""
    CANCELLED = "cancelled"
    # Refused at the door: never accepted.
    RATE_LIMITED = "rate_limited"
    MODEL_NOT_FOUND = "model_not_found"
    DRAINING = "draining"
    BACKPRESSURE = "backpressure"
    CIRCUIT_OPEN = "circuit_open"
    NO_INSTANCE = "no_instance"
    # Accepted, then failed.
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE_EXPIRED = "deadline_expired"
    INFERENCE_TIMEOUT = "inference_timeout"
    INFERENCE_FAILURE = "inference_failure"
    STREAM_BROKEN = "stream_broken"
    SHUTTING_DOWN = "shutting_down"


class CacheResult(StrEnum):
    """Where an answer came from; the header `x-headrace-cache`."""

    MISS = "miss"
    JOINED = "joined"
    HIT = "hit"


class AttemptRecord(Struct, frozen=True, gc=False):
    """One try at one instance, for dead letters and the flight recorder."""

    number: int
    instance: str
    started: float
    ended: float
    cause: Cause
    status: int | None = None
    detail: str = ""
    produced: int = 0
    """Output tokens of this attempt that reached the caller before it broke off."""
    model: str = ""
    """The model that was asked, where it is another than the request names."""


class DeadLetter(Struct, frozen=True, kw_only=True, gc=False):
    """A request that was not answered, with what is needed to understand and replay it."""

    request: Request
    ending: Ending
    reason: str
    """The ending, or `backpressure:<stage>`."""
    detail: str = ""
    arrived: float
    died: float
    attempts: tuple[AttemptRecord, ...] = ()
