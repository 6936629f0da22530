"""headrace: a traffic gateway for large language models, as a server and as a library.

    from headrace import EchoWorker, Pipeline, PromptRequest

The names below are loaded when they are first used: importing headrace alone loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.core.limits import LimitRule
    from headrace.core.settings import LimitSettings
    from headrace.errors import (
        CallerError,
        CapacityError,
        CircuitOpen,
        DeadlineExpired,
        HeadraceError,
        LimitExceeded,
        QueueFull,
        UpstreamError,
    )
    from headrace.model import ServiceClass
    from headrace.runtime.backend import Timeouts
    from headrace.runtime.openai_worker import OpenAIWorker
    from headrace.runtime.pipeline import Pipeline
    from headrace.runtime.prompts import PromptAnswer, PromptRequest
    from headrace.runtime.submissions import Submission
    from headrace.runtime.worker_errors import WorkerError
    from headrace.runtime.workers import EchoWorker, Worker
    from headrace.runtime.wrappers import (
        CircuitBreaker,
        Deduplicator,
        LoadBalancedWorker,
        RateLimiter,
        RetryPolicy,
    )

__version__ = "0.1.0"

__all__ = [
    "CallerError",
    "CapacityError",
    "CircuitBreaker",
    "CircuitOpen",
    "DeadlineExpired",
    "Deduplicator",
    "EchoWorker",
    "HeadraceError",
    "LimitExceeded",
    "LimitRule",
    "LimitSettings",
    "LoadBalancedWorker",
    "OpenAIWorker",
    "Pipeline",
    "PromptAnswer",
    "PromptRequest",
    "QueueFull",
    "RateLimiter",
    "RetryPolicy",
    "ServiceClass",
    "Submission",
    "Timeouts",
    "UpstreamError",
    "Worker",
    "WorkerError",
    "__version__",
]

_ERRORS = (
    "CallerError",
    "CapacityError",
    "CircuitOpen",
    "DeadlineExpired",
    "HeadraceError",
    "LimitExceeded",
    "QueueFull",
    "UpstreamError",
)
_HOMES = {
    **dict.fromkeys(_ERRORS, "headrace.errors"),
    "CircuitBreaker": "headrace.runtime.wrappers.circuit_breaker",
    "Deduplicator": "headrace.runtime.wrappers.deduplicator",
    "EchoWorker": "headrace.runtime.workers",
    "LimitRule": "headrace.core.limits",
    "LimitSettings": "headrace.core.settings",
    "LoadBalancedWorker": "headrace.runtime.wrappers.load_balanced",
    "OpenAIWorker": "headrace.runtime.openai_worker",
    "Pipeline": "headrace.runtime.pipeline",
    "PromptAnswer": "headrace.runtime.prompts",
    "PromptRequest": "headrace.runtime.prompts",
    "RateLimiter": "headrace.runtime.wrappers.rate_limiter",
    "RetryPolicy": "headrace.runtime.wrappers.retry_policy",
    "ServiceClass": "headrace.model",
    "Submission": "headrace.runtime.submissions",
    "Timeouts": "headrace.runtime.backend",
    "Worker": "headrace.runtime.workers",
    "WorkerError": "headrace.runtime.worker_errors",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
