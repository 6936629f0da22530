"""A gateway, its letters, and what sends them again; nothing is answered until the test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.core.settings import BreakerSettings, RecoverySettings, Settings
from headrace.model import Outcome
from headrace.runtime.client import new_client
from headrace.runtime.replay_view import message
from headrace.runtime.replays import Order, Replay, Replays, Standing
from headrace.runtime.resending import Resender
from headrace.runtime.stores import StoredLetter
from headrace.runtime.webhooks import Webhooks
from tests.runtime.engines import Attempt, Bench
from tests.runtime.letters import letter

BODY = (
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}'
)
ANSWER = b'{"choices":[{"message":{"content":"at last"}}]}'
PATIENT = Settings(
    recovery=RecoverySettings(max_attempts=1, cooldown=0.001), breaker=BreakerSettings(threshold=1_000_000)
)


class Desk:
    """A gateway, its letters, and what sends them again."""

    def __init__(self, limit: int = 100, settings: Settings = PATIENT, answer_bytes: int = 1_000_000) -> None:
        self.bench = Bench(settings=settings, limit=limit)
        self.letters = self.bench.letters
        self.client = new_client()
        resender = Resender(self.bench.gateway, wall=lambda: 1_000_000.0)
        self.bench.gateway.observe(resender)
        self.replays = Replays(
            resender, self.letters, Webhooks(self.client, tries=2), message, secret="s", answer_bytes=answer_bytes
        )

    def keep(self, count: int, body: bytes | None = BODY) -> list[int]:
        """So many letters; their numbers, the oldest first."""
        for number in range(count):
            self.letters.add(letter(f"r{number}", died_at=1000.0 + number, body=body))
        return [kept.id for kept in self.letters.ring.oldest(10_000)][-count:]

    def begin(self, *ids: int, **fields: object) -> Replay:
        """A replay of these."""
        return self.replays.begin(Order(letters=ids, **{"pace": 1000.0, **fields}))  # type: ignore[arg-type]

    @property
    def attempts(self) -> list[Attempt]:
        """What went to the engine."""
        return self.bench.engines.attempts

    async def get(self, number: int) -> StoredLetter:
        """A letter that is there."""
        found = await self.letters.get(number)
        assert found is not None
        return found


@asynccontextmanager
async def desk(**fields: object) -> AsyncIterator[Desk]:
    """Closed in the end; nothing may be held then."""
    made = Desk(**fields)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.replays.close()
        await made.client.close()
        made.bench.assert_empty()
        assert not any(kept.claimed for kept in made.letters.ring.oldest(10_000))


def always(outcome: Outcome | None = None) -> Callable[[Attempt], None]:
    """A script of the engine: fail like that, or answer well."""

    def play(attempt: Attempt) -> None:
        if outcome is None:
            attempt.answer(ANSWER)
        else:
            attempt.finish(outcome=outcome)

    return play


def standing(replay: Replay) -> list[Standing]:
    """How it stands with each letter."""
    return [result.standing for result in replay.results.values()]
