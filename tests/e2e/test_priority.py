"""An engine that orders its own queue by priority is told how urgent requests are, and serves the urgent ones first."""

from __future__ import annotations

import asyncio

import pytest

from headrace.testing import MockEngine
from tests.e2e.client import chat
from tests.e2e.flood import feel
from tests.e2e.front import Front, front
from tests.runtime.virtual import virtually

WAITING = ("batch", "batch", "normal", "normal", "interactive", "interactive")
"""In this order they come to an engine that has one slot, and that one is taken."""


async def served(gate: Front, engine: MockEngine) -> list[str]:
    """The classes of all that waited in the engine, in the order in which it began to answer them."""
    holds = asyncio.create_task(feel(gate.client, chat("first", max_tokens=50), {}))
    await engine.until(lambda stats: stats.running == 1)
    asked = []
    for number, name in enumerate(WAITING, start=1):
        body = chat(f"{number}", max_tokens=4)
        asked.append(asyncio.create_task(feel(gate.client, body, {"x-headrace-class": name})))
        await engine.until(lambda stats, waiting=number: stats.waiting == waiting)  # type: ignore[misc]
    answers = await asyncio.gather(*asked)
    await holds
    assert all(felt.complete for felt in answers)
    return [name for _, name in sorted((felt.first, name) for felt, name in zip(answers, WAITING, strict=True))]


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
@virtually
async def test_the_engine_serves_the_interactive_first_if_it_is_told(told: bool) -> None:
    """Over real sockets: the later come, the more urgent, and the engine's queue is turned round; without
    `forward_priority` it goes by arrival."""
    ungated = {"engine": "vllm", "max_concurrent": 64, "window_tokens": None, "forward_priority": told}
    async with (
        MockEngine(model="m", slots=1, by_priority=True) as engine,
        front(engine, instances=ungated, metrics={"enabled": False}) as gate,
    ):
        order = await served(gate, engine)
        await gate.idle()

    by_urgency = ["interactive"] * 2 + ["normal"] * 2 + ["batch"] * 2
    assert order == (by_urgency if told else list(WAITING))
