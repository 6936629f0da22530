"""A rate limit around a callable; the rule is that of `core.limits`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, ParamSpec, TypeVar

from headrace.core.limits import Denied, Lease, Limiter, LimitRule
from headrace.errors import LimitExceeded, rate_limited

P = ParamSpec("P")
T = TypeVar("T")


class RateLimiter(Generic[P, T]):
    """Lets at most so many calls of `fn` begin per minute (sliding window), or run at a time.

    Args:
        fn: the async callable.
        requests_per_minute: most calls that begin within any 60 seconds.
        concurrency: most calls at a time.
        key: whose limit a call counts against; by default all calls share one. At most 65,536 keys are remembered.
        wait: wait for room instead of refusing.
        max_waiting: most calls that wait; one more is refused.
        clock: monotonic seconds.
        sleep: how it waits.
    """

    def __init__(
        self,
        fn: Callable[P, Awaitable[T]],
        *,
        requests_per_minute: int | None = None,
        concurrency: int | None = None,
        key: Callable[P, str] | None = None,
        wait: bool = False,
        max_waiting: int = 1000,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._fn = fn
        self._rule = LimitRule(requests_per_minute=requests_per_minute, concurrency=concurrency)
        self._limiter = Limiter()
        self._key = key
        self._wait = wait
        self._max_waiting = max_waiting
        self._clock = clock
        self._sleep = sleep
        self.waiting = 0
        """Calls that wait for room."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `fn`.

        Raises:
            LimitExceeded: there is no room; `fault.retry_after` says when there will be.
        """
        key = "" if self._key is None else self._key(*args, **kwargs)
        keys = ((key, self._rule),)
        lease = self._limiter.take(keys, 0, self._clock())
        if isinstance(lease, Denied):
            lease = await self._room(keys, lease)
        try:
            return await self._fn(*args, **kwargs)
        finally:
            self._limiter.settle(lease, 0, self._clock())

    async def _room(self, keys: tuple[tuple[str, LimitRule]], denied: Denied) -> Lease:
        if not self._wait or self.waiting >= self._max_waiting:
            raise LimitExceeded(rate_limited(denied.message, denied.retry_after))
        self.waiting += 1
        try:
            while True:
                await self._sleep(denied.retry_after)
                lease = self._limiter.take(keys, 0, self._clock())
                if not isinstance(lease, Denied):
                    return lease
                denied = lease
        finally:
            self.waiting -= 1
