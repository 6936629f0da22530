"""Conversations come back to the engine that has read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from headrace.testing import ScriptedEngine, steps
from tests.e2e.client import Client, chat
from tests.e2e.front import front
from tests.runtime.virtual import virtually

STORY = "It was a dark and stormy night, and the rain fell in torrents. "


async def asked(caller: Client, body: Mapping[str, object], headers: Mapping[str, str]) -> str:
    """Which instance answered."""
    heard = await caller.ask(body, headers)
    assert heard.status == 200
    return heard.headers["x-headrace-instance"]


def conversation(name: str, turns: int) -> dict[str, object]:
    """A long conversation of so many turns."""
    said = [(f"{name}, part {turn}: " + STORY * 40) for turn in range(2 * turns - 1)]
    roles = ("user", "assistant")
    return {"model": "m", "messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]}


@virtually
async def test_a_conversation_stays_where_it_was_read() -> None:
    """Six conversations by turns: each one's later turns go where its first went, and both engines are used."""
    one, other = ScriptedEngine([steps.answer("ok")]), ScriptedEngine([steps.answer("ok")])
    async with one, other, front(one, other) as gate:
        homes = {name: await asked(gate.client, conversation(name, 1), {}) for name in "uvwxyz"}
        for turns in (2, 3):
            for name in "zwuyvx":
                assert await asked(gate.client, conversation(name, turns), {}) == homes[name]
        assert Counter(homes.values()) == {"a": 3, "b": 3}


@pytest.mark.parametrize("strategy", ["fair_load", "round_robin"])
@virtually
async def test_a_session_keeps_short_messages_together(strategy: str) -> None:
    """The header is the cheap way to say the same; a strategy that only takes turns does not look at it."""
    one, other = ScriptedEngine([steps.answer("ok")]), ScriptedEngine([steps.answer("ok")])
    async with one, other, front(one, other, load_balancer={"strategy": strategy}) as gate:
        session = {"x-session-id": "s"}
        answers = {await asked(gate.client, chat(f"hello {number}"), session) for number in range(6)}
        assert len(answers) == (1 if strategy == "fair_load" else 2)
