"""An engine's prefix cache: hash blocks, least recently used out first, with a cap in tokens.

A prompt is a chain of block ids; two prompts with the same first k ids share their first k blocks. Only whole blocks
are found, and at least one token of a prompt is always computed. Blocks in use are not pinned: the cap counts all
alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Which blocks are held.

    Args:
        tokens: capacity; 0 holds nothing.
        block: tokens of one block.
    """

    __slots__ = ("_held", "_most", "block")

    def __init__(self, tokens: int, block: int) -> None:
        self.block = block
        self._most = tokens // block
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def capacity(self) -> int:
        """Tokens it can hold."""
        return self._most * self.block

    def match(self, chain: Sequence[int], prompt: int) -> int:
        """Tokens of a `prompt` tokens long prompt that are held; those blocks count as used now."""
        most = min(len(chain), (prompt - 1) // self.block)
        found = 0
        while found < most and chain[found] in self._held:
            found += 1
        self._touch(chain, found)
        return found * self.block

    def add(self, chain: Sequence[int], tokens: int) -> None:
        """The first `tokens` tokens of the chain have been computed."""
        self._touch(chain, min(len(chain), tokens // self.block, self._most))
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    def _touch(self, chain: Sequence[int], blocks: int) -> None:
        """Last block first, so that a chain is forgotten from its end."""
        held = self._held
        for index in range(blocks - 1, -1, -1):
            block = chain[index]
            held[block] = None
            held.move_to_end(block)
