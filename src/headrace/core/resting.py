"""Accounts of the share tree that have become idle: kept while they say something, then forgotten.

An idle node in debt (its virtual time is ahead of its parent's floor) must be remembered until the floor has passed
it. One that is not says nothing any more: whoever returns starts at the floor anyway. Two nodes are looked at for each
one that is added, so the list is as long as the number of nodes in debt, plus a few kept warm; no time-out is guessed.
"""

from __future__ import annotations

from collections import deque
from typing import Generic

from headrace.core.share import Item, Node

_WARM = 64
"""Idle nodes kept although they say nothing, so that a steady trickle does not make nodes anew."""
_MOST = 10_000
"""Idle nodes kept, those in debt included; beyond it the debts of the longest idle are forgiven."""


class Resting(Generic[Item]):
    """The idle nodes of one tree, longest idle first."""

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: deque[Node[Item]] = deque()

    def add(self, leaf: Node[Item]) -> None:
        """List a leaf if it has become idle, and forget some that were listed before."""
        if leaf.queued or leaf.holds or leaf.in_flight or leaf.resting or leaf.parent is None:
            return
        leaf.resting = True
        self._nodes.append(leaf)
        if len(self._nodes) > _WARM:
            self._look_at(self._nodes.popleft())
            self._look_at(self._nodes.popleft())

    def _look_at(self, node: Node[Item]) -> None:
        """Drop a node whose state says nothing any more, and its parent if that was the last child.

        One in debt rests further. One that is busy or has children is left alone: it is looked at again when it
        becomes idle, or when its last child is forgotten.
        """
        parent = node.parent
        node.resting = False
        if parent is None or node.children or not node.idle:
            return
        if node.vt > parent.floor and len(self._nodes) < _MOST:
            node.resting = True
            self._nodes.append(node)
        else:
            del parent.children[node.key]
            if not parent.resting:
                self._look_at(parent)
