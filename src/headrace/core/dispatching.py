"""The fair queue: who enters and leaves it, and the pump, which sends what fits to the instances (`attempts`)."""

from __future__ import annotations

from math import inf
from typing import Final

from headrace.core.accounts import Accounts
from headrace.core.adaptive import GUESTS
from headrace.core.attempts import Attempts
from headrace.core.backlog import Backlog
from headrace.core.book import Book
from headrace.core.fallback import Fallbacks, Turn, exhausted
from headrace.core.fleet import Fleet
from headrace.core.instance_state import InstanceState
from headrace.core.pool import Pool, Room
from headrace.core.recovery import RetryBudget
from headrace.core.routing import Router
from headrace.core.settings import Settings
from headrace.core.share import NO_HINT, Entry, Hint, Node
from headrace.core.ticket import Call, State
from headrace.core.timers import Timer
from headrace.model import ServiceClass

_QUEUED: Final = State.QUEUED
_BATCH: Final = ServiceClass.BATCH
_NONE: Final = Room.NONE
_ANYBODY: Final = Room.ANYBODY
_TURN_SECONDS = 1.0
"""So often those who wait for an exhausted model are looked at; who comes later is sent elsewhere at the door."""


class Dispatcher:
    """Queued calls."""

    def __init__(
        self,
        settings: Settings,
        book: Book,
        fleet: Fleet,
        accounts: Accounts,
        router: Router,
        attempts: Attempts,
        budget: RetryBudget,
        fallbacks: Fallbacks,
    ) -> None:
        self._settings = settings
        self._book = book
        self._fleet = fleet
        self._accounts = accounts
        self._router = router
        self._budget = budget
        self._fallbacks = fallbacks
        self._attempts = attempts
        self._dirty = attempts.dirty
        self.backlog = Backlog(settings.queue)
        self._watches: dict[Pool, tuple[float, Timer]] = {}
        self._now = 0.0
        """The time of the present pump."""
        self._passed: Call | None = None
        """The call that was asked about last and fitted nowhere."""

    # ------------------------------------------------------------------ in and out of the queue

    def opening(self, call: Call, now: float) -> InstanceState | None:
        """The instance that takes a new call at once, since nothing waits and no bound is met; None: it has to queue.

        The answer is that of queueing it and asking whose turn it is, without the work of either.
        """
        pool = call.pool
        tree = pool.tree
        if self._dirty or tree.root.queued or self.backlog.bars(call):
            return None
        leaf = tree.leaf(call.flow)
        free = not leaf.capped or tree.under_cap(leaf)
        state = self._router.choose(call, now, _guest(leaf, call)) if free else None
        if state is None:
            tree.forget(leaf)
        else:
            call.leaf = leaf
        return state

    def straight(self, call: Call, state: InstanceState, now: float) -> None:
        """Send a call to where `opening` found room for it."""
        leaf = call.leaf
        if leaf is None:
            raise RuntimeError("it was not asked whether there is room")
        cost = self._accounts.price(call, state, now)
        call.charge = call.pool.tree.straight(leaf, cost)
        self._budget.pay_in()
        self._attempts.send(call, state, leaf, cost, now)

    def enqueue(self, call: Call, now: float, head: bool = False) -> None:
        """Queue a call; at the head of its leaf when it comes back for another attempt."""
        call.move(_QUEUED)
        call.entered = now
        if call.leader.request.flow.service_class is _BATCH:
            self._book.timers.cancel(call.promotion)
            left = self._settings.fairness.promote_after - call.waited
            call.promotion = self._book.timers.at(now + max(0.0, left), call)
        if head:
            self._push(call, (float("-inf"), 0.0), NO_HINT)
        else:
            longest = self._settings.queue.longest(call.request)
            self._push(call, self._accounts.order(call, now, longest), self._accounts.hint(call))

    def unqueue(self, call: Call) -> None:
        """Take a call out of turn; one that is not queued is fine."""
        if call.entry is not None:
            call.pool.tree.remove(call.entry)
            call.entry = None
            self.backlog.remove(call)
            self._dirty[call.pool] = None

    def replace(self, call: Call) -> None:
        """Move a queued call to where its present leader's flow stands; its order is kept."""
        entry = call.entry
        if entry is not None:
            self.unqueue(call)
            self._push(call, entry.order[:2], entry.hint)

    def promote(self, call: Call, now: float) -> None:
        """A batch call has waited its time: it and what it was charged are normal from now on."""
        before = call.flow
        call.promote()
        if call.flow != before:
            self.replace(call)
            self._accounts.hand_over(call, before, now)

    def move(self, call: Call, pool: Pool) -> None:
        """Take a call with all it holds to another pool: its place in the queue, its charge, its count in flight."""
        entry, leaf, old = call.entry, call.leaf, call.pool
        if entry is not None:
            self.unqueue(call)
        call.pool = pool
        if call.charge is not None:
            self._accounts.move(call, old)
            if leaf is not None:
                old.tree.end(leaf)
                call.leaf = call.charge.leaf
                pool.tree.begin(call.leaf)
        if entry is not None:
            self._push(call, entry.order[:2], entry.hint)

    def turn(self, call: Call, turn: Turn) -> None:
        """Another model takes over: the call goes there with its place among its user's requests and its charge."""
        call.turn(turn.model, turn.rest, turn.cause)
        if turn.pool is not call.pool:
            self.move(call, turn.pool)

    def touch_all(self) -> None:
        """Any instance may take more than before."""
        for pool in self._fleet.pools():
            pool.room = None
            self._dirty[pool] = None

    def woke(self, pool: Pool) -> None:
        """The time a pool was waiting for has come."""
        self._watches.pop(pool, None)
        pool.room = None
        self._dirty[pool] = None

    # ------------------------------------------------------------------ the pump

    def pump(self, now: float) -> None:
        """Dispatch while anything fits; pools that were served longest ago go first."""
        if self._fallbacks.any:
            self._turn_queued(now)
        self._now = now
        pools = list(self._dirty)
        self._dirty.clear()
        if len(pools) > 1:
            pools.sort(key=lambda pool: pool.last_dispatch or 0.0)
        for pool in pools:
            if pool.tree.root.queued:
                self._serve(pool, now)
            if pool.tree.root.queued:
                self._wait(pool, now)
            else:
                self._rest(pool, now)
        self._passed = None

    def _serve(self, pool: Pool, now: float) -> None:
        tree, fits = pool.tree, self._choose
        self._router.asks_again = None
        while tree.root.queued:
            room = pool.look(now)
            if room is _NONE:
                return
            if room is _ANYBODY:
                pick = tree.pick(fits, now, pool.drains_in(tree.root.queued) if tree.hurried else 0.0)
            else:
                pick = tree.first(fits)
            if pick is None:
                return
            self._dispatch(*pick, now)

    def _turn_queued(self, now: float) -> None:
        """Whoever waits for a model none of whose instances may be asked goes where another model takes over."""
        for pool in list(self._dirty):
            if pool.tree.root.queued and now >= pool.turned_at + _TURN_SECONDS and exhausted(pool.members, now):
                pool.turned_at = now
                for call in self.backlog.of(pool):
                    turn = self._fallbacks.elsewhere(call, now)
                    if turn is not None:
                        self.turn(call, turn)

    def _choose(self, call: Call) -> InstanceState | None:
        guest = call.entry is not None and _guest(call.entry.leaf, call)
        state = self._router.choose(call, self._now, guest)
        if state is None:
            self._passed = call
        return state

    def _dispatch(self, entry: Entry[Call], state: InstanceState, now: float) -> None:
        call = entry.item
        self.backlog.remove(call)
        call.entry = None
        cost = self._accounts.price(call, state, now) if call.charge is None else None
        if call.fallback is not None:
            self._accounts.reprice(call, state, now)
        charge = call.pool.tree.grant(entry, cost)
        if charge is not None:
            call.charge = charge
            self._budget.pay_in()
        self._attempts.send(call, state, entry.leaf, cost or 0.0, now)

    def _push(self, call: Call, order: tuple[float, float], hint: Hint) -> None:
        pool = call.pool
        call.entry = pool.tree.push(call, call.flow, order, hint)
        self.backlog.add(call)
        if pool.queued(call.request, call.entry) or self._fallbacks.any:
            self._dirty[pool] = None

    def _wait(self, pool: Pool, now: float) -> None:
        """Nothing more can be sent: keep account of why, and wake when that may change by itself.

        It does when an instance comes back or may open, or was waited for in vain.
        """
        pool.waited = True
        passed = self._passed if self._passed is not None and self._passed.pool is pool else None
        when, again = pool.reckon(passed, now), self._router.asks_again
        if again is not None and again < when:
            when = again
        lost = pool.down_since() + self._settings.health.grace
        if now < lost < when:
            when = lost
        watch = self._watches.get(pool)
        if watch is not None:
            if watch[0] == when:
                return
            self._book.timers.cancel(watch[1])
            del self._watches[pool]
        if when < inf:
            self._watches[pool] = (when, self._book.timers.at(when, pool))

    def _rest(self, pool: Pool, now: float) -> None:
        """Nothing waits any more: what happens at the instances is not followed from now on."""
        pool.room = None
        if not pool.waited:
            return
        pool.waited = False
        watch = self._watches.pop(pool, None)
        if watch is not None:
            self._book.timers.cancel(watch[1])
        for state in pool.members:
            if not any(other.tree.root.queued for other in state.pools):
                state.gate.shut_times.note("", now)


def _guest(leaf: Node[Call], call: Call) -> bool:
    """The user holds so few places that he may have one of those kept for guests."""
    user = leaf.parent
    if user is None or call.flow.service_class is _BATCH:
        return False
    return not user.in_flight or user.in_flight < GUESTS * call.pool.tree.root.in_flight
