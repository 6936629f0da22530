"""What the share tree is made of: accounts, queued entries, open charges."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

Item = TypeVar("Item")
Place = TypeVar("Place")


class Hint:
    """What is known of a queued item that may let it go before its turn (see `hints`).

    Args:
        size: what it is expected to be charged.
        known: the size goes by what the caller said or by earlier answers; else it counts as neither short nor long.
        latest: the latest time at which it can start and keep its deadline; None: there is none.
    """

    __slots__ = ("known", "latest", "size")

    def __init__(self, size: float = 0.0, known: bool = False, latest: float | None = None) -> None:
        self.size = size
        self.known = known
        self.latest = latest


NO_HINT = Hint()
_MOST_AHEAD = 64
"""Requests that are remembered as taken before their turn below one node, should they cost next to nothing."""


class Entry(Generic[Item]):
    """A queued item's place in its leaf; the handle to take it out again."""

    __slots__ = ("hint", "item", "leaf", "order", "passed", "queued")

    def __init__(self, item: Item, leaf: Node[Item], order: tuple[float, float, int], hint: Hint = NO_HINT) -> None:
        self.item = item
        self.leaf = leaf
        self.order = order
        self.hint = hint
        self.passed = 0
        """How often, standing at the head of its leaf, it was overtaken because it fitted nowhere."""
        self.queued = True


class Ahead:
    """What was taken below a node before its turn and would still not be in turn, in charged units."""

    __slots__ = ("_taken", "due", "dues", "short")

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, bool]] = []
        self.short = 0.0
        """Of short jobs."""
        self.due = 0.0
        """Of those with a deadline."""
        self.dues = 0
        """How many these are."""

    def add(self, start: float, size: float, due: bool) -> None:
        """Something of this `size` is taken, whose turn comes when the poorest account stands at `start`."""
        heappush(self._taken, (start, size, due))
        if due:
            self.due += size
            self.dues += 1
        else:
            self.short += size

    def settle(self, floor: float) -> None:
        """The poorest account stands at `floor` now: what was taken at most so far from it is in turn."""
        taken = self._taken
        while taken and taken[0][0] <= floor:
            _, size, due = heappop(taken)
            if due:
                self.due -= size
                self.dues -= 1
            else:
                self.short -= size
        if not taken:
            self.short = self.due = 0.0

    def spares(self, slack: float) -> float:
        """How long another short job may be: these leave half of the slack to those with a deadline."""
        if len(self._taken) >= _MOST_AHEAD:
            return 0.0
        return min(slack / 2, slack - self.due) - self.short

    def admits(self, size: float, slack: float) -> bool:
        """One more with a deadline may be taken: the only one of any size, others as far as the slack goes."""
        return not self.dues or (self.due + self.short + size <= slack and len(self._taken) < _MOST_AHEAD)


class Node(Generic[Item]):
    """One account. A leaf holds the queue, an inner node its children; the root has no parent."""

    __slots__ = (
        "ahead",
        "cap",
        "capped",
        "children",
        "floor",
        "heap",
        "holds",
        "in_flight",
        "key",
        "lead",
        "led",
        "noted",
        "parent",
        "queue",
        "queued",
        "ready",
        "resting",
        "stale",
        "stamp",
        "turn",
        "unsure",
        "vt",
        "weight",
    )

    def __init__(self, key: str, parent: Node[Item] | None, weight: float, cap: int | None) -> None:
        self.key = key
        self.parent = parent
        self.weight = weight
        self.cap = cap
        self.capped: bool = cap is not None or (parent is not None and parent.capped)
        """It, or an account above it, may have only so many requests in flight."""
        self.floor: float = 0.0
        """V: the sure service of the poorest ready child; never falls."""
        self.vt: float = parent.floor if parent else 0.0
        """Service charged to it, divided by its weight."""
        self.unsure = 0.0
        """The part of `vt` that was charged in advance and may still be refunded."""
        self.lead = 0.0
        """Head start among its siblings: it is served as if its `vt` were less by this."""
        self.led = False
        """Some child has a head start."""
        self.in_flight = 0
        self.holds = 0
        """Charges still open: the node must outlive them."""
        self.children: dict[str, Node[Item]] = {}
        self.heap: list[tuple[float, int, int, Node[Item]]] = []
        """Ready children as (vt, turn, stamp, node). An entry whose stamp is not the node's is void; one whose `vt` is
        less than the node's is moved down when it comes to the top."""
        self.queue: list[tuple[tuple[float, float, int], Entry[Item]]] = []
        self.queued = 0
        """Items queued below."""
        self.stale = 0
        """Entries of `queue` taken out of turn."""
        self.ready = 0
        """Children in `heap`; 1 for a leaf with items."""
        self.stamp = 0
        self.noted = 0.0
        """Where it stands in its parent's heap: at its `vt` less its head start, or behind what these have become."""
        self.turn = 0
        """When it last became ready: the order among equals. 0: not in the parent's heap."""
        self.resting = False
        """Listed among the nodes that may be forgotten."""
        self.ahead: Ahead | None = None
        """What was taken below it before its turn; None: nothing ever."""

    @property
    def sure(self) -> float:
        """Virtual time without what may be refunded; never falls."""
        return self.vt - self.unsure

    @property
    def idle(self) -> bool:
        """Nothing is queued, running or still to be charged below it."""
        return not (self.queued or self.holds or self.in_flight)

    def poorest(self) -> Node[Item] | None:
        """The ready child with the least `vt`; its entry is on top of the heap afterwards and says the truth."""
        heap = self.heap
        while heap:
            vt, turn, stamp, child = heap[0]
            if stamp != child.stamp:
                heappop(heap)
            elif vt < (stands := child.vt - child.lead):
                child.noted = stands
                heapreplace(heap, (stands, turn, stamp, child))
            else:
                return child
        return None

    def least(self, first: Node[Item]) -> float:
        """What the poorest ready child has surely used, `first` being the one that goes first: another, with leads."""
        if not self.led:
            return first.sure
        least = first.vt - first.unsure
        for child in self.children.values():
            if child.turn and child.vt - child.unsure < least:
                least = child.vt - child.unsure
        return least

    def head(self, rising: bool = False) -> Entry[Item] | None:
        """What goes next of all below it, the head of the poorest leaf; None where nothing is ready.

        `rising`: it is asked whose turn it is, and so the floors on the way rise.
        """
        node = self
        while heap := node.heap:
            vt, _, stamp, child = heap[0]
            if stamp != child.stamp or vt < child.vt - child.lead:
                poorest = node.poorest()
                if poorest is None:
                    return None
                child = poorest
            if rising:
                sure = node.least(child) if node.led and node.ready > 1 else child.vt - child.unsure
                if sure > node.floor:
                    node.floor = sure
            node = child
        queue = node.queue
        while queue and not queue[0][1].queued:
            heappop(queue)
            node.stale -= 1
        return queue[0][1] if queue else None


class Charge(Generic[Item]):
    """What one call has been charged, along one path. Closed exactly once."""

    __slots__ = ("advance", "cost", "leaf")

    def __init__(self, leaf: Node[Item], cost: float) -> None:
        self.leaf = leaf
        self.cost = cost
        self.advance = cost
        """The part charged before it was used."""


Pick = tuple[Entry[Item], Place]
"""The entry that goes next and the place that `fits` found for it."""
