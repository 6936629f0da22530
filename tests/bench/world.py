"""An endpoint of fixed speed that lives in memory, for runs on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from headrace.bench.endpoint import SERVED, Answered
from headrace.bench.questions import Question
from headrace.model import Usage


class Slots:
    """Answers so many requests at a time, first come first served.

    Every answer has `tokens` tokens, one each `pace` seconds. `refuse` names what users get instead of an answer, by
    their names. `hang` never answers anybody.
    """

    def __init__(self, slots: int, *, tokens: int = 10, pace: float = 0.1, usage: bool = True) -> None:
        self.room = asyncio.Semaphore(slots)
        self.tokens = tokens
        self.pace = pace
        self.usage = usage
        self.refuse: dict[str, Answered] = {}
        self.hang = False
        self.asked: list[tuple[float, str]] = []
        """When who asked."""
        self.bodies: list[dict[str, object]] = []
        self.at_once = 0
        self.most_at_once = 0

    async def ask(self, question: Question, seen: Callable[[int], None]) -> Answered:
        """See `bench.endpoint.Asker`."""
        user = dict(question.headers)["x-headrace-user"]
        self.asked.append((asyncio.get_running_loop().time(), user))
        self.bodies.append(msgspec.json.decode(question.body, type=dict[str, object]))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.hang:
                await asyncio.Event().wait()
            return self.refuse.get(user) or await self._answer(question, seen)
        finally:
            self.at_once -= 1

    async def _answer(self, question: Question, seen: Callable[[int], None]) -> Answered:
        async with self.room:
            for _ in range(self.tokens):
                await asyncio.sleep(self.pace)
                seen(1)
        usage = Usage(question.prompt_tokens, self.tokens) if self.usage else None
        return Answered(result=SERVED, usage=usage, text="word " * self.tokens)
