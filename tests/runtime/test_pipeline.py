"""The library's pipeline: answers, streams, sharing, retries, shedding, and an end that loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Literal

import pytest

from headrace.core.settings import Strategy
from headrace.errors import (
    CircuitOpen,
    HeadraceError,
    InvalidRequest,
    LimitExceeded,
    QueueFull,
    UpstreamError,
)
from headrace.model import Arrived, BreakerState, CacheResult, Decision, Event
from headrace.runtime.openai_worker import OpenAIWorker
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.prompts import PromptAnswer, PromptRequest
from headrace.runtime.worker_errors import WorkerError
from headrace.runtime.workers import EchoWorker
from headrace.testing import on_virtual_time
from tests.runtime.counting import Counting, ask, idle


@on_virtual_time
async def test_an_answer_says_where_it_comes_from() -> None:
    """Text, the request's own id, usage, worker, attempts and the time in the queue."""
    async with Pipeline({"local": EchoWorker()}) as pipe:
        answer = await pipe.submit(ask("Hello!", request_id="req-1", session="demo"))
    assert answer.usage is not None
    usage = answer.usage
    assert answer == PromptAnswer("Hello!", "req-1", usage, CacheResult.MISS, "local", 1, 0.0)
    assert (usage.prompt, usage.completion, usage.estimated) == (2, 2, True)


@on_virtual_time
async def test_ids_are_made_and_never_clash() -> None:
    """Requests without an id get one; two alive with the same id get different ones."""
    async with Pipeline(EchoWorker(delay=1), random=Random(1)) as pipe:
        requests = (ask(), ask(), ask(request_id="a"), ask(request_id="a"))
        answers = await asyncio.gather(*map(pipe.submit, requests))
    ids = [answer.request_id for answer in answers]
    assert len(set(ids)) == 4
    assert ids[2] == "a"


@on_virtual_time
async def test_a_stream_comes_piece_by_piece() -> None:
    """Each piece is there as soon as the worker has made it."""

    async def slow(prompt: PromptRequest) -> AsyncIterator[str]:
        for word in ("a", "b", "c"):
            await asyncio.sleep(1)
            yield word

    loop = asyncio.get_running_loop()
    async with Pipeline(slow) as pipe:
        seen = [(piece, loop.time()) async for piece in pipe.stream(ask())]
        assert idle(pipe)
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


@on_virtual_time
async def test_one_hundred_identical_requests_make_one_call() -> None:
    """Those who ask the same at the same time share the call and all get the answer; the first is its leader."""
    model = Counting()
    async with Pipeline(model, dedup="in_flight") as pipe:
        answers = await asyncio.gather(*(pipe.submit(ask(user=f"u{n}")) for n in range(100)))
        assert pipe.snapshot().totals["joined"] == 99
        await pipe.submit(ask())
    assert {answer.text for answer in answers} == {"q!"}
    assert [answer.shared for answer in answers] == [CacheResult.MISS] + [CacheResult.JOINED] * 99
    assert model.calls == 2, "what has ended is not remembered"


@on_virtual_time
async def test_even_an_instant_answer_is_shared() -> None:
    """A worker that needs no time is asked once by all who ask in the same turn of the loop."""
    async with Pipeline(EchoWorker(), dedup="in_flight") as pipe:
        await asyncio.gather(*(pipe.submit(ask()) for _ in range(100)))
        assert pipe.snapshot().totals["model_calls"] == 1


@on_virtual_time
async def test_finished_answers_are_remembered_for_their_time() -> None:
    """With `full`, an answer is given again until it is too old; it used no tokens then."""
    model = Counting()
    async with Pipeline(model, dedup="full", ttl_seconds=100.0) as pipe:
        first = await pipe.submit(ask())
        again = await pipe.submit(ask(user="other"))
        assert [piece async for piece in pipe.stream(ask())] == [first.text]
        assert (again.text, again.shared, again.usage, again.attempts) == (first.text, CacheResult.HIT, None, 0)
        await asyncio.sleep(101)
        assert (await pipe.submit(ask())).shared is CacheResult.MISS
    assert model.calls == 2


@pytest.mark.parametrize(("scope", "calls"), [("global", 1), ("tenant", 2), ("user", 3), ("session", 4)])
def test_answers_are_shared_only_within_their_scope(
    scope: Literal["global", "tenant", "user", "session"], calls: int
) -> None:
    """Among all, one tenant's, one user's, or one session's requests."""
    model = Counting()

    @on_virtual_time
    async def check() -> None:
        async with Pipeline(model, dedup="in_flight", dedup_scope=scope) as pipe:
            asked = [
                ask(tenant="a", user="x", session="1"),
                ask(tenant="a", user="x", session="2"),
                ask(tenant="a", user="y", session="2"),
                ask(tenant="b", user="y", session="2"),
            ]
            await asyncio.gather(*map(pipe.submit, asked))

    check()
    assert model.calls == calls


