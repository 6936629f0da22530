"""Replays: dead letters sent again, one or many, paced, in the background.

A letter is claimed just before it is sent and removed once it was answered; until then it stays where it is, so that a
process that dies in the middle loses none. One that fails gets the new attempts written to it, is let go, and is tried
again after 1, 2, 4, ... seconds (at most 60, or as long as it is told to wait), a bounded number of times. A letter
that is claimed while the process dies stays claimed: whether its call was made is not known.

Bounds: `RUNNING` replays at a time and `KEPT` in all, of `MOST_LETTERS` letters each, `IN_FLIGHT` of one replay under
way; `ANSWER_BYTES` of answers, of more those that came first are forgotten (their letters are answered all the same).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import structlog

from headrace.runtime.addresses import Allowed, check
from headrace.runtime.replay_pacing import PacedSending
from headrace.runtime.resending import Resender, Resent, Unsendable
from headrace.runtime.stores import DeadLetters, StoredLetter
from headrace.runtime.webhooks import Delivery, Hook, Webhooks

RUNNING = 4
KEPT = 100
MOST_LETTERS = 10_000
IN_FLIGHT = 16
ANSWER_BYTES = 64 * 1024 * 1024
TRIES = 6
"""How often a letter is sent unless the order says otherwise."""
PACE = 1.0
"""Letters a second unless the order says otherwise."""
LONGEST_PAUSE = 60.0
ANYWHERE = Allowed()
_log = structlog.get_logger(__name__)


class TooManyReplays(Exception):
    """`RUNNING` replays run already, or the gateway is being stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be sent again, and how."""

    letters: tuple[int, ...]
    """By their numbers, sent in this order, each once."""
    model: str | None = None
    """Asked instead of each letter's own; None: its own."""
    instance: str | None = None
    """The one that is to answer; None: any."""
    pace: float = PACE
    """Letters a second at most."""
    tries: int = TRIES
    webhook: str | None = None
    """An http(s) URL that is told of the result in the end."""


class Standing(StrEnum):
    """How it stands with one letter: waiting to be sent (again), under way, or over."""

    WAITING = "waiting"
    SENDING = "sending"
    ANSWERED = "answered"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was gone, or another replay had it."""


class Status(StrEnum):
    """How it stands with a replay."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    """By somebody, or by the end of the gateway; what was not answered is a letter still."""


@dataclass(slots=True)
class Result:
    """What became of one letter so far."""

    letter: int
    request_id: str = ""
    standing: Standing = Standing.WAITING
    tries: int = 0
    instance: str = ""
    """Who answered."""
    detail: str = ""
    """Why it was not answered, the last time."""
    answer: bytes | None = None
    """The answer as JSON; None: there is none, or it is not kept any more."""
    answer_bytes: int = 0


@dataclass(slots=True)
class Replay:
    """One replay. Times are wall-clock seconds."""

    id: str
    order: Order
    created: float
    results: dict[int, Result]
    sending: PacedSending = field(repr=False)
    status: Status = Status.RUNNING
    finished: float | None = None
    delivery: Delivery | None = None
    """What became of the webhook, once that is known."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def counts(self) -> Counter[Standing]:
        """Letters by how it stands with them."""
        return Counter(result.standing for result in self.results.values())


