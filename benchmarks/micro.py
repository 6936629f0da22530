"""The small parts: what a check, a hit, a submission cost.

Each figure is the best of several rounds, in the process's own CPU time: nothing here waits, and other processes do not
count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from benchmarks.report import Report
from headrace import CircuitBreaker, Deduplicator, EchoWorker, Pipeline, PromptRequest, RateLimiter
from headrace.core.breaker import Breaker
from headrace.core.limits import Denied, Limiter, LimitRule

ECHOES = 1000
IDENTICAL = 100


def run(quick: bool = False) -> Report:
    """Measure everything; `quick` takes fewer rounds."""
    rounds = 3 if quick else 9
    report = Report("Micro", ("what", "takes", "aim"))

    def add(name: str, what: str, seconds: float, aim: str = "") -> None:
        shown = f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} µs"
        report.rows.append((what, shown, aim))
        report.numbers[name] = seconds

    add("limiter_check", "limiter: check and take (sliding window)", limiter_check(rounds), "< 1 µs")
    add("breaker_check", "breaker check (ask, pass, succeed)", breaker_check(rounds), "< 1 µs")
    wrapped = asyncio.run(wrappers(rounds))
    add("dedup_hit", "Deduplicator, hit", wrapped["dedup"], "< 3 µs")
    add("breaker_call", "CircuitBreaker around a coroutine", wrapped["breaker"])
    add("limiter_call", "RateLimiter around a coroutine", wrapped["limiter"])
    add("try_submit_queued", "try_submit, queued", asyncio.run(try_submit(rounds, room=True)), "a few µs")
    add("try_submit_shed", "try_submit, shed into the dead letter queue", asyncio.run(try_submit(rounds, room=False)))
    seconds, calls = asyncio.run(identical(rounds))
    add("identical", f"{IDENTICAL} identical concurrent requests ({calls} model call)", seconds)
    report.numbers["identical_calls"] = calls
    add("echo", f"{ECHOES:,} concurrent echo calls", asyncio.run(echo(rounds)), "< 30 ms")
    return report


def best(rounds: int, times: int, action: Callable[[], object]) -> float:
    """Seconds for one `action`, in the best of `rounds` of `times` actions."""
    found = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(times):
            action()
        found = min(found, (time.process_time() - begun) / times)
    return found


async def best_awaited(rounds: int, times: int, action: Callable[[], Awaitable[object]]) -> float:
    """The same for what is awaited."""
    found = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(times):
            await action()
        found = min(found, (time.process_time() - begun) / times)
    return found


def limiter_check(rounds: int) -> float:
    limiter, now = Limiter(), 0.0
    keys = [("user:alice", LimitRule(requests_per_minute=1000))]

    def check() -> None:
        nonlocal now
        now += 0.1
        assert not isinstance(limiter.take(keys, 1, now), Denied)

    return best(rounds, 10_000, check)


def breaker_check(rounds: int) -> float:
    breaker = Breaker()

    def check() -> None:
        if breaker.allows(1.0):
            breaker.success(breaker.acquire(1.0))

    return best(rounds, 10_000, check)


async def wrappers(rounds: int) -> dict[str, float]:
    async def fn(question: str) -> str:
        return question

    shared = Deduplicator(fn, ttl_seconds=3600.0)
    await shared("q")
    guarded = CircuitBreaker(fn)
    limited = RateLimiter(fn, requests_per_minute=10_000_000)
    return {
        "dedup": await best_awaited(rounds, 10_000, lambda: shared("q")),
        "breaker": await best_awaited(rounds, 10_000, lambda: guarded("q")),
        "limiter": await best_awaited(rounds, 10_000, lambda: limited("q")),
    }


async def try_submit(rounds: int, *, room: bool) -> float:
    """Seconds of one call, behind a worker that is busy; with room in the queue, or none."""
    found, count = float("inf"), 500
    for _ in range(rounds):
        async with Pipeline(EchoWorker(delay=3600), max_concurrent=1, queue_size=count + 2 if room else 1) as pipe:
            pipe.try_submit(PromptRequest("running"))
            pipe.try_submit(PromptRequest("waiting"))
            requests = [PromptRequest(f"{n}") for n in range(count)]
            begun = time.process_time()
            for request in requests:
                pipe.try_submit(request)
            found = min(found, (time.process_time() - begun) / count)
            await pipe.close()
    return found


async def identical(rounds: int) -> tuple[float, int]:
    """Seconds for all of them together, and how many model calls they made."""
    found, calls = float("inf"), 0
    for _ in range(rounds):
        async with Pipeline(EchoWorker(), dedup="in_flight") as pipe:
            begun = time.process_time()
            await asyncio.gather(*(pipe.submit(PromptRequest("q")) for _ in range(IDENTICAL)))
            found = min(found, time.process_time() - begun)
            calls = max(calls, pipe.snapshot().totals["model_calls"])
    return found, calls


async def echo(rounds: int) -> float:
    """Seconds for all of them together."""
    found = float("inf")
    async with Pipeline(EchoWorker(), max_concurrent=ECHOES, queue_size=ECHOES) as pipe:
        for _ in range(rounds):
            begun = time.process_time()
            await asyncio.gather(*(pipe.submit(PromptRequest("q")) for _ in range(ECHOES)))
            found = min(found, time.process_time() - begun)
    return found
