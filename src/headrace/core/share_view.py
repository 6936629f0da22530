"""What can be seen of a share tree: who waits where, and how far accounts are apart."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Generic

from headrace.core.share import Entry, Item, Node


def leaves(root: Node[Item]) -> Iterator[tuple[tuple[str, ...], Node[Item]]]:
    """Every leaf with queued items and its path."""
    stack: list[tuple[tuple[str, ...], Node[Item]]] = [((), root)]
    while stack:
        path, node = stack.pop()
        if node.children:
            stack.extend(((*path, key), child) for key, child in node.children.items() if child.queued)
        elif node.queued:
            yield path, node


class Ranks(Generic[Item]):
    """Where single entries of a tree stand at the moment it is made; it is not to be kept.

    O(l log l) for l leaves with queued items, and O(q log q) once for each leaf of q items that is asked about.
    """

    def __init__(self, root: Node[Item]) -> None:
        self._lengths = sorted(leaf.queued for _, leaf in leaves(root))
        self._below = [0, *accumulate(self._lengths)]
        """Items in the shortest leaf, the two shortest, and so on."""
        self._ranks: dict[Node[Item], dict[Entry[Item], int]] = {}

    def position(self, entry: Entry[Item]) -> int:
        """How many go before `entry`, plus one, if all flows take turns: an estimate."""
        leaf = entry.leaf
        ranks = self._ranks.get(leaf)
        if ranks is None:
            queue = sorted(pair for pair in leaf.queue if pair[1].queued)
            ranks = self._ranks[leaf] = {other: rank for rank, (_, other) in enumerate(queue, 1)}
        rank = ranks[entry]
        shorter = bisect_left(self._lengths, rank)
        return self._below[shorter] + rank * (len(self._lengths) - shorter)


def places(root: Node[Item]) -> Iterator[tuple[Item, int]]:
    """Everything that is queued with its `position`, all in one pass: O(q log q) for q queued.

    Who is the n-th of his leaf is reached in the n-th round, if all flows take turns: his position is the sum over all
    leaves of the smaller of n and their length.
    """
    queues = [sorted(pair for pair in leaf.queue if pair[1].queued) for _, leaf in leaves(root)]
    served_in = [0] * max((len(queue) for queue in queues), default=0)
    for queue in queues:
        served_in[len(queue) - 1] += 1
    # From how many leaves are so long, to how many are at least so long, to how many items the first rounds serve.
    served_in = list(accumulate(reversed(list(accumulate(reversed(served_in))))))
    for queue in queues:
        for (_, entry), place in zip(queue, served_in, strict=False):
            yield entry.item, place


def spread(root: Node[Item]) -> float:
    """Largest difference of virtual time between two ready children anywhere in the tree."""
    widest, stack = 0.0, [root]
    while stack:
        ready = [child for child in stack.pop().children.values() if child.turn]
        if len(ready) > 1:
            times = [child.vt for child in ready]
            widest = max(widest, max(times) - min(times))
        stack.extend(ready)
    return widest
