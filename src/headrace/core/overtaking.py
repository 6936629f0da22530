"""Who goes where the one whose turn it is fits nowhere.

Level by level the poorest child is asked first, then the next, as long as its virtual time is within the slack T of the
poorest one that waits: so a large prompt that needs an empty window is not starved by small ones. Within one leaf a
head is overtaken at most 16 times, then the leaf waits for it.

A request that is bound to some of the instances (to the one it is replayed at, or to those that can go on with half an
answer) waits for these only: whoever has run ahead of it by more than that may still go to the others, but not there.
Those of one leaf that are bound to the same instances go in order: only the first is asked.

Work is bounded: 16 requests are asked in one pick, 8 children of a node or items of a leaf passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Generic

from headrace.core.share import Entry, Item, Node, Pick, Place

_MAX_PROBES = 16
"""Heads asked whether they fit, per pick: the work of one decision stays bounded when much is blocked."""
_MAX_ASIDE = 8
"""Children of one node, or items of one leaf, that may be passed over in one pick."""
_MAX_PASSED = 16
"""Times the head of a leaf may be overtaken within it; then the leaf waits for it."""

Bound = Sequence[object] | None
"""The places that an item is bound to; None: any will do."""
_Waits = list[object] | None
"""The places that what waits is bound to; None: any would do."""


class Overtaking(Generic[Item]):
    """Searches one share tree.

    Args:
        slack: T, in charged units.
        bound_of: the places an item is bound to; None: it may go anywhere.
    """

    __slots__ = ("_bound_of", "_probes", "_slack")

    def __init__(self, slack: float, bound_of: Callable[[Item], Bound]) -> None:
        self._slack = slack
        self._bound_of = bound_of
        self._probes = 0

    def pick(self, root: Node[Item], fits: Callable[[Item], Place | None]) -> Pick[Item, Place] | None:
        """The first entry that fits; it is still in its leaf. None: there is none that may go now."""
        self._probes = 1
        found = self._below(root, fits, ())
        return found if isinstance(found, tuple) else None

    def _below(
        self, node: Node[Item], fits: Callable[[Item], Place | None], barred: Sequence[object]
    ) -> Pick[Item, Place] | _Waits:
        """What goes of all below `node`, to none of the places that are `barred`; else what is waited for there."""
        if not node.heap:
            return self._of_leaf(node, fits, barred)
        aside: list[tuple[float, int, int, Node[Item]]] = []
        waits: list[tuple[float, list[object]]] = []
        limit: float | None = None
        found: Pick[Item, Place] | _Waits = []
        heap = node.heap
        while len(aside) < _MAX_ASIDE and self._probes < _MAX_PROBES:
            child = node.poorest()
            if child is None:
                break
            stands = child.vt - child.lead
            if not aside:
                node.floor = max(node.floor, node.least(child))
            elif limit is not None and stands > limit:
                break
            kept = [place for until, places in waits if stands > until for place in places]
            found = self._below(child, fits, [*barred, *kept] if kept else barred)
            if isinstance(found, tuple):
                break
            if found is not None:
                waits.append((stands + self._slack, found))
            elif limit is None:
                limit = stands + self._slack
            aside.append(heappop(heap))
        for entry in aside:
            heappush(heap, entry)
        if isinstance(found, tuple):
            return found
        return None if limit is not None else [place for _, places in waits for place in places]

    def _of_leaf(
        self, leaf: Node[Item], fits: Callable[[Item], Place | None], barred: Sequence[object]
    ) -> Pick[Item, Place] | _Waits:
        aside: list[tuple[tuple[float, float, int], Entry[Item]]] = []
        found: Pick[Item, Place] | None = None
        waits: _Waits = []
        queue = leaf.queue
        while queue and self._probes < _MAX_PROBES and len(aside) < _MAX_ASIDE:
            entry = queue[0][1]
            if not entry.queued:
                heappop(queue)
                leaf.stale -= 1
                continue
            bound = self._bound_of(entry.item)
            if bound is None or waits is None or any(place not in waits for place in bound):
                self._probes += 1
                place = fits(entry.item)
                if place is not None and place not in barred:
                    found = entry, place
                    break
                waits = None if bound is None or waits is None else [*waits, *bound]
            aside.append(heappop(queue))
            if entry.passed >= _MAX_PASSED and len(aside) == 1:
                if bound is None:
                    break
                barred = [*barred, *bound]
        for pair in aside:
            heappush(queue, pair)
        if found is not None and aside:
            self._passed(aside[0][1], found[1])
        return waits if found is None else found

    def _passed(self, head: Entry[Item], place: object) -> None:
        """The head of a leaf was overtaken within it, by one that went to `place`."""
        bound = self._bound_of(head.item)
        if bound is None or place in bound:
            head.passed += 1
