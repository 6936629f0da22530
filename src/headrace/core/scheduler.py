"""The scheduler: facts in, orders out.

`Scheduler.handle(event, now)` is the only writer of tickets and calls. It never waits, reads no clock, does no IO
and draws chance only from the `Random` it was given, so a journal of (event, now) replays to identical decisions.

The way of a request: the door (limits, single-flight, cache, bounds) -> the fair queue -> the pump: while the flow
whose turn it is has a head that fits an open instance, dispatch it. An attempt's end releases everything it held,
is judged by its instance, and settles the tickets of the call, or sends the call back to the head of its leaf for
another try.

Kept at all times: each ticket is settled exactly once; what was acquired is released exactly once; nothing is
dispatched after its deadline; accepted = answered + failed + cancelled + still here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from headrace import errors
from headrace.core.accounts import Accounts
from headrace.core.attempts import Attempts
from headrace.core.book import Book
from headrace.core.catalogue import Catalogue
from headrace.core.dispatching import Dispatcher
from headrace.core.door import Door
from headrace.core.endings import Endings
from headrace.core.fallback import Fallbacks
from headrace.core.fleet import Fleet
from headrace.core.planting import PlantTree
from headrace.core.pool import Pool
from headrace.core.recovery import Recovery
from headrace.core.routing import Router
from headrace.core.settings import Settings, Strategy
from headrace.core.share_view import Ranks, places, spread
from headrace.core.ticket import Call, State, Ticket
from headrace.core.weighing import Weighing, weigh_up
from headrace.model import (
    Arrived,
    Cancelled,
    Decision,
    Drained,
    Draining,
    Ending,
    Event,
    FallbackCause,
    Finished,
    Instance,
    Learned,
    Looked,
    Mended,
    Probed,
    Progressed,
    Recalled,
    Reconfigured,
    Reported,
    Request,
    Sealed,
    Snapshot,
    Started,
    Tripped,
    WakeAt,
    Woke,
)

if TYPE_CHECKING:
    from random import Random

_Change = Probed | Reported | Reconfigured | Draining | Woke | Drained | Tripped | Mended | Recalled
_Seldom = Cancelled | Looked | Sealed | _Change
"""Every fact that is not part of each request."""
_TOP_USERS = 50
_TOP_SERVED = 20


class Scheduler:
    """Decides about every request.

    Args:
        settings: the numbers to work with.
        instances: the engines at the start; `Reconfigured` changes them.
        random: the only source of chance (back-off jitter, two choices).
    """

    def __init__(self, settings: Settings, instances: Iterable[Instance], random: Random) -> None:
        self._settings = settings
        self._fleet = Fleet(settings, PlantTree(settings.fairness))
        self._fleet.configure(instances)
        self._book = Book(settings)
        self._accounts = Accounts(settings.fairness)
        recovery = Recovery(settings.recovery, random)
        router = Router(settings.routing, settings.gate, random)
        self._fallbacks = Fallbacks(Catalogue(settings.models), self._fleet, random)
        self._attempts = Attempts(settings, self._book, self._accounts, router)
        self._dispatcher = Dispatcher(
            settings, self._book, self._fleet, self._accounts, router, self._attempts, recovery.budget, self._fallbacks
        )
        self._endings = Endings(
            settings, self._book, self._attempts, self._dispatcher, self._accounts, recovery, self._fallbacks
        )
        self._door = Door(settings, self._book, self._dispatcher, self._accounts, self._endings, self._fallbacks)
        self._prefixes = settings.routing.strategy is Strategy.FAIR_LOAD
        self._timers = self._book.timers
        self._announced = inf
        """When it is to be woken, as far as it has asked for that."""
        self._drain_until: float | None = None

    # ------------------------------------------------------------------ the two ways in

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take one fact and return the orders that follow from it, in the order they are to be carried out.

        Facts about calls and tickets that are over, or about a stale attempt, change nothing.

        Args:
            event: what happened.
            now: monotonic seconds, never less than in the call before.
        """
        out = self._book.out = []
        timers = self._timers
        if type(event) is Arrived:
            # Those whose time is over make room first; and a request that will not wait is sent now or never.
            if timers.soonest <= now or self._drain_until is not None:
                self._expire(now)
            self._door.arrive(event.request, now)
        else:
            if type(event) is Finished:
                call = self._book.calls.get(event.call)
                if call is not None and call.runs(event.attempt):
                    self._endings.finish(call, event.attempt, event.outcome, now)
            elif type(event) is Progressed or type(event) is Started:
                self._progress(event, now)
            else:
                self._take(event, now)
            if timers.soonest <= now or self._drain_until is not None:
                self._expire(now)
        if self._attempts.dirty:
            self._dispatcher.pump(now)
        if timers.soonest < self._announced or self._drain_until is not None:
            self._announce()
        return out

    @property
    def orders(self) -> list[Decision]:
        """What the last fact has led to; if deciding on it raised, what had been decided until then."""
        return self._book.out

    def snapshot(self, now: float) -> Snapshot:
        """What is held at `now`; O(calls + instances)."""
        book, accounts = self._book, self._accounts
        counts = Counter(call.state for call in book.calls.values())
        spreads = [(spread(pool.tree.root), pool.rate) for pool in self._fleet.pools()]
        return Snapshot(
            now=now,
            draining=self._drain_until is not None,
            queued=len(self._dispatcher.backlog),
            queue_size=self._settings.queue.size,
            running=counts[State.RUNNING],
            waiting_retry=counts[State.WAITING],
            looking=counts[State.LOOKING],
            following=len(book.tickets) - len(book.calls),
            queued_by_class=self._dispatcher.backlog.by_class(),
            queued_by_user=self._dispatcher.backlog.by_user(_TOP_USERS),
            names=self._fallbacks.catalogue.names,
            instances=tuple(state.view(now) for state in self._fleet.states.values()),
            totals=dict(book.totals),
            service=accounts.received.top(_TOP_SERVED, now),
            jain=accounts.received.jain(self._dispatcher.backlog.users),
            spread=max((apart for apart, _ in spreads), default=0.0),
            spread_seconds=max((apart / rate for apart, rate in spreads if rate), default=0.0),
            refunded=accounts.refunded,
            estimate_error=accounts.estimate_error,
        )

    def positions(self, tenant: str, user: str) -> list[tuple[str, int, float]]:
        """The waiting requests of one user as (request id, position, seconds until it is expected to start).

        O(requests that wait).
        """
        waiting = [
            ticket
            for call in self._dispatcher.backlog.calls()
            for ticket in call.members.values()
            if ticket.request.flow[1:3] == (tenant, user)
        ]
        waiting.sort(key=lambda ticket: ticket.arrived)
        ranks = {pool: Ranks(pool.tree.root) for pool in {ticket.call.pool for ticket in waiting}}
        found: list[tuple[str, int, float]] = []
        for ticket in waiting:
            call = ticket.call
            if call.entry is not None:
                place = ranks[call.pool].position(call.entry)
                found.append((ticket.request.id, place, call.pool.drains_in(place)))
        return found

    def places(self) -> dict[str, tuple[int, float]]:
        """Every waiting request as (position, seconds until it is expected to start) by its id; O(q log q)."""
        found: dict[str, tuple[int, float]] = {}
        for pool in self._fleet.pools():
            for call, place in places(pool.tree.root):
                start = pool.drains_in(place)
                for ticket in call.members:
                    found[ticket] = (place, start)
        return found

    def weighs_prefix(self, model: str) -> bool:
        """Whether it can matter for a request to `model` who has read the beginning of its prompt before."""
        if not self._prefixes or len(self._fleet.states) < 2:
            return False
        for name in self._fallbacks.catalogue.models(model):
            pool = self._fleet.pool(name)
            if pool is not None and len(pool.members) > 1:
                return True
        return False

    def load(self) -> tuple[int, int]:
        """Calls that wait in the queue, and calls that are under way (running, or between two attempts); O(1)."""
        queued = self._dispatcher.backlog.size
        return queued, len(self._book.calls) - queued

    def learned(self, now: float) -> tuple[Learned, ...]:
        """What is worth knowing of the instances after a restart; tell it with `Recalled`."""
        return self._fleet.learned(now)

    def weigh_up(self, request: Request, now: float) -> Weighing | None:
        """How `request` would be placed now, which changes nothing; None when no instance serves its model."""
        model = self._fallbacks.catalogue.models(request.model)[0]
        pool = self._fleet.pool(model)
        if pool is None:
            return None
        call = Call("", replace(request, model=model), pool, now)
        call.expected = self._accounts.expect(call.request)
        return weigh_up(call, self._settings.routing, now)

    # ------------------------------------------------------------------ facts

    def _take(self, event: _Seldom, now: float) -> None:
        # By type, the most frequent first: to find that a struct is not an instance of a class costs ten times as much.
        book = self._book
        if type(event) is Cancelled:
            ticket = book.tickets.get(event.ticket)
            if ticket is not None:
                self._endings.leave(ticket, Ending.CANCELLED, None, now)
        elif type(event) is Looked:
            self._door.looked(event.call, event.hit, now)
        elif type(event) is Sealed:
            call = book.calls.get(event.call)
            if call is not None:
                call.joinable = False
                book.flights.drop(call)
        else:
            self._change(event, now)

    def _change(self, event: _Change, now: float) -> None:
        match event:
            case Probed(instance):
                state = self._fleet.states.get(instance)
                if state is not None:
                    if state.probed(event, now):
                        self._attempts.touch(state)
                    if now - state.down_since >= self._settings.health.grace:
                        self._forsake(now)
            case Reported(instance, report):
                state = self._fleet.states.get(instance)
                if state is not None:
                    state.reported(report, now)
                    self._attempts.touch(state)
            case Reconfigured(instances):
                self._reconfigure(instances, now)
            case Draining(until):
                self._drain(until, now)
            case Woke():
                self._announced = inf
            case Drained() | Tripped() | Mended():
                self._by_hand(event, now)
            case Recalled(learned):
                self._fleet.recall(learned, now)
                self._dispatcher.touch_all()
            case _:
                assert_never(event)

    def _by_hand(self, event: Drained | Tripped | Mended, now: float) -> None:
        """What an operator wants of an instance; of one that is gone, nothing."""
        state = self._fleet.states.get(event.instance)
        if state is None:
            return
        match event:
            case Drained(_, draining):
                state.drain(draining, now)
            case Tripped():
                state.breaker.trip(now)
            case Mended():
                state.mend(now)
        self._attempts.touch(state)
        if state.draining:
            for call in list(self._book.calls.values()):
                queued = call.state in (State.QUEUED, State.WAITING)
                if queued and call.pool in state.pools and all(one.draining for one in call.choices):
                    self._displace(call, now)

    def _progress(self, event: Started | Progressed, now: float) -> None:
        call, attempt = self._book.calls.get(event.call), event.attempt
        if call is None or not call.runs(attempt):
            return
        place = call.place
        if place is None:
            return
        if type(event) is Started:
            if call.first is None:
                self._attempts.began(call, place, attempt, now)
        elif attempt == call.number:
            call.produced += event.tokens
            self._accounts.progress(call, now)
            place.state.progressed(place, event.tokens, now)
            self._attempts.touch(place.state)

    # ------------------------------------------------------------------ time and change

    def _expire(self, now: float) -> None:
        while (subject := self._book.timers.due(now)) is not None:
            match subject:
                case Ticket():
                    self._ticket_due(subject, now)
                case Call(state=State.QUEUED):
                    self._dispatcher.promote(subject, now)
                case Call(state=State.WAITING):
                    self._dispatcher.enqueue(subject, now, head=True)
                case Call(state=State.RUNNING):
                    self._attempts.hedge(subject, now)
                case Call():
                    pass
                case Pool():
                    self._dispatcher.woke(subject)
                    if all(not state.healthy for state in subject.members):
                        self._forsake(now)
        if self._drain_until is not None and now >= self._drain_until:
            for call in list(self._book.calls.values()):
                self._endings.leave_all(call, Ending.SHUTTING_DOWN, errors.draining(), now)

    def _ticket_due(self, ticket: Ticket, now: float) -> None:
        deadline, call = ticket.request.deadline, ticket.call
        if deadline is not None and now >= deadline:
            self._endings.leave(ticket, Ending.DEADLINE_EXPIRED, errors.deadline_exceeded(), now)
        elif call.state is not State.RUNNING:
            waited = now - max(call.entered, ticket.arrived)
            fault = errors.queue_timeout(waited, call.pool.drains_in(len(call.pool.tree)))
            self._endings.leave(ticket, Ending.QUEUE_TIMEOUT, fault, now)
        elif deadline is not None:
            ticket.timer = self._book.timers.at(deadline, ticket)

    def _announce(self) -> None:
        """Ask to be woken for the soonest pending time; a later wish is told when the announced one has passed."""
        when = self._timers.next()
        soonest = inf if when is None else when
        if self._drain_until is not None and self._book.tickets:
            soonest = min(soonest, self._drain_until)
        if soonest < self._announced:
            self._announced = soonest
            self._book.out.append(WakeAt(soonest))

    def _drain(self, until: float, now: float) -> None:
        self._drain_until = until
        self._door.draining = True
        for call in list(self._book.calls.values()):
            if call.state is not State.RUNNING:
                self._endings.leave_all(call, Ending.SHUTTING_DOWN, errors.draining(), now)

    def _reconfigure(self, instances: Iterable[Instance], now: float) -> None:
        """Calls move to the present pool of their model; what runs is let run where it is, removed or not."""
        self._fleet.configure(instances, now)
        for call in list(self._book.calls.values()):
            pool = self._fleet.pool(call.model)
            if pool is not None and (call.state is State.RUNNING or pool.serves(call.request)):
                if pool is not call.pool:
                    self._dispatcher.move(call, pool)
            elif call.state is State.RUNNING:
                self._dispatcher.move(call, self._fleet.nowhere())
            else:
                self._displace(call, now)
        self._dispatcher.touch_all()

    def _forsake(self, now: float) -> None:
        """Who waits for instances that have been down for longer than a restart may take need not wait longer."""
        since = now - self._settings.health.grace
        for call in list(self._book.calls.values()):
            if call.state is State.QUEUED and all(state.down_since <= since for state in call.choices):
                self._displace(call, now)

    def _displace(self, call: Call, now: float) -> None:
        """No instance is left for a call that waits: it goes to another model, or its callers are told at once."""
        turn = self._fallbacks.next(call, FallbackCause.EXHAUSTED, now)
        if turn is not None:
            self._dispatcher.turn(call, turn)
        else:
            self._endings.leave_all(call, Ending.NO_INSTANCE, errors.no_instance(10.0), now)
