"""A run: every user asks in their own way at the same time, for a while; then what is under way may still end.

Bounds: `Plan.duration` and `Plan.grace` in time; for each user `User.requests` in all and `User.at_once` under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, TypeVar

from headrace.bench.endpoint import Answered, Asker
from headrace.bench.patterns import User
from headrace.bench.questions import Conversation, Question, Questioner
from headrace.bench.tally import Exchange, Tally

T = TypeVar("T")

LONGEST_PAUSE = 10.0
"""A caller whose request failed stays away as long as they were told to, but at most so many seconds."""
SHORTEST_PAUSE = 0.25
"""...and at least so long, so that an endpoint that refuses at once is not hammered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is: who asks which model, for how long. Times are seconds."""

    users: tuple[User, ...]
    model: str
    duration: float = 20.0
    grace: float = 30.0
    """How long the requests under way may take after the end."""
    seed: int = 0
    ignore_eos: bool = False
    keys: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """API keys of users that have one of their own, by user name."""


class Alone(NamedTuple):
    """What one request takes when nothing else runs, in seconds."""

    first: float
    whole: float


class Run:
    """One run; `go` it once. The tallies can be looked at meanwhile.

    Args:
        plan: what to do.
        asker: what answers.
    """

    def __init__(self, plan: Plan, asker: Asker) -> None:
        self.plan = plan
        self.tallies = {user.name: Tally(user.name, plan.duration) for user in plan.users}
        self.interrupted = False
        self._asker = asker
        self._began = 0.0
        self._stop = asyncio.Event()
        self._requests: set[asyncio.Task[Answered]] = set()
        self._fault: BaseException | None = None

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self._began

    def interrupt(self) -> None:
        """End it now: what is under way is let go of."""
        self.interrupted = True
        self._stop.set()

    async def alone(self) -> tuple[Answered, Alone | None]:
        """Ask once before anybody else does: whether the endpoint answers, and how fast it is without company."""
        user = min(self.plan.users, key=lambda user: user.rate or float("inf"))
        question = self._questioner(user, "alone").ask()
        began = asyncio.get_running_loop().time()
        first: list[float] = []

        def seen(_: int) -> None:
            first.append(asyncio.get_running_loop().time() - began)

        answer = await self._asker.ask(question, seen)
        took = asyncio.get_running_loop().time() - began
        return answer, Alone(first[0], took) if answer.served else None

    async def go(self) -> float:
        """Run; returns the seconds that were measured. Raises what this package's own code raised, which is a fault."""
        self._began = asyncio.get_running_loop().time()
        callers = {self._task(caller) for user in self.plan.users for caller in self._callers(user)}
        stop = asyncio.create_task(self._stop.wait())
        try:
            await _all(callers, stop, self.plan.duration)
            await _all(self._requests, stop, self.plan.duration - self.now)
            window = min(self.now, self.plan.duration)
            for tally in self.tallies.values():
                tally.close(window)
            await _cancel(callers)
            await _all(self._requests, stop, self.plan.grace)
        finally:
            await _cancel({*callers, *self._requests, stop})
        if self._fault is not None:
            raise self._fault
        return window

    # ------------------------------------------------------------------ the users

    def _callers(self, user: User) -> Iterator[Coroutine[None, None, None]]:
        """What this user does, as tasks to be."""
        questioner, tally = self._questioner(user, user.name), self.tallies[user.name]
        random = Random(f"{self.plan.seed}/{user.name}/times")
        if user.rate is not None:
            yield self._arrivals(user, user.rate, questioner, tally, random)
        elif user.burst is not None:
            yield self._burst(user, min(user.burst, user.requests), questioner, tally)
        else:
            allowance = iter(range(user.requests))
            for _ in range(user.at_once):
                yield self._caller(user, questioner, tally, random, allowance)

    async def _arrivals(self, user: User, rate: float, questioner: Questioner, tally: Tally, random: Random) -> None:
        """Requests at random times, whether or not the ones before were answered."""
        room, due = asyncio.Semaphore(user.at_once), user.at
        for _ in range(user.requests):
            due += random.expovariate(rate)
            if user.until is not None and due > user.until:
                return
            await self._until(due)
            tally.hold(1, self.now)
            await room.acquire()
            self._send_held(tally, questioner.ask(), due, room)

    async def _burst(self, user: User, number: int, questioner: Questioner, tally: Tally) -> None:
        """So many requests that are there at once, sent as far as there is room."""
        await self._until(user.at)
        room = asyncio.Semaphore(user.at_once)
        tally.hold(number, self.now)
        for _ in range(number):
            await room.acquire()
            if user.until is not None and self.now > user.until:
                tally.release(tally.held, self.now)
                return
            self._send_held(tally, questioner.ask(), user.at, room)

    async def _caller(
        self, user: User, questioner: Questioner, tally: Tally, random: Random, allowance: Iterator[int]
    ) -> None:
        """Ask, wait for the answer, think, ask again."""
        await self._until(user.at)
        conversation = questioner.converse() if user.session is not None else None
        for _ in allowance:
            if user.until is not None and self.now > user.until:
                return
            answer = await asyncio.shield(self._send(tally, questioner.ask(conversation), self.now))
            if conversation is not None:
                conversation = _next(questioner, conversation, answer)
            if not answer.served:
                await asyncio.sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, answer.retry_after or 0.0)))
            elif user.think:
                await asyncio.sleep(random.expovariate(1 / user.think))

    # ------------------------------------------------------------------ one request

    def _send_held(self, tally: Tally, question: Question, due: float, room: asyncio.Semaphore) -> None:
        tally.release(1, self.now)
        self._send(tally, question, due).add_done_callback(lambda _: room.release())

    def _send(self, tally: Tally, question: Question, due: float) -> asyncio.Task[Answered]:
        exchange = tally.sent(question, due, self.now)
        task = self._task(self._exchange(tally, exchange))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return task

    async def _exchange(self, tally: Tally, exchange: Exchange) -> Answered:
        try:
            answer = await self._asker.ask(exchange.question, lambda pieces: tally.seen(exchange, pieces, self.now))
        except asyncio.CancelledError:
            tally.cut(exchange, self.now)
            raise
        tally.ended(exchange, answer, self.now)
        return answer

    # ------------------------------------------------------------------ small things

    def _questioner(self, user: User, purpose: str) -> Questioner:
        plan = self.plan
        random = Random(f"{plan.seed}/{purpose}")
        return Questioner(user, plan.model, random, ignore_eos=plan.ignore_eos, key=plan.keys.get(user.name))

    async def _until(self, when: float) -> None:
        """Wait for a time, in seconds after the start."""
        if when > self.now:
            await asyncio.sleep(when - self.now)

    def _task(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._look)
        return task

    def _look(self, task: asyncio.Task[T]) -> None:
        """A fault in one task ends the run."""
        if not task.cancelled() and task.exception() is not None:
            self._fault = self._fault or task.exception()
            self._stop.set()


def _next(questioner: Questioner, conversation: Conversation, answer: Answered) -> Conversation:
    """How a conversation goes on; after a failure it does not."""
    if not answer.served:
        return questioner.converse()
    tokens = answer.usage.completion if answer.usage is not None else len(answer.text.split())
    return questioner.answered(conversation, answer.text, tokens)


async def _all(tasks: Iterable[asyncio.Task[T]], stop: asyncio.Task[bool], seconds: float) -> None:
    """Wait until all of them are done, or `stop` is, or the time is up."""
    end = asyncio.get_running_loop().time() + seconds
    left = set[asyncio.Task[T] | asyncio.Task[bool]](tasks)
    while left and not stop.done():
        remaining = end - asyncio.get_running_loop().time()
        if remaining <= 0:
            return
        done, _ = await asyncio.wait({*left, stop}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        left -= done


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel, and wait until they are gone."""
    gone = list(tasks)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