class Replays:
    """Runs replays and remembers them.

    Args:
        resender: sends one letter.
        letters: the store.
        webhooks: tell of results.
        told: a replay as the JSON that its webhook gets.
        secret: signs what webhooks get; None: nothing does.
        listed: where webhooks may be.
        wall: wall clock in seconds.
        answer_bytes: most bytes of answers that are remembered.
    """

    def __init__(
        self,
        resender: Resender,
        letters: DeadLetters,
        webhooks: Webhooks,
        told: Callable[[Replay], bytes],
        *,
        secret: str | None = None,
        listed: Allowed = ANYWHERE,
        wall: Callable[[], float] = time.time,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        self._resender = resender
        self._letters = letters
        self._webhooks = webhooks
        self._told = told
        self._secret = secret
        self._listed = listed
        self._wall = wall
        self._answers = _Answers(answer_bytes)
        self._replays: OrderedDict[str, Replay] = OrderedDict()
        self._stopping = False
        self.totals: Counter[Standing] = Counter()
        """Letters that came to an end in replays, since the start."""

    @property
    def all(self) -> Sequence[Replay]:
        """Those that are remembered, the oldest first."""
        return tuple(self._replays.values())

    def get(self, replay_id: str) -> Replay | None:
        """One replay."""
        return self._replays.get(replay_id)

    async def check(self, order: Order) -> None:
        """Whether the webhook of an order may be told. Raises AddressRefused."""
        if order.webhook is not None:
            await check(order.webhook, self._listed)

    def begin(self, order: Order) -> Replay:
        """Start a replay and return at once; its webhook is not checked.

        Raises TooManyReplays, and ValueError for more than `MOST_LETTERS` letters.
        """
        if len(order.letters) > MOST_LETTERS:
            raise ValueError(f"a replay has at most {MOST_LETTERS} letters")
        if self._stopping or sum(replay.status is Status.RUNNING for replay in self.all) >= RUNNING:
            raise TooManyReplays
        results = {number: Result(number) for number in order.letters}

        async def send(number: int) -> float | None:
            return await self._one(order, results[number])

        sending = PacedSending(tuple(results), send, pace=order.pace, abreast=IN_FLIGHT)
        replay = Replay(f"replay_{secrets.token_hex(8)}", order, self._wall(), results, sending)
        self._replays[replay.id] = replay
        finished = [kept for kept in self.all if kept.status is not Status.RUNNING]
        for old in finished[: max(0, len(self._replays) - KEPT)]:
            self._forget(old)
        replay.task = asyncio.get_running_loop().create_task(self._run(replay), name=replay.id)
        return replay

    async def cancel(self, replay: Replay) -> None:
        """Send nothing more of it and give up what is under way; one that is over is forgotten."""
        if replay.status is not Status.RUNNING:
            self._forget(replay)
        elif replay.task is not None:
            replay.task.cancel()
            await asyncio.wait([replay.task])

    def stop(self) -> None:
        """The gateway is being stopped: begin nothing, send nothing more; what is under way may end."""
        self._stopping = True
        for replay in self.all:
            replay.sending.stop()

    async def close(self) -> None:
        """End everything; letters that were not answered stay, unclaimed."""
        self.stop()
        tasks = [replay.task for replay in self.all if replay.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ one replay

    async def _run(self, replay: Replay) -> None:
        try:
            await replay.sending.run()
        except asyncio.CancelledError:
            replay.status = Status.CANCELLED
        else:
            replay.status = Status.CANCELLED if replay.counts[Standing.WAITING] else Status.DONE
        replay.finished = self._wall()
        counts = {standing.value: count for standing, count in replay.counts.items()}
        _log.info("replay", id=replay.id, status=replay.status.value, **counts)
        if replay.order.webhook is not None and not self._stopping:
            try:
                hook = Hook(replay.order.webhook, self._secret)
                replay.delivery = await self._webhooks.deliver(hook, self._told(replay))
            except Exception:  # noqa: BLE001 - the task's outer edge: the result can still be asked for
                _log.exception("the webhook of a replay failed", replay=replay.id)

    async def _one(self, order: Order, result: Result) -> float | None:
        """Send one letter once; the pause in seconds before it is sent again, None when it is over."""
        result.standing, result.tries = Standing.SENDING, result.tries + 1
        try:
            letter = await self._claimed(result.letter)
            if letter is not None:
                result.request_id = letter.request_id
                return self._judged(order, result, await self._sent(order, letter))
            if self._letters.degraded:
                return self._again(order, result, "the letters cannot be written at the moment")
            there = await self._letters.get(result.letter)
            self._over(result, Standing.SKIPPED, "it is gone" if there is None else "another replay has it")
        except Unsendable as error:
            self._over(result, Standing.FAILED, str(error))
        finally:
            if result.standing is Standing.SENDING:  # it was given up
                result.standing = Standing.WAITING
        return None

    async def _claimed(self, number: int) -> StoredLetter | None:
        """A claim that is not left behind when the replay is cancelled just now."""
        claiming = asyncio.ensure_future(self._letters.claim(number))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            if await claiming is not None:
                await self._letters.release(number)
            raise

    async def _sent(self, order: Order, letter: StoredLetter) -> Resent:
        """Send a claimed letter; in any case the claim is over afterwards."""
        resent: Resent | None = None
        try:
            resent = await self._resender.send(letter, model=order.model, instance=order.instance)
        finally:
            if resent is not None and resent.answer is not None:
                await self._letters.done(letter.id)
            else:
                # Nothing is written to a letter that was given up, or whose gateway is being stopped.
                failed = resent is not None and not resent.stopping
                await self._letters.release(letter.id, resent.tried if resent is not None and failed else None)
        return resent

    def _judged(self, order: Order, result: Result, resent: Resent) -> float | None:
        """What follows from how a letter fared; as `_one`."""
        if resent.answer is not None:
            result.instance = resent.head.instance if resent.head is not None else ""
            self._answers.keep(result, resent.answer)
            self._over(result, Standing.ANSWERED)
            return None
        result.detail = resent.tried.detail
        if resent.stopping:
            return None
        if resent.mendable:
            asked = resent.fault.retry_after if resent.fault is not None else None
            return self._again(order, result, resent.tried.detail, asked or 0.0)
        self._over(result, Standing.FAILED, resent.tried.detail)
        return None

    def _again(self, order: Order, result: Result, detail: str, asked: float = 0.0) -> float | None:
        if result.tries >= order.tries:
            self._over(result, Standing.FAILED, detail)
            return None
        result.standing, result.detail = Standing.WAITING, detail
        return min(LONGEST_PAUSE, max(2.0 ** (result.tries - 1), asked))

    def _over(self, result: Result, standing: Standing, detail: str = "") -> None:
        result.standing, result.detail = standing, detail
        self.totals[standing] += 1

    def _forget(self, replay: Replay) -> None:
        self._replays.pop(replay.id, None)
        self._answers.drop(replay.results.values())


class _Answers:
    """The answers that are remembered, in the order in which they came."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: deque[Result] = deque()
        self._bytes = 0

    def keep(self, result: Result, answer: bytes) -> None:
        """Remember an answer; where there is no room, the first ones are forgotten."""
        result.answer, result.answer_bytes = answer, len(answer)
        self._kept.append(result)
        self._bytes += len(answer)
        while self._bytes > self._most:
            self._clear(self._kept.popleft())

    def drop(self, results: Iterable[Result]) -> None:
        """Forget these."""
        for result in results:
            self._clear(result)
        self._kept = deque(result for result in self._kept if result.answer is not None)

    def _clear(self, result: Result) -> None:
        if result.answer is not None:
            self._bytes -= len(result.answer)
            result.answer = None
