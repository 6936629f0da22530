"""What can go wrong, by whose fault it is.

Inside headrace a failure is a value (`Fault`) that travels in decisions and ends up as an error body in the caller's
dialect. The library raises it as an exception:

    HeadraceError
    ├── CallerError          the caller asked for something that cannot be given
    │   ├── InvalidRequest       400, 413, 415, 422
    │   ├── AccessDenied         401, 403
    │   ├── ModelNotFound        404
    │   └── LimitExceeded        429: a limit, budget or queue cap of the caller, or every engine's own
    ├── CapacityError        headrace has no room or no way right now; try again
    │   └── QueueFull  CircuitOpen  NoInstance  Draining  QueueTimeout      503
    ├── UpstreamError        the engine failed, or is not there: 502, 503, 504
    ├── DeadlineExpired      504: the caller's own deadline passed
    └── ConfigError          the configuration cannot be used (start-up only)
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace


class Fault(Struct, frozen=True, gc=False):
    """An error to be told to a caller, free of any dialect.

    Types and codes are OpenAI's vocabulary (see docs/errors.md); `wire` renders them for other dialects.
    """

    status: int
    type: str
    code: str | None
    message: str
    """What happened and what to do; never an address, a key or a stack."""
    param: str | None = None
    retry_after: float | None = None
    """Seconds until a new try makes sense."""
    retryable: bool | None = None
    """False tells clients not to retry (`x-should-retry: false`); None leaves it to them."""
    body: bytes | None = None
    """An engine's own error body, passed through as it came (only for faults of the caller)."""
    attempts: int = 0
    """How often an engine was asked in vain."""

    @property
    def retry_after_seconds(self) -> int | None:
        """`retry_after` as whole seconds of at least 1, as the header wants it."""
        return None if self.retry_after is None else max(1, math.ceil(self.retry_after))

    def after(self, attempts: int) -> Fault:
        """The same fault after so many attempts."""
        return replace(self, attempts=attempts) if attempts else self


class HeadraceError(Exception):
    """Base of everything headrace raises on purpose."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class CallerError(HeadraceError):
    """The caller's fault: the same request will fail again."""


class InvalidRequest(CallerError):
    """The body, a field or a size cannot be accepted."""


class AccessDenied(CallerError):
    """No key, a wrong key, or a key without the right."""


class ModelNotFound(CallerError):
    """No instance serves a model of that name."""


class LimitExceeded(CallerError):
    """429: a limit, budget or queue cap of the caller, or every engine said so."""


class CapacityError(HeadraceError):
    """No room or no way at this moment."""


class QueueFull(CapacityError):
    """A bounded queue is full."""


class QueueTimeout(CapacityError):
    """The longest wait in the queue passed."""


class CircuitOpen(CapacityError):
    """Every instance of the model has an open breaker."""


class NoInstance(CapacityError):
    """No instance of the model is healthy."""


class Draining(CapacityError):
    """headrace is shutting down."""


class UpstreamError(HeadraceError):
    """The engine failed or cut its answer."""


class DeadlineExpired(HeadraceError):
    """The caller's deadline passed before the answer was complete."""


class IllegalMove(RuntimeError):
    """A call was moved along an edge that does not exist: a bug of the scheduler's own."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and, where known, the nearest right one."""


_BY_CODE: dict[str, type[HeadraceError]] = {
    "model_not_found": ModelNotFound,
    "queue_full": QueueFull,
    "queue_timeout": QueueTimeout,
    "circuit_open": CircuitOpen,
    "no_instance": NoInstance,
    "draining": Draining,
    "deadline_exceeded": DeadlineExpired,
}


def error_for(fault: Fault) -> HeadraceError:
    """The exception that stands for `fault`."""
    if fault.status == 429:
        return LimitExceeded(fault)
    if fault.code in _BY_CODE:
        return _BY_CODE[fault.code](fault)
    if fault.status in (401, 403):
        return AccessDenied(fault)
    if fault.status < 500:
        return InvalidRequest(fault)
    return UpstreamError(fault)


# ------------------------------------------------------------------------------ the faults headrace itself makes


