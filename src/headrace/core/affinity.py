"""Which instance has read the beginning of a prompt before.

A prompt is a chain of block hashes, each covering all blocks before it, salted by tenant so that nobody learns
from another's timing. For each instance the index keeps the hashes of what was sent there, least recently used
first out, as its prefix cache does. An engine pins a prompt while it answers and lets it go when it is done, so a
prompt counts as used when it is sent and again when its answer ends: with the first alone the index would forget
other prompts than the engine, and conversations would leave instances that still know them. The match of a prompt is
the longest run of leading hashes that are there: an estimate of the tokens the engine need not read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

DEFAULT_CACHE_TOKENS = 400_000
"""Prompt tokens an engine is assumed to keep when it has not said."""


class PrefixIndex:
    """What one instance has in its cache, by our own account.

    Args:
        tokens: size of the engine's cache; entries beyond it are forgotten.
    """

    __slots__ = ("_blocks", "_held", "tokens")

    def __init__(self, tokens: int = DEFAULT_CACHE_TOKENS) -> None:
        self.tokens = tokens
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._held = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, prefix: Sequence[int]) -> int:
        """How many leading blocks of `prefix` are there."""
        blocks = self._blocks
        for number, block in enumerate(prefix):
            if block not in blocks:
                return number
        return len(prefix)

    def add(self, prefix: Sequence[int], block_tokens: int) -> None:
        """The prompt with these blocks, `block_tokens` each, is in use there now."""
        blocks = self._blocks
        # The last block first: a chain's head must outlive its tail, or nothing of it can match.
        for block in reversed(prefix):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = block_tokens
                self._held += block_tokens
        while self._held > self.tokens and blocks:
            self._held -= blocks.popitem(last=False)[1]

    def clear(self) -> None:
        """The engine was restarted."""
        self._blocks.clear()
        self._held = 0
