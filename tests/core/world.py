"""The world around a scheduler, with a memory of its own: what it was ordered to do, and whether that was allowed.

It is the second book-keeper: everything here is derived from facts handed in and orders handed out, and compared with
what the scheduler says of itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import assert_never

from headrace.core.instance_state import InstanceState
from headrace.core.naming import match
from headrace.core.scheduler import Scheduler
from headrace.core.settings import Settings
from headrace.model import (
    Abort,
    Arrived,
    Bury,
    Cancelled,
    Decision,
    Dispatch,
    Drained,
    Draining,
    Ending,
    Event,
    Finished,
    Instance,
    Join,
    LookUp,
    OutcomeKind,
    Probed,
    Reconfigured,
    Remember,
    Request,
    Settle,
    WakeAt,
    Woke,
)
from tests.core.eligible import outdated_answers, overdue_picks
from tests.core.inventory import holdings

_QUIET = {Ending.ANSWERED, Ending.REJECTED, Ending.CANCELLED}
_AT_THE_DOOR = {Ending.RATE_LIMITED, Ending.MODEL_NOT_FOUND, Ending.DRAINING}


class World:
    """Hands facts to a scheduler and checks every order that comes back."""

    def __init__(self, settings: Settings, instances: Sequence[Instance], seed: int = 7) -> None:
        self.settings = settings
        self.first = tuple(instances)
        self.seed = seed
        self.scheduler = Scheduler(settings, instances, Random(seed))
        self.now = 0.0
        self.wake: float | None = None
        self.journal: list[tuple[Event, float, list[Decision]]] = []
        self.instances = {instance.id: instance for instance in instances}
        self.requests: dict[str, Request] = {}
        self.joined: dict[str, str] = {}
        """Living and settled tickets that were accepted, with their call."""
        self.endings: dict[str, Ending] = {}
        self.buried: Counter[str] = Counter()
        self.running: dict[tuple[str, int], Dispatch] = {}
        """By call and attempt; two of one call where the second is a hedge."""
        self.states: dict[tuple[str, int], InstanceState] = {}
        """The state that each running attempt's place belongs to: it may have left the fleet meanwhile."""
        self.look_ups: list[str] = []
        self.attempts: Counter[str] = Counter()
        self.begun: dict[str, bool] = {}
        """Calls of whose answer somebody has read a part; whether the rest may still be had elsewhere."""
        self.strikes: Counter[str] = Counter()
        self.gone: list[InstanceState] = []
        self.draining = False
        self.drained: set[str] = set()

    # ------------------------------------------------------------------ facts

    def tell(self, event: Event, later: float = 0.0) -> list[Decision]:
        """Let `later` seconds pass, then report one fact."""
        self.now += later
        before = list(self.scheduler._fleet.states.values())
        self._note(event)
        orders = self.scheduler.handle(event, self.now)
        self.journal.append((event, self.now, orders))
        after = set(map(id, self.scheduler._fleet.states.values()))
        self.gone += [state for state in before if id(state) not in after]
        for position, order in enumerate(orders):
            self._obey(order, orders[:position])
        self.check()
        return orders

    def alive(self) -> list[str]:
        """Tickets that were accepted and have not been settled."""
        return [ticket for ticket in self.joined if ticket not in self.endings]

    def members(self, call: str) -> list[Request]:
        """The living requests of a call."""
        return [self.requests[ticket] for ticket in self.alive() if self.joined[ticket] == call]

    def _note(self, event: Event) -> None:
        match event:
            case Arrived(request):
                self.requests[request.id] = request
            case Finished(call, attempt):
                if (call, attempt) in self.running:
                    outcome = event.outcome
                    if outcome.committed or call in self.begun:
                        self.begun[call] = outcome.resumable
                    del self.running[call, attempt], self.states[call, attempt]
            case Probed(instance, healthy, busy):
                if healthy:
                    self.strikes[instance] = 0
                elif not busy:
                    self.strikes[instance] += 1
            case Reconfigured(instances):
                kept = {i.id for i in instances if i.id in self.instances and self.instances[i.id].address == i.address}
                self.instances = {instance.id: instance for instance in instances}
                self.strikes = Counter({name: count for name, count in self.strikes.items() if name in kept})
                self.drained &= self.instances.keys()
            case Drained(instance, draining):
                if draining and instance in self.instances:
                    self.drained.add(instance)
                else:
                    self.drained.discard(instance)
            case Draining():
                self.draining = True
            case Woke():
                self.wake = None
            case _:
                pass

    # ------------------------------------------------------------------ orders

    def _obey(self, order: Decision, before: Sequence[Decision]) -> None:
        match order:
            case Join(ticket, call):
                assert ticket in self.requests
                assert ticket not in self.joined, "joined once"
                assert ticket not in self.endings, "not after its end"
                assert not self.draining, "nothing new while draining"
                self.joined[ticket] = call
            case LookUp(call):
                self.look_ups.append(call)
            case Dispatch():
                self._sent(order)
            case Abort(call, attempt):
                assert (call, attempt) in self.running, "only what runs is aborted"
                del self.running[call, attempt], self.states[call, attempt]
            case Settle():
                self._settled(order)
            case Bury(letter):
                self.buried[letter.request.id] += 1
                assert self.endings[letter.request.id] is letter.ending, "buried after it was settled"
                assert any(isinstance(o, Settle) and o.ticket == letter.request.id for o in before)
            case Remember(call):
                ends = {self.endings.get(ticket) for ticket, of in self.joined.items() if of == call}
                assert None in ends, "remembered before its tickets are settled"
            case WakeAt(when):
                assert when is not None
                self.wake = when
            case _:
                assert_never(order)

    def _sent(self, order: Dispatch) -> None:
        call, instance = order.call, order.instance
        beside = [other.instance.id for (of, _), other in self.running.items() if of == call]
        assert len(beside) == order.hedge, "one attempt at a time, or a hedge beside one"
        assert instance.id not in beside, "a hedge goes elsewhere"
        members = self.members(call)
        assert members, "somebody waits for it"
        for request in members:
            assert request.deadline is None or self.now < request.deadline, "nothing is sent past a deadline"
        self.attempts[call] += 1
        assert order.attempt == self.attempts[call], "attempts are numbered without a gap"
        assert (order.resumes > 0) == (call in self.begun), "what was read is gone on from, and nothing else"
        if call in self.begun:
            assert self.begun[call], "where it cannot be gone on from, it is not"
            assert instance.resume, "only at those that can"
            assert order.resumes <= self.settings.recovery.max_resumes
        assert self.instances.get(instance.id) == instance, "only instances that are configured are used"
        assert order.request.only in (None, instance.id), "what is bound to an instance goes nowhere else"
        assert match(instance, order.model) == order.upstream_model
        assert self.strikes[instance.id] < 3, "an instance that is down is left alone"
        assert instance.id not in self.drained, "one that is drained gets nothing new"
        self.running[call, order.attempt] = order
        state = self.states[call, order.attempt] = self.scheduler._fleet.states[instance.id]
        flying = sum(1 for other in self.states.values() if other is state)
        assert flying <= instance.max_concurrent, "in flight never exceeds the limit"
        node = self.scheduler._book.calls[call].leaf if call in self.scheduler._book.calls else None
        while node is not None:
            assert node.cap is None or node.in_flight <= node.cap, "no user exceeds his cap"
            node = node.parent

    def _settled(self, order: Settle) -> None:
        ticket, ending = order.ticket, order.ending
        assert ticket not in self.endings, "settled exactly once"
        if order.call:
            assert self.joined[ticket] == order.call, "settled in the call it joined"
        else:
            assert ticket not in self.joined, "what is refused was never accepted"
            assert ending is not Ending.ANSWERED
        assert (order.fault is None) == (ending in {Ending.ANSWERED, Ending.CANCELLED})
        self.endings[ticket] = ending

    # ------------------------------------------------------------------ what must hold after every fact

    def check(self) -> None:
        """Compare the scheduler's books with the world's."""
        self._check_tickets()
        self._check_places()
        self._check_time()
        blame = overdue_picks(self.scheduler, self.now)
        assert not blame, f"idle although it could go: {blame}"
        outdated = outdated_answers(self.scheduler, self.now)
        assert not outdated, f"not asked although something happened: {outdated}"

    def _check_tickets(self) -> None:
        book, alive = self.scheduler._book, self.alive()
        assert sorted(book.tickets) == sorted(alive)
        assert set(book.calls) == {self.joined[ticket] for ticket in alive}
        counts = book.totals
        ended = counts["answered"] + counts["failed"] + counts["cancelled"]
        assert counts["accepted"] == ended + len(alive) == len(self.joined)
        assert counts["refused"] == len(self.endings) - (len(self.joined) - len(alive))
        for ticket, ending in self.endings.items():
            quiet = ending in _QUIET or (ticket not in self.joined and ending in _AT_THE_DOOR)
            assert self.buried[ticket] == (0 if quiet else 1), f"{ticket} {ending}"

    def _check_places(self) -> None:
        held = holdings(self.scheduler, self.gone)
        calls_running = len({call for call, _ in self.running})
        assert held["gate_in_flight"] == len(self.running)
        assert held["share_in_flight_root"] == calls_running, "a hedge is the same request of the same user"
        per_state = Counter(id(state) for state in self.states.values())
        for state in [*self.scheduler._fleet.states.values(), *self.gone]:
            assert state.gate.in_flight == per_state[id(state)], "released = acquired"
        view = self.scheduler.snapshot(self.now)
        calls = view.queued + view.running + view.waiting_retry + view.looking
        assert calls == len(self.scheduler._book.calls)
        assert view.running == calls_running
        assert view.queued == held["backlog"] == held["queued_root"] == held["backlog_classes"]
        assert view.following == len(self.alive()) - calls

    def _check_time(self) -> None:
        timers = self.scheduler._book.timers
        soonest = timers.next()
        if soonest is not None:
            assert self.wake is not None, "something is due and nobody will wake"
            assert self.wake <= soonest, "woken no later than the first thing that is due"
        overdue = [ticket for ticket in self.alive() if self._expired(self.requests[ticket])]
        assert not overdue, "no ticket outlives its deadline"

    def _expired(self, request: Request) -> bool:
        return request.deadline is not None and request.deadline <= self.now

    # ------------------------------------------------------------------ afterwards

    def leave_nothing(self) -> None:
        """Everybody goes; whatever was held must be given back."""
        for ticket in self.alive():
            self.tell(Cancelled(ticket))
        self.tell(Woke(), 1e6)
        counts = holdings(self.scheduler, self.gone)
        left = {name: count for name, count in counts.items() if count and name != "look_ups"}
        assert not left, f"still held: {left}"

    def replay(self) -> None:
        """The journal, given to a fresh scheduler, brings forth the same orders."""
        twin = Scheduler(self.settings, self.first, Random(self.seed))
        for event, now, orders in self.journal:
            assert twin.handle(event, now) == orders


def blames(event: Finished) -> bool:
    """Whether an attempt's end speaks against its instance."""
    return event.outcome.kind is OutcomeKind.FAILURE
