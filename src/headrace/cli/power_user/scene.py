"""What happens in the scene: the same traffic under one strategy after the other, measured from the users' side.

Nothing is told in advance. A mock engine, a whole gateway and the load generator of `headrace bench` talk over real
sockets in one event loop; every number is counted from what came back, or asked of the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Self

from prometheus_client import CollectorRegistry

from headrace.bench.endpoint import Endpoint
from headrace.bench.report import Spread, spread
from headrace.bench.run import Alone, Plan, Run
from headrace.bench.tally import Tally
from headrace.build import build
from headrace.cli.power_user.strategies import (
    ENGINE,
    FIFO,
    HELD,
    LIGHT,
    MODEL,
    POWER,
    SEED,
    STRATEGIES,
    Strategy,
    Traffic,
)
from headrace.cli.serve import server_settings
from headrace.server import hosted
from headrace.testing import MockEngine
from headrace.testing.timing import TimingNumbers

LONGEST = 60.0
"""Seconds after which a strategy is given up."""
LOOKS = 8.0
"""Looks at the lines per second."""
CLEARLY = 0.5
"""Backpressure has to bring the light users' median wait below this part of what it is under FIFO."""


@dataclass(frozen=True, slots=True)
class Look:
    """The lines at one moment."""

    at: float
    """Seconds after the start."""
    in_gateway: int
    """Requests waiting in the gateway's queue..."""
    in_engine: int
    """...and in the engine's own."""
    running: int
    """Requests that have a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One strategy, or what is known of it so far. Times are seconds, throughput is answer tokens per second."""

    strategy: Strategy
    ended: bool
    seconds: float
    asked: int
    answered: int
    light: Spread | None
    """From asking to the first word, both light users together."""
    power: Spread | None
    longest_queue: int
    """The most requests that ever waited inside the engine."""
    throughput: float
    waits: dict[str, tuple[tuple[float, float], ...]]
    """By user: when each request was due, and how long after it the first word came."""
    looks: tuple[Look, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """All four, in their order."""

    alone: Alone
    """A light user's request when nobody else is there."""
    traffic: Traffic
    measured: tuple[Measured, ...]

    @property
    def failed(self) -> int:
        """Requests without a complete answer."""
        return sum(one.asked - one.answered for one in self.measured)

    @property
    def holds(self) -> bool:
        """Everybody was answered, and backpressure did for the light users what it is for."""
        fifo, held = self.of(FIFO).light, self.of(HELD).light
        return not self.failed and fifo is not None and held is not None and held.p50 < CLEARLY * fifo.p50

    def of(self, strategy: Strategy) -> Measured:
        """What came of one strategy."""
        return next(one for one in self.measured if one.strategy is strategy)


OnLook = Callable[[Sequence[Measured]], None]
"""Is shown what there is so far: the strategies that are over, and the one under way."""


async def play(traffic: Traffic, on_look: OnLook | None = None) -> Story:
    """All strategies, one after the other."""
    alone = await _alone(traffic)
    over: list[Measured] = []
    for strategy in STRATEGIES:

        def seen(now: Measured, before: Sequence[Measured] = tuple(over)) -> None:
            if on_look is not None:
                on_look([*before, now])

        over.append(await _measure(strategy, traffic, seen))
    return Story(alone, traffic, tuple(over))


async def _alone(traffic: Traffic) -> Alone:
    """Ask once for a light user, as a measure of what is possible."""
    async with _Stage(FIFO, traffic) as stage:
        answer, alone = await stage.run.alone()
    if alone is None:
        raise RuntimeError(f"the mock engine did not answer: {answer.result}")
    return alone


async def _measure(strategy: Strategy, traffic: Traffic, seen: Callable[[Measured], None]) -> Measured:
    async with _Stage(strategy, traffic) as stage:
        async with asyncio.TaskGroup() as together:
            watching = together.create_task(_watch(stage, seen))
            window = await stage.run.go()
            watching.cancel()
        measured = stage.measured(window, ended=True)
    seen(measured)
    return measured


async def _watch(stage: _Stage, seen: Callable[[Measured], None]) -> None:
    while True:
        stage.look()
        seen(stage.measured(stage.run.now, ended=False))
        await asyncio.sleep(1 / LOOKS)


class _Stage:
    """A mock engine, a gateway that schedules by the strategy, and who will ask it; an async context manager."""

    def __init__(self, strategy: Strategy, traffic: Traffic) -> None:
        self._strategy = strategy
        self._plan = Plan(users=traffic.users(urgent=strategy.priority), model=MODEL, duration=LONGEST, seed=SEED)
        numbers: TimingNumbers = {**ENGINE, "by_priority": strategy.priority}
        self._engine = MockEngine(model=MODEL, **numbers)
        self._looks: list[Look] = []
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self._engine)
            config, registry = self._strategy.config(self._engine.url), CollectorRegistry()
            self._gateway = await opening.enter_async_context(build(config, registry=registry, random=Random(SEED)))
            url = await opening.enter_async_context(hosted(self._gateway, server_settings(config), registry))
            self.run = Run(self._plan, await opening.enter_async_context(Endpoint(url)))
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def look(self) -> None:
        """Note how long the lines are."""
        engine = self._engine.stats
        self._looks.append(Look(self.run.now, self._gateway.snapshot().queued, engine.waiting, engine.running))

    def measured(self, window: float, *, ended: bool) -> Measured:
        """What it has come to in `window` seconds."""
        tallies = self.run.tallies
        return Measured(
            strategy=self._strategy,
            ended=ended,
            seconds=window,
            asked=sum(tally.asked for tally in tallies.values()),
            answered=sum(tally.served for tally in tallies.values()),
            light=_spread([tallies[name] for name in LIGHT]),
            power=_spread([tallies[POWER]]),
            longest_queue=self._engine.stats.max_waiting,
            throughput=sum(tally.output_tokens for tally in tallies.values()) / window if window > 0 else 0.0,
            waits={
                name: tuple(zip(tally.samples.due, tally.samples.first, strict=True)) for name, tally in tallies.items()
            },
            looks=tuple(self._looks),
        )


def _spread(tallies: Sequence[Tally]) -> Spread | None:
    known = chain.from_iterable(tally.samples.first for tally in tallies)
    return spread(known, chain.from_iterable(tally.samples.censored for tally in tallies))