def invalid_request(message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> Fault:
    """The request cannot be understood or is too large."""
    return Fault(status, "invalid_request_error", code, message, param=param, retryable=False)


def body_too_large(limit: int) -> Fault:
    """A request's body has more than `limit` bytes."""
    message = f"The body is larger than {limit} bytes, the most that is accepted."
    return Fault(413, "invalid_request_error", "request_too_large", message, retryable=False)


def body_too_slow(seconds: float) -> Fault:
    """A request's body was not complete after `seconds`."""
    message = f"The body did not arrive within {seconds:g} s. Send it faster, or send less."
    return Fault(408, "invalid_request_error", "request_timeout", message)


def bodies_full(retry_after: float) -> Fault:
    """The bodies of all unanswered requests together are as many bytes as may be held."""
    message = "The gateway holds as many request bodies as it can. Try again later."
    return Fault(503, "server_error", "queue_full", message, retry_after=retry_after)


def sockets_gone(retry_after: float) -> Fault:
    """There is no socket, port or file descriptor left to ask an engine with."""
    message = "The gateway has as many connections as it can have. Try again later."
    return Fault(503, "server_error", "queue_full", message, retry_after=retry_after)


def cancelled() -> Fault:
    """The request was cancelled by somebody else than its own connection's end. 499: the client's closing, as nginx."""
    return Fault(499, "invalid_request_error", "cancelled", "The request was cancelled.", retryable=False)


def instance_not_found(name: str) -> Fault:
    """No instance of that id is registered; the id is quoted shortened."""
    shown = name if len(name) <= 64 else name[:61] + "..."
    message = f"There is no instance '{shown}'. GET /admin/instances lists them."
    return Fault(404, "not_found_error", "instance_not_found", message, param="id", retryable=False)


def instance_exists(name: str) -> Fault:
    """The id of a new instance is taken."""
    message = f"There is an instance '{name}' already. Change it with PATCH, remove it first, or take another id."
    return Fault(409, "invalid_request_error", "instance_exists", message, param="id", retryable=False)


def instance_doubled(other: str, model: str) -> Fault:
    """A model is registered at the same address by another instance."""
    message = f"'{other}' serves the model '{model}' at this address already. Remove it first, or leave the model out."
    return Fault(409, "invalid_request_error", "instance_exists", message, param="models", retryable=False)


def instances_full(most: int) -> Fault:
    """As many instances are registered as may be."""
    message = f"There are {most} instances, the most there may be. Remove one first."
    return Fault(409, "invalid_request_error", "too_many_instances", message, retryable=False)


def model_not_found(model: str) -> Fault:
    """No instance serves `model`; the name is quoted shortened."""
    shown = model if len(model) <= 100 else model[:97] + "..."
    return Fault(
        404,
        "not_found_error",
        "model_not_found",
        f"The model '{shown}' does not exist here. GET /v1/models lists what does.",
        param="model",
        retryable=False,
    )


def rate_limited(message: str, retry_after: float) -> Fault:
    """One of the caller's own limits is used up."""
    return Fault(429, "rate_limit_error", "rate_limit_exceeded", message, retry_after=retry_after)


def queue_full(retry_after: float) -> Fault:
    """The queue as a whole is full."""
    message = "The queue is full. Try again later."
    return Fault(503, "server_error", "queue_full", message, retry_after=retry_after)


def user_queue_full(limit: int, retry_after: float) -> Fault:
    """One user has as many requests waiting as one may have."""
    message = f"You already have {limit} requests waiting, the most one user may. Try again when some are answered."
    return Fault(429, "rate_limit_error", "queue_full", message, retry_after=retry_after)


def queue_timeout(waited: float, retry_after: float) -> Fault:
    """The longest wait in the queue passed."""
    message = f"Waited {waited:.0f} s in the queue without a free instance. Try again later."
    return Fault(503, "server_error", "queue_timeout", message, retry_after=retry_after)


def circuit_open(retry_after: float) -> Fault:
    """Every instance that serves the model has an open breaker."""
    message = "Every instance of this model failed repeatedly and is being left alone for a while. Try again later."
    return Fault(503, "server_error", "circuit_open", message, retry_after=retry_after)


def no_instance(retry_after: float) -> Fault:
    """Every instance that serves the model is down."""
    message = "No instance of this model is up. Try again later."
    return Fault(503, "server_error", "no_instance", message, retry_after=retry_after)


def draining(retry_after: float = 5.0) -> Fault:
    """headrace shuts down."""
    message = "The gateway is shutting down. Try again in a moment."
    return Fault(503, "server_error", "draining", message, retry_after=retry_after)


def engines_limited(retry_after: float) -> Fault:
    """Every instance that could answer said 429 or is overloaded."""
    message = "Every instance of this model is limiting its rate. Try again later."
    return Fault(429, "rate_limit_error", "rate_limit_exceeded", message, retry_after=retry_after)


def deadline_exceeded() -> Fault:
    """The caller's deadline passed."""
    message = "The deadline of this request passed before its answer was complete."
    return Fault(504, "server_error", "deadline_exceeded", message, retryable=False)


def upstream_error(message: str = "The engine failed to answer.") -> Fault:
    """The engine failed; no detail of it is told."""
    return Fault(502, "server_error", "upstream_error", message)


def upstream_unavailable(retry_after: float) -> Fault:
    """The engine said 503: it is not there at the moment."""
    message = "The engine is not available at the moment. Try again later."
    return Fault(503, "server_error", "upstream_error", message, retry_after=retry_after)


def upstream_timeout() -> Fault:
    """The engine did not answer in time."""
    return Fault(504, "server_error", "upstream_timeout", "The engine did not answer in time.")


def upstream_auth() -> Fault:
    """The engine refused the gateway's own key."""
    message = "The engine refused the gateway's credentials. Tell the operator of this gateway."
    return Fault(502, "server_error", "upstream_auth", message, retryable=False)


def stream_incomplete() -> Fault:
    """The answer broke off after a part of it was delivered."""
    message = "The answer broke off before it was complete."
    return Fault(502, "server_error", "stream_incomplete", message)


def hook_failed(stage: str) -> Fault:
    """The program's own code in a stage of the library's pipeline raised something."""
    return Fault(500, "server_error", "hook_failed", f"The {stage} hook failed.")


def internal_error() -> Fault:
    """A bug of headrace; the log has the details."""
    return Fault(500, "server_error", "internal_error", "The gateway made a mistake. The log has the details.")
