"""What opens the breaker of an instance, what does not, and how it finds out that the instance is back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

import pytest

from headrace.model import BreakerState
from headrace.testing import Script, ScriptedEngine, Step, steps
from tests.e2e.client import Heard, chat
from tests.e2e.front import Front, front
from tests.runtime.virtual import later, virtually

THRESHOLD = 3
RECOVERY = 5.0

SECTIONS: Mapping[str, Mapping[str, object]] = {
    "circuit_breaker": {"failure_threshold": THRESHOLD, "recovery_timeout": RECOVERY},
    "load_balancer": {"cooldown_seconds": 0.5},
    "routing": {"max_retries": 0},
    "timeouts": {"first_token": 2, "idle": 2, "attempt": 4},
    "dedup": {"mode": "off"},
}


def _says(status: int, *headers: tuple[str, str], message: str = "no") -> Script:
    return steps.json(status, {"error": {"message": message, "type": "some_error"}}, headers)


NEUTRAL = {
    "400": _says(400),
    "401": _says(401),
    "403": _says(403),
    "404": _says(404),
    "413": _says(413),
    "422": _says(422),
    "429": _says(429),
    "429 with a wait": _says(429, ("retry-after", "2")),
    "503 with a wait": _says(503, ("retry-after", "2")),
    "503 that speaks of overload": _says(503, message="server busy, maximum pending requests exceeded"),
    "529": _says(529),
}
FAILURES = {
    "500": _says(500),
    "502": _says(502),
    "503 without a reason": _says(503),
    "closed without an answer": steps.close(),
    "reset": steps.reset(),
    "reset in mid-answer": [steps.role(), steps.chunk("a"), steps.reset()],
    "cut before content": [steps.role(), steps.cut()],
    "cut after content": [steps.role(), steps.chunk("a"), steps.cut()],
    "ended before it was complete": [steps.role(), steps.chunk("a"), steps.end()],
    "no first token in time": steps.hang(),
    "silence in mid-answer": [steps.role(), steps.chunk("a"), steps.hang()],
    "not what was asked for": steps.whole(200, b"<html>welcome</html>", [("content-type", "text/html")]),
    "an error event": [steps.role(), steps.error("CUDA out of memory")],
}


async def _one_by_one(gate: Front, count: int) -> list[Heard]:
    return [await gate.client.ask(chat(stream=True)) for _ in range(count)]


@pytest.mark.parametrize("script", NEUTRAL.values(), ids=NEUTRAL.keys())
@virtually
async def test_what_is_not_the_instances_failure_leaves_it_in_use(script: Script) -> None:
    """Ten callers' mistakes, bad keys or full queues in a row open nothing: the next good request is answered."""
    async with ScriptedEngine(script) as engine, front(engine, **SECTIONS) as gate:
        await _one_by_one(gate, 10)
        breaker = gate.instance().breaker
        engine.default = steps.answer("fine")
        heard = await gate.client.ask(chat())
        await gate.idle()

    assert breaker is BreakerState.CLOSED
    assert (heard.status, heard.text) == (200, "fine")
    assert len(engine.requests) == 11


@pytest.mark.parametrize("status", [401, 403])
async def test_a_bad_key_of_ours_is_never_the_callers(status: int) -> None:
    """The engine refuses the gateway's own key: 502 and no retry for the caller, whose own key is fine."""
    async with ScriptedEngine(_says(status)) as engine, front(engine, **SECTIONS) as gate:
        heard = await gate.client.ask(chat())
        await gate.idle()

    assert (heard.status, heard.error["code"], heard.headers["x-should-retry"]) == (502, "upstream_auth", "false")


