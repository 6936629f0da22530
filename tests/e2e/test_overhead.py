"""What headrace itself takes for a request, as `/metrics` tells: without its wait and without its engine's time."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from headrace.testing import ScriptedConnection, ScriptedEngine, steps
from tests.e2e.client import Client, chat
from tests.e2e.front import front
from tests.runtime.virtual import later, virtually

ENGINE_SECONDS = 20.0
"""Virtual: far more than any processor needs for anything here."""


async def measured(caller: Client) -> tuple[int, float]:
    """How many requests were measured, and the seconds of all of them together."""
    text = (await caller.get("/metrics")).body.decode()
    samples = {
        sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }
    return int(samples.get("headrace_overhead_seconds_count", 0)), samples.get("headrace_overhead_seconds_sum", 0.0)


async def slow(conn: ScriptedConnection) -> None:
    """An engine that takes its time."""
    await later(ENGINE_SECONDS)
    await conn.answer("done")


@virtually
async def test_neither_the_queue_nor_the_engine_counts() -> None:
    """Two answers one after the other, streamed and whole, twenty seconds each, the second behind the first: both are
    measured, and what is counted is a matter of the processor."""
    async with ScriptedEngine(slow, guard=1000.0) as engine, front(engine, instances={"max_concurrent": 1}) as gate:
        first = asyncio.create_task(gate.client.ask(chat("one", stream=True)))
        await gate.until(lambda: gate.instance().in_flight == 1, "the first one is at the engine")
        second = await gate.client.ask(chat("two"))
        await first
        count, seconds = await measured(gate.client)

    assert float(second.headers["x-headrace-queue-ms"]) >= 1000 * ENGINE_SECONDS - 1
    assert count == 2
    assert 0.0 < seconds < 0.5 * ENGINE_SECONDS


@virtually
async def test_only_plain_answers_are_measured() -> None:
    """A refusal, a second try, an answer from the cache: what they take says nothing about headrace."""
    async with (
        ScriptedEngine(steps.answer("x")) as engine,
        front(engine, dedup={"mode": "full"}) as gate,
    ):
        engine.once([steps.json(500, {})])
        retried = await gate.client.ask(chat("retried"))
        refused = await gate.client.ask(chat("refused", model="nobody serves it"))
        after_both = await measured(gate.client)
        same = chat("same", temperature=0)
        cached = [(await gate.client.ask(same)).headers["x-headrace-cache"] for _ in range(2)]
        count, _ = await measured(gate.client)

    assert (retried.status, refused.status) == (200, 404)
    assert after_both == (0, 0.0)
    assert cached == ["miss", "hit"]
    assert count == 1
