"""What happens in the scene: users stream answers from two engines, one is killed in the middle, and comes back.

Nothing is told in advance. Two mock engines, a whole gateway and the users talk over real sockets in one event loop;
what is counted is what the users read and what the gateway did. Each user knows what the answer has to be, word by
word, so that a word that is missing or comes twice is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Self

from prometheus_client import CollectorRegistry

from headrace.bench.endpoint import Answered, Endpoint
from headrace.build import build
from headrace.cli.failover.chronicle import Chronicle, Kind
from headrace.cli.failover.stage import (
    ENGINE,
    ENGINES,
    EVERYBODY,
    JSON_USER,
    MODEL,
    SEED,
    Timetable,
    config,
    question,
    words,
)
from headrace.cli.serve import server_settings
from headrace.model import BreakerState, Cause
from headrace.server import hosted
from headrace.testing import MockEngine

TICK = 0.02
"""Seconds between two looks at whether it is time for something."""
LOOKS = 10.0
"""Pictures of the screen per second."""
BROKEN = "stream: stream_incomplete"
"""What a caller is told whose stream broke off and cannot go on."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One question of a user, and what they have read of its answer. Times are seconds after the beginning."""

    user: str
    request: str
    expected: str
    asked: float
    engines: list[str] = field(default_factory=list[str])
    """For each word read: the engine it came from."""
    read: list[float] = field(default_factory=list[float])
    """For each word: when."""
    ended: float | None = None
    answer: Answered | None = None

    @property
    def exact(self) -> bool:
        """The answer is whole: each word once, and in its order."""
        return self.answer is not None and self.answer.served and self.answer.text == self.expected

    @property
    def told(self) -> bool:
        """The answer broke off, the caller was told so, and what they had read until then was right."""
        answer = self.answer
        return answer is not None and answer.result == BROKEN and self.expected.startswith(answer.text)

    @property
    def longest_gap(self) -> float:
        """Between two words that follow each other."""
        return max((after - before for before, after in zip(self.read, self.read[1:], strict=False)), default=0.0)


@dataclass(frozen=True, slots=True)
class Story:
    """All of it, or what there is so far."""

    timetable: Timetable
    chronicle: Chronicle
    turns: dict[str, list[Turn]]
    """By user, in their order."""
    seconds: float

    @property
    def killed(self) -> str:
        """The engine that was killed; "" before that."""
        return next((note.engine for note in self.chronicle.of(Kind.KILLED)), "")

    @property
    def away(self) -> bool:
        """There is nothing at its address now."""
        return len(list(self.chronicle.of(Kind.KILLED))) > len(list(self.chronicle.of(Kind.STARTED)))

    @property
    def totals(self) -> dict[str, int]:
        """Counted when it is over."""
        turns = [turn for turns in self.turns.values() for turn in turns]
        resumed = {note.request for note in self.chronicle.of(Kind.RESUMED)}
        retried = {note.request for note in self.chronicle.of(Kind.RETRIED)}
        return {
            "asked": len(turns),
            "answered": sum(turn.exact for turn in turns),
            "resumed": sum(turn.exact and turn.request in resumed for turn in turns),
            "retried": sum(turn.exact and turn.request in retried - resumed for turn in turns),
            "errors": sum(turn.told for turn in turns),
            "wrong": sum(not turn.exact and not turn.told for turn in turns),
            "dead_letters": len(list(self.chronicle.of(Kind.DEAD_LETTER))),
            "probes": len(list(self.chronicle.of(Kind.PROBE))),
            "answered_since_back": self.back,
        }

    @property
    def back(self) -> int:
        """Answers of the killed engine to what it was sent after its breaker had closed again."""
        closed = self.closed_at
        if closed is None:
            return 0
        attempts = (one for one in self.chronicle.attempts.values() if one.engine == self.killed)
        return sum(one.cause is Cause.OK and one.sent >= closed for one in attempts)

    @property
    def closed_at(self) -> float | None:
        """When the breaker of the killed engine closed again; None: it did not."""
        states = list(self.chronicle.of(Kind.BREAKER, engine=self.killed)) if self.killed else []
        return states[-1].at if states and states[-1].said == BreakerState.CLOSED else None

    @property
    def longest_pause(self) -> float:
        """The longest that one whose answer went on elsewhere waited for a next word."""
        resumed = {note.request for note in self.chronicle.of(Kind.RESUMED)}
        gaps = (turn.longest_gap for turns in self.turns.values() for turn in turns if turn.request in resumed)
        return max(gaps, default=0.0)

    @property
    def holds(self) -> bool:
        """Streams went on, who could not was told, nobody else noticed, and the engine is in use again."""
        totals = self.totals
        others = [turn for user, turns in self.turns.items() if user != JSON_USER for turn in turns]
        return all(
            (
                totals["wrong"] == 0,
                all(turn.exact for turn in others),
                totals["resumed"] > 0,
                totals["answered_since_back"] > 0,
            )
        )


