"""The share tree: who goes next.

Rule: hierarchical start-time fair queueing (Goyal, Vin, Cheng 1996) charged in tokens as VTC does (Sheng et al.,
OSDI 2024). Every node on the path class -> tenant -> user -> session carries a virtual time `vt`, the service it
was charged divided by its weight. A parent's floor `V` is the least `vt` among its ready children and never falls.
Served next, level by level, is the child with the least `vt`. The rate of the engines need not be known, which is
what makes the rule fit them.

* Lift: a child that becomes ready starts at `max(vt, V)`: absence earns no credit, debts are kept. When the last
  child leaves, V rises to its `vt`, so that whoever returns first does not profit from an idle moment.
* Charge by estimate at dispatch, reconcile by usage at the end (`Charge.amend`): honest high caps cost nothing.
* Slack T: where the head of the poorest child fits no open instance, a child may overtake it only while its `vt <=
  V + T`. So a large prompt cannot be starved by small ones.

Bound: for two children that stay ready, charged service per weight differs over any interval by at most
`2T + c_f/w_f + c_g/w_g`, c being the largest charge of one request; no interval length enters it.

Cost: O(depth * log children) per operation. Heaps delete lazily and are rebuilt when half of them is stale, so
memory is O(ready + in debt); idle nodes whose `vt` the floor has passed are forgotten, for their state says
nothing any more.

Round robin is the same tree with every request charged 1; FIFO is the same tree with no levels at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Place = TypeVar("Place")

_MAX_PROBES = 16
"""Heads asked whether they fit, per pick: the work of one decision stays bounded when much is blocked."""
_MAX_ASIDE = 8
"""Children of one node that may be passed over in one pick."""
_MAX_DEBTORS = 10_000
"""Idle children in debt kept per node; beyond it the smallest debts are forgiven first."""


class Entry(Generic[Item]):
    """A queued item's place in its leaf; the handle to take it out again."""

    __slots__ = ("item", "leaf", "order", "queued")

    def __init__(self, item: Item, leaf: Node[Item], order: tuple[float, float, int]) -> None:
        self.item = item
        self.leaf = leaf
        self.order = order
        self.queued = True


class Node(Generic[Item]):
    """One account. A leaf holds the queue, an inner node its children; the root has no parent."""

    __slots__ = (
        "cap",
        "children",
        "debtors",
        "floor",
        "heap",
        "holds",
        "in_flight",
        "key",
        "parent",
        "queue",
        "queued",
        "ready",
        "stale",
        "stamp",
        "turn",
        "vt",
        "weight",
    )

    def __init__(self, key: str, parent: Node[Item] | None, weight: float, cap: int | None) -> None:
        self.key = key
        self.parent = parent
        self.weight = weight
        self.cap = cap
        self.floor: float = 0.0
        """V: the least `vt` among the ready children; never falls."""
        self.vt: float = parent.floor if parent else 0.0
        """Service charged to it, divided by its weight."""
        self.in_flight = 0
        self.holds = 0
        """Charges still open: the node must outlive them."""
        self.children: dict[str, Node[Item]] = {}
        self.heap: list[tuple[float, int, int, Node[Item]]] = []
        """Ready children as (vt, turn, stamp, node); an entry whose stamp is not the node's is stale."""
        self.debtors: list[tuple[float, int, int, Node[Item]]] = []
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

    @property
    def usable(self) -> bool:
        """Has something to serve and is under its cap of requests in flight."""
        return self.ready > 0 and (self.cap is None or self.in_flight < self.cap)


class Charge(Generic[Item]):
    """What one call has been charged, along one path. Closed exactly once."""

    __slots__ = ("cost", "leaf")

    def __init__(self, leaf: Node[Item], cost: float) -> None:
        self.leaf = leaf
        self.cost = cost


class Pick(NamedTuple, Generic[Item, Place]):
    """The entry that goes next and the place that `fits` found for it."""

    entry: Entry[Item]
    place: Place


