"""headrace's rules one by one, each around any async callable, without a pipeline.

They are callables themselves and can be put into each other: `RetryPolicy(CircuitBreaker(ask))`. Each reads the clock
it is given; one object belongs to one event loop.
"""

from headrace.runtime.wrappers.circuit_breaker import CircuitBreaker
from headrace.runtime.wrappers.deduplicator import Deduplicator
from headrace.runtime.wrappers.load_balanced import LoadBalancedWorker
from headrace.runtime.wrappers.rate_limiter import RateLimiter
from headrace.runtime.wrappers.retry_policy import RetryPolicy

__all__ = ["CircuitBreaker", "Deduplicator", "LoadBalancedWorker", "RateLimiter", "RetryPolicy"]