@on_virtual_time
async def test_what_differs_is_not_shared() -> None:
    """Another model, bound or metadata is another question."""
    model = Counting()
    async with Pipeline(model, dedup="in_flight") as pipe:
        asked = [ask(), ask(model="m"), ask(max_tokens=5), ask(metadata={"temperature": "0"}), ask("q2")]
        await asyncio.gather(*map(pipe.submit, asked))
    assert model.calls == len(asked)


@on_virtual_time
async def test_a_late_joiner_of_a_stream_gets_it_from_the_beginning() -> None:
    """First what was produced, then what comes; one who wants the whole joins as well."""
    said = asyncio.Event()

    async def halting(prompt: PromptRequest) -> AsyncIterator[str]:
        yield "a"
        yield "b"
        await said.wait()
        yield "c"

    async with Pipeline(halting, dedup="in_flight") as pipe:
        early = pipe.stream(ask())
        assert [await anext(early), await anext(early)] == ["a", "b"]
        late, whole = pipe.stream(ask()), asyncio.create_task(pipe.submit(ask()))
        assert [await anext(late), await anext(late)] == ["a", "b"]
        said.set()
        assert [await anext(early), await anext(late), (await whole).text] == ["c", "c", "abc"]
        assert (await whole).shared is CacheResult.JOINED
        await early.aclose()
        await late.aclose()


@on_virtual_time
async def test_leaving_the_loop_stops_the_worker() -> None:
    """A stream that nobody reads to its end is cancelled, its worker closed, and nobody is blamed."""
    closed = asyncio.Event()

    async def endless(prompt: PromptRequest) -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
                await asyncio.sleep(1)
        finally:
            closed.set()

    async with Pipeline(endless) as pipe:
        async for _ in pipe.stream(ask()):
            break
        await closed.wait()
        assert idle(pipe)
        assert pipe.snapshot().totals["cancelled"] == 1
        assert len(pipe.dlq) == 0
        assert pipe.snapshot().instances[0].reliability == 1.0


@on_virtual_time
async def test_a_slow_reader_slows_the_worker_down() -> None:
    """At most so many pieces wait for a reader: then the iterator is not asked for more, and goes on when it reads."""
    made = 0

    async def eager(prompt: PromptRequest) -> AsyncIterator[str]:
        nonlocal made
        for made in range(1, 2001):
            yield f"{made} "

    async with Pipeline(eager) as pipe:
        stream = pipe.stream(ask())
        first = await anext(stream)
        await asyncio.sleep(100)
        assert made <= 260
        rest = [piece async for piece in stream]
    assert "".join([first, *rest]) == "".join(f"{n} " for n in range(1, 2001))


@on_virtual_time
async def test_another_worker_takes_over() -> None:
    """What one worker cannot answer the next one does; the answer says how many were asked."""
    broken = Counting(0.0)
    broken.error = WorkerError(status=500)
    async with Pipeline({"broken": broken, "sound": EchoWorker()}, random=Random(7)) as pipe:
        answers = [await pipe.submit(ask(f"{n}")) for n in range(4)]
    assert [answer.text for answer in answers] == ["0", "1", "2", "3"]
    assert {answer.instance for answer in answers} == {"sound"}
    assert max(answer.attempts for answer in answers) == 2
    assert len(pipe.dlq) == 0


@on_virtual_time
async def test_work_is_spread_over_workers() -> None:
    """Several workers are several instances: all of them work, none beyond its limit."""
    models = [Counting(), Counting(), Counting()]
    async with Pipeline(models, max_concurrent=2) as pipe:
        await asyncio.gather(*(pipe.submit(ask(f"{n}")) for n in range(12)))
    assert [model.calls for model in models] == [4, 4, 4]
    assert asyncio.get_running_loop().time() == pytest.approx(2.0)


STORY = "It was a dark and stormy night, and the rain fell in torrents. "


def turn(name: str, number: int) -> str:
    """A long conversation's text so far."""
    return "".join(f"{name}, part {part}: " + STORY * 20 for part in range(number))


@on_virtual_time
async def test_a_conversation_comes_back_to_the_worker_that_has_read_it() -> None:
    """Four long conversations by turns: each stays where its first turn was answered, and both workers are used."""
    async with Pipeline({"a": EchoWorker(), "b": EchoWorker()}) as pipe:
        homes = {name: (await pipe.submit(ask(turn(name, 1)))).instance for name in "wxyz"}
        for number in (2, 3):
            for name in "zxyw":
                assert (await pipe.submit(ask(turn(name, number)))).instance == homes[name]
    assert sorted(homes.values()) == ["a", "a", "b", "b"]


@on_virtual_time
async def test_short_prompts_of_a_session_stay_together() -> None:
    """Their text is too short to be known again; without a session they go by turns."""
    async with Pipeline({"a": EchoWorker(), "b": EchoWorker()}) as pipe:
        kept = {(await pipe.submit(ask(f"and what of {n}?", session="s", user="ann"))).instance for n in range(6)}
        spread = {(await pipe.submit(ask(f"and what of {n}?"))).instance for n in range(6)}
    assert (len(kept), spread) == (1, {"a", "b"})


