"""The mock engine's batch in real or virtual time: the timing model driven by the running loop's clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from headrace.testing.timing import ContinuousBatch, Produced, QueueFull, Timing, TooLong
from headrace.testing.vllm_metrics import VllmMetrics
from headrace.testing.waiting import Changes

_STARTED_KEPT = 10_000
"""Of so many requests, the latest, the order of start is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MockStats:
    """What a mock engine has seen. Counts are requests for answers since it was made."""

    seen: int
    running: int
    """Hold a slot now."""
    waiting: int
    """Wait for a slot now."""
    finished: int
    cancelled: int
    """Left by their client before the end."""
    refused: int
    """Not let in: queue full, prompt too long, malformed, unknown model, wrong key."""
    faulted: int
    """Hit by an injected fault."""
    max_running: int
    max_waiting: int
    started: tuple[str, ...]
    """The `x-request-id` (or the engine's own id) of each request that got a slot, in that order; the last 10,000."""

    def to_json(self) -> dict[str, object]:
        """As `GET /admin/stats` shows it."""
        return asdict(self)


class Job:
    """One request inside the engine; its handler awaits `next_token` until one is `last`."""

    def __init__(self, number: int, request_id: str, entered: float) -> None:
        self.number = number
        self.request_id = request_id
        self.entered = entered
        self.latest = entered
        """When its latest token was produced."""
        self._tokens: deque[Produced] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, token: Produced) -> None:
        """A token was produced."""
        self.latest = token.at
        self._tokens.append(token)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next_token(self) -> Produced:
        """The next token, in order."""
        while not self._tokens:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._tokens.popleft()

    async def complete(self) -> None:
        """Return once the last token is there."""
        while not (await self.next_token()).last:
            pass


class Load:
    """Jobs in, tokens out, one timer. Everything happens in the loop that made it."""

    def __init__(self, timing: Timing, metrics: VllmMetrics) -> None:
        self.changes = Changes()
        self.seen = self.finished = self.cancelled = self.refused = self.faulted = 0
        self._loop = asyncio.get_running_loop()
        self._batch = ContinuousBatch(timing)
        self._metrics = metrics
        self._jobs: dict[int, Job] = {}
        self._numbers = 0
        self._started: deque[str] = deque(maxlen=_STARTED_KEPT)
        self._max_running = self._max_waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def kv_use(self) -> float:
        """Share of the cache in use, 0..1."""
        return self._batch.kv_use

    @property
    def stats(self) -> MockStats:
        """The counts of this moment."""
        return MockStats(
            seen=self.seen,
            running=self._batch.running,
            waiting=self._batch.waiting,
            finished=self.finished,
            cancelled=self.cancelled,
            refused=self.refused,
            faulted=self.faulted,
            max_running=self._max_running,
            max_waiting=self._max_waiting,
            started=tuple(self._started),
        )

    async def until(self, condition: Callable[[MockStats], bool], seconds: float) -> None:
        """Wait until the counts satisfy `condition`; raises `GuardExpired` after `seconds`."""
        await self.changes.until(lambda: condition(self.stats), seconds, "what is expected of the mock engine")

    def enter(
        self,
        request_id: str,
        prompt: int,
        output: int,
        *,
        priority: int = 0,
        stall_after: int | None = None,
        stall: float = 0.0,
    ) -> Job:
        """A request comes in; lengths in tokens, `stall` in seconds. Raises `QueueFull` and `TooLong` of `timing`.

        Whatever happens then, `leave` must be called.
        """
        now = self._loop.time()
        self._catch_up(now)
        self._numbers += 1
        job = Job(self._numbers, request_id, now)
        self._jobs[job.number] = job
        try:
            self._batch.submit(job.number, prompt, output, now, priority=priority, stall_after=stall_after, stall=stall)
        except (QueueFull, TooLong):
            del self._jobs[job.number]
            raise
        self._metrics.prompt_tokens(prompt)
        self._note()
        return job

    def leave(self, job: Job) -> None:
        """The request is over; what it still held is free at once. A second call does nothing."""
        if self._jobs.pop(job.number, None) is not None:
            now = self._loop.time()
            self._catch_up(now)
            self._batch.cancel(job.number, now)
        self._note()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        self._catch_up(self._loop.time())
        self._note()

    def _catch_up(self, now: float) -> None:
        for token in self._batch.advance(now):
            job = self._jobs.get(token.job)
            if job is None:
                continue
            if token.number == 1:
                self._metrics.first_token(token.at - job.entered)
            elif token.number > 1:
                self._metrics.next_token(token.at - job.latest)
            job.put(token)

    def _note(self) -> None:
        """After any change: the order of starts, the highest counts, the timer, those who wait."""
        for number in self._batch.take_admitted():
            job = self._jobs.get(number)
            if job is not None:
                self._started.append(job.request_id)
        self._max_running = max(self._max_running, self._batch.running)
        self._max_waiting = max(self._max_waiting, self._batch.waiting)
        due = self._batch.next_at
        if self._timer is None or self._due != due:
            self.close()
            if due is not None:
                # The handle itself need not know its time: uvloop's does not when the time has come already.
                self._due, self._timer = due, self._loop.call_at(due, self._wake)
        self.changes.notify()
