"""Backpressure before a whole engine: 200 requests at once and somebody with one, and where the waiting happens.

Most of it runs on virtual time; see `flooded.py`.
"""

from __future__ import annotations

import asyncio
from functools import cache
from statistics import median

import pytest

from headrace.testing import MockEngine, Script, run_virtual, steps
from tests.e2e.client import client
from tests.e2e.flood import Crowd, Felt, Load, alone, crowd, typical
from tests.e2e.flooded import GATED, LOAD, PATIENCE, How, a100, accepted, seen
from tests.e2e.front import front
from tests.e2e.test_engine_metrics import gauges, known
from tests.runtime.metered import Metered, page
from tests.runtime.virtual import SETTLE, virtually

STEP = 0.16
"""Seconds of the engine's longest step: 2,048 prompt tokens, and one of each answer."""


MANY = [pytest.param(8), pytest.param(4, marks=pytest.mark.slow), pytest.param(16, marks=pytest.mark.slow)]


@pytest.mark.parametrize("slots", MANY)
@pytest.mark.parametrize("how", ["fair", "blind"])
def test_a_light_user_hardly_feels_a_flood(how: How, slots: int) -> None:
    """He waits in the gateway for two places that become free, or one step of the engine, not for 200, and has his
    first token a few times later than alone; with the engine's metrics or without them."""
    found, by_arrival = seen(how, slots), seen("fifo", slots)
    light, release = found.together.light, found.together.release
    assert found.together.all_answered
    assert max(felt.waited for felt in light) <= max(2 * release, STEP)
    assert typical(light) <= (8 if slots > 4 else 10) * typical(found.alone)
    assert max(felt.ttft for felt in light) <= 0.05 * by_arrival.together.light[0].ttft


@pytest.mark.parametrize("slots", MANY)
@pytest.mark.parametrize("how", ["fair", "blind"])
def test_the_flood_waits_in_the_gateway(how: How, slots: int) -> None:
    """The engine's own queue is never longer than three; with nothing held back nearly all of the flood is in it."""
    assert seen(how, slots).engine.max_waiting <= 3
    assert seen("pass_through", slots).engine.max_waiting > LOAD.flood / 2


@pytest.mark.parametrize("slots", MANY)
@pytest.mark.parametrize("how", ["fair", "blind"])
def test_holding_back_costs_the_engine_nothing(how: How, slots: int) -> None:
    """It makes at least 95 % of the tokens per second that it makes with everything in its own queue."""
    held, given = seen(how, slots), seen("pass_through", slots)
    assert held.together.all_answered
    assert given.together.all_answered
    assert held.engine.refused == given.engine.refused == 0
    assert held.together.throughput >= 0.95 * given.together.throughput


@pytest.mark.slow
async def test_a_light_user_hardly_feels_a_flood_in_real_time() -> None:
    """The same with a clock that nobody pushes: much less than by arrival, and hardly any wait in the engine; on a busy
    machine it may be one or two more than three, for what it shows of itself is late."""
    first: dict[str, float] = {}
    for policy in ("fair", "fifo"):
        async with (
            a100(8, speed=4) as engine,
            front(engine, scheduling={"policy": policy}, instances=GATED) as gate,
        ):
            together = await crowd(gate.client, LOAD, accepted(gate, LOAD.flood))
            await gate.idle()
            assert together.all_answered
            assert engine.stats.max_waiting <= LOAD.flood / 20
            first[policy] = max(felt.ttft for felt in together.light)
    assert first["fair"] <= 0.3 * first["fifo"]


@pytest.mark.parametrize(
    "bad",
    [
        steps.json(500, {}),
        steps.whole(200, b"<html>down for maintenance</html>"),
        steps.hang(),
        page(*[float("nan")] * 3),
    ],
    ids=["500", "html", "hang", "nan"],
)
@virtually
async def test_a_flood_is_held_back_when_the_metrics_fail(bad: Script | bytes) -> None:
    """They stop or turn to nonsense in the middle of the flood: it is told, nobody is refused, and the gateway's own
    counts go on to keep the engine's queue short."""
    load = Load(flood=60, light=3)
    metered = Metered(page())
    async with (
        a100(8) as engine,
        metered.engine,
        front(engine, instances={**GATED, "metrics": f"{metered.engine.url}/metrics"}) as gate,
        client(gate.client.url, PATIENCE) as caller,
    ):
        await known(gate)

        async def fails() -> None:
            await accepted(gate, load.flood)
            metered.say = bad
            await gate.until(lambda: gate.instance().metrics_stale, "what the metrics say is too old")
            assert await gauges(caller, "engine_metrics_stale") == {"a": 1}

        together = await crowd(caller, load, fails())
        await gate.idle()
    assert together.all_answered
    assert engine.stats.max_waiting <= 3
    assert max(felt.waited for felt in together.light) <= 2 * together.release