@virtually
async def test_callers_who_leave_in_mid_answer_are_nobodys_failure() -> None:
    """Ten who press stop open nothing, cool nothing down, and leave no dead letter."""
    async with (
        ScriptedEngine([steps.role(), steps.chunk("a"), steps.hang()]) as engine,
        front(engine, **SECTIONS) as gate,
    ):
        for _ in range(10):
            async with gate.client.open(chat(stream=True)) as response:
                await response.content.readline()
        await engine.until(lambda: engine.closed_by_peer == 10, what="the engine sees the closes")
        await gate.idle()
        view = gate.instance()
        engine.default = steps.answer("fine")
        heard = await gate.client.ask(chat())

    assert (view.breaker, view.cooldown, view.reliability) == (BreakerState.CLOSED, 0.0, 1.0)
    assert (heard.status, gate.headrace.dead_letters.count) == (200, 0)


@virtually
async def test_callers_whose_own_time_runs_out_are_nobodys_failure() -> None:
    """Ten deadlines that pass while the engine works say nothing about it."""
    async with ScriptedEngine(steps.hang()) as engine, front(engine, **SECTIONS) as gate:
        answers = [await gate.client.ask(chat(), {"x-headrace-deadline": "0.2"}) for _ in range(10)]
        await gate.idle()
        view = gate.instance()
        engine.default = steps.answer("fine")
        heard = await gate.client.ask(chat())

    assert {answer.status for answer in answers} == {504}
    assert {answer.error["code"] for answer in answers} == {"deadline_exceeded"}
    assert (view.breaker, view.cooldown, heard.status) == (BreakerState.CLOSED, 0.0, 200)


@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES.keys())
@virtually
async def test_failures_in_a_row_open_it_at_exactly_the_threshold(script: Script) -> None:
    """One failure fewer leaves it closed; the last one opens it, and the next caller is refused without a call."""
    async with ScriptedEngine(script) as engine, front(engine, **SECTIONS) as gate:
        await _one_by_one(gate, THRESHOLD - 1)
        before = gate.instance().breaker
        await _one_by_one(gate, 1)
        after = gate.instance().breaker
        asked = len(engine.requests)
        heard = await gate.client.ask(chat())
        await gate.idle()
        calls = gate.totals["model_calls"]

    assert (before, after) == (BreakerState.CLOSED, BreakerState.OPEN)
    assert (heard.status, heard.error["code"]) == (503, "circuit_open")
    assert 1 <= int(heard.headers["retry-after"]) <= RECOVERY
    assert (calls, len(engine.requests)) == (THRESHOLD, asked)


@virtually
async def test_refused_connections_open_it_too() -> None:
    """An engine that is not there is a failing engine."""
    async with ScriptedEngine() as engine, front(engine, **SECTIONS) as gate:
        await engine.until(lambda: len(engine.probes) == 1, what="the health check")
        await engine.stop_listening()
        engine.close_connections()
        answers = await _one_by_one(gate, THRESHOLD)
        breaker = gate.instance().breaker
        await gate.idle()

    assert [answer.status for answer in answers] == [502] * THRESHOLD
    assert breaker is BreakerState.OPEN


@virtually
async def test_a_success_between_failures_starts_the_count_anew() -> None:
    """Only failures in a row count."""
    async with ScriptedEngine(_says(500)) as engine, front(engine, **SECTIONS) as gate:
        await _one_by_one(gate, THRESHOLD - 1)
        engine.once(steps.answer("fine"))
        await _one_by_one(gate, THRESHOLD)
        breaker = gate.instance().breaker

    assert (breaker, len(engine.requests)) == (BreakerState.CLOSED, 2 * THRESHOLD - 1)


