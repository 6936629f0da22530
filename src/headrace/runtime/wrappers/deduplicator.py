"""Identical calls share one run of the callable, and for a while its result."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, ParamSpec, TypeVar

from headrace.runtime.prompts import PromptRequest, fingerprint

P = ParamSpec("P")
T = TypeVar("T")


class Deduplicator(Generic[P, T]):
    """Runs `fn` once for all who ask the same at the same time.

    The run belongs to nobody: when a caller is cancelled the others still get the result; when the last one is, the run
    is cancelled. All get the error of a run that fails; a later call tries anew.

    Args:
        fn: the async callable.
        key: what makes calls identical; by default all arguments, which must be hashable, or of a single
            `PromptRequest` what it asks.
        ttl_seconds: how long a result is remembered; 0: not at all.
        max_entries: most results remembered; the least recently used goes first.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        fn: Callable[P, Awaitable[T]],
        *,
        key: Callable[P, Hashable] | None = None,
        ttl_seconds: float = 0.0,
        max_entries: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fn = fn
        self._key: Callable[P, Hashable] = key or _arguments
        self._ttl = ttl_seconds
        self._max_entries = max_entries
        self._clock = clock
        self._results: OrderedDict[Hashable, tuple[T, float]] = OrderedDict()
        self._runs: dict[Hashable, _Run[T]] = {}
        self.calls = 0
        """Runs of the callable so far."""
        self.joined = 0
        """Calls that shared a run under way."""
        self.hits = 0
        """Calls answered by a remembered result."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `fn`, whoever ran it.

        Raises:
            TypeError: the arguments are not hashable and there is no `key`.
        """
        key = self._key(*args, **kwargs)
        if self._ttl > 0.0:
            known = self._results.get(key)
            if known is not None and self._clock() < known[1]:
                self._results.move_to_end(key)
                self.hits += 1
                return known[0]
        run = self._runs.get(key)
        if run is None:
            self.calls += 1
            task = asyncio.get_running_loop().create_task(self._run(key, *args, **kwargs))
            task.add_done_callback(_look_at)
            run = self._runs[key] = _Run(task)
        else:
            self.joined += 1
        return await self._share(key, run)

    async def _share(self, key: Hashable, run: _Run[T]) -> T:
        run.callers += 1
        try:
            return await asyncio.shield(run.task)
        finally:
            run.callers -= 1
            if run.callers == 0 and not run.task.done():
                self._forget(key, run)
                run.task.cancel()

    async def _run(self, key: Hashable, *args: P.args, **kwargs: P.kwargs) -> T:
        run = self._runs[key]
        try:
            result = await self._fn(*args, **kwargs)
        finally:
            self._forget(key, run)
        if self._ttl > 0.0:
            self._remember(key, result)
        return result

    def _remember(self, key: Hashable, result: T) -> None:
        self._results[key] = (result, self._clock() + self._ttl)
        self._results.move_to_end(key)
        if len(self._results) > self._max_entries:
            self._results.popitem(last=False)

    def _forget(self, key: Hashable, run: _Run[T]) -> None:
        if self._runs.get(key) is run:
            del self._runs[key]


class _Run(Generic[T]):
    """A run under way, and how many wait for it."""

    __slots__ = ("callers", "task")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.callers = 0


def _look_at(task: asyncio.Task[T]) -> None:
    """An error that nobody is left to be told is no news."""
    if not task.cancelled():
        task.exception()


def _arguments(*args: object, **kwargs: object) -> Hashable:
    if len(args) == 1 and not kwargs and isinstance(args[0], PromptRequest):
        return fingerprint(args[0], "")
    return (args, tuple(sorted(kwargs.items()))) if kwargs else args
