"""The timing of a continuous-batching server, as a pure model: no clock, no IO, the same inputs give the same times.

The server works in *steps*. At the start of a step it takes what is new into the batch: each waiting prompt gets up to
`step_tokens` prompt tokens of work (all prompts together, first come first served), each sequence whose prompt is done
produces one token. A step lasts

    prompt tokens in it / prefill_tps + (1 + batch_slowdown * (n - 1)) / decode_tps     for n producing sequences,

divided by `speed`. A sequence produces its first token at the end of the step that finishes its prompt. So a long
prompt slows everybody's tokens, and a lone request of p prompt tokens has its first token after p / prefill_tps.
This is how iteration-level scheduling behaves (Yu et al., Orca, OSDI 2022) with prompts in chunks (Agrawal et al.,
Sarathi-Serve, OSDI 2024), reduced to what a scheduler in front of the server can notice.

Bounds: `slots` sequences run, `queue` wait in strict order of arrival (with `by_priority`: lower priority values
first, as vLLM does with `--scheduling-policy priority`), and a sequence is let in only when the `kv_tokens` hold its
whole prompt and answer beside those of the others; nothing is ever evicted, so nobody running makes way.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How fast and how large the modelled server is. Rates may be infinite."""

    slots: int = 4
    queue: int = 1024
    """Most requests waiting for a slot; one more is refused."""
    by_priority: bool = False
    """Whoever waits with the lowest priority value goes next, among equals the first; else only arrival counts."""
    prefill_tps: float = 4000.0
    """Prompt tokens per second, of the server as a whole."""
    decode_tps: float = 50.0
    """Answer tokens per second of a sequence that runs alone."""
    batch_slowdown: float = 0.02
    """How much longer a step takes for each further producing sequence, as a fraction."""
    step_tokens: int = 2048
    """Most prompt tokens worked on in one step."""
    kv_tokens: int = 65536
    """Tokens of prompts and answers that fit into the cache."""
    speed: float = 1.0
    """Divides every duration; 10 makes a test ten times shorter."""
    jitter: float = 0.0
    """Each step's duration varies by up to this fraction, drawn from `seed`."""
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = (self.slots, self.prefill_tps, self.decode_tps, self.step_tokens, self.kv_tokens, self.speed)
        if min(sizes) <= 0 or min(self.queue, self.batch_slowdown) < 0 or not 0 <= self.jitter < 1:
            raise ValueError("rates, sizes and speed must be above 0, queue and slowdown not below 0, jitter in [0, 1)")


class TimingNumbers(TypedDict, total=False):
    """The fields of `Timing` as keyword arguments of something that is made with one."""

    slots: int
    queue: int
    by_priority: bool
    prefill_tps: float
    decode_tps: float
    batch_slowdown: float
    step_tokens: int
    kv_tokens: int
    speed: float
    jitter: float
    seed: int


class QueueFull(Exception):
    """As many requests wait as may."""


class TooLong(Exception):
    """Prompt and answer together can never fit into the cache."""


class Produced(NamedTuple):
    """A token of a job is there. A job without answer tokens gives one of these, numbered 0, at its prompt's end."""

    job: int
    at: float
    number: int
    """1 for the first token."""
    last: bool


@dataclass(slots=True, eq=False)
class _Sequence:
    job: int
    prompt: int
    output: int
    priority: int
    stall_after: int
    stall: float
    prefilled: int = 0
    produced: int = 0
    stalled_until: float = -math.inf

    @property
    def size(self) -> int:
        return self.prompt + self.output


@dataclass(slots=True)
class _Step:
    end: float
    prefill: list[tuple[_Sequence, int]]
    decode: list[_Sequence]

    def lacks(self, gone: _Sequence) -> bool:
        """Take a cancelled sequence out; whether the step has become empty."""
        self.prefill = [(sequence, tokens) for sequence, tokens in self.prefill if sequence is not gone]
        self.decode = [sequence for sequence in self.decode if sequence is not gone]
        return not self.prefill and not self.decode


