"""Several workers as one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random
from typing import Self

from headrace.model import Snapshot
from headrace.runtime.backend import Timeouts
from headrace.runtime.pipeline import Pipeline, StrategyName
from headrace.runtime.prompts import PromptRequest
from headrace.runtime.worker_set import AnyWorker


class LoadBalancedWorker:
    """A worker that asks the best of several: routing by speed, reliability and load, a breaker for each, failover.

    What it does not do: share answers or keep dead letters. Errors are those of `headrace.errors`.

    Args:
        workers: the workers, by name if they are to have one.
        strategy: how the best is chosen.
        retries: further attempts after a failed one, on the others first.
        max_concurrent: most calls at one of them at a time; `queue_size` more may wait.
        breaker_threshold, recovery_timeout, cooldown_seconds: as for a `Pipeline`.
        timeouts: of an attempt.
        random: the only source of chance.
    """

    def __init__(
        self,
        workers: Sequence[AnyWorker] | Mapping[str, AnyWorker],
        *,
        strategy: StrategyName = "weighted",
        retries: int = 2,
        max_concurrent: int = 100,
        queue_size: int = 512,
        breaker_threshold: int = 5,
        recovery_timeout: float = 60.0,
        cooldown_seconds: float = 5.0,
        timeouts: Timeouts | None = None,
        random: Random | None = None,
    ) -> None:
        self._pipeline = Pipeline(
            workers,
            strategy=strategy,
            retries=retries,
            max_concurrent=max_concurrent,
            queue_size=queue_size,
            breaker_threshold=breaker_threshold,
            recovery_timeout=recovery_timeout,
            cooldown_seconds=cooldown_seconds,
            dead_letters=1,
            timeouts=timeouts,
            random=random,
        )

    def infer(self, prompt: PromptRequest, /) -> AsyncIterator[str]:
        """The answer of the worker that was chosen, as it comes."""
        return self._pipeline.stream(prompt)

    async def __call__(self, prompt: PromptRequest) -> str:
        """The answer as a whole, so that other wrappers can be put around it."""
        return (await self._pipeline.submit(prompt)).text

    def snapshot(self) -> Snapshot:
        """The state of each worker."""
        return self._pipeline.snapshot()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End what is left and let go of what the workers hold; leaving it as a context manager does the same."""
        await self._pipeline.close()
