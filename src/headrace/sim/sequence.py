"""One request inside an engine, and the line in which requests wait for admission."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from heapq import heapify, heappop, heappush

from headrace.sim.profile import BLOCK_TOKENS


class Sequence:
    """One request inside an engine.

    Args:
        key: names it in facts.
        prompt: tokens to read.
        output: tokens it will make, at least 1.
        chain: ids of the blocks of prompt and answer, for the prefix cache.
        priority: lower goes first, where the engine looks at it.
    """

    __slots__ = (
        "_billed",
        "_shared",
        "cached",
        "chain",
        "finish",
        "gpu",
        "key",
        "left",
        "made",
        "number",
        "output",
        "owed",
        "phase",
        "priority",
        "prompt",
        "start",
    )

    def __init__(self, key: str, prompt: int, output: int, chain: Items[int] = (), priority: int = 0) -> None:
        self.key = key
        self.prompt = prompt
        self.output = output
        self.chain = chain
        self.priority = priority
        self.number = 0
        """Its turn in the line."""
        self.left = prompt
        """Prompt tokens not yet computed."""
        self.cached = 0
        self.made = 0
        """Tokens made before the last preemption."""
        self.start = -1
        """The engine's step count when it made the first token since it was admitted."""
        self.finish = 0
        self.phase = 0
        self.gpu = 0.0
        """Seconds billed and not yet reported."""
        self.owed = 0
        """Tokens made before the last preemption and not yet reported."""
        self._billed = 0
        self._shared = 0.0

    def begin(self, steps: int, shared: float) -> None:
        """It makes its first token since admission; decoding from the next step on."""
        self.start = self._billed = steps
        self._shared = shared
        self.finish = steps + self.output - self.made - 1
        self.phase = (steps - self.prompt) % BLOCK_TOKENS

    def context(self, steps: int) -> int:
        """KV tokens it holds."""
        return self.prompt + steps - self.start

    def bill(self, steps: int, shared: float, kv_read: float) -> tuple[int, float]:
        """New tokens and new GPU seconds since the last bill."""
        tokens = steps - self._billed
        context = self.context(self._billed)
        gpu = self.gpu + shared - self._shared + kv_read * (tokens * context + tokens * (tokens - 1) / 2)
        self.gpu = 0.0
        self._billed, self._shared = steps, shared
        return tokens, gpu

    def rewind(self, steps: int, shared: float, kv_read: float) -> None:
        """It was preempted: prompt and answer so far have to be computed again. Reports are made up for later."""
        tokens, self.gpu = self.bill(steps, shared, kv_read)
        self.owed += tokens
        made = steps - self.start + 1
        self.made += made
        self.prompt += made
        self.left = self.prompt
        self.start = -1


class Line:
    """Sequences waiting for admission, by arrival or by priority; preempted ones first."""

    __slots__ = ("_by_priority", "_front", "_heap", "_turns")

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._front: deque[Sequence] = deque()
        self._heap: list[tuple[int, int, Sequence]] = []
        self._turns = 0

    def __len__(self) -> int:
        return len(self._front) + len(self._heap)

    def push(self, sequence: Sequence) -> None:
        """Join the line."""
        self._turns += 1
        sequence.number = self._turns
        heappush(self._heap, (sequence.priority if self._by_priority else 0, self._turns, sequence))

    def push_front(self, sequence: Sequence) -> None:
        """Come back after a preemption, before everyone."""
        self._front.appendleft(sequence)

    def head(self) -> Sequence:
        """Who is next; the line is not empty."""
        return self._front[0] if self._front else self._heap[0][2]

    def pop(self) -> Sequence:
        """Let the next one go."""
        return self._front.popleft() if self._front else heappop(self._heap)[2]

    def remove(self, sequence: Sequence) -> None:
        """Leave the line out of turn."""
        if sequence in self._front:
            self._front.remove(sequence)
            return
        self._heap = [entry for entry in self._heap if entry[2] is not sequence]
        heapify(self._heap)

    def clear(self) -> None:
        """Everyone leaves."""
        self._front.clear()
        self._heap.clear()
