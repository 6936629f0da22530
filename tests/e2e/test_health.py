"""Engines that are busy, loading, slow to start, or gone: each is told from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.model import BreakerState
from headrace.testing import Script, ScriptedConnection, ScriptedEngine, steps
from tests.e2e.client import chat
from tests.e2e.front import front
from tests.e2e.raw import asked, got, raw_caller
from tests.runtime.virtual import later, virtually

PATIENCE = 10_000.0
"""Virtual seconds; longer than any limit."""
STREAM = {**chat(), "stream": True}


def clock() -> float:
    """The loop's time."""
    return asyncio.get_running_loop().time()


CHECKS = {"interval_seconds": 1.0, "timeout_seconds": 1.0, "unhealthy_threshold": 3, "deep_check_interval": 0}


def checked(answer: Callable[[ScriptedConnection], Awaitable[None]], check: Script) -> ScriptedEngine:
    """An engine that answers requests one way and health checks another."""

    async def script(conn: ScriptedConnection) -> None:
        if conn.request.method == "POST":
            await answer(conn)
        else:
            for step in check if not callable(check) else (check,):
                await step(conn)

    engine = ScriptedEngine(script, guard=PATIENCE)
    engine.answers_probes = False
    return engine


def posts(engine: ScriptedEngine) -> int:
    """Requests that ask for an answer."""
    return sum(request.method == "POST" for request in engine.requests)


@virtually
async def test_a_busy_engine_stays_in_use() -> None:
    """It is too busy to answer its checks, but its stream flows: requests are still sent to it."""

    async def streams(conn: ScriptedConnection) -> None:
        for _ in range(30):
            await conn.chunk("x")
            await later(2.0)
        await conn.answer("end")

    async with checked(streams, steps.hang()) as engine, front(engine, health_check=CHECKS) as gate:
        async with raw_caller(gate.client.url) as first:
            first.ask({**STREAM, "user": "one"})
            await later(30.0)
            assert gate.instance().healthy
            assert (await asked(gate.client.url, {**STREAM, "seed": 2}, within=PATIENCE)).done
            assert (await first.answer(PATIENCE)).done
            assert posts(engine) == 2
        await later(60.0)
        assert not gate.instance().healthy, "nothing flows any more, and it still does not answer"


@virtually
async def test_a_loading_engine_is_waited_for() -> None:
    """503 is its own word that it is not ready: no request, no blame, and in use one interval after it is."""
    ready = False

    async def check(conn: ScriptedConnection) -> None:
        await conn.json(200 if ready else 503, {"error": "Loading model"})

    async with checked(steps.answer("loaded"), check) as engine, front(engine, health_check=CHECKS) as gate:
        await later(2.0)
        answer = await asked(gate.client.url)
        assert (answer.status, answer.error["code"]) == (503, "no_instance")
        assert int(answer.header("retry-after") or 0) >= 1
        await later(8.0)
        ready = True
        await later(1.3)
        assert (await asked(gate.client.url)).status == 200
        assert posts(engine) == 1
        assert gate.instance().breaker is BreakerState.CLOSED
        assert gate.instance().reliability == 1.0


@virtually
async def test_who_waits_for_engines_that_stay_down_is_told_soon() -> None:
    """Its checks say that it is gone while one answer still runs: who waits behind it hears 503 after the grace, with
    when to come back, and not after a minute in the queue."""
    up, free = True, asyncio.Event()

    async def holds(conn: ScriptedConnection) -> None:
        await conn.chunk("x")
        await free.wait()
        await conn.answer("end")

    async def check(conn: ScriptedConnection) -> None:
        await conn.json(200 if up else 503, {"error": "gone"})

    health = {**CHECKS, "grace_seconds": 4.0}
    async with (
        checked(holds, check) as engine,
        front(engine, health_check=health, instances={"max_concurrent": 1}) as gate,
    ):
        async with raw_caller(gate.client.url) as first:
            first.ask({**STREAM, "user": "one"})
            await gate.until(lambda: gate.instance().in_flight == 1, "one is answered")
            waits = asyncio.create_task(asked(gate.client.url, chat("two"), within=PATIENCE))
            await gate.until(lambda: gate.headrace.snapshot().queued == 1, "one waits")
            up, began = False, clock()
            told = await waits
            took = clock() - began
            free.set()
            assert (await first.answer(PATIENCE)).done
        await gate.idle()
    assert (told.status, told.error["code"]) == (503, "no_instance")
    assert int(told.header("retry-after") or 0) >= 1
    assert 4.0 <= took <= 4.0 + 2 * CHECKS["interval_seconds"] + 0.5


@virtually
async def test_a_slow_start_is_waited_for() -> None:
    """Three quarters of a minute before the first header is within the defaults."""

    async def script(conn: ScriptedConnection) -> None:
        await later(45.0)
        await conn.answer("warm")

    async with ScriptedEngine(script, guard=PATIENCE) as engine, front(engine) as gate:
        began = clock()
        answer = await asked(gate.client.url, within=PATIENCE)
        took = clock() - began
    assert answer.status == 200
    assert took == pytest.approx(45.0, abs=0.1)


@virtually
async def test_a_dead_engine_is_found_and_comes_back() -> None:
    """Three checks without a connection take it out; it is back by itself once it listens again."""
    async with ScriptedEngine() as engine, front(engine, health_check=CHECKS) as gate:
        await engine.until(lambda: bool(engine.probes))
        await engine.stop_listening()
        engine.close_connections()
        await gate.until(lambda: not gate.instance().healthy, "it is out")
        assert 2.0 <= clock() <= 4.0
        await later(20.0)
        await engine.listen()
        await later(1.3)
        assert gate.instance().healthy
        assert (await asked(gate.client.url)).status == 200


@virtually
async def test_models_are_listed_while_one_engine_is_down() -> None:
    """The list of models comes from the configuration: no engine is asked, so none can spoil or delay it."""
    async with ScriptedEngine() as up, ScriptedEngine() as down, front(up, down, health_check=CHECKS) as gate:
        await down.until(lambda: bool(down.probes))
        await down.stop_listening()
        down.close_connections()
        await gate.until(lambda: not gate.instance("b").healthy, "b is out")
        began = clock()
        answer = await got(gate.client.url, "/v1/models")
        assert clock() == began
        assert (await asked(gate.client.url)).status == 200
        assert (await got(gate.client.url, "/ready")).status == 200
    assert [model["id"] for model in answer.json["data"]] == ["m"]
