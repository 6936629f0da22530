"""Further attempts at a callable that failed, with back-off and jitter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Generic, ParamSpec, TypeVar

from headrace.errors import CallerError, HeadraceError, LimitExceeded
from headrace.runtime.worker_errors import WorkerError

P = ParamSpec("P")
T = TypeVar("T")


class RetryPolicy(Generic[P, T]):
    """Calls `fn` up to `attempts` times until it succeeds.

    Between two attempts it waits as long as the error asks for (`retry_after`), else `backoff` seconds, doubled each
    time up to `backoff_cap`, of which the upper half is drawn by chance. An error that asks for more than
    `longest_wait` is raised at once.

    Args:
        fn: the async callable; it must bear being called again.
        attempts: calls in all.
        retry_on: the kinds of errors another attempt may mend, or a function that tells; by default timeouts,
            connection errors and what an engine's status calls its own failure or a moment's.
        random: the only source of chance.
        sleep: how it waits.
    """

    def __init__(
        self,
        fn: Callable[P, Awaitable[T]],
        *,
        attempts: int = 3,
        backoff: float = 0.5,
        backoff_cap: float = 8.0,
        longest_wait: float = 60.0,
        retry_on: tuple[type[Exception], ...] | Callable[[Exception], bool] | None = None,
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if attempts < 1:
            raise ValueError("a retry policy makes at least one attempt")
        self._fn = fn
        self._attempts = attempts
        self._backoff = backoff
        self._cap = backoff_cap
        self._longest = longest_wait
        self._retry_on = retry_on
        self._random = random or Random()
        self._sleep = sleep

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of the first attempt that succeeds; what the last one raises otherwise."""
        attempt = 1
        while True:
            try:
                return await self._fn(*args, **kwargs)
            except Exception as error:
                if attempt >= self._attempts or not self._mendable(error):
                    raise
                delay = self._delay(error, attempt)
                if delay > self._longest:
                    raise
            attempt += 1
            await self._sleep(delay)

    def _mendable(self, error: Exception) -> bool:
        if self._retry_on is None:
            return _passes(error)
        if isinstance(self._retry_on, tuple):
            return isinstance(error, self._retry_on)
        return self._retry_on(error)

    def _delay(self, error: Exception, attempt: int) -> float:
        asked = _retry_after(error)
        if asked is not None:
            return max(0.0, asked)
        longest = min(self._cap, self._backoff * 2.0 ** (attempt - 1))
        return longest * (0.5 + 0.5 * self._random.random())


def _passes(error: Exception) -> bool:
    """Whether another attempt may mend it."""
    if isinstance(error, WorkerError):
        return error.status in (408, 429) or (error.status >= 500 and error.status != 501)
    if isinstance(error, HeadraceError):
        return not isinstance(error, CallerError) or isinstance(error, LimitExceeded)
    return isinstance(error, TimeoutError | ConnectionError)


def _retry_after(error: Exception) -> float | None:
    if isinstance(error, WorkerError):
        return error.retry_after
    return error.fault.retry_after if isinstance(error, HeadraceError) else None
