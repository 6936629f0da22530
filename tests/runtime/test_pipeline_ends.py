"""The library's pipeline: those who give up, deadlines, shares, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Literal

import pytest

from headrace.core.limits import LimitRule
from headrace.core.settings import LimitSettings
from headrace.errors import (
    DeadlineExpired,
    Draining,
    HeadraceError,
    LimitExceeded,
)
from headrace.model import Arrived, Decision, Event, ServiceClass
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.prompts import PromptRequest
from headrace.runtime.worker_errors import WorkerError
from headrace.runtime.workers import EchoWorker, Worker
from headrace.testing import on_virtual_time
from tests.runtime.counting import Counting, ask, idle


@on_virtual_time
async def test_a_submission_can_be_given_up() -> None:
    """Cancelling it stops the worker; one who waits for it learns that it was cancelled."""
    model = Counting()
    async with Pipeline(model) as pipe:
        submission = pipe.try_submit(ask())
        await asyncio.sleep(0.5)
        submission.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submission
        await asyncio.sleep(0)
        assert model.cancelled == 1
        assert idle(pipe)


@on_virtual_time
async def test_a_caller_who_stops_waiting_gives_up_only_his_own_request() -> None:
    """A cancelled `submit` frees its place; with others on the same call the call goes on for them."""
    model = Counting()
    async with Pipeline(model, dedup="in_flight") as pipe:
        leader, follower = asyncio.create_task(pipe.submit(ask())), asyncio.create_task(pipe.submit(ask()))
        await asyncio.sleep(0.5)
        leader.cancel()
        assert (await follower).text == "q!"
        assert (model.calls, model.cancelled) == (1, 0)
        alone = asyncio.create_task(pipe.submit(ask()))
        await asyncio.sleep(0.5)
        alone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await alone
        await asyncio.sleep(0)
        assert (model.calls, model.cancelled) == (2, 1)
        assert idle(pipe)


@on_virtual_time
async def test_a_deadline_ends_the_request_wherever_it_is() -> None:
    """In the queue and at the worker: the caller is told on time and the worker is stopped."""
    model = Counting(100.0)
    loop = asyncio.get_running_loop()
    async with Pipeline(model, max_concurrent=1) as pipe:
        running, queued = pipe.try_submit(ask(deadline_secs=5)), pipe.try_submit(ask("q2", deadline_secs=3))
        with pytest.raises(DeadlineExpired):
            await queued
        assert loop.time() == pytest.approx(3.0)
        with pytest.raises(DeadlineExpired):
            await running
        assert loop.time() == pytest.approx(5.0)
        assert [letter.reason for letter in pipe.dlq] == ["deadline_expired"] * 2
        await asyncio.sleep(0)
        assert (model.calls, model.cancelled) == (1, 1)


@on_virtual_time
async def test_users_share_fairly() -> None:
    """One who sends two hundred requests at once does not make another wait for all of them; fifo would."""
    waits: dict[str, int] = {}
    policies: tuple[Literal["fair", "fifo"], ...] = ("fair", "fifo")
    for policy in policies:
        model = Counting()
        async with Pipeline(model, policy=policy, max_concurrent=4) as pipe:
            flood = [pipe.try_submit(ask(f"{n}", user="power", max_tokens=1)) for n in range(200)]
            await pipe.submit(ask("hello", user="light", max_tokens=2))
            waits[policy] = model.calls
            for submission in flood:
                submission.cancel()
    assert waits["fair"] <= 12
    assert waits["fifo"] > 200


@on_virtual_time
async def test_classes_weights_and_limits_are_heeded() -> None:
    """A class may come as its name; rate limits refuse with the time to wait."""
    limits = LimitSettings(per_user=LimitRule(requests_per_minute=2))
    async with Pipeline(EchoWorker(), limits=limits, weights={"vip": 2.0}) as pipe:
        await pipe.submit(ask(service_class=ServiceClass.BATCH))
        await pipe.submit(ask(service_class="interactive"))
        with pytest.raises(LimitExceeded) as caught:
            await pipe.submit(ask())
        assert caught.value.fault.retry_after == pytest.approx(60.0)
        assert len(pipe.dlq) == 0


@on_virtual_time
async def test_an_observer_sees_every_step() -> None:
    """Facts come with the decisions that followed."""
    seen: list[tuple[str, list[str]]] = []

    def watch(event: Event, decisions: list[Decision], now: float) -> None:
        seen.append((type(event).__name__, [type(decision).__name__ for decision in decisions]))
        if isinstance(event, Arrived):
            assert now == 0.0

    async with Pipeline(EchoWorker()) as pipe:
        pipe.on(watch)  # type: ignore[arg-type]
        await pipe.submit(ask())
        assert [name for name, _ in seen] == ["Arrived", "Finished"]
        assert seen[0][1][:2] == ["Join", "WakeAt"] or "Dispatch" in seen[0][1]
        assert "Settle" in seen[-1][1]


@on_virtual_time
async def test_leaving_the_block_lets_the_running_end() -> None:
    """Running calls have their grace, the waiting are told at once and kept as dead letters, later ones are refused."""
    model = Counting(10.0)
    async with Pipeline(model, max_concurrent=1) as pipe:
        running, queued = pipe.try_submit(ask("1")), pipe.try_submit(ask("2"))
    assert (await running).text == "1!"
    with pytest.raises(Draining):
        await queued
    with pytest.raises(Draining):
        await pipe.submit(ask())
    assert [letter.reason for letter in pipe.dlq] == ["shutting_down"]


@on_virtual_time
async def test_an_error_that_leaves_the_block_ends_the_running_at_once() -> None:
    """There is nobody left to wait for them."""
    model = Counting(10.0)
    with contextlib.suppress(LookupError):
        async with Pipeline(model) as pipe:
            running = pipe.try_submit(ask())
            await asyncio.sleep(1)
            raise LookupError
    with pytest.raises(Draining):
        await running
    assert model.cancelled == 1
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)


@on_virtual_time
async def test_everything_is_bounded_and_nothing_is_lost_in_a_storm() -> None:
    """Accepted = answered + failed + cancelled, whatever callers and workers do; afterwards nothing is held."""
    random = Random(3)

    async def moody(prompt: PromptRequest) -> AsyncIterator[str]:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(random.random())
            yield "x"
        if random.random() < 0.3:
            raise random.choice([WorkerError(status=500), TimeoutError(), KeyError()])

    async def caller(pipe: Pipeline) -> None:
        request = ask(str(random.randrange(20)), user=f"u{random.randrange(5)}", deadline_secs=random.random() * 5)
        await asyncio.sleep(random.random() * 20)
        with contextlib.suppress(HeadraceError, TimeoutError):
            async with asyncio.timeout(random.random() * 4):
                if random.random() < 0.5:
                    await pipe.submit(request)
                else:
                    async with contextlib.aclosing(pipe.stream(request)) as stream:
                        async for _ in stream:
                            await asyncio.sleep(random.random())

    workers: list[Worker | Callable[[PromptRequest], AsyncIterator[str]]] = [moody, moody]
    async with Pipeline(workers, dedup="full", max_concurrent=3, queue_size=10, random=Random(5)) as pipe:
        await asyncio.gather(*(caller(pipe) for _ in range(400)))
        await asyncio.sleep(0)
        totals = pipe.snapshot().totals
        assert totals["accepted"] == totals["answered"] + totals["failed"] + totals["cancelled"]
        assert totals["accepted"] + totals["refused"] == 400
        assert min(totals["answered"], totals["failed"], totals["cancelled"]) > 0
        assert idle(pipe)


def test_a_pipeline_needs_a_worker() -> None:
    """Nothing and something else than a worker are refused when it is made."""
    with pytest.raises(ValueError, match="needs a worker"):
        Pipeline([])
    with pytest.raises(TypeError, match="neither"):
        Pipeline([EchoWorker(), 3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no valid"):
        Pipeline(EchoWorker(), policy="no valid")  # type: ignore[arg-type]
