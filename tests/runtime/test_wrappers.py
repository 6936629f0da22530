"""The rules one by one, around any async callable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest

from headrace.errors import (
    CallerError,
    CircuitOpen,
    Draining,
    InvalidRequest,
    LimitExceeded,
    UpstreamError,
    invalid_request,
)
from headrace.model import BreakerState
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.prompts import PromptRequest
from headrace.runtime.worker_errors import WorkerError
from headrace.runtime.workers import EchoWorker
from headrace.runtime.wrappers import CircuitBreaker, Deduplicator, LoadBalancedWorker, RateLimiter, RetryPolicy
from headrace.testing import on_virtual_time


class Service:
    """An async callable that takes a second, counts its calls and raises what it is given."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.running = 0
        self.most = 0

    async def __call__(self, question: str = "q") -> str:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(1)
        finally:
            self.running -= 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return f"{question}!"


def state(guarded: CircuitBreaker[..., str]) -> str:
    """The breaker's state at this moment."""
    return guarded.state


def now() -> float:
    """The virtual clock."""
    return asyncio.get_running_loop().time()


# ------------------------------------------------------------------------------------------ Deduplicator


@on_virtual_time
async def test_identical_calls_run_once() -> None:
    """A hundred who ask the same at once share one run; another question has its own."""
    service = Service()
    shared = Deduplicator(service)
    answers = await asyncio.gather(*(shared("a") for _ in range(100)), shared("b"))
    assert set(answers) == {"a!", "b!"}
    assert (service.calls, shared.calls, shared.joined, shared.hits) == (2, 2, 99, 0)
    await shared("a")
    assert service.calls == 3, "nothing is remembered unless asked for"


@on_virtual_time
async def test_results_are_remembered_for_their_time_and_within_bounds() -> None:
    """A result lives for its ttl; the least recently used goes when there are too many."""
    service = Service()
    shared = Deduplicator(service, ttl_seconds=10, max_entries=2, clock=now)
    for question in ("a", "b", "a", "c", "a", "b"):
        await shared(question)
    assert (service.calls, shared.hits) == (4, 2), "b was the least recently used when c came"
    await asyncio.sleep(10)
    await shared("a")
    assert service.calls == 5


@on_virtual_time
async def test_a_leader_who_leaves_does_not_take_the_others_along() -> None:
    """The run belongs to nobody; only when the last caller has left is it cancelled, and then tried anew."""
    service = Service()
    shared = Deduplicator(service)
    leader, follower = asyncio.create_task(shared()), asyncio.create_task(shared())
    await asyncio.sleep(0.5)
    leader.cancel()
    assert await follower == "q!"
    both = [asyncio.create_task(shared()) for _ in range(2)]
    await asyncio.sleep(0.5)
    for task in both:
        task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (service.calls, service.running) == (2, 0)
    assert await shared() == "q!"
    assert service.calls == 3


@on_virtual_time
async def test_failures_are_shared_but_not_remembered() -> None:
    """All who waited get the error; the next call tries again."""
    service = Service(LookupError())
    shared = Deduplicator(service, ttl_seconds=100, clock=now)
    results = await asyncio.gather(shared(), shared(), return_exceptions=True)
    assert [type(result) for result in results] == [LookupError, LookupError]
    assert await shared() == "q!"
    assert service.calls == 2


@on_virtual_time
async def test_what_is_identical_can_be_said() -> None:
    """By a key of one's own, by keyword arguments in any order, and for prompts by what they ask."""
    calls = 0

    async def look(a: int, b: int = 0) -> int:
        nonlocal calls
        calls += 1
        return a + b

    parity = Deduplicator(look, key=lambda a, b=0: a % 2, ttl_seconds=9, clock=now)
    assert [await parity(1), await parity(3)] == [1, 1]
    named = Deduplicator(look, ttl_seconds=9, clock=now)
    assert [await named(a=1, b=2), await named(b=2, a=1)] == [3, 3]
    assert calls == 2

    async def infer(prompt: PromptRequest) -> str:
        return prompt.user

    asked = Deduplicator(infer, ttl_seconds=9, clock=now)
    assert [await asked(PromptRequest("q", user="a")), await asked(PromptRequest("q", user="b"))] == ["a", "a"]


# ---------------------------------------------------------------------------------------- CircuitBreaker


