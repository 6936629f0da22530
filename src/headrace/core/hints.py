"""Who may go before his turn: a deadline that the queue would miss, a job much shorter than the one whose turn it is.

The share tree decides whose turn it is. Across users a hint is worth a little less fairness and no more: a request may
be taken before its turn only while its account, on every level of the tree, is within the slack T of the poorest one,
and only while little was taken so before.

* **Deadline**: of the requests whose latest start (deadline less the time they are expected to take) comes before the
  queue would have reached them, the one with the earliest. One whose latest start has passed is late either way and
  keeps its turn.
* **Short**: of eight siblings on one level that are among the poorest, the one whose next request is the shortest, if
  it is at most half as long as the one whose turn it is. Those ahead make up no more than that one: a small request
  does not wait for many still smaller ones. Between classes only the head start decides.

Bound: what was taken below one node before its turn counts until the floor has passed the place it was taken at, that
is until it would have been its turn. At any time short jobs make up at most T / 2 of it, and all together at most T, or
T / 2 and one request with a deadline, however long. Whoever waits is passed only by what counts so (his own account is
ahead of the floor no longer than he waits), so hints cost him at most that much service on each level, for all who
pass him together and however long he waits. They are charged like everything else, so nobody's share changes: the
bound of `fairness` stands as it is. Sizes are those expected when a request is queued.

The rule is that of multi-queue fair queueing (Hedayati et al., ATC 2019), which lets a flow run ahead of the slowest by
a bounded amount, with the sum of all that is ahead bounded too; earliest deadline and shortest job are the classical
orders (Liu and Layland 1973; Schrage 1968).

Cost: O(log n) for a request with a deadline, and a look at eight siblings per level for a short one.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic

from headrace.core.share import Ahead, Entry, Item, Node, Pick, Place

_WINDOW = 8
"""Deadlines, or siblings on one level, that are looked at in one pick."""
_TRIES = 2
"""Requests with a deadline that are asked in one pick whether they fit anywhere."""
_SHORTER = 0.5
"""A short job is at most this part of the one that it passes."""


class Hints(Generic[Item]):
    """Requests of one share tree that may go before their turn.

    Args:
        slack: T, in charged units; 0: nobody goes before his turn.
    """

    __slots__ = ("_slack", "deadlines")

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self.deadlines: list[tuple[float, tuple[float, float, int], Entry[Item]]] = []
        """Queued entries by their latest start; those that left the queue are void."""

    def add(self, entry: Entry[Item], queued: int) -> None:
        """Note the deadline of an entry, one of `queued` in the tree."""
        latest = entry.hint.latest
        if latest is None or not self._slack:
            return
        heappush(self.deadlines, (latest, entry.order, entry))
        if len(self.deadlines) > 2 * queued + 16:
            self.deadlines = [due for due in self.deadlines if due[2].queued]
            heapify(self.deadlines)

    def due(self, fits: Callable[[Item], Place | None], now: float, wait: float) -> Pick[Item, Place] | None:
        """The entry that goes now for its deadline, where the queue takes `wait` seconds at present; None: none.

        It is still in its leaf. What it takes before its turn is counted.
        """
        heap, tries = self.deadlines, 0
        while heap and (heap[0][0] < now or not heap[0][2].queued):
            heappop(heap)
        if not heap or heap[0][0] > now + wait:
            return None
        for latest, _, entry in sorted(heap[:_WINDOW]):
            if latest > now + wait or tries >= _TRIES:
                break
            passed = self._passed(entry) if entry.queued and latest >= now else None
            if passed is None:
                continue
            tries += 1
            place = fits(entry.item)
            if place is not None:
                for parent, start in passed:
                    _ahead(parent).add(start, entry.hint.size, True)
                return entry, place
        return None

    def short(self, turn: Entry[Item], fits: Callable[[Item], Place | None]) -> Pick[Item, Place] | None:
        """The next request of a sibling that goes before `turn`, whose turn it is, since it is so short; None: none.

        It is still in its leaf. What it takes before its turn is counted.
        """
        most = turn.hint.size * _SHORTER if self._slack and turn.hint.known else 0.0
        found: tuple[Entry[Item], Node[Item], float] | None = None
        node = turn.leaf
        while most > 0.0 and (parent := node.parent) is not None and parent.parent is not None:
            if parent.ready > 1 and (head := self._shortest(parent, node, turn, most)) is not None:
                found, most = head, head[0].hint.size
            node = parent
        place = None if found is None else fits(found[0].item)
        if found is None or place is None:
            return None
        entry, parent, start = found
        _ahead(parent).add(start, entry.hint.size, False)
        return entry, place

    def _shortest(
        self, parent: Node[Item], poorest: Node[Item], turn: Entry[Item], most: float
    ) -> tuple[Entry[Item], Node[Item], float] | None:
        """The shortest of the requests of at most `most` that siblings of `poorest` have next, and its place.

        Together with what is ahead already it is no longer than `turn`.
        """
        ahead = _ahead(parent)
        ahead.settle(poorest.vt)
        most = min(most, ahead.spares(self._slack), turn.hint.size - ahead.short)
        if most <= 0.0:
            return None
        found: tuple[Entry[Item], Node[Item], float] | None = None
        limit = poorest.vt + self._slack
        for _, _, stamp, child in parent.heap[:_WINDOW]:
            if stamp == child.stamp and child is not poorest and child.vt <= limit:
                head = child.head()
                if head is None:
                    continue
                hint = head.hint
                if hint.known and (hint.size < most or (found is None and hint.size == most)):
                    found, most = (head, parent, child.vt), hint.size
        return found

    def _passed(self, entry: Entry[Item]) -> list[tuple[Node[Item], float]] | None:
        """The nodes below which `entry` would go before its turn, and where it stands there; None: it may not."""
        passed: list[tuple[Node[Item], float]] = []
        node = entry.leaf
        while (parent := node.parent) is not None:
            if not node.turn:
                return None
            poorest = parent.poorest()
            if poorest is not None and poorest is not node:
                floor, start = poorest.vt - poorest.lead, node.vt - node.lead
                ahead = _ahead(parent)
                ahead.settle(floor)
                if start > floor + self._slack or not ahead.admits(entry.hint.size, self._slack):
                    return None
                passed.append((parent, start))
            node = parent
        return passed


def _ahead(node: Node[Item]) -> Ahead:
    if node.ahead is None:
        node.ahead = Ahead()
    return node.ahead