OnLook = Callable[[Story], None]
"""Is shown what there is so far."""


async def play(timetable: Timetable, on_look: OnLook | None = None) -> Story:
    """The whole scene."""
    async with _Stage(timetable) as stage:
        async with asyncio.TaskGroup() as together:
            watching = together.create_task(_watch(stage, on_look)) if on_look is not None else None
            async with asyncio.TaskGroup() as acting:
                acting.create_task(stage.direct())
                for user in EVERYBODY:
                    acting.create_task(stage.ask_on(user))
            if watching is not None:
                watching.cancel()
        story = stage.story()
    if on_look is not None:
        on_look(story)
    return story


async def _watch(stage: _Stage, on_look: OnLook) -> None:
    while True:
        on_look(stage.story())
        await asyncio.sleep(1 / LOOKS)


class _Stage:
    """Two engines, a gateway before them, and its users; an async context manager."""

    def __init__(self, timetable: Timetable) -> None:
        self._timetable = timetable
        self._engines = {name: MockEngine(model=MODEL, **ENGINE) for name in ENGINES}
        self._turns: dict[str, list[Turn]] = {user: [] for user in EVERYBODY}
        self._open = AsyncExitStack()
        self._over = False

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            for engine in self._engines.values():
                await opening.enter_async_context(engine)
            settings = config({name: engine.url for name, engine in self._engines.items()})
            registry = CollectorRegistry()
            gateway = await opening.enter_async_context(build(settings, registry=registry, random=Random(SEED)))
            url = await opening.enter_async_context(hosted(gateway, server_settings(settings), registry))
            self._endpoint = await opening.enter_async_context(Endpoint(url))
            self._chronicle = Chronicle(lambda: gateway.now, gateway.snapshot)
            gateway.gateway.observe(self._chronicle)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def story(self) -> Story:
        """What there is so far."""
        return Story(self._timetable, self._chronicle, self._turns, self._chronicle.now)

    async def ask_on(self, user: str) -> None:
        """Ask one question after the other until all is over."""
        await asyncio.sleep(self._timetable.pause * EVERYBODY.index(user))
        while not self._over:
            await self._ask(user)
            await asyncio.sleep(self._timetable.pause)

    async def _ask(self, user: str) -> None:
        turns, clock = self._turns[user], self._chronicle
        number = len(turns) + 1
        expected = words(user, number, self._timetable.words)
        turn = Turn(user=user, request=f"{user}-{number}", expected=expected, asked=clock.now)
        turns.append(turn)

        def seen(pieces: int) -> None:
            turn.engines.extend([clock.answering.get(turn.request, "")] * pieces)
            turn.read.extend([clock.now] * pieces)

        turn.answer = await self._endpoint.ask(question(user, turn.request, expected), seen)
        turn.ended = clock.now

    async def direct(self) -> None:
        """Kill an engine, bring it back, and end the scene when it is in use again."""
        times, chronicle = self._timetable, self._chronicle
        await self._until(lambda: chronicle.now >= times.killed_at and self._midway())
        name = chronicle.answering.get(self._turns[JSON_USER][-1].request, ENGINES[0])
        engine = self._engines[name]
        chronicle.note(Kind.KILLED, name)
        await engine.stop()
        await asyncio.sleep(times.away)
        while chronicle.now < times.longest:
            with contextlib.suppress(OSError):  # somebody took its port
                await engine.start()
                chronicle.note(Kind.STARTED, name)
                break
            await asyncio.sleep(TICK)
        await self._until(lambda: self.story().closed_at is not None)
        await asyncio.sleep(times.after)
        self._over = True

    def _midway(self) -> bool:
        """Whether the one whose answer cannot go on elsewhere has read a part of it, with a good part to come."""
        turns = self._turns[JSON_USER]
        length = self._timetable.words
        return bool(turns) and turns[-1].ended is None and length / 4 <= len(turns[-1].read) <= length * 2 / 3

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition() and self._chronicle.now < self._timetable.longest:  # noqa: ASYNC110 - the clock is part of it
            await asyncio.sleep(TICK)
