"""Retries, seen from outside: which engines were asked, when, and what the caller got."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from time import time

import pytest

from headrace.model import BreakerState
from headrace.testing import ScriptedConnection, ScriptedEngine, Step, steps
from tests.e2e.client import chat
from tests.e2e.front import front
from tests.runtime.virtual import later, virtually

OWN_COOLDOWN = 0.2
BACKOFF = 0.5
BROKEN = steps.json(500, {"error": {"message": "boom"}})


def _limited(times: list[float], *values: str) -> Step:
    """429 with these `Retry-After` headers, dates as of then; notes when it was asked."""

    async def answer(conn: ScriptedConnection) -> None:
        times.append(asyncio.get_running_loop().time())
        dated = [("retry-after", _dated(value)) for value in values]
        await conn.json(429, {"error": {"message": "slow down"}}, dated)

    return answer


def _good(times: list[float]) -> Step:
    async def answer(conn: ScriptedConnection) -> None:
        times.append(asyncio.get_running_loop().time())
        await conn.answer("fine")

    return answer


def _dated(value: str) -> str:
    """`in N` as the date that is N seconds from now; anything else as it is."""
    return formatdate(time() + float(value[3:]), usegmt=True) if value.startswith("in ") else value


@pytest.mark.parametrize(
    ("values", "least"),
    [
        (["2"], 2.0),
        (["in 30"], 20.0),  # dates are of the real clock, which goes on while a busy machine does other things
        (["in -60"], 0.0),
        (["0"], 0.0),
        (["-5"], 0.0),
        (["1.5"], 1.5),
        (["abc"], 0.0),
        (["NaN"], 0.0),
        (["inf"], 0.0),
        (["1", "3"], 3.0),
        ([], 0.0),
    ],
)
@virtually
async def test_retry_after_is_obeyed_in_every_form(values: list[str], least: float) -> None:
    """The next try comes when the engine asked for it, a back-off later at most; nonsense means the own cooldown."""
    times: list[float] = []
    async with ScriptedEngine(_good(times)) as engine:
        engine.once(_limited(times, *values))
        async with front(
            engine,
            load_balancer={"cooldown_seconds": OWN_COOLDOWN},
            routing={"max_retries": 1, "backoff_seconds": BACKOFF, "longest_wait_seconds": 60},
        ) as gate:
            heard = await gate.client.ask(chat())
            await gate.idle()

    assert (heard.status, heard.text, heard.headers["x-headrace-attempts"]) == (200, "fine", "2")
    waited = times[1] - times[0]
    longest = 30.0 if values == ["in 30"] else max(least, OWN_COOLDOWN)
    assert max(least - 0.1, OWN_COOLDOWN) <= waited <= longest + BACKOFF + 0.1


@pytest.mark.parametrize("value", ["99999999", "1900000000"])
@virtually
async def test_an_absurd_retry_after_is_capped_and_told_at_once(value: str) -> None:
    """A wait beyond what a request waits is the caller's to wait: 429 at once, with the capped number."""
    times: list[float] = []
    async with ScriptedEngine(_limited(times, value)) as engine, front(engine, routing={"max_retries": 1}) as gate:
        begun = asyncio.get_running_loop().time()
        heard = await gate.client.ask(chat(), {"x-headrace-deadline": "10"})
        took = asyncio.get_running_loop().time() - begun
        await gate.idle()

    assert (heard.status, heard.headers["retry-after"], heard.error["code"]) == (429, "60", "rate_limit_exceeded")
    assert len(engine.requests) == 1
    assert took < 0.1


async def test_a_stream_is_not_retried_once_content_was_sent() -> None:
    """After the first content the caller gets that much, an error event and no `[DONE]`; nobody else is asked."""
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        first.once([steps.role(), steps.chunk("Hello "), steps.cut()])
        async with front(first, second, load_balancer={"strategy": "round_robin"}) as gate:
            heard = await gate.client.ask(chat(stream=True))
            await gate.idle()

    assert (heard.status, heard.text, heard.done) == (200, "Hello ", False)
    assert heard.error["code"] == "stream_incomplete"
    assert all(choice.get("finish_reason") is None for event in heard.events for choice in event.get("choices", []))
    assert (len(first.requests), len(second.requests)) == (1, 0)


async def test_a_stream_that_fails_before_its_content_begins_anew_unseen() -> None:
    """The opening chunk of an attempt that failed is never shown: one role, one id, the second engine's text only."""
    async with ScriptedEngine() as first, ScriptedEngine(steps.answer("second")) as second:
        first.once([steps.role(), steps.cut()])
        async with front(first, second, load_balancer={"strategy": "round_robin"}) as gate:
            heard = await gate.client.ask(chat(stream=True))
            await gate.idle()

    assert (heard.text, heard.done) == ("second", True)
    roles = [event for event in heard.events if event["choices"] and event["choices"][0]["delta"].get("role")]
    assert len(roles) == 1
    assert (heard.headers["x-headrace-attempts"], heard.headers["x-headrace-instance"]) == ("2", "b")
    assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_half_a_whole_answer_is_thrown_away() -> None:
    """A body that breaks off is not shown; the next engine is asked once and its answer is complete."""
    async with ScriptedEngine() as first, ScriptedEngine(steps.answer("second")) as second:
        half = b'{"id":"x","object":"chat.completion","choices":[{"index":0,"mess'
        first.once([steps.head(200, [("content-length", "200")]), steps.send(half), steps.cut()])
        async with front(first, second, load_balancer={"strategy": "round_robin"}) as gate:
            heard = await gate.client.ask(chat())
            await gate.idle()

    assert (heard.status, heard.text) == (200, "second")
    assert len(second.requests) == 1


