"""A circuit breaker around a callable; the rule is that of `core.breaker`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Generic, ParamSpec, TypeVar

from msgspec.structs import replace

from headrace.core.breaker import Breaker
from headrace.errors import CallerError, CircuitOpen, circuit_open
from headrace.model import BreakerState
from headrace.runtime.worker_errors import WorkerError

P = ParamSpec("P")
T = TypeVar("T")


class CircuitBreaker(Generic[P, T]):
    """Stops calling `fn` after `threshold` failures in a row; after `recovery_timeout` seconds one call tries.

    A call that ends without a verdict (cancelled, or an error that `counts` does not count) neither harms nor heals.

    Args:
        fn: the async callable.
        threshold: failures in a row that open it.
        recovery_timeout: seconds until one call is let through; doubled each time that one fails, up to 64 times.
        counts: whether an error is a failure of `fn`; by default all but the caller's own faults and rate limits.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        fn: Callable[P, Awaitable[T]],
        *,
        threshold: int = 5,
        recovery_timeout: float = 60.0,
        counts: Callable[[Exception], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fn = fn
        self._breaker = Breaker(threshold, recovery_timeout)
        self._counts = counts or _is_failure
        self._clock = clock

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `fn`.

        Raises:
            CircuitOpen: `fn` was not called; `fault.retry_after` says for how long it will not be.
        """
        breaker, now = self._breaker, self._clock()
        if not breaker.allows(now):
            raise CircuitOpen(replace(circuit_open(breaker.opens_in(now) or 1.0), message=_MESSAGE))
        permit = breaker.acquire(now)
        try:
            result = await self._fn(*args, **kwargs)
        except Exception as error:
            if self._counts(error):
                breaker.failure(self._clock(), permit)
            else:
                breaker.neutral(permit)
            raise
        except BaseException:
            breaker.neutral(permit)
            raise
        breaker.success(permit)
        return result

    @property
    def state(self) -> BreakerState:
        """closed, open, or half_open."""
        return self._breaker.state(self._clock())

    def reset(self) -> None:
        """Close it and forget all failures."""
        self._breaker.reset()


_MESSAGE = "It failed repeatedly and is being left alone for a while. Try again later."


def _is_failure(error: Exception) -> bool:
    if isinstance(error, WorkerError):
        return error.status >= 500 and error.status != 529
    return not isinstance(error, CallerError)
