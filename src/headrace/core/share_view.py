"""What can be seen of a share tree: who waits where, and how far accounts are apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

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


def position(root: Node[Item], entry: Entry[Item]) -> int:
    """How many go before `entry`, plus one, if all flows take turns (an estimate, O(queued in leaf + leaves))."""
    ahead = sum(1 for order, other in entry.leaf.queue if other.queued and order < entry.order)
    others = sum(min(leaf.queued, ahead + 1) for _, leaf in leaves(root) if leaf is not entry.leaf)
    return ahead + others + 1


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
