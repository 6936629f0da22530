"""A second engine is asked when the first is late: what callers see, and what becomes of the slower one."""

from __future__ import annotations

import pytest

from headrace.testing import ScriptedEngine, Step, steps
from tests.e2e.client import chat
from tests.e2e.front import front
from tests.runtime.virtual import later, virtually

AFTER_TWO = {"max_retries": 2, "hedge": {"after": 2, "budget": 1.0}}


def slow(seconds: float) -> Step:
    """Nothing for so long."""
    return steps.wait(lambda: later(seconds))


@virtually
async def test_the_second_answers_when_the_first_is_silent() -> None:
    """One seamless answer from the faster engine; the other's connection is closed, and nobody is blamed."""
    async with (
        ScriptedEngine([steps.role(), steps.hang()]) as first,
        ScriptedEngine(steps.answer("fast")) as second,
        front(first, second, routing=AFTER_TWO, load_balancer={"strategy": "round_robin"}) as gate,
    ):
        heard = await gate.client.ask(chat(stream=True))
        await first.until(lambda: first.closed_by_peer == 1, what="the slower connection is closed")
        await gate.idle()
        views = {name: gate.instance(name) for name in "ab"}
        metrics = (await gate.client.get("/metrics")).body.decode()

    assert (heard.text, heard.done, heard.headers["x-headrace-instance"]) == ("fast", True, "b")
    assert heard.headers["x-headrace-attempts"] == "2"
    assert (len(first.requests), len(second.requests)) == (1, 1)
    assert [(view.reliability, view.cooldown) for view in views.values()] == [(1.0, 0.0)] * 2
    assert 'headrace_hedges_total{result="won"} 1.0' in metrics
    assert "headrace_retries_total{" not in metrics


@virtually
async def test_the_first_may_still_be_faster_than_the_second() -> None:
    """It begins after the second was sent: its answer goes out whole, the second is broken off."""
    async with (
        ScriptedEngine([slow(3.0), steps.answer("slow but first")]) as first,
        ScriptedEngine([steps.role(), steps.hang()]) as second,
        front(first, second, routing=AFTER_TWO, load_balancer={"strategy": "round_robin"}) as gate,
    ):
        heard = await gate.client.ask(chat(stream=True))
        await second.until(lambda: second.closed_by_peer == 1, what="the second is broken off")
        await gate.idle()

    assert (heard.text, heard.done, heard.headers["x-headrace-instance"]) == ("slow but first", True, "a")
    roles = [event for event in heard.events if event["choices"] and event["choices"][0]["delta"].get("role")]
    assert len(roles) == 1


@virtually
async def test_when_the_first_fails_the_second_is_already_there() -> None:
    """No further attempt is made while it works."""
    async with (
        ScriptedEngine([slow(3.0), steps.cut()]) as first,
        ScriptedEngine([slow(4.0), steps.answer("second")]) as second,
        ScriptedEngine() as third,
        front(first, second, third, routing=AFTER_TWO, load_balancer={"strategy": "round_robin"}) as gate,
    ):
        heard = await gate.client.ask(chat(stream=True))
        await gate.idle()

    assert (heard.text, heard.headers["x-headrace-instance"]) == ("second", "b")
    assert [len(engine.requests) for engine in (first, second, third)] == [1, 1, 0]


@virtually
async def test_both_connections_are_closed_when_the_time_is_over() -> None:
    """Neither engine works on for nobody."""
    async with (
        ScriptedEngine([steps.hang()]) as first,
        ScriptedEngine([steps.hang()]) as second,
        front(first, second, routing=AFTER_TWO, load_balancer={"strategy": "round_robin"}) as gate,
    ):
        heard = await gate.client.ask(chat(stream=True), {"x-headrace-deadline": "5"})
        await first.until(lambda: first.closed_by_peer == 1, what="the first is closed")
        await second.until(lambda: second.closed_by_peer == 1, what="the second is closed")
        await gate.idle()

    assert (heard.status, heard.error["code"]) == (504, "deadline_exceeded")
    assert (len(first.requests), len(second.requests)) == (1, 1)


@pytest.mark.parametrize("stream", [False, True])
@virtually
async def test_what_is_not_late_is_asked_once(stream: bool) -> None:
    """Whole answers show no first token; a stream in time is none of hedging's business."""
    async with (
        ScriptedEngine([slow(1.0 if stream else 5.0), steps.answer("fine")]) as first,
        ScriptedEngine() as second,
        front(first, second, routing=AFTER_TWO, load_balancer={"strategy": "round_robin"}) as gate,
    ):
        heard = await gate.client.ask(chat(stream=stream))
        await gate.idle()

    assert (heard.text, len(second.requests)) == ("fine", 0)


@virtually
async def test_several_choices_are_hedged_like_one() -> None:
    """What counts is content of any kind, and all of it comes from one engine."""
    finish = [steps.finish("stop", 0), steps.finish("stop", 1), steps.done(), steps.end()]
    async with (
        ScriptedEngine([steps.role(), steps.hang()]) as first,
        ScriptedEngine([steps.chunk("one", 0), steps.chunk("two", 1), *finish]) as second,
        front(first, second, routing=AFTER_TWO, load_balancer={"strategy": "round_robin"}) as gate,
    ):
        heard = await gate.client.ask(chat(stream=True, n=2))
        await gate.idle()

    deltas = [(choice["index"], choice["delta"].get("content")) for e in heard.events for choice in e["choices"]]
    assert ([(index, text) for index, text in deltas if text], heard.done) == ([(0, "one"), (1, "two")], True)