@on_virtual_time
async def test_prompts_are_hashed_only_where_it_matters() -> None:
    """One worker, or a strategy that does not look at it: no beginning is worked out."""
    seen: list[tuple[int, ...]] = []

    def look(event: Event, decisions: Sequence[Decision], now: float) -> None:
        del decisions, now
        if isinstance(event, Arrived):
            seen.append(event.request.prefix)

    for workers, strategy in (([EchoWorker()], "fair_load"), ([EchoWorker(), EchoWorker()], "round_robin")):
        async with Pipeline(workers, strategy=Strategy(strategy)) as pipe:
            pipe.on(look)
            await pipe.submit(ask(turn("u", 2)))
    assert seen == [(), ()]


@on_virtual_time
async def test_a_prompt_no_server_takes_is_its_callers_fault(caplog: pytest.LogCaptureFixture) -> None:
    """It is refused without a call, and without a word in the log: it is no mistake of the gateway's."""
    async with Pipeline(OpenAIWorker("http://127.0.0.1:9", model="m"), retries=0) as pipe:
        with pytest.raises(InvalidRequest, match="max_completion_tokens"):
            await pipe.submit(ask(max_tokens=0))
        assert not pipe.dlq.drain()
    assert not caplog.records


@pytest.mark.parametrize(
    ("error", "raised", "buried"),
    [
        (WorkerError(status=503), UpstreamError, "inference_failure"),
        (TimeoutError(), UpstreamError, "inference_timeout"),
        (ValueError("secret"), UpstreamError, "inference_failure"),
        (WorkerError("Too long.", status=413), InvalidRequest, None),
        (WorkerError(status=429, retry_after=30.0), LimitExceeded, "inference_failure"),
    ],
)
def test_a_failure_raises_whose_fault_it_is(error: Exception, raised: type[HeadraceError], buried: str | None) -> None:
    """The exception tells, and what was not the caller's fault lies in the dead letter queue with the request."""

    @on_virtual_time
    async def check() -> None:
        model = Counting(0.0)
        model.error = error
        async with Pipeline(model, retries=0) as pipe:
            with pytest.raises(raised) as caught:
                await pipe.submit(ask(request_id="r", user="u", metadata={"k": "v"}))
            assert "secret" not in str(caught.value)
            letters = pipe.dlq.drain()
            assert [letter.reason for letter in letters] == ([buried] if buried else [])
            for letter in letters:
                assert (letter.request_id, letter.user, len(letter.attempts)) == ("r", "u", 1)
                assert letter.body is not None
                assert PromptRequest.read(letter.body) == ask(request_id="r", user="u", metadata={"k": "v"})

    check()


@on_virtual_time
async def test_a_breaker_opens_and_refuses_at_once() -> None:
    """After five failures nobody is asked any more; after the recovery time one request finds out."""
    model = Counting(0.0)
    model.error = WorkerError(status=500)
    async with Pipeline(model, retries=0, cooldown_seconds=0, recovery_timeout=60) as pipe:
        for _ in range(5):
            with pytest.raises(UpstreamError):
                await pipe.submit(ask())
        assert pipe.snapshot().instances[0].breaker is BreakerState.OPEN
        with pytest.raises(CircuitOpen) as caught:
            await pipe.submit(ask())
        assert caught.value.fault.retry_after == pytest.approx(60.0)
        assert model.calls == 5
        model.error = None
        await asyncio.sleep(60)
        assert (await pipe.submit(ask())).text == "q!"
        assert pipe.snapshot().instances[0].breaker is BreakerState.CLOSED
        assert [letter.reason for letter in pipe.dlq] == ["inference_failure"] * 5 + ["circuit_open"]
        totals = pipe.snapshot().totals
        assert totals["accepted"] == totals["answered"] + totals["failed"] == 6
        assert totals["refused"] == 1


@on_virtual_time
async def test_try_submit_takes_or_sheds_at_once() -> None:
    """Nothing is waited for: what fits runs or queues, the rest is shed and can be found in the dead letter queue."""
    model = Counting()
    async with Pipeline(model, max_concurrent=1, queue_size=2) as pipe:
        taken = [pipe.try_submit(ask(f"{n}", request_id=f"r{n}")) for n in range(5)]
        assert [submission.accepted for submission in taken] == [True, True, True, False, False]
        assert next(stage for stage in pipe.stages if stage.name == "inference")[1:] == (2, 2)
        assert [(letter.request_id, letter.reason) for letter in pipe.dlq.drain()] == [
            ("r3", "backpressure:inference"),
            ("r4", "backpressure:inference"),
        ]
        assert [submission.done for submission in taken] == [False, False, False, True, True]
        assert [(await submission).text for submission in taken[:3]] == ["0!", "1!", "2!"]
        assert (await taken[0]).text == "0!", "it can be awaited again"
        with pytest.raises(QueueFull):
            await taken[3]