class ShareTree(Generic[Item]):
    """The fair queue of one pool.

    Args:
        weight_of: weight of the node at a path, e.g. `("normal", "acme", "ann")`; greater than 0.
        cap_of: most requests in flight below the node at a path; None: no cap.
        slack: T, in charged units.
    """

    def __init__(
        self,
        weight_of: Callable[[tuple[str, ...]], float],
        cap_of: Callable[[tuple[str, ...]], int | None],
        slack: float,
    ) -> None:
        self._weight_of = weight_of
        self._cap_of = cap_of
        self._slack = slack
        self._root: Node[Item] = Node("", None, 1.0, None)
        self._turns = 0
        self._probes = 0

    def __len__(self) -> int:
        return self._root.queued

    # ------------------------------------------------------------------ in and out

    def push(self, item: Item, path: tuple[str, ...], order: tuple[float, float] = (0.0, 0.0)) -> Entry[Item]:
        """Queue `item` in the leaf at `path`; within it the least `order` goes first, then the first come."""
        leaf = self._leaf(path)
        self._turns += 1
        entry = Entry(item, leaf, (*order, self._turns))
        heappush(leaf.queue, (entry.order, entry))
        self._count(leaf, 1)
        if leaf.ready == 0:
            leaf.ready = 1
            self._enlist(leaf)
        return entry

    def remove(self, entry: Entry[Item]) -> None:
        """Take a queued entry out of turn (its caller left, or waited too long); nothing is charged."""
        if not entry.queued:
            return
        leaf = entry.leaf
        entry.queued = False
        leaf.stale += 1
        self._count(leaf, -1)
        if leaf.stale * 2 > len(leaf.queue):
            leaf.queue = [pair for pair in leaf.queue if pair[1].queued]
            heapify(leaf.queue)
            leaf.stale = 0
        if leaf.queued == 0:
            self._empty(leaf)

    def pick(self, fits: Callable[[Item], Place | None]) -> Pick[Item, Place] | None:
        """Take out the entry that goes next among those for which `fits` finds a place; None if there is none.

        Always followed by `grant` on the same entry.
        """
        self._probes = 0
        found = self._descend(self._root, fits)
        if found is None:
            return None
        leaf = found.entry.leaf
        found.entry.queued = False
        self._count(leaf, -1)
        return found

    def grant(self, entry: Entry[Item], cost: float | None) -> Charge[Item] | None:
        """Finish a `pick`: charge `cost` (None: already charged before) and count the item as in flight."""
        leaf = entry.leaf
        charge = None if cost is None else self.charge(leaf, cost)
        self.begin(leaf)
        if leaf.queued == 0:
            self._empty(leaf)
        return charge

    # ------------------------------------------------------------------ accounts

    def charge(self, leaf: Node[Item], cost: float) -> Charge[Item]:
        """Open a charge of `cost` along the path to `leaf`."""
        charge = Charge(leaf, 0.0)
        node: Node[Item] | None = leaf
        while node is not None:
            node.holds += 1
            node = node.parent
        self.amend(charge, cost)
        return charge

    def amend(self, charge: Charge[Item], cost: float) -> None:
        """Correct a charge to `cost`: more as tokens exceed the estimate, less when they stay below it.

        Never takes `vt` below its value before the charge, since `cost >= 0`.
        """
        change = cost - charge.cost
        if change == 0.0:
            return
        charge.cost = cost
        node: Node[Item] = charge.leaf
        while (parent := node.parent) is not None:
            node.vt += change / node.weight
            if node.turn:
                self._reenter(parent, node)
            elif parent.ready == 0 and node.vt > parent.floor and change > 0:
                parent.floor = node.vt
            node = parent

    def close(self, charge: Charge[Item], cost: float) -> None:
        """Settle a charge at its true cost."""
        self.amend(charge, cost)
        node: Node[Item] | None = charge.leaf
        while node is not None:
            parent = node.parent
            node.holds -= 1
            self._retire(node)
            node = parent

    def open(self, path: tuple[str, ...], cost: float) -> Charge[Item]:
        """Open a charge for a flow that has nothing queued for it: a share of a joined call."""
        return self.charge(self._leaf(path), cost)

    def begin(self, leaf: Node[Item]) -> None:
        """One more request of this flow is at an engine."""
        node: Node[Item] | None = leaf
        while node is not None:
            node.in_flight += 1
            if node.turn and not node.usable:
                self._delist(node)
            node = node.parent

    def end(self, leaf: Node[Item]) -> None:
        """One request less; the give-back of `begin`."""
        node: Node[Item] | None = leaf
        while node is not None:
            parent = node.parent
            node.in_flight -= 1
            if not node.turn and node.usable:
                self._enlist(node)
            self._retire(node)
            node = parent

    # ------------------------------------------------------------------ what can be seen

    def leaves(self) -> Iterator[tuple[tuple[str, ...], Node[Item]]]:
        """Every leaf with queued items and its path."""
        stack: list[tuple[tuple[str, ...], Node[Item]]] = [((), self._root)]
        while stack:
            path, node = stack.pop()
            if node.children:
                stack.extend(((*path, key), child) for key, child in node.children.items() if child.queued)
            elif node.queued:
                yield path, node

    def position(self, entry: Entry[Item]) -> int:
        """How many go before `entry`, plus one, if all flows take equal turns (an estimate, O(queued in leaf + leaves))."""
        ahead = sum(1 for order, other in entry.leaf.queue if other.queued and order < entry.order)
        others = sum(min(leaf.queued, ahead + 1) for _, leaf in self.leaves() if leaf is not entry.leaf)
        return ahead + others + 1

    def spread(self) -> float:
        """Largest difference of virtual time between two ready children anywhere in the tree."""
        widest, stack = 0.0, [self._root]
        while stack:
            ready = [child for child in stack.pop().children.values() if child.turn]
            if len(ready) > 1:
                times = [child.vt for child in ready]
                widest = max(widest, max(times) - min(times))
            stack.extend(ready)
        return widest

    # ------------------------------------------------------------------ inside

    def _leaf(self, path: tuple[str, ...]) -> Node[Item]:
        node = self._root
        for depth, key in enumerate(path):
            child = node.children.get(key)
            if child is None:
                sub = path[: depth + 1]
                child = node.children[key] = Node(key, node, self._weight_of(sub), self._cap_of(sub))
            node = child
        return node

    @staticmethod
    def _count(leaf: Node[Item], change: int) -> None:
        node: Node[Item] | None = leaf
        while node is not None:
            node.queued += change
            node = node.parent

    def _enlist(self, node: Node[Item]) -> None:
        """Put a ready node into its parent's heap, lifted to the floor; the parent may become ready by it."""
        while (parent := node.parent) is not None and node.usable and not node.turn:
            self._turns += 1
            node.turn = self._turns
            node.vt = max(node.vt, parent.floor)
            self._reenter(parent, node)
            parent.ready += 1
            node = parent

    def _reenter(self, parent: Node[Item], node: Node[Item]) -> None:
        node.stamp += 1
        heappush(parent.heap, (node.vt, node.turn, node.stamp, node))
        if len(parent.heap) > 2 * parent.ready + 16:
            parent.heap = [entry for entry in parent.heap if entry[2] == entry[3].stamp and entry[3].turn]
            heapify(parent.heap)

    def _delist(self, node: Node[Item]) -> None:
        """Take a node out of its parent's heap; the last one to go leaves its `vt` as the floor."""
        while (parent := node.parent) is not None and node.turn:
            node.turn = 0
            node.stamp += 1
            parent.ready -= 1
            if parent.ready > 0:
                return
            parent.floor = max(parent.floor, node.vt)
            node = parent

    def _empty(self, leaf: Node[Item]) -> None:
        leaf.ready = 0
        leaf.queue.clear()
        leaf.stale = 0
        self._delist(leaf)
        node: Node[Item] | None = leaf
        while node is not None:
            parent = node.parent
            self._retire(node)
            node = parent

    def _retire(self, node: Node[Item]) -> None:
        """Forget an idle node once the floor has passed it; keep it among the debtors until then."""
        parent = node.parent
        if parent is None or node.queued or node.holds or node.in_flight:
            return
        if node.vt <= parent.floor:
            parent.children.pop(node.key, None)
            return
        node.stamp += 1
        heappush(parent.debtors, (node.vt, node.stamp, id(node), node))
        while parent.debtors and (parent.debtors[0][0] <= parent.floor or len(parent.debtors) > _MAX_DEBTORS):
            _, stamp, _, debtor = heappop(parent.debtors)
            if stamp == debtor.stamp and not (debtor.queued or debtor.holds or debtor.in_flight):
                parent.children.pop(debtor.key, None)

    def _descend(self, node: Node[Item], fits: Callable[[Item], Place | None]) -> Pick[Item, Place] | None:
        if not node.heap:
            return self._head(node, fits)
        aside: list[tuple[float, int, int, Node[Item]]] = []
        found: Pick[Item, Place] | None = None
        limit: float | None = None
        heap = node.heap
        while heap and len(aside) < _MAX_ASIDE and self._probes < _MAX_PROBES:
            vt, _, stamp, child = heap[0]
            if stamp != child.stamp or not child.turn:
                heappop(heap)
                continue
            if limit is None:
                node.floor = max(node.floor, vt)
                limit = vt + self._slack
            elif vt > limit:
                break
            found = self._descend(child, fits)
            if found is not None:
                break
            aside.append(heappop(heap))
        for entry in aside:
            heappush(heap, entry)
        return found

    def _head(self, leaf: Node[Item], fits: Callable[[Item], Place | None]) -> Pick[Item, Place] | None:
        aside: list[tuple[tuple[float, float, int], Entry[Item]]] = []
        found: Pick[Item, Place] | None = None
        while leaf.queue and self._probes < _MAX_PROBES and len(aside) < _MAX_ASIDE:
            entry = leaf.queue[0][1]
            if not entry.queued:
                heappop(leaf.queue)
                leaf.stale -= 1
                continue
            self._probes += 1
            place = fits(entry.item)
            if place is not None:
                heappop(leaf.queue)
                found = Pick(entry, place)
                break
            aside.append(heappop(leaf.queue))
        for pair in aside:
            heappush(leaf.queue, pair)
        return found
