"""The share tree: who goes next.

Rule: hierarchical start-time fair queueing (Goyal, Vin, Cheng 1996) charged in tokens as VTC does (Sheng et al.,
OSDI 2024). Every node on the path class -> tenant -> user -> session carries a virtual time `vt`, the service it
was charged divided by its weight. Served next, level by level, is the child with the least `vt`. The rate of the
engines need not be known, which is what makes the rule fit them.

* Lift: a child that becomes ready starts at `max(vt, V)`: absence earns no credit, debts are kept. V, the parent's
  floor, is the `vt` of the poorest ready child less what it was charged in advance (an estimate that may come back
  would put newcomers behind for long), and never falls. When the last child leaves, V rises to the same value of
  that one, so that whoever returns first does not profit from an idle moment.
* Charge by estimate at dispatch, reconcile by usage at the end (`amend`, `close`): honest high caps cost nothing.
* Slack T: where the head of the poorest child fits no open instance, a child may overtake it only while its `vt <=
  V + T`, so that a large prompt cannot be starved by small ones (`overtaking`). In the same way a deadline or a short
  job may go before its turn, with a bound on the sum (`hints`).

Bound: for two children that stay ready, charged service per weight differs over any interval by at most
`2T + c_f/w_f + c_g/w_g`, c being the largest charge of one request, plus for each what the charges it had open in
the interval were corrected by; no interval length enters it.

Cost: O(depth * log children) per operation, amortised. Heaps are lazy: a rise of `vt` moves an entry only when it
comes to the top, a fall enters it anew where it falls below its entry, and a heap is rebuilt when half of it is void.
An idle node whose `vt` the floor has passed says nothing any more and is forgotten, so memory is O(active + in debt),
with a few kept warm.

Round robin is the same tree with every request charged 1; FIFO is the same tree with no levels at all.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic

from headrace.core.hints import Hints
from headrace.core.overtaking import Bound, Overtaking
from headrace.core.resting import Resting
from headrace.core.share import NO_HINT, Charge, Entry, Hint, Item, Node, Pick, Place


class ShareTree(Generic[Item]):
    """The fair queue of one pool.

    Args:
        weight_of: weight of the node at a path, e.g. `("normal", "acme", "ann")`; greater than 0.
        cap_of: most requests in flight below the node at a path; None: no cap.
        slack: T, in charged units.
        bound_of: the places an item is bound to; None: any will do. Absent: no item is.
        flat: all stand in one line, whatever their paths.
    """

    __slots__ = ("_cap_of", "_flat", "_hints", "_overtaking", "_resting", "_turns", "_weight_of", "root")

    def __init__(
        self,
        weight_of: Callable[[tuple[str, ...]], float],
        cap_of: Callable[[tuple[str, ...]], int | None],
        slack: float,
        bound_of: Callable[[Item], Bound] | None = None,
        flat: bool = False,
    ) -> None:
        self._flat = flat
        self._weight_of = weight_of
        self._cap_of = cap_of
        self.root: Node[Item] = Node("", None, 1.0, None)
        """The account of all; others only look at it."""
        self._resting: Resting[Item] = Resting()
        self._hints: Hints[Item] = Hints(slack)
        self._overtaking: Overtaking[Item] = Overtaking(slack, bound_of or _anywhere)
        self._turns = 0

    def __len__(self) -> int:
        return self.root.queued

    @property
    def idle(self) -> bool:
        """Nothing is queued, running or still to be charged."""
        return self.root.idle

    @property
    def hurried(self) -> bool:
        """Something that is queued may have a deadline."""
        return bool(self._hints.deadlines)

    # ------------------------------------------------------------------ in and out

    def push(
        self, item: Item, path: tuple[str, ...], order: tuple[float, float] = (0.0, 0.0), hint: Hint = NO_HINT
    ) -> Entry[Item]:
        """Queue `item` in the leaf at `path`; within it the least `order` goes first, then the first come.

        `hint`: what may let it go before its turn among others.
        """
        leaf = self.root
        leaf.queued += 1
        for key in () if self._flat else path:
            child = leaf.children.get(key)
            leaf = self._grow(leaf, key, path) if child is None else child
            leaf.queued += 1
        self._turns += 1
        place = (order[0], order[1], self._turns)
        entry = Entry(item, leaf, place, hint)
        heappush(leaf.queue, (place, entry))
        if hint.latest is not None:
            self._hints.add(entry, self.root.queued)
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
        node: Node[Item] | None = leaf
        while node is not None:
            node.queued -= 1
            node = node.parent
        if leaf.queued == 0:
            self._empty(leaf)
            self._resting.add(leaf)
        elif leaf.stale * 2 > len(leaf.queue):
            leaf.queue = [pair for pair in leaf.queue if pair[1].queued]
            heapify(leaf.queue)
            leaf.stale = 0

    def pick(
        self, fits: Callable[[Item], Place | None], now: float = 0.0, wait: float = 0.0
    ) -> Pick[Item, Place] | None:
        """Take out the entry that goes next among those for which `fits` finds a place; None if there is none.

        Always followed by `grant` on the same entry.

        Args:
            fits: the place for an item; None: it has to wait.
            now: the time, on the clock of the deadlines.
            wait: seconds until the last in the queue is reached; whoever has so long has no need to go before his turn.
        """
        found = self._hints.due(fits, now, wait) if self._hints.deadlines else None
        if found is None:
            turn = self.root.head(True)
            if turn is not None:
                found = self._hints.short(turn, fits) if turn.hint.known else None
                if found is None and (place := fits(turn.item)) is not None:
                    found = turn, place
        if found is None:
            found = self._overtaking.pick(self.root, fits)
        if found is not None:
            self._take(found[0])
        return found

    def first(self, fits: Callable[[Item], Place | None]) -> Pick[Item, Place] | None:
        """Like `pick`, but only the one whose turn it is is asked."""
        turn = self.root.head(True)
        if turn is None or (place := fits(turn.item)) is None:
            return None
        self._take(turn)
        return turn, place

    def grant(self, entry: Entry[Item], cost: float | None) -> Charge[Item] | None:
        """Finish a `pick`: charge `cost` (None: already charged before) and count the item as in flight."""
        leaf = entry.leaf
        if leaf.queued == 1:
            self._empty(leaf)
        if cost is None:
            self._shift(leaf, 0.0, 0.0, 0, 1, -1)
        else:
            self._shift(leaf, cost, cost, 1, 1, -1)
        if leaf.capped:
            self._hold(leaf)
        return None if cost is None else Charge(leaf, cost)

    def straight(self, leaf: Node[Item], cost: float) -> Charge[Item]:
        """`push`, `pick` and `grant` in one, for an item that finds the tree empty and no account at its cap."""
        node = leaf
        while (parent := node.parent) is not None:
            advance = cost / node.weight
            vt = (node.vt if node.vt > parent.floor else parent.floor) + advance
            unsure = node.unsure + advance
            node.vt, node.unsure = vt, unsure
            node.holds += 1
            node.in_flight += 1
            if vt - unsure > parent.floor:
                parent.floor = vt - unsure
            node = parent
        node.holds += 1
        node.in_flight += 1
        return Charge(leaf, cost)

    def leaf(self, path: tuple[str, ...]) -> Node[Item]:
        """The account at `path`; whoever takes it uses it or gives it to `forget`."""
        node = self.root
        for key in () if self._flat else path:
            child = node.children.get(key)
            node = self._grow(node, key, path) if child is None else child
        return node

    def under_cap(self, leaf: Node[Item]) -> bool:
        """Whether every account on the way to `leaf` may have one more request in flight."""
        node: Node[Item] | None = leaf
        while node is not None and node.capped:
            if node.cap is not None and node.in_flight >= node.cap:
                return False
            node = node.parent
        return True

    def forget(self, leaf: Node[Item]) -> None:
        """Nothing was done with a leaf: if it is idle it need not be kept."""
        self._resting.add(leaf)

    # ------------------------------------------------------------------ accounts

    def charge(self, leaf: Node[Item], cost: float) -> Charge[Item]:
        """Open a charge of `cost` along the path to `leaf`."""
        self._shift(leaf, cost, cost, 1)
        return Charge(leaf, cost)

    def amend(self, charge: Charge[Item], cost: float) -> None:
        """Correct a charge to `cost`: more as tokens exceed the estimate, less when they stay below it.

        Takes back no more than the charge itself, since `cost >= 0`.
        """
        advance = min(charge.advance, cost)
        if cost != charge.cost:
            self._shift(charge.leaf, cost - charge.cost, advance - charge.advance, 0)
            charge.cost, charge.advance = cost, advance

    def close(self, charge: Charge[Item], cost: float) -> None:
        """Settle a charge at its true cost."""
        leaf = charge.leaf
        self._shift(leaf, cost - charge.cost, -charge.advance, -1)
        charge.cost, charge.advance = cost, 0.0
        if not leaf.queued:
            self._resting.add(leaf)

    def open(self, path: tuple[str, ...], cost: float) -> Charge[Item]:
        """Open a charge for a flow that has nothing queued for it: a share of a joined call."""
        leaf = self.leaf(path)
        self._lift(leaf)
        return self.charge(leaf, cost)

    def begin(self, leaf: Node[Item]) -> None:
        """One more request of this flow is at an engine."""
        node: Node[Item] | None = leaf
        while node is not None:
            node.in_flight += 1
            node = node.parent
        if leaf.capped:
            self._hold(leaf)

    def end(self, leaf: Node[Item]) -> None:
        """One request less; the give-back of `begin`."""
        node: Node[Item] | None = leaf
        while node is not None:
            node.in_flight -= 1
            if node.capped and node.cap is not None and node.ready and not node.turn:
                self._enlist(node)
            node = node.parent
        if not leaf.holds:
            self._resting.add(leaf)

    def lead(self, key: str, ahead: float) -> None:
        """Let the first-level node `key` be served as if its virtual time were less by `ahead`.

        It waits less and gets no more: its `vt` goes on as before, so past its share by `ahead` it waits like others.
        """
        node = self.leaf((key,))
        if node.parent is not None:
            node.parent.led = True
            node.lead = ahead
            if node.turn:
                self._enter(node.parent, node)

    # ------------------------------------------------------------------ inside

    def _grow(self, parent: Node[Item], key: str, path: tuple[str, ...]) -> Node[Item]:
        """A new account below `parent`, on the way to the leaf at `path`."""
        depth, node = 1, parent
        while node.parent is not None:
            depth, node = depth + 1, node.parent
        way = path[:depth]
        child = parent.children[key] = Node(key, parent, self._weight_of(way), self._cap_of(way))
        return child

    def _shift(
        self, leaf: Node[Item], change: float, advance: float, holds: int, in_flight: int = 0, queued: int = 0
    ) -> None:
        """Move the virtual times along a path, and its counts. A rise is noticed when the node comes to the top of its
        heap."""
        node = leaf
        while (parent := node.parent) is not None:
            weight = node.weight
            vt = node.vt = node.vt + change / weight
            node.queued += queued
            node.in_flight += in_flight
            node.holds += holds
            unsure = node.unsure = node.unsure + advance / weight if node.holds else 0.0
            if parent.ready == 0:
                if vt - unsure > parent.floor:
                    parent.floor = vt - unsure
            elif change < 0.0 and node.turn and vt - node.lead < node.noted:
                self._enter(parent, node)
            node = parent
        node.queued += queued
        node.in_flight += in_flight
        node.holds += holds

    def _hold(self, leaf: Node[Item]) -> None:
        """Accounts on the way that are at their cap do not take turns."""
        node: Node[Item] | None = leaf
        while node is not None and node.capped:
            if node.cap is not None and node.turn and node.in_flight >= node.cap:
                self._delist(node)
            node = node.parent

    @staticmethod
    def _lift(leaf: Node[Item]) -> None:
        """Let nodes that were not ready start at the floor."""
        node = leaf
        while (parent := node.parent) is not None and not node.turn:
            if node.vt < parent.floor:
                node.vt = parent.floor
            node = parent

    def _enlist(self, node: Node[Item]) -> None:
        """Put a ready node into its parent's heap, lifted to the floor; the parent may become ready by it."""
        while (parent := node.parent) is not None and not node.turn:
            if node.cap is not None and node.in_flight >= node.cap:
                return
            self._turns += 1
            node.turn = self._turns
            poorest = parent.poorest()
            if poorest is not None:
                sure = parent.least(poorest) if parent.led else poorest.vt - poorest.unsure
                if sure > parent.floor:
                    parent.floor = sure
            if node.vt < parent.floor:
                node.vt = parent.floor
            self._enter(parent, node)
            parent.ready += 1
            node = parent

    @staticmethod
    def _enter(parent: Node[Item], node: Node[Item]) -> None:
        node.stamp += 1
        node.noted = node.vt - node.lead
        heap = parent.heap
        heappush(heap, (node.noted, node.turn, node.stamp, node))
        if len(heap) > 2 * parent.ready + 16:
            parent.heap = [entry for entry in heap if entry[2] == entry[3].stamp]
            heapify(parent.heap)

    @staticmethod
    def _delist(node: Node[Item]) -> None:
        """Take a node out of its parent's heap; the last one to go leaves its mark on the floor."""
        while (parent := node.parent) is not None and node.turn:
            node.turn = 0
            node.stamp += 1
            parent.ready -= 1
            if parent.ready > 0:
                return
            parent.floor = max(parent.floor, node.sure)
            node = parent

    def _empty(self, leaf: Node[Item]) -> None:
        """The last queued item of a leaf is gone."""
        leaf.ready = 0
        leaf.queue.clear()
        leaf.stale = 0
        self._delist(leaf)

    @staticmethod
    def _take(entry: Entry[Item]) -> None:
        """Take an entry out of its leaf; `grant` counts it out."""
        leaf = entry.leaf
        entry.queued = False
        if leaf.queue[0][1] is entry:
            heappop(leaf.queue)
        else:
            leaf.stale += 1


def _anywhere(item: object) -> None:
    """Bound to no place."""
    del item