@on_virtual_time
async def test_a_breaker_opens_and_finds_out_with_one_call() -> None:
    """After so many failures in a row nobody is asked; after the recovery time exactly one is, and closes it."""
    service = Service(*(OSError() for _ in range(3)))
    guarded = CircuitBreaker(service, threshold=3, recovery_timeout=60, clock=now)
    for _ in range(3):
        with pytest.raises(OSError):  # noqa: PT011  # which one does not matter
            await guarded()
    assert state(guarded) == BreakerState.OPEN
    with pytest.raises(CircuitOpen) as caught:
        await guarded()
    assert caught.value.fault.retry_after == pytest.approx(60)
    await asyncio.sleep(60)
    assert state(guarded) == BreakerState.HALF_OPEN
    probe, other = asyncio.create_task(guarded()), asyncio.create_task(guarded())
    with pytest.raises(CircuitOpen):
        await other
    assert await probe == "q!"
    assert state(guarded) == BreakerState.CLOSED
    assert service.calls == 4


@on_virtual_time
async def test_only_real_failures_count() -> None:
    """The caller's faults, limits and cancellations neither open a breaker nor keep a probe's place."""
    errors = (InvalidRequest(invalid_request("no")), WorkerError(status=429), WorkerError(status=404))
    guarded = CircuitBreaker(Service(*errors), threshold=1, clock=now)
    for _ in errors:
        with pytest.raises((CallerError, WorkerError)):
            await guarded()
    leaving = asyncio.create_task(guarded())
    await asyncio.sleep(0.5)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert state(guarded) == BreakerState.CLOSED
    strict = CircuitBreaker(Service(LookupError()), threshold=1, counts=lambda error: False, clock=now)
    with pytest.raises(LookupError):
        await strict()
    assert state(strict) == BreakerState.CLOSED


@on_virtual_time
async def test_a_cancelled_probe_gives_its_place_back() -> None:
    """The next call may find out at once; and a reset closes it."""
    guarded = CircuitBreaker(Service(OSError(), None), threshold=1, recovery_timeout=10, clock=now)
    with pytest.raises(OSError):  # noqa: PT011
        await guarded()
    await asyncio.sleep(10)
    probe = asyncio.create_task(guarded())
    await asyncio.sleep(0.5)
    probe.cancel()
    await asyncio.sleep(0)
    assert state(guarded) == BreakerState.HALF_OPEN
    guarded.reset()
    assert state(guarded) == BreakerState.CLOSED
    assert await guarded() == "q!"


# ------------------------------------------------------------------------------------------- RateLimiter


@on_virtual_time
async def test_the_eleventh_call_of_a_minute_is_refused() -> None:
    """With the exact time to wait; a minute after the first there is room again, for each key apart."""
    limited = RateLimiter(Service(), requests_per_minute=10, key=lambda question="q": question, clock=now)
    for _ in range(10):
        await limited("a")
    with pytest.raises(LimitExceeded, match="window resets in 50000 ms") as caught:
        await limited("a")
    assert caught.value.fault.retry_after == pytest.approx(50)
    assert await limited("b") == "b!"
    await asyncio.sleep(49)
    assert await limited("a") == "a!"


@on_virtual_time
async def test_a_limiter_may_wait_instead() -> None:
    """Waiting calls go on when there is room, not before; too many of them are refused."""
    limited = RateLimiter(Service(), requests_per_minute=2, wait=True, max_waiting=1, clock=now)
    calls = [asyncio.create_task(limited()) for _ in range(4)]
    await asyncio.sleep(0.5)
    assert limited.waiting == 1
    with pytest.raises(LimitExceeded):
        await calls[3]
    assert await calls[2] == "q!"
    assert now() == pytest.approx(61)
    assert limited.waiting == 0


@on_virtual_time
async def test_concurrency_is_a_lease() -> None:
    """So many at a time; a call that fails or is cancelled makes room as well."""
    service = Service(OSError())
    limited = RateLimiter(service, concurrency=2, wait=True, clock=now)
    results = await asyncio.gather(*(limited() for _ in range(5)), return_exceptions=True)
    assert service.most == 2
    assert sum(isinstance(result, OSError) for result in results) == 1
    leaving = asyncio.create_task(limited())
    await asyncio.sleep(0.5)
    leaving.cancel()
    await asyncio.sleep(0)
    refusing = RateLimiter(service, concurrency=1, clock=now)
    first = asyncio.create_task(refusing())
    await asyncio.sleep(0)
    with pytest.raises(LimitExceeded, match="concurrency"):
        await refusing()
    assert await first == "q!"


# ------------------------------------------------------------------------------------------- RetryPolicy


