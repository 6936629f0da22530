"""A power user who sends all at once, and a light one who asks one thing after another: what each of them feels.

Times are seconds of the loop's clock, virtual or not, as a client sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import aiohttp

from tests.e2e.client import Client, chat, next_event

WORD = "abc "
"""One token for the mock engine, which counts words, and for the gateway, which counts four bytes."""


@dataclass(frozen=True, slots=True)
class Felt:
    """One streamed answer as its client saw it."""

    status: int
    sent: float
    first: float
    """When the first content came; the time of the end where none did."""
    ended: float
    pieces: int
    """Pieces of content: tokens of the mock engine."""
    complete: bool
    waited: float
    """Seconds in the gateway's queue, as the answer's head says; 0 when refused."""

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.first - self.sent

    @property
    def tpot(self) -> float:
        """Time per output token after the first."""
        return (self.ended - self.first) / max(1, self.pieces - 1)


def prompt(tokens: int, name: str) -> str:
    """A text of so many tokens that no other name has."""
    return f"{name:<.3} " + WORD * (tokens - 1)


async def feel(caller: Client, body: Mapping[str, object], headers: Mapping[str, str]) -> Felt:
    """Ask for a streamed answer and read it to its end."""
    clock = asyncio.get_running_loop().time
    sent, first, pieces, last = clock(), None, 0, b""
    async with caller.open({**body, "stream": True}, headers) as response:
        while event := await next_event(response):
            last = event
            if b'"content":' in event and b'"content":""' not in event:
                first = first or clock()
                pieces += 1
        ended = clock()
        return Felt(
            status=response.status,
            sent=sent,
            first=ended if first is None else first,
            ended=ended,
            pieces=pieces,
            complete=last == b"[DONE]",
            waited=_waited(response),
        )


def _waited(response: aiohttp.ClientResponse) -> float:
    return float(response.headers.get("x-headrace-queue-ms", 0)) / 1000


@dataclass(frozen=True, slots=True)
class Crowd:
    """What the flood and the light user felt of each other."""

    flood: Sequence[Felt]
    light: Sequence[Felt]

    @property
    def seconds(self) -> float:
        """From the first of the flood to the end of its last answer."""
        return max(felt.ended for felt in self.flood) - min(felt.sent for felt in self.flood)

    @property
    def during_flood(self) -> Sequence[Felt]:
        """The light user's answers that were over before the flood was."""
        over = max(felt.ended for felt in self.flood)
        return [felt for felt in self.light if felt.ended <= over]

    @property
    def throughput(self) -> float:
        """Tokens per second of both while there was a flood."""
        return sum(felt.pieces for felt in (*self.flood, *self.during_flood)) / self.seconds

    @property
    def release(self) -> float:
        """Mean seconds from one end of an answer of the flood to the next: how often a place becomes free."""
        return self.seconds / len(self.flood)

    @property
    def all_answered(self) -> bool:
        """Nobody was refused, and every answer is whole."""
        return all(felt.status == 200 and felt.complete for felt in (*self.flood, *self.light))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is asked: the flood's requests, and the light user's; lengths in tokens."""

    flood: int = 200
    light: int = 5
    prompt: int = 600
    output: int = 8
    light_output: int = 8
    flood_class: str = "normal"
    light_class: str = "normal"
    model: str = "m"


async def crowd(caller: Client, load: Load, begun: Awaitable[object] | None = None) -> Crowd:
    """Send the flood at once; then, after `begun`, the light user's requests one after another."""
    power = {"x-headrace-user": "power", "x-headrace-class": load.flood_class}
    asked = [
        asyncio.create_task(
            feel(caller, chat(prompt(load.prompt, f"{n}"), model=load.model, max_tokens=load.output), power)
        )
        for n in range(load.flood)
    ]
    if begun is not None:
        await begun
    light = await alone(caller, load)
    return Crowd(await asyncio.gather(*asked), light)


async def alone(caller: Client, load: Load) -> Sequence[Felt]:
    """The light user's requests, one after another."""
    light = {"x-headrace-user": "light", "x-headrace-class": load.light_class}
    fields = {"model": load.model, "max_tokens": load.light_output}
    return [await feel(caller, chat(prompt(load.prompt, f"L{n}"), **fields), light) for n in range(load.light)]


def typical(felt: Sequence[Felt]) -> float:
    """Median time to the first token."""
    return median(one.ttft for one in felt)
