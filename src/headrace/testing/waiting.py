"""Waiting for something to become true, with a guard, and without ever sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class GuardExpired(AssertionError):
    """What a test waited for did not happen in time: the test is broken, or what it tests is."""


async def guarded(awaitable: Awaitable[T], seconds: float | None, what: str) -> T:
    """Await, but at most `seconds` of the loop's clock (None: without bound); raises `GuardExpired` naming `what`."""
    guard = asyncio.timeout(seconds)
    try:
        async with guard:
            return await awaitable
    except TimeoutError:
        if guard.expired():
            raise GuardExpired(f"{what}: did not happen within {seconds} s") from None
        raise


class Changes:
    """Wakes those who wait for a condition over state that somebody else changes.

    A condition is looked at again after each `notify`, in the waiter's own task. One that held for less than a turn of
    the loop may be missed: wait for counts that only grow.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """The state changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool], seconds: float | None, what: str) -> None:
        """Return once `condition()` holds; raises `GuardExpired` after `seconds` (None: never)."""
        await guarded(self._hold(condition), seconds, what)

    async def _hold(self, condition: Callable[[], bool]) -> None:
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