@virtually
async def test_one_probe_finds_out_for_all_who_wait() -> None:
    """Twenty wait while it is open: when the time comes exactly one goes, and its success lets in all the others."""
    released = asyncio.Event()
    async with (
        ScriptedEngine(_says(500)) as engine,
        front(engine, instances={"max_concurrent": THRESHOLD, "window_tokens": None}, **SECTIONS) as gate,
    ):
        callers = [asyncio.create_task(gate.client.ask(chat(f"{number}"))) for number in range(THRESHOLD + 20)]
        await engine.got(THRESHOLD)
        engine.default = steps.answer("fine")
        engine.once([steps.wait(released.wait), steps.answer("probe")])
        await gate.until(lambda: gate.instance().breaker is BreakerState.OPEN, "the breaker opens")
        waiting = gate.headrace.snapshot().queued
        await engine.got(THRESHOLD + 1)
        await later(1.0)
        probing = (len(engine.requests), gate.instance().breaker, gate.instance().in_flight)
        released.set()
        answers = await asyncio.gather(*callers)
        await gate.idle()
        breaker = gate.instance().breaker

    assert waiting == 20
    assert probing == (THRESHOLD + 1, BreakerState.HALF_OPEN, 1)
    assert sorted(answer.status for answer in answers) == [200] * 20 + [502] * THRESHOLD
    assert breaker is BreakerState.CLOSED


@virtually
async def test_a_failed_probe_doubles_the_wait() -> None:
    """Still broken after the wait: one try, then twice the wait."""
    async with ScriptedEngine(_says(500)) as engine, front(engine, **SECTIONS) as gate:
        await _one_by_one(gate, THRESHOLD)
        await later(RECOVERY)
        await _one_by_one(gate, 1)
        heard = await gate.client.ask(chat())

    assert (heard.status, heard.headers["retry-after"]) == (503, str(round(2 * RECOVERY)))
    assert len(engine.requests) == THRESHOLD + 1


CROWD = 1000
_END_OF_PROBE: dict[str, tuple[Step, int | None, float]] = {
    "success": (steps.answer("fine"), 200, 0.0),
    "400": (steps.json(400, {"error": {"message": "no", "type": "some_error"}}), 400, 0.0),
    "429": (steps.json(429, {"error": {"message": "no"}}, [("retry-after", "2")]), 429, 2.0),
    "failure": (steps.json(500, {"error": {"message": "no"}}), 502, 2 * RECOVERY),
    "cancel": (steps.hang(), None, 0.0),
}
"""How the probe ends, what its caller is told, and how many seconds later the next one goes."""


@pytest.mark.parametrize("end", _END_OF_PROBE)
@virtually
async def test_exactly_one_probe_goes_whoever_waits_and_however_it_ends(end: str) -> None:
    """A thousand callers, room for fifty: one is sent, its end lets the next go, and in the end all are answered."""
    script, status, wait = _END_OF_PROBE[end]
    released = asyncio.Event()
    roomy = {
        "scheduling": {"queue_size": CROWD, "per_user_queue": CROWD},
        "timeouts": {"queue": 1000, "first_token": 100, "idle": 100, "attempt": 200},
    }
    async with (
        ScriptedEngine(_says(500), guard=1000.0) as engine,
        front(engine, instances={"max_concurrent": 50, "window_tokens": None}, **{**SECTIONS, **roomy}) as gate,
    ):
        await _one_by_one(gate, THRESHOLD)
        await later(RECOVERY + 1.0)
        engine.default = steps.answer("fine")
        engine.once([steps.wait(released.wait), script])
        callers = [asyncio.create_task(gate.client.ask(chat(f"{number}"))) for number in range(CROWD)]
        probe = await engine.got(THRESHOLD + 1)
        await gate.until(lambda: gate.headrace.snapshot().queued == CROWD - 1, "all others wait", within=1000.0)
        await later(1.0)
        assert len(engine.requests) == THRESHOLD + 1
        assert (gate.instance().breaker, gate.instance().in_flight) == (BreakerState.HALF_OPEN, 1)
        prober = callers[int(re.findall(rb'"content": "(\d+)"', probe.body)[0])]
        began = asyncio.get_running_loop().time()
        released.set()
        if status is None:
            prober.cancel()
        await engine.got(THRESHOLD + 2)
        assert asyncio.get_running_loop().time() - began == pytest.approx(wait, abs=1.0)
        answers = await asyncio.gather(*(caller for caller in callers if caller is not prober))
        await gate.idle()
        told = None if status is None else (await prober).status
        assert (told, gate.instance().breaker) == (status, BreakerState.CLOSED)
    assert {answer.status for answer in answers} == {200}
