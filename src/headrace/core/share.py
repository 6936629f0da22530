"""What the share tree is made of: accounts, queued entries, open charges."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Place = TypeVar("Place")


class Entry(Generic[Item]):
    """A queued item's place in its leaf; the handle to take it out again."""

    __slots__ = ("item", "leaf", "order", "passed", "queued")

    def __init__(self, item: Item, leaf: Node[Item], order: tuple[float, float, int]) -> None:
        self.item = item
        self.leaf = leaf
        self.order = order
        self.passed = 0
        """How often, standing at the head of its leaf, it was overtaken because it fitted nowhere."""
        self.queued = True


class Node(Generic[Item]):
    """One account. A leaf holds the queue, an inner node its children; the root has no parent."""

    __slots__ = (
        "cap",
        "children",
        "floor",
        "heap",
        "holds",
        "in_flight",
        "key",
        "lead",
        "led",
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
        self.turn = 0
        """When it last became ready: the order among equals. 0: not in the parent's heap."""
        self.resting = False
        """Listed among the nodes that may be forgotten."""

    @property
    def sure(self) -> float:
        """Virtual time without what may be refunded; never falls."""
        return self.vt - self.unsure

    @property
    def idle(self) -> bool:
        """Nothing is queued, running or still to be charged below it."""
        return not (self.queued or self.holds or self.in_flight)


class Charge(Generic[Item]):
    """What one call has been charged, along one path. Closed exactly once."""

    __slots__ = ("advance", "cost", "leaf")

    def __init__(self, leaf: Node[Item], cost: float) -> None:
        self.leaf = leaf
        self.cost = cost
        self.advance = cost
        """The part charged before it was used."""


class Pick(NamedTuple, Generic[Item, Place]):
    """The entry that goes next and the place that `fits` found for it."""

    entry: Entry[Item]
    place: Place
