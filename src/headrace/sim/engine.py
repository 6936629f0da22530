"""A continuous-batching engine as a formula: vLLM's step loop without the model.

Each step takes all decoding sequences (one token each), then chunks of prompts already begun, then admits waiting
ones, while the step's token budget, the number of sequences and the free KV blocks allow. Blocks of a whole prompt
are taken at admission; when a step's decodes find no free block, the sequence admitted last is preempted and later
computed anew.

**Speed.** No step looks at single sequences. Every decoding sequence makes one token a step, so that each finishes at
a step number known when it starts (a heap), the KV sum grows by n a step, and the time of a step is linear in it.
Hence k steps in which nothing is admitted or finished last `k * base + slope * k (k - 1) / 2`, and are taken at once.
A submission in the middle of such a stretch cuts it after the step under way.

GPU time is billed to sequences: `token` seconds for each prompt token, `step / n` for each decode step of n
sequences, and the KV it reads. Sums of these over a stretch have closed forms too.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from heapq import heappop, heappush
from math import ceil, sqrt
from typing import NamedTuple

from headrace.sim.prefix import PrefixCache
from headrace.sim.profile import BLOCK_TOKENS, EngineProfile
from headrace.sim.sequence import Line, Sequence

PREFIX_BLOCK = 64
"""Tokens of one block of the prefix cache."""


class Kind(IntEnum):
    """What became of a sequence."""

    FIRST = 0
    TOKENS = 1
    DONE = 2


class Fact(NamedTuple):
    """Something a gateway can see of a sequence; `tokens` and `gpu` (seconds) are new since the fact before."""

    kind: Kind
    key: str
    tokens: int
    gpu: float
    cached: int


class Reading(NamedTuple):
    """What the engine's metrics say at one moment."""

    running: int
    waiting: int
    kv_use: float
    """0 to 1."""
    tpot_sum: float
    """Seconds between tokens, summed over all tokens so far."""
    tpot_count: int
    preemptions: int


class _Stretch:
    """Equal steps in a row; the time of each is `slope` longer than that of the one before."""

    __slots__ = ("base", "end", "slope", "start", "steps")

    def __init__(self, start: float, steps: int, base: float, slope: float) -> None:
        self.start = start
        self.base = base
        self.slope = slope
        self.cut(steps)

    def cut(self, steps: int) -> None:
        """End after `steps` steps."""
        self.steps = steps
        self.end = self.at(steps)

    def at(self, steps: int) -> float:
        """When that many steps are done."""
        return self.start + steps * self.base + self.slope * steps * (steps - 1) / 2

    def done(self, now: float) -> int:
        """Steps finished at `now`."""
        passed = now - self.start
        if passed <= 0:
            return 0
        if self.slope:
            lead = self.base - self.slope / 2
            steps = int((sqrt(lead * lead + 2 * self.slope * passed) - lead) / self.slope)
        else:
            steps = int(passed / self.base)
        steps = min(steps, self.steps)
        while steps < self.steps and self.at(steps + 1) <= now:
            steps += 1
        while steps and self.at(steps) > now:
            steps -= 1
        return steps