@on_virtual_time
async def test_attempts_go_on_until_one_succeeds() -> None:
    """With back-off that doubles, of which the upper half is chance."""
    service = Service(WorkerError(status=500), TimeoutError())
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    policy = RetryPolicy(service, attempts=3, backoff=1.0, random=Random(1), sleep=sleep)
    assert await policy("a") == "a!"
    assert service.calls == 3
    assert 0.5 <= waits[0] <= 1.0 <= waits[1] <= 2.0


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (WorkerError(status=503), 3),
        (WorkerError(status=501), 1),
        (WorkerError(status=400), 1),
        (ConnectionResetError(), 3),
        (InvalidRequest(invalid_request("no")), 1),
        (LookupError(), 1),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, calls: int) -> None:
    """The caller's faults and bugs are raised at once; the last error is what the caller gets."""
    service = Service(*([error] * 3))

    @on_virtual_time
    async def check() -> None:
        with pytest.raises(type(error)):
            await RetryPolicy(service)()

    check()
    assert service.calls == calls


@on_virtual_time
async def test_a_wait_that_was_asked_for_is_kept() -> None:
    """`retry_after` is waited exactly; one longer than one would wait is raised at once."""
    service = Service(WorkerError(status=429, retry_after=7.0), WorkerError(status=429, retry_after=900.0))
    with pytest.raises(WorkerError) as caught:
        await RetryPolicy(service, attempts=5)()
    assert caught.value.retry_after == 900.0
    assert now() == pytest.approx(1 + 7 + 1)


@on_virtual_time
async def test_what_is_tried_again_can_be_said() -> None:
    """By kinds or by a function; and a policy without an attempt is a mistake."""
    assert await RetryPolicy(Service(LookupError()), retry_on=(LookupError,))() == "q!"
    assert await RetryPolicy(Service(LookupError()), retry_on=lambda error: True)() == "q!"
    with pytest.raises(ValueError, match="at least one"):
        RetryPolicy(Service(), attempts=0)


# ------------------------------------------------------------------------------------ LoadBalancedWorker


@on_virtual_time
async def test_several_workers_are_one() -> None:
    """The failing one is passed over, then left alone; streams and whole answers both work."""
    calls = {"bad": 0, "good": 0}

    async def bad(prompt: PromptRequest) -> str:
        calls["bad"] += 1
        raise WorkerError(status=500)

    async def good(prompt: PromptRequest) -> AsyncIterator[str]:
        calls["good"] += 1
        yield prompt.input
        yield "!"

    several = LoadBalancedWorker({"bad": bad, "good": good}, breaker_threshold=3, random=Random(2))
    async with several:
        async with Pipeline(several) as pipe:
            for _ in range(20):
                assert (await pipe.submit(PromptRequest("q"))).text == "q!"
            assert [piece async for piece in pipe.stream(PromptRequest("q"))] == ["q", "!"]
        assert await several(PromptRequest("q")) == "q!"
        assert 1 <= calls["bad"] <= 3
        assert calls["good"] == 22
        assert several.snapshot().instances[0].reliability < 1.0
    with pytest.raises(Draining):
        await several(PromptRequest("after its end"))


@on_virtual_time
async def test_when_none_of_them_can_the_error_says_so() -> None:
    """The outer pipeline judges the whole set like one worker."""

    async def bad(prompt: PromptRequest) -> str:
        raise WorkerError(status=500)

    async with Pipeline(LoadBalancedWorker([bad, bad], cooldown_seconds=0), retries=0) as pipe:
        with pytest.raises(UpstreamError):
            await pipe.submit(PromptRequest("q"))
        assert [letter.reason for letter in pipe.dlq] == ["inference_failure"]


@on_virtual_time
async def test_wrappers_go_into_each_other() -> None:
    """Retries around a breaker around a limit around a service, shared by all; and the whole as a worker."""
    service = Service(OSError(), OSError())
    careful: Callable[[str], Awaitable[str]] = Deduplicator(
        RetryPolicy(
            CircuitBreaker(RateLimiter(service, requests_per_minute=100, clock=now), clock=now),
            retry_on=(OSError,),
        )
    )
    assert set(await asyncio.gather(careful("a"), careful("a"))) == {"a!"}
    assert service.calls == 3

    async def infer(prompt: PromptRequest) -> str:
        return await careful(prompt.input)

    async with Pipeline([RetryPolicy(infer), EchoWorker()]) as pipe:
        assert (await pipe.submit(PromptRequest("z"))).text in ("z", "z!")
