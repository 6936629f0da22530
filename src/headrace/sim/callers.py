"""The callers of a scenario, brought to life by a seed: what each one will ask."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from random import Random
from typing import assert_never

from headrace.model import Flow
from headrace.sim.engine import PREFIX_BLOCK
from headrace.sim.trace import Row, read
from headrace.sim.workload import Burst, Client, ClosedLoop, Every, Poisson, Replay, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request that a caller will make."""

    at: float
    flow: Flow
    group: str
    client: Client
    prompt: int
    output: int
    chain: Sequence[int] = ()
    talk: Talk | None = None


class Talk:
    """One session of a closed loop: asks, waits for the answer, thinks, asks again."""

    def __init__(
        self, client: Client, loop: ClosedLoop, user: str, name: str, random: Random, blocks: Iterator[int]
    ) -> None:
        self._client = client
        self._loop = loop
        self._flow = Flow(client.service_class, client.tenant, user, name)
        self._random = random
        self._blocks = blocks
        self._chain: list[int] = []
        self._said = 0
        """Tokens of the conversation so far."""

    def opening(self, shared: Sequence[int]) -> Ask:
        """The first question."""
        self._shared = shared
        return self._ask(self._random.uniform(0.0, self._loop.ramp) if self._loop.ramp else 0.0)

    def answered(self, now: float) -> Ask:
        """The next question, after some thought."""
        think = self._loop.think
        return self._ask(now + (self._random.expovariate(1 / think) if think else 0.0))

    def _ask(self, at: float) -> Ask:
        client, random = self._client, self._random
        prompt, output = client.prompt.draw(random), client.output.draw(random)
        session = client.session
        if session is not None:
            if not self._chain or self._said + prompt + output > session.most:
                self._chain, self._said = list(self._shared), session.shared
            prompt += self._said
            self._said = prompt + output
            while len(self._chain) < self._said // PREFIX_BLOCK:
                self._chain.append(next(self._blocks))
        chain = tuple(self._chain)
        group = client.group or client.name
        return Ask(
            at=at, flow=self._flow, group=group, client=client, prompt=prompt, output=output, chain=chain, talk=self
        )


def asks(clients: Iterable[Client], duration: float, seed: int, folder: Path) -> list[Ask]:
    """Every request whose time is known from the start, and the opening of every session.

    Raises:
        ConfigError: a trace cannot be read.
    """
    blocks = count(1)
    found: list[Ask] = []
    for client in clients:
        arrivals = client.arrivals
        if isinstance(arrivals, Replay):
            found += _replayed(client, arrivals, Random(f"{seed}/{client.name}"), folder)
            continue
        for user in client.names():
            random = Random(f"{seed}/{client.name}/{user}")
            match arrivals:
                case ClosedLoop():
                    found += _openings(client, arrivals, user, random, blocks)
                case Poisson() | Every() | Burst():
                    found += (_ask(client, user, at, random) for at in _times(arrivals, duration, random))
                case _:
                    assert_never(arrivals)
    return [ask for ask in found if ask.at < duration]


def _times(arrivals: Poisson | Every | Burst, duration: float, random: Random) -> Iterator[float]:
    if isinstance(arrivals, Burst):
        yield from [arrivals.at] * arrivals.count
        return
    stop = duration if arrivals.stop is None else min(duration, arrivals.stop)
    at = arrivals.start
    if isinstance(arrivals, Poisson):
        at += random.expovariate(arrivals.rate)
    while at < stop:
        yield at
        at += arrivals.seconds if isinstance(arrivals, Every) else random.expovariate(arrivals.rate)


def _ask(client: Client, user: str, at: float, random: Random) -> Ask:
    return Ask(
        at=at,
        flow=Flow(client.service_class, client.tenant, user),
        group=client.group or client.name,
        client=client,
        prompt=client.prompt.draw(random),
        output=client.output.draw(random),
    )


def _openings(client: Client, loop: ClosedLoop, user: str, random: Random, blocks: Iterator[int]) -> Iterator[Ask]:
    session = client.session or Session()
    shared = [next(blocks) for _ in range(session.shared // PREFIX_BLOCK)]
    for number in range(loop.sessions):
        talk = Talk(client, loop, user, f"{user}/{number + 1}", Random(random.random()), blocks)
        yield talk.opening(shared)


def _replayed(client: Client, replay: Replay, random: Random, folder: Path) -> Iterator[Ask]:
    rows = read(replay.file, replay.format, folder, replay.seconds)
    rows = _dealt(rows, client, replay, random)
    sizes = Counter(row.user for row in rows)
    heaviest = max(sizes, key=lambda user: sizes[user])
    for row in rows:
        group = client.group or client.name
        if replay.light:
            group = "light" if sizes[row.user] <= replay.light else "heaviest" if row.user == heaviest else "middle"
        yield Ask(
            at=row.at / replay.speed,
            flow=Flow(row.service_class, row.tenant, row.user, row.session),
            group=group,
            client=client,
            prompt=row.prompt,
            output=row.output,
            chain=row.chain,
        )


def _dealt(rows: Sequence[Row], client: Client, replay: Replay, random: Random) -> list[Row]:
    """Give a user to each row that has none: independent draws, the k-th user with weight 1 / k ** zipf."""
    names = _names(client, replay.users)
    edges = list(accumulate(1 / (rank + 1) ** replay.zipf for rank in range(replay.users)))
    return [row if row.user else row._replace(user=names[bisect(edges, random.random() * edges[-1])]) for row in rows]


def _names(client: Client, users: int) -> list[str]:
    """Names for the users among whom a trace is dealt."""
    return [client.name] if users == 1 else [f"{client.name}-{rank + 1}" for rank in range(users)]