class SimEngine:
    """One engine.

    Args:
        profile: the machine.
        prefix_tokens: size of the prefix cache; 0: none.
        prefix_block: tokens of one of its blocks.
        by_priority: waiting sequences are admitted by priority, lower first, instead of by arrival.
    """

    def __init__(
        self,
        profile: EngineProfile,
        *,
        prefix_tokens: int = 0,
        prefix_block: int = PREFIX_BLOCK,
        by_priority: bool = False,
    ) -> None:
        self.profile = profile
        self.prefix = PrefixCache(prefix_tokens, prefix_block)
        self.preemptions = 0
        self.busy = 0.0
        """Seconds in which it made steps."""
        self._sequences: dict[str, Sequence] = {}
        self._waiting = Line(by_priority=by_priority)
        self._running: dict[str, Sequence] = {}
        """In the order of admission."""
        self._prefilling: dict[str, Sequence] = {}
        self._decoding: dict[str, Sequence] = {}
        self._finishes: list[tuple[int, int, int, Sequence]] = []
        self._gone: list[Sequence] = []
        self._at = 0.0
        self._steps = 0
        self._kv = 0
        """Context of all decoding sequences, in tokens."""
        self._blocks = 0
        self._blocks_most = profile.kv_tokens // BLOCK_TOKENS
        self._phases = [0] * BLOCK_TOKENS
        """Decoding sequences by the step, modulo the block size, in which they begin a new block."""
        self._shared = 0.0
        """Seconds that a sequence decoding since the beginning would have been billed for the steps' fixed part."""
        self._tpot_sum = 0.0
        self._tpot_count = 0
        self._chunks: list[tuple[Sequence, int]] = []
        self._stretch: _Stretch | None = None
        self._roused: float | None = None
        """When it last began to work after having been idle, while that step lasts."""

    # ------------------------------------------------------------------ what the world does with it

    @property
    def next_at(self) -> float | None:
        """When something will be seen or decided next; None while idle."""
        return None if self._stretch is None else self._stretch.end

    def fits(self, prompt: int, output: int) -> bool:
        """A request of that size can be worked on at all."""
        return prompt + output + BLOCK_TOKENS <= self.profile.kv_tokens

    def submit(self, sequence: Sequence, now: float) -> None:
        """Take a request. `advance(now)` was called before.

        Raises:
            ValueError: it can never fit, or its key is in use.
        """
        if not self.fits(sequence.prompt, sequence.output) or sequence.key in self._sequences:
            raise ValueError(f"{sequence.key}: {sequence.prompt} + {sequence.output} tokens cannot be taken")
        self._sequences[sequence.key] = sequence
        self._waiting.push(sequence)
        self._interrupt(now)

    def abort(self, key: str, now: float) -> None:
        """Forget a request; its place is free after the step under way. One that is not here is fine."""
        sequence = self._sequences.pop(key, None)
        if sequence is None:
            return
        if key in self._running:
            self._gone.append(sequence)
            self._interrupt(now)
        else:
            self._waiting.remove(sequence)

    def crash(self, now: float) -> list[str]:
        """Lose everything; returns the keys of what was here."""
        lost = list(self._sequences)
        if self._stretch is not None:
            self.busy += now - self._stretch.start
        self._at, self._stretch, self._roused = now, None, None
        for held in (self._sequences, self._running, self._prefilling, self._decoding):
            held.clear()
        self._finishes.clear()
        self._gone.clear()
        self._chunks.clear()
        self._waiting.clear()
        self._kv = self._blocks = 0
        self._phases = [0] * BLOCK_TOKENS
        self.prefix = PrefixCache(self.prefix.capacity, self.prefix.block)
        return lost

    def advance(self, now: float) -> list[Fact]:
        """Go on until `now`; what was seen, in order."""
        facts: list[Fact] = []
        while self._stretch is not None and self._stretch.end <= now:
            self._complete(self._stretch, facts)
        return facts

    def sweep(self, now: float) -> Iterator[Fact]:
        """The tokens made since the last report of each decoding sequence."""
        steps, shared = self._steps, self._shared
        if self._stretch is not None and self._decoding:
            done = self._stretch.done(now)
            steps += done
            shared += done * self.profile.step / len(self._decoding)
        for sequence in self._decoding.values():
            tokens, gpu = sequence.bill(steps, shared, self.profile.kv_read)
            if tokens:
                yield Fact(Kind.TOKENS, sequence.key, tokens, gpu, 0)

    def reading(self, now: float) -> Reading:
        """Its metrics at `now`."""
        seconds, tokens, n = self._tpot_sum, self._tpot_count, len(self._decoding)
        if self._stretch is not None and n:
            done = self._stretch.done(now)
            seconds += (self._stretch.at(done) - self._stretch.start) * n
            tokens += done * n
        kv_use = self._blocks / self._blocks_most
        return Reading(len(self._running), len(self._waiting), kv_use, seconds, tokens, self.preemptions)

    # ------------------------------------------------------------------ steps

    def _interrupt(self, now: float) -> None:
        stretch = self._stretch
        if stretch is None or self._roused == now:
            # Those who rouse an idle engine at the same moment are in its first step together.
            self._at = self._roused = now
            self._plan()
        elif stretch.steps > 1:
            stretch.cut(min(stretch.steps, stretch.done(now) + 1))

    def _complete(self, stretch: _Stretch, facts: list[Fact]) -> None:
        steps, n, profile = stretch.steps, len(self._decoding), self.profile
        took = stretch.end - stretch.start
        self.busy += took
        self._at, self._roused = stretch.end, None
        if n:
            self._blocks += self._growth(steps)
            self._kv += n * steps
            self._shared += steps * profile.step / n
            self._tpot_sum += took * n
            self._tpot_count += n * steps
        self._steps += steps
        while self._finishes and self._finishes[0][0] <= self._steps:
            _, _, start, sequence = heappop(self._finishes)
            if sequence.start == start and sequence.key in self._decoding:
                self._finish(sequence, facts)
        for sequence, tokens in self._chunks:
            sequence.left -= tokens
            sequence.gpu += tokens * profile.token
            if sequence.left == 0 and sequence.key in self._prefilling:
                self._begin(sequence, facts)
        for sequence in self._gone:
            self._leave(sequence)
        self._gone.clear()
        self._plan()

    def _plan(self) -> None:
        """Put together the next step, and how many like it follow."""
        profile, n = self.profile, len(self._decoding)
        preempted = False
        while n and self._growth(1) > self._blocks_most - self._blocks:
            self._preempt()
            n, preempted = len(self._decoding), True
        chunks = self._chunks = []
        room = profile.budget - n
        for sequence in self._prefilling.values():
            if room <= 0:
                break
            tokens = min(sequence.left, room)
            chunks.append((sequence, tokens))
            room -= tokens
        while not preempted and room > 0 and self._waiting and self._admit():
            sequence = next(reversed(self._prefilling.values()))
            tokens = min(sequence.left, room)
            chunks.append((sequence, tokens))
            room -= tokens
        batch = profile.budget - room
        if batch == 0:
            self._stretch = None
            return
        reads = self._kv + sum(sequence.prompt - sequence.left for sequence, _ in chunks)
        base = profile.step + profile.token * max(0, batch - profile.free_tokens) + profile.kv_read * reads
        self._stretch = _Stretch(self._at, 1 if chunks or preempted else self._quiet_steps(), base, profile.kv_read * n)

    def _quiet_steps(self) -> int:
        """Steps until the next sequence ends or KV may run short."""
        while self._finishes[0][3].start != self._finishes[0][2] or self._finishes[0][3].key not in self._decoding:
            heappop(self._finishes)
        steps = self._finishes[0][0] - self._steps
        free = self._blocks_most - self._blocks
        if self._growth(steps) > free:
            steps = max(1, free // len(self._decoding) * BLOCK_TOKENS)
        return steps

    def _growth(self, steps: int) -> int:
        """Blocks that the decoding sequences begin in the next `steps` steps."""
        rounds, rest = divmod(steps, BLOCK_TOKENS)
        begun = sum(self._phases[(self._steps + i) % BLOCK_TOKENS] for i in range(rest))
        return rounds * len(self._decoding) + begun

    # ------------------------------------------------------------------ one sequence's way

    def _admit(self) -> bool:
        """Admit the next waiting sequence if there is room."""
        sequence = self._waiting.head()
        need = ceil(sequence.prompt / BLOCK_TOKENS)
        if len(self._running) >= self.profile.max_seqs or need + self._growth(1) > self._blocks_most - self._blocks:
            return False
        self._waiting.pop()
        self._blocks += need
        cached = self.prefix.match(sequence.chain, sequence.prompt)
        if sequence.made == 0:
            sequence.cached = cached
        sequence.left = sequence.prompt - cached
        self._running[sequence.key] = self._prefilling[sequence.key] = sequence
        return True

    def _begin(self, sequence: Sequence, facts: list[Fact]) -> None:
        """The prompt is read, and the first token made."""
        del self._prefilling[sequence.key]
        self.prefix.add(sequence.chain, sequence.prompt)
        kind = Kind.TOKENS if sequence.made else Kind.FIRST
        sequence.begin(self._steps, self._shared)
        gpu, sequence.gpu = sequence.gpu, 0.0
        facts.append(Fact(kind, sequence.key, 1 + sequence.owed, gpu, sequence.cached))
        sequence.owed = 0
        self._decoding[sequence.key] = sequence
        self._kv += sequence.prompt
        self._phases[sequence.phase] += 1
        if sequence.finish <= self._steps:
            self._finish(sequence, facts)
        else:
            heappush(self._finishes, (sequence.finish, sequence.number, sequence.start, sequence))

    def _finish(self, sequence: Sequence, facts: list[Fact]) -> None:
        tokens, gpu = sequence.bill(self._steps, self._shared, self.profile.kv_read)
        facts.append(Fact(Kind.DONE, sequence.key, tokens, gpu, sequence.cached))
        self.prefix.add(sequence.chain, sequence.context(self._steps))
        self._sequences.pop(sequence.key, None)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Give back what a running sequence holds. One that has left already is fine."""
        if self._running.get(sequence.key) is not sequence:
            return
        del self._running[sequence.key]
        if self._decoding.pop(sequence.key, None) is not None:
            context = sequence.context(self._steps)
            self._kv -= context
            self._phases[sequence.phase] -= 1
        else:
            del self._prefilling[sequence.key]
            context = sequence.prompt
        self._blocks -= ceil(context / BLOCK_TOKENS)

    def _preempt(self) -> None:
        """KV is short: the sequence admitted last gives its blocks back and waits at the head of the line."""
        sequence = next(reversed(self._running.values()))
        self.preemptions += 1
        decoding = sequence.key in self._decoding
        self._leave(sequence)
        if decoding:
            sequence.rewind(self._steps, self._shared, self.profile.kv_read)
        self._waiting.push_front(sequence)
