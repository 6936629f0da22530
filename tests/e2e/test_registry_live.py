"""Engines come and go over real sockets, and all that looks at engines follows: keys, checks, polls, slow start."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from headrace.model import Engine, Instance, ServedModel
from headrace.testing import ScriptedEngine, steps
from tests.e2e.client import chat
from tests.e2e.front import front
from tests.runtime.virtual import later, virtually

CHECKS: Mapping[str, object] = {"interval_seconds": 10.0, "deep_check_interval": 0}


def at(engine: ScriptedEngine, name: str, key: str | None = None) -> Instance:
    """The engine as an instance of its own."""
    return Instance(
        id=name,
        address=engine.url,
        engine=Engine.VLLM,
        models=(ServedModel(name="m"),),
        api_key_env=key,
        window_tokens=None,
    )


def paths(engine: ScriptedEngine) -> Counter[str]:
    """What the engine was asked for, and how often."""
    return Counter(request.path for request in engine.requests)


@virtually
async def test_checks_and_polls_follow_the_instances() -> None:
    """A new one is checked at once and once in each interval, its metrics are polled; a removed one is left alone; an
    unchanged one is checked no more often for the changes of others."""
    async with ScriptedEngine() as first, ScriptedEngine() as second, front(first, health_check=CHECKS) as gate:
        for engine in (first, second):
            engine.answers_probes = False
        registry = gate.headrace.registry
        registry.add(at(second, "b"), "admin")
        for number in range(50):
            await later(1.0)
            registry.add(Instance(id=f"c{number}", engine=Engine.ECHO), "admin")
            registry.remove(f"c{number}")
        seen = paths(second)
        assert 4 <= seen["/health"] <= 7
        assert seen["/metrics"] > 0
        assert 4 <= paths(first)["/health"] + paths(first)["/v1/models"] <= 7
        registry.remove("b")
        await later(0.1)
        before = len(second.requests)
        await later(60.0)
        assert len(second.requests) == before


@virtually
async def test_the_key_of_a_new_instance_is_sent_and_a_missing_one_is_told() -> None:
    """With requests and with health checks; the value comes from the environment and is never told."""
    config: Mapping[str, Mapping[str, object]] = {
        "health_check": CHECKS,
        "env": {"LATE_API_KEY": "sk-late"},
        "metrics": {"enabled": False},
    }
    async with (
        ScriptedEngine() as first,
        ScriptedEngine(steps.whole(200, b"{}")) as second,
        front(first, **config) as gate,
    ):
        second.answers_probes = False
        registry = gate.headrace.registry
        registry.drain("a")
        assert registry.add(at(second, "b", "LATE_API_KEY"), "admin") == ()
        await second.got(1)
        await gate.client.ask(chat())
        sent = {request.path: request.header("authorization") for request in second.requests}
        assert sent["/v1/chat/completions"] == "Bearer sk-late"
        assert set(sent.values()) == {"Bearer sk-late"}
        (warning,) = registry.replace("b", at(second, "b", "NO_API_KEY"))
        assert "NO_API_KEY is not set" in warning
        await gate.client.ask(chat("again"))
        assert second.requests[-1].header("authorization") is None


async def test_an_engine_that_comes_back_is_not_flooded() -> None:
    """Ten streams wait: undrained it gets one; once nobody else is there it gets as many as it may have."""
    limits: Mapping[str, object] = {"max_concurrent": 3, "window_tokens": None}
    async with (
        ScriptedEngine(steps.hang()) as first,
        ScriptedEngine(steps.hang()) as second,
        front(first, second, instances=limits, load_balancer={"slow_start_seconds": 600}) as gate,
    ):
        registry = gate.headrace.registry
        registry.drain("b")
        callers = [asyncio.create_task(gate.client.ask(chat(f"{n}", stream=True))) for n in range(10)]
        await gate.until(lambda: gate.headrace.snapshot().queued == 7, "the others wait")
        registry.undrain("b")
        await second.got(1)
        assert (gate.instance("b").in_flight, gate.instance("b").closed_because) == (1, "slow_start")
        registry.remove("a")
        await gate.until(lambda: gate.instance("b").in_flight == 3, "nobody else is left")
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        await gate.idle()
