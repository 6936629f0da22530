"""What the small parts cost, measured by pytest-benchmark: `pytest benchmarks`, or with everything else `make bench`.

A measurement's docstring is its row in the table. `calls` are those that one measured action makes, `aim` is in seconds
for one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from headrace import CircuitBreaker, Deduplicator, EchoWorker, Pipeline, PromptRequest, RateLimiter
from headrace.core.breaker import Breaker
from headrace.core.limits import Denied, Limiter, LimitRule

ROUNDS, CALLS, SUBMITTED, IDENTICAL, ECHOES = 9, 10_000, 500, 100, 1_000
Measure = Callable[[Callable[[], Awaitable[object]], int, float | None], None]


@pytest.fixture
def awaited(benchmark: BenchmarkFixture) -> Iterator[Measure]:
    """Measures something that is awaited so many times in a row."""
    with asyncio.Runner() as runner:

        def measure(call: Callable[[], Awaitable[object]], calls: int, aim: float | None) -> None:
            async def many() -> None:
                for _ in range(calls):
                    await call()

            benchmark.extra_info.update(calls=calls, aim=aim)
            benchmark.pedantic(lambda: runner.run(many()), rounds=ROUNDS)

        yield measure


async def answer(question: str) -> str:
    return question


def test_limiter(benchmark: BenchmarkFixture) -> None:
    """limiter: check and take (sliding window)"""
    limiter, now = Limiter(), 0.0
    keys = [("user:alice", LimitRule(requests_per_minute=1000))]

    def check() -> None:
        nonlocal now
        now += 0.1
        assert not isinstance(limiter.take(keys, 1, now), Denied)

    benchmark.extra_info["aim"] = 0.5e-6
    benchmark.pedantic(check, rounds=ROUNDS, iterations=CALLS)


def test_breaker(benchmark: BenchmarkFixture) -> None:
    """breaker check (ask, pass, succeed)"""
    breaker = Breaker()

    def check() -> None:
        if breaker.allows(1.0):
            breaker.success(breaker.acquire(1.0))

    benchmark.extra_info["aim"] = 0.3e-6
    benchmark.pedantic(check, rounds=ROUNDS, iterations=CALLS)


def test_deduplicator(awaited: Measure) -> None:
    """Deduplicator, hit"""
    shared = Deduplicator(answer, ttl_seconds=3600.0)
    awaited(lambda: shared("q"), CALLS, 2e-6)


def test_circuit_breaker(awaited: Measure) -> None:
    """CircuitBreaker around a coroutine"""
    guarded = CircuitBreaker(answer)
    awaited(lambda: guarded("q"), CALLS, None)


def test_rate_limiter(awaited: Measure) -> None:
    """RateLimiter around a coroutine"""
    limited = RateLimiter(answer, requests_per_minute=10_000_000)
    awaited(lambda: limited("q"), CALLS, None)


def test_try_submit_queued(benchmark: BenchmarkFixture) -> None:
    """try_submit, queued"""
    try_submit(benchmark, SUBMITTED + 2)


def test_try_submit_shed(benchmark: BenchmarkFixture) -> None:
    """try_submit, shed into the dead letter queue"""
    try_submit(benchmark, 1)


def try_submit(benchmark: BenchmarkFixture, queue_size: int) -> None:
    """Behind a worker that is busy."""
    requests = [PromptRequest(f"{n}") for n in range(SUBMITTED)]

    async def opened() -> Pipeline:
        pipe = await Pipeline(EchoWorker(delay=3600), max_concurrent=1, queue_size=queue_size).__aenter__()
        pipe.try_submit(PromptRequest("running"))
        pipe.try_submit(PromptRequest("waiting"))
        return pipe

    async def submit(pipe: Pipeline) -> None:
        for request in requests:
            pipe.try_submit(request)

    with asyncio.Runner() as runner:
        benchmark.extra_info.update(calls=SUBMITTED, aim=10e-6)
        benchmark.pedantic(
            lambda pipe: runner.run(submit(pipe)),
            setup=lambda: ((runner.run(opened()),), {}),
            teardown=lambda pipe: runner.run(pipe.close()),
            rounds=ROUNDS,
        )


def test_identical(awaited: Measure) -> None:
    """100 identical concurrent requests, 1 model call"""

    async def ask() -> None:
        async with Pipeline(EchoWorker(), dedup="in_flight") as pipe:
            await asyncio.gather(*(pipe.submit(PromptRequest("q")) for _ in range(IDENTICAL)))
            assert pipe.snapshot().totals["model_calls"] == 1

    awaited(ask, 1, 1e-3)


def test_echo(awaited: Measure) -> None:
    """1,000 concurrent echo calls"""

    async def ask() -> None:
        async with Pipeline(EchoWorker(), max_concurrent=ECHOES, queue_size=ECHOES) as pipe:
            await asyncio.gather(*(pipe.submit(PromptRequest("q")) for _ in range(ECHOES)))

    awaited(ask, 1, 15e-3)