@pytest.mark.parametrize("metrics", [True, pytest.param(False, marks=pytest.mark.slow)])
@virtually
async def test_an_adaptive_limit_finds_what_an_engine_can_run(metrics: bool) -> None:
    """Nobody said that there are sixteen slots, only that 256 requests at a time are too many: all slots get work, the
    limit stays near them, and the light user does not wait for the flood."""
    load = Load(prompt=600, output=32, light=4)
    found: list[int] = []
    async with (
        a100(16) as engine,
        front(
            engine,
            instances={"engine": "vllm", "max_concurrent": "auto"},
            metrics={"enabled": metrics},
            timeouts={"queue": PATIENCE},
        ) as gate,
        client(gate.client.url, PATIENCE) as caller,
    ):
        gate.headrace.gateway.observe(lambda event, decisions, now: found.append(gate.instance().max_concurrent))
        together = await crowd(caller, load, accepted(gate, load.flood))
        await gate.idle()
    assert together.all_answered
    assert engine.stats.max_running == 16
    assert engine.stats.max_waiting <= 3
    assert 16 <= max(found) <= 32
    assert max(felt.ttft for felt in together.light) <= 0.05 * together.seconds


@pytest.mark.slow
@virtually
async def test_an_adaptive_limit_keeps_tokens_coming_at_a_pace() -> None:
    """An engine that has 64 slots and becomes slower with each stream is not filled: tokens come clearly faster, for a
    quarter of the throughput at most."""
    load = Load(flood=250, prompt=200, output=64, light=0)
    crowded: dict[object, Crowd] = {}
    for limit in ("auto", 64):
        async with (
            MockEngine(model="m", slots=64, prefill_tps=14_700, decode_tps=90, batch_slowdown=0.1) as engine,
            front(engine, instances={"engine": "vllm", "max_concurrent": limit}) as gate,
            client(gate.client.url, PATIENCE) as caller,
        ):
            crowded[limit] = await crowd(caller, load)
            await gate.idle()
    assert crowded["auto"].all_answered
    paced, full = (median(felt.tpot for felt in crowded[limit].flood) for limit in ("auto", 64))
    assert paced <= 0.75 * full
    assert crowded["auto"].throughput >= 0.75 * crowded[64].throughput


@virtually
async def test_batch_goes_only_where_the_engines_queue_is_empty() -> None:
    """Others fill the first engine behind the gateway's back: of forty batch requests it gets the one that keeps batch
    alive, and the second, whose queue is empty, all others."""
    load = Load(flood=40, light=0, prompt=50, output=40, flood_class="batch")
    outside = Load(flood=16, light=0, prompt=50, output=100)
    async with (
        MockEngine(model="m", slots=4) as full,
        MockEngine(model="m", slots=16) as idle,
        front(full, idle, instances={**GATED, "max_concurrent": 16}) as gate,
        client(full.url, PATIENCE) as others,
        client(gate.client.url, PATIENCE) as caller,
    ):
        theirs = asyncio.create_task(crowd(others, outside))
        await gate.until(lambda: (gate.instance("a").engine_waiting or 0) > 3, "the full engine's queue is seen")
        ours = asyncio.create_task(crowd(caller, load))
        await idle.until(lambda stats: stats.finished == load.flood - 1, PATIENCE)
        assert full.stats.waiting > 3
        assert full.stats.seen == outside.flood + 1
        assert (await theirs).all_answered
        assert (await ours).all_answered


@cache
def paces(flood_class: str) -> tuple[tuple[Felt, ...], Crowd]:
    """One who waits for each word, alone and beside 160 answers of a class, at an engine that many streams slow."""

    async def ask() -> tuple[tuple[Felt, ...], Crowd]:
        classes = {"flood_class": flood_class, "light_class": "interactive"}
        load = Load(flood=160, light=8, prompt=100, output=64, light_output=48, **classes)
        async with (
            MockEngine(model="m", slots=32, batch_slowdown=0.15) as engine,
            front(engine, instances={**GATED, "max_concurrent": 32}, timeouts={"queue": PATIENCE}) as gate,
            client(gate.client.url, PATIENCE) as caller,
        ):
            before = await alone(caller, load)
            together = await crowd(caller, load, accepted(gate, load.light + load.flood))
            await gate.idle()
            return tuple(before), together

    return run_virtual(ask(), settle=SETTLE)


@pytest.mark.slow
def test_batch_gives_way_to_whoever_waits_for_each_word() -> None:
    """Beside batch, interactive tokens come clearly faster than beside normal work, the first one soon; and batch goes
    on at two thirds of the normal flood's rate at least."""
    (before, beside_batch), (_, beside_normal) = paces("batch"), paces("normal")
    during, among_normal = beside_batch.during_flood, beside_normal.during_flood
    assert beside_batch.all_answered
    assert min(len(during), len(among_normal)) >= 3
    assert median(felt.tpot for felt in during) <= 0.8 * median(felt.tpot for felt in among_normal)
    assert typical(during) <= 10 * typical(before)
    assert beside_batch.throughput >= 0.65 * beside_normal.throughput
