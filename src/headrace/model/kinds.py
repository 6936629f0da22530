"""The words with a fixed set of values: what a request, an attempt or an instance can be."""

from __future__ import annotations

from enum import StrEnum


class ServiceClass(StrEnum):
    """How urgent a request is; the first level of the share tree."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """0 for the most urgent."""
        return _CLASS_RANK[self]


_CLASS_RANK = {ServiceClass.INTERACTIVE: 0, ServiceClass.NORMAL: 1, ServiceClass.BATCH: 2}


class Tier(StrEnum):
    """Where an instance stands: local ones are used while any of them can still take the request."""

    LOCAL = "local"
    REMOTE = "remote"


class Engine(StrEnum):
    """What software answers behind an address; picks the wire adapter."""

    OPENAI = "openai"
    VLLM = "vllm"
    LLAMACPP = "llamacpp"
    SGLANG = "sglang"
    TGI = "tgi"
    TENSORRT = "tensorrt"
    OLLAMA = "ollama"
    LMSTUDIO = "lmstudio"
    ECHO = "echo"
    WORKER = "worker"


class AnswerForm(StrEnum):
    """How an answer travels: as a stream of frames, or whole."""

    STREAM = "stream"
    WHOLE = "whole"


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


class BreakerState(StrEnum):
    """closed: in use; open: not asked; half_open: one probe decides."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