class ContinuousBatch:
    """The server's moving state. All times are seconds on the caller's clock, which must not go backwards.

    The caller submits and cancels, asks `next_at` when something will happen, and calls `advance` then.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._random = Random(timing.seed)
        self._waiting: dict[int, _Sequence] = {}
        self._running: dict[int, _Sequence] = {}
        self._reserved = 0
        self._admitted: deque[int] = deque()
        self._step: _Step | None = None

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def kv_use(self) -> float:
        """Share of the cache that holds tokens, 0..1."""
        held = sum(sequence.prefilled + sequence.produced for sequence in self._running.values())
        return held / self.timing.kv_tokens

    @property
    def next_at(self) -> float | None:
        """When `advance` will have something to do; None: never, as things are."""
        if self._step is not None:
            return self._step.end
        ends = [sequence.stalled_until for sequence in self._running.values()]
        soonest = min(ends, default=math.inf)
        return None if soonest == math.inf else soonest

    def submit(
        self,
        job: int,
        prompt: int,
        output: int,
        now: float,
        *,
        priority: int = 0,
        stall_after: int | None = None,
        stall: float = 0.0,
    ) -> None:
        """Queue a job of so many prompt and answer tokens. `priority` counts only with `Timing.by_priority`.

        After `stall_after` tokens (0: before its prompt is worked on) it keeps its slot but stands still for `stall`
        seconds, which may be infinite. Raises `TooLong` and `QueueFull`.
        """
        if prompt + output > self.timing.kv_tokens:
            raise TooLong(f"{prompt} + {output} tokens do not fit into {self.timing.kv_tokens}")
        sequence = _Sequence(job, prompt, output, priority, -1 if stall_after is None else stall_after, stall)
        if self._must_wait(sequence) and len(self._waiting) >= self.timing.queue:
            raise QueueFull(f"{self.timing.queue} requests are waiting")
        self._waiting[job] = sequence
        self._settle(now)

    def cancel(self, job: int, now: float) -> None:
        """Forget a job: its slot, its cache and its place in the queue are free at once. Unknown jobs are ignored."""
        self._waiting.pop(job, None)
        sequence = self._running.pop(job, None)
        if sequence is not None:
            self._reserved -= sequence.size
            if self._step is not None and self._step.lacks(sequence):
                self._step = None
        self._settle(now)

    def take_admitted(self) -> list[int]:
        """The jobs that got a slot since the last call, in order."""
        admitted = list(self._admitted)
        self._admitted.clear()
        return admitted

    def advance(self, now: float) -> list[Produced]:
        """Everything that was produced up to `now`, in order."""
        produced: list[Produced] = []
        while (due := self.next_at) is not None and due <= now:
            if self._step is not None:
                self._finish(self._step, produced)
                self._step = None
            self._settle(due)
        return produced

    def _must_wait(self, sequence: _Sequence) -> bool:
        full = len(self._running) >= self.timing.slots
        return bool(self._waiting) or full or self._reserved + sequence.size > self.timing.kv_tokens

    def _settle(self, now: float) -> None:
        """Fill free slots from the queue's head and begin a step if none is under way."""
        while self._waiting and len(self._running) < self.timing.slots:
            head = self._head()
            if self._reserved + head.size > self.timing.kv_tokens:
                break
            del self._waiting[head.job]
            self._running[head.job] = head
            self._reserved += head.size
            self._admitted.append(head.job)
            self._stall_if_due(head, now)
        if self._step is None:
            self._step = self._begin(now)

    def _head(self) -> _Sequence:
        """Who is next of those that wait; among equals `min` keeps the first."""
        waiting = self._waiting.values()
        return min(waiting, key=lambda sequence: sequence.priority) if self.timing.by_priority else next(iter(waiting))

    def _stall_if_due(self, sequence: _Sequence, now: float) -> None:
        if sequence.produced == sequence.stall_after:
            sequence.stalled_until = now + sequence.stall

    def _begin(self, now: float) -> _Step | None:
        budget = self.timing.step_tokens
        prefill: list[tuple[_Sequence, int]] = []
        decode: list[_Sequence] = []
        for sequence in self._running.values():
            if sequence.stalled_until > now:
                continue
            sequence.stalled_until = -math.inf
            left = sequence.prompt - sequence.prefilled
            if left == 0 and sequence.produced > 0:
                decode.append(sequence)
            elif budget > 0 or left == 0:
                prefill.append((sequence, min(left, budget)))
                budget -= min(left, budget)
        if not prefill and not decode:
            return None
        return _Step(now + self._duration(sum(tokens for _, tokens in prefill), len(decode)), prefill, decode)

    def _duration(self, prompt_tokens: int, producing: int) -> float:
        timing = self.timing
        seconds = prompt_tokens / timing.prefill_tps
        if producing:
            seconds += (1 + timing.batch_slowdown * (producing - 1)) / timing.decode_tps
        if timing.jitter:
            seconds *= 1 + self._random.uniform(-timing.jitter, timing.jitter)
        return seconds / timing.speed

    def _finish(self, step: _Step, produced: list[Produced]) -> None:
        for sequence, tokens in step.prefill:
            sequence.prefilled += tokens
            if sequence.prefilled == sequence.prompt:
                self._produce(sequence, step.end, produced)
        for sequence in step.decode:
            self._produce(sequence, step.end, produced)

    def _produce(self, sequence: _Sequence, at: float, produced: list[Produced]) -> None:
        sequence.produced += 1 if sequence.output else 0
        last = sequence.produced >= sequence.output
        produced.append(Produced(sequence.job, at, sequence.produced, last))
        if last:
            del self._running[sequence.job]
            self._reserved -= sequence.size
        else:
            self._stall_if_due(sequence, at)
