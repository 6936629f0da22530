"""A thousand streams at once through one process: none lost, none out of order, and no memory kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from headrace.testing import ScriptedConnection, ScriptedEngine
from tests.e2e.client import Client, chat, client
from tests.e2e.process import serving

STREAMS = 1000
PATIENCE = 300.0
"""Seconds for a round: the machine may have other things to do."""
TOKENS = 30
INSTANCE = {"models": ["m"], "max_concurrent": STREAMS, "window_tokens": None}
LIMITS = {"queue": PATIENCE, "connect": PATIENCE, "first_token": PATIENCE, "idle": PATIENCE}
ROOMY = {
    "server": {"log_level": "warning"},
    "scheduling": {"queue_size": STREAMS, "per_user_queue": STREAMS},
    "timeouts": LIMITS,
}
GROWTH = 16 * 1024 * 1024
"""Bytes by which the process may be larger after the second round than after the first."""


class Together:
    """An engine's script: nobody is answered before all of a round are there, so all run at the same time."""

    def __init__(self) -> None:
        self.arrived = 0
        self.ended = 0
        self._all_there = asyncio.Event()

    async def __call__(self, conn: ScriptedConnection) -> None:
        self.arrived += 1
        if self.arrived % STREAMS == 0:
            self._all_there.set()
            self._all_there = asyncio.Event()
        else:
            await conn.wait(self._all_there.wait())
        await conn.answer(json.loads(conn.request.body)["messages"][0]["content"])
        self.ended += 1


def _words(number: int) -> str:
    return " ".join(f"w{number}.{position}" for position in range(TOKENS))


async def _round(caller: Client) -> None:
    """All streams at once; each must be whole and in order."""
    asked = [
        caller.ask(chat(_words(number), stream=True, max_tokens=TOKENS), {"x-headrace-user": f"u{number % 50}"})
        for number in range(STREAMS)
    ]
    heard = await asyncio.gather(*asked)

    assert {answer.status for answer in heard} == {200}
    assert all(answer.done for answer in heard)
    assert [answer.text for answer in heard] == [_words(number) for number in range(STREAMS)]


@pytest.mark.slow
async def test_a_thousand_streams_at_once_are_whole_and_leave_no_memory_behind(tmp_path: Path) -> None:
    """Twice a thousand streams: every word arrives in its place, all run at the same time, and memory stays flat."""
    script = Together()
    async with ScriptedEngine(script, guard=PATIENCE) as engine:
        config = {**ROOMY, "instances": [{**INSTANCE, "address": engine.url}]}
        async with serving(json.dumps(config), tmp_path) as running, client(running.url, PATIENCE) as caller:
            await _round(caller)
            first = running.memory
            await _round(caller)
            second = running.memory
            health = (await caller.get("/health")).json

    assert (script.arrived, script.ended) == (2 * STREAMS, 2 * STREAMS)
    assert (health["running"], health["queue"]["waiting"], health["instances"][0]["in_flight"]) == (0, 0, 0)
    assert health["totals"]["answered"] == 2 * STREAMS
    assert second - first < GROWTH
    assert running.tracebacks == []