async def test_a_limited_instance_is_passed_over_for_a_free_one() -> None:
    """429 from some is 200 for the caller; each is asked at most once, one that is down never."""
    async with (
        ScriptedEngine() as first,
        ScriptedEngine() as second,
        ScriptedEngine() as third,
        ScriptedEngine() as down,
    ):
        first.default = _limited([], "30")
        second.default = _limited([], "20")
        await down.stop_listening()
        async with front(
            first,
            second,
            third,
            down,
            routing={"max_retries": 5},
            load_balancer={"strategy": "round_robin"},
            health_check={"interval_seconds": 86_400, "unhealthy_threshold": 1},
        ) as gate:
            await gate.until(lambda: not gate.instance("d").healthy, "the health check finds it down")
            heard = await gate.client.ask(chat())
            await gate.idle()

    assert (heard.status, heard.headers["x-headrace-instance"]) == (200, "c")
    assert [len(engine.requests) for engine in (first, second, third, down)] == [1, 1, 1, 0]


async def test_when_all_are_limited_the_soonest_return_is_told() -> None:
    """After each was asked once the caller gets 429 with the smallest wait, not one try after another."""
    async with (
        ScriptedEngine(_limited([], "30")) as first,
        ScriptedEngine(_limited([], "20")) as second,
        front(first, second, routing={"max_retries": 5}) as gate,
    ):
        heard = await gate.client.ask(chat())
        await gate.idle()

    assert (heard.status, heard.headers["retry-after"]) == (429, "20")
    assert heard.error["code"] == "rate_limit_exceeded"
    assert (len(first.requests), len(second.requests)) == (1, 1)


@virtually
async def test_a_later_caller_is_told_what_is_left_of_the_wait() -> None:
    """While the only engine asked to be left alone, callers are told the remaining seconds and it is not asked."""
    async with ScriptedEngine(_limited([], "30")) as engine, front(engine, routing={"max_retries": 5}) as gate:
        first = await gate.client.ask(chat())
        await later(10.0)
        second = await gate.client.ask(chat())
        await gate.idle()

    assert (first.status, first.headers["retry-after"]) == (429, "30")
    assert (second.status, second.headers["retry-after"]) == (429, "20")
    assert len(engine.requests) == 1


async def test_a_connection_the_engine_closed_while_idle_is_no_failure() -> None:
    """The engine dropped the idle connection: the next request goes out on a new one, and nobody is blamed."""
    async with (
        ScriptedEngine(steps.answer("fine")) as engine,
        front(engine, circuit_breaker={"failure_threshold": 1}) as gate,
    ):
        first = await gate.client.ask(chat())
        engine.close_connections()
        second = await gate.client.ask(chat())
        await gate.idle()
        breaker = gate.instance().breaker

    assert (first.status, second.status, second.headers["x-headrace-attempts"]) == (200, 200, "1")
    assert (len(engine.requests), breaker) == (2, BreakerState.CLOSED)


async def test_a_connection_the_engine_closes_on_being_used_again_is_replaced_once() -> None:
    """The engine closes as the second request arrives: it is sent once more on a new connection, as one attempt."""
    async with ScriptedEngine(steps.answer("fine")) as engine:
        engine.once(steps.answer("fine"), steps.close())
        async with front(engine, circuit_breaker={"failure_threshold": 1}) as gate:
            first = await gate.client.ask(chat())
            second = await gate.client.ask(chat())
            await gate.idle()
            breaker = gate.instance().breaker
            metrics = (await gate.client.get("/metrics")).body.decode()

    assert (first.status, second.status, second.headers["x-headrace-attempts"]) == (200, 200, "1")
    assert (len(engine.requests), breaker) == (3, BreakerState.CLOSED)
    assert "headrace_stale_connections_total 1.0" in metrics


async def test_a_fresh_connection_closed_without_an_answer_is_a_failure() -> None:
    """A connection that was never used before and says nothing speaks against the engine."""
    async with ScriptedEngine(steps.close()) as engine:
        engine.answers_probes = False
        async with front(engine, circuit_breaker={"failure_threshold": 1}, routing={"max_retries": 0}) as gate:
            await engine.got(1)
            heard = await gate.client.ask(chat())
            await gate.idle()
            breaker = gate.instance().breaker

    assert (heard.status, heard.error["code"]) == (502, "upstream_error")
    assert breaker is BreakerState.OPEN


async def test_retries_are_bounded_by_the_budget() -> None:
    """Of five failing requests on three engines only as many are retried as the budget allows: no outage is doubled."""
    async with (
        ScriptedEngine(BROKEN) as first,
        ScriptedEngine(BROKEN) as second,
        ScriptedEngine(BROKEN) as third,
        front(
            first,
            second,
            third,
            routing={"max_retries": 2, "retry_budget": 0, "retry_reserve": 3, "longest_wait_seconds": 0.001},
            load_balancer={"cooldown_seconds": 0.001},
            circuit_breaker={"failure_threshold": 100},
        ) as gate,
    ):
        heard = [await gate.client.ask(chat()) for _ in range(5)]
        await gate.idle()
        retries = gate.totals["retries"]

    assert {answer.status for answer in heard} == {502}
    assert retries == 3
    assert sum(len(engine.requests) for engine in (first, second, third)) == 5 + 3


async def test_the_number_of_attempts_is_told() -> None:
    """Two engines fail before any content, the third answers: the caller learns that it took three."""
    async with (
        ScriptedEngine(BROKEN) as first,
        ScriptedEngine(BROKEN) as second,
        ScriptedEngine() as third,
        front(first, second, third, load_balancer={"strategy": "round_robin"}) as gate,
    ):
        heard = await gate.client.ask(chat())
        await gate.idle()

    assert (heard.headers["x-headrace-attempts"], heard.headers["x-headrace-instance"]) == ("3", "c")
