"""A power user and somebody else before the same engine, over real sockets: who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace.model import Arrived, Decision, Dispatch, Event, Finished
from headrace.testing import MockEngine
from tests.e2e.client import chat
from tests.e2e.front import Front, front
from tests.runtime.virtual import virtually

SLOTS = 4
FLOOD = 200
TOKENS = 2


class Turns:
    """Counts the slots that became free between one request's arrival and its dispatch."""

    def __init__(self, request_id: str) -> None:
        self.releases: int | None = None
        self._id = request_id
        self._freed = 0
        self._before = 0

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        self._freed += isinstance(event, Finished)
        if isinstance(event, Arrived) and event.request.id == self._id:
            self._before = self._freed
        for decision in decisions:
            if isinstance(decision, Dispatch) and decision.request.id == self._id:
                self.releases = self._freed - self._before


async def _releases_waited(gate: Front, engine: MockEngine) -> int:
    """The power user sends all at once, then somebody else sends one; how many slot releases that one waited for."""
    turns = Turns("one")
    gate.headrace.gateway.observe(turns)
    flood = [
        asyncio.create_task(gate.client.ask(chat(f"{number}", max_tokens=TOKENS), {"x-headrace-user": "power"}))
        for number in range(FLOOD)
    ]
    await gate.until(lambda: gate.totals["accepted"] == FLOOD, "all of the flood is accepted")
    one = await gate.client.ask(chat("one", max_tokens=TOKENS), {"x-headrace-user": "other", "x-request-id": "one"})
    heard = await asyncio.gather(*flood)
    await gate.idle()

    assert {answer.status for answer in (one, *heard)} == {200}
    assert (engine.stats.finished, engine.stats.max_running, engine.stats.max_waiting) == (FLOOD + 1, SLOTS, 0)
    assert turns.releases is not None
    return turns.releases


@pytest.mark.parametrize(("policy", "least", "most"), [("fair", 0, 2), ("round_robin", 0, 2), ("fifo", 1, FLOOD)])
@virtually
async def test_a_flood_holds_up_nobody_else(policy: str, least: int, most: int) -> None:
    """Whoever floods waits for himself: the other's request goes after two releases at most; first come, first served
    makes it wait for the whole flood."""
    async with (
        MockEngine(model="m", slots=SLOTS, decode_tps=50) as engine,
        front(
            engine, scheduling={"policy": policy}, instances={"max_concurrent": SLOTS}, timeouts={"queue": 600}
        ) as gate,
    ):
        releases = await _releases_waited(gate, engine)

    assert least <= releases <= most
    if policy == "fifo":
        assert releases == FLOOD - SLOTS + 1


@pytest.mark.parametrize(("policy", "fair"), [("fair", True), ("fifo", False)])
async def test_a_flood_holds_up_nobody_else_in_real_time(policy: str, fair: bool) -> None:
    """The same with a clock that nobody pushes."""
    async with (
        MockEngine(model="m", slots=SLOTS, decode_tps=50, speed=20) as engine,
        front(engine, scheduling={"policy": policy}, instances={"max_concurrent": SLOTS}) as gate,
    ):
        releases = await _releases_waited(gate, engine)

    assert (releases <= 2) is fair
