"""Old letters go by themselves, and a webhook hears of new ones: in batches, within bounds, without what was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from structlog.testing import capture_logs

from headrace.runtime.client import new_client
from headrace.runtime.letter_keeping import BATCH, LetterKeeping
from headrace.runtime.stores.feed import HELD
from headrace.runtime.stores.memory import MemoryDeadLetters
from headrace.runtime.webhooks import Hook, Webhooks
from headrace.testing import ScriptedEngine, on_virtual_time, steps
from tests.runtime.letters import letter
from tests.runtime.virtual import later, virtually

DAY = 86_400.0
NOW = 1_700_000_000.0


@asynccontextmanager
async def keeping(
    letters: MemoryDeadLetters, url: str | None = None, keep_days: float | None = None
) -> AsyncIterator[LetterKeeping]:
    """The two tasks at work, with a webhook that is tried three times."""
    client = new_client()
    loop = asyncio.get_running_loop()
    hook = Hook(url) if url is not None else None
    kept = LetterKeeping(
        letters, Webhooks(client, tries=3), keep_days=keep_days, hook=hook, wall=lambda: NOW + loop.time()
    )
    kept.start()
    try:
        yield kept
    finally:
        await kept.close()
        await client.close()


@on_virtual_time
async def test_letters_go_when_they_are_too_old() -> None:
    """At the start, and within an hour of their time; they are counted."""
    letters = MemoryDeadLetters()
    letters.add(letter("old", died_at=NOW - 3 * DAY))
    letters.add(letter("young", died_at=NOW - 1 * DAY))
    async with keeping(letters, keep_days=2.0):
        await later(1.0)
        assert [each.request_id for each in letters.ring.oldest(9)] == ["young"]
        await later(DAY - 10.0)
        assert letters.count == 1
        await later(3700.0)
    assert (letters.count, letters.aged_out) == (0, 2)


@on_virtual_time
async def test_without_an_age_letters_stay() -> None:
    """`keep_days: null` and no webhook: there is nothing to do."""
    letters = MemoryDeadLetters()
    letters.add(letter("old", died_at=1.0))
    async with keeping(letters):
        await later(30 * DAY)
    assert letters.count == 1


@virtually
async def test_new_letters_are_told_together_and_without_what_was_asked() -> None:
    """What comes within a second is one message; those that were there before are no news."""
    letters = MemoryDeadLetters()
    letters.add(letter("before"))
    async with ScriptedEngine(steps.json(200, {})) as engine, keeping(letters, engine.url):
        letters.add(letter("a", body=b'{"messages": "SECRET-4711"}'))
        letters.add(letter("b"))
        await engine.got(1)
        await later(5.0)
        letters.add(letter("c"))
        await engine.got(2)
    first, second = (json.loads(request.body) for request in engine.requests)
    assert (first["type"], first["missed"]) == ("dead_letters", 0)
    assert [one["request_id"] for one in first["letters"]] == ["a", "b"]
    assert [one["request_id"] for one in second["letters"]] == ["c"]
    assert first["letters"][0]["body_bytes"] == 27
    assert b"SECRET-4711" not in engine.received


@virtually
async def test_a_receiver_that_is_away_loses_only_what_the_bound_costs() -> None:
    """Letters wait for it in a bound; of more the oldest are lost to it, told and counted, and none to the store."""
    letters = MemoryDeadLetters(2000)
    async with ScriptedEngine(steps.json(200, {})) as engine:
        engine.once(*[steps.json(500, {})] * 3)
        with capture_logs() as logs:
            async with keeping(letters, engine.url) as kept:
                letters.add(letter("first"))
                await engine.got(1)
                for number in range(HELD + 10):
                    letters.add(letter(f"r{number}"))
                told = 3 + -(-HELD // BATCH)
                await engine.got(told)
    messages = [json.loads(request.body) for request in engine.requests[3:]]
    assert sum(message["missed"] for message in messages) == 10
    assert sum(len(message["letters"]) for message in messages) == HELD
    assert max(len(message["letters"]) for message in messages) <= BATCH
    assert kept.untold == 11
    assert [entry["event"] for entry in logs] == ["dead letters: the webhook took nothing"]
    assert letters.count == HELD + 11


@on_virtual_time
async def test_ending_leaves_nobody_listening() -> None:
    """Both tasks are gone when it is closed."""
    letters = MemoryDeadLetters()
    async with keeping(letters, "http://127.0.0.1:1", keep_days=1.0):
        assert len(letters.feed) == 1
        await later(1.0)
    assert len(letters.feed) == 0
    assert len(asyncio.all_tasks()) == 1


@on_virtual_time
async def test_a_store_that_fails_is_looked_at_again() -> None:
    """One look that goes wrong does not end them all."""

    class Broken(MemoryDeadLetters):
        looks = 0

        async def age_out(self, before: float) -> int:
            self.looks += 1
            if self.looks == 1:
                raise RuntimeError("broken")
            return await super().age_out(before)

    letters = Broken()
    letters.add(letter("old", died_at=1.0))
    async with keeping(letters, keep_days=1.0):
        await later(4000.0)
    assert (letters.looks, letters.count) == (2, 0)
