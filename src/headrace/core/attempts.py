"""What attempts hold at the instances.

A place is taken in `send`, or in `hedge` for a second attempt beside a late first one, and given back in `_give_back`,
whatever way the attempt ended.
"""

from __future__ import annotations

from typing import Final

from headrace.core.accounts import Accounts
from headrace.core.book import Book
from headrace.core.hedging import Hedger
from headrace.core.instance_state import InstanceState
from headrace.core.place import Place
from headrace.core.pool import Pool
from headrace.core.routing import Router, weight
from headrace.core.settings import Settings
from headrace.core.share import Node
from headrace.core.ticket import Call, Second, State
from headrace.model import Abort, AnswerForm, AttemptRecord, Cause, Dispatch, Outcome

_RUNNING: Final = State.RUNNING
_STREAM: Final = AnswerForm.STREAM
_OK: Final = Cause.OK


class Attempts:
    """Takes places and gives them back; what became possible by it is in `dirty`."""

    def __init__(self, settings: Settings, book: Book, accounts: Accounts, router: Router) -> None:
        self._recovery = settings.recovery
        self._book = book
        self._accounts = accounts
        self._router = router
        self._hedger = Hedger(settings.routing.hedge, router, book.timers)
        self.dirty: dict[Pool, None] = {}
        """Pools in which something may have become possible since the last pump."""

    def touch(self, state: InstanceState) -> None:
        """An instance may take more than before."""
        for pool in state.pools:
            if pool.tree.root.queued:
                pool.touch(state)
                self.dirty[pool] = None

    def send(self, call: Call, state: InstanceState, leaf: Node[Call], cost: float, now: float) -> None:
        """Send a call to an instance that has room for it; `cost` is what its account at `leaf` was charged for it."""
        request, pool, book = call.request, call.pool, self._book
        call.move(_RUNNING)
        call.waited += now - call.entered
        call.leaf = leaf
        call.attempt += 1
        call.number = call.attempt
        call.first = None
        call.tried += (state.instance.id,)
        streamed = request.form is _STREAM
        call.place = state.acquire(request, weight(state, call), streamed, now, call.flow.service_class, call.carried)
        for other in state.pools:
            if other.tree.root.queued:
                other.touch(state)
        self._router.picked(state)
        if pool.dispatched(cost, now):
            self._accounts.lead(pool)
        totals = book.totals
        totals["model_calls"] += 1
        if call.fallback is not None:
            totals["fallbacks"] += 1
        book.out.append(_order(call, state))
        if self._hedger.enabled:
            self._hedger.watch(call, now)

    def hedge(self, call: Call, now: float) -> None:
        """The first content of `call` is late: ask another instance as well, if one is open and the budget allows."""
        state = self._hedger.place_for(call, now)
        if state is None:
            return
        call.attempt += 1
        call.tried += (state.instance.id,)
        place = state.acquire(call.request, weight(state, call), True, now, call.flow.service_class)
        call.hedge = Second(call.attempt, place)
        for pool in state.pools:
            pool.touch(state)
        self._router.picked(state)
        self._book.totals["model_calls"] += 1
        self._book.totals["hedges"] += 1
        self._book.out.append(_order(call, state, hedge=True))

    def began(self, call: Call, place: Place, attempt: int, now: float) -> None:
        """The first content of an attempt is here: it is the one that answers."""
        if self._hedger.enabled:
            self._hedger.began(call, place, attempt, now)
            self.decide(call, attempt, now)
            place = call.place or place
        call.first = now
        place.state.started(place, now)
        self.touch(place.state)

    def decide(self, call: Call, attempt: int, now: float) -> None:
        """Of two attempts this one counts: the other is broken off and nobody is blamed. Harmless for one alone."""
        if call.hedge is not None:
            won = attempt == call.hedge.number
            self._book.totals["hedges_won"] += won
            number = call.number if won else call.hedge.number
            self.drop(call, number, Outcome(Cause.ABORTED, detail="another instance began first"), now)
            self._book.out.append(Abort(call.id, number))

    def drop(self, call: Call, attempt: int, outcome: Outcome, now: float) -> None:
        """One of two attempts is over: the other one goes on alone."""
        second, place = call.hedge, call.place
        if second is None or place is None:
            raise RuntimeError("there are two attempts")
        call.hedge = None
        if attempt == second.number:
            place = second.place
        else:
            call.number, call.place = second
        self._give_back(call, attempt, place, outcome, now)

    def release(self, call: Call, outcome: Outcome, now: float) -> str:
        """Give back what the only running attempt holds and let its instance be judged. Returns the instance's id."""
        place, leaf = call.place, call.leaf
        if place is None or leaf is None or call.hedge is not None:
            raise RuntimeError("a running call holds a place, and one only when it ends")
        call.place = call.leaf = None
        if call.hedging is not None:
            self._hedger.over(call)
        call.pool.tree.end(leaf)
        return self._give_back(call, call.number, place, outcome, now)

    def _give_back(self, call: Call, attempt: int, place: Place, outcome: Outcome, now: float) -> str:
        state = place.state
        state.release(place, outcome, self._recovery, now)
        if outcome.cause is not _OK:
            call.records += (_record(call, attempt, place, outcome, now),)
        self.touch(state)
        pool = call.pool
        if pool.waited or pool.tree.root.queued:
            self.dirty[pool] = None
        return state.instance.id


def _order(call: Call, state: InstanceState, hedge: bool = False) -> Dispatch:
    return Dispatch(
        call.id,
        call.attempt,
        state.instance,
        state.upstream(call.model),
        call.request,
        call.waited,
        call.records[-1].cause if call.records else None,
        call.resumes,
        call.model,
        call.fallback,
        hedge,
    )


def _record(call: Call, attempt: int, place: Place, outcome: Outcome, now: float) -> AttemptRecord:
    usage = outcome.usage if outcome.committed else None
    made = 0 if usage is None else max(0, usage.completion - place.carried)
    cause, status, detail = outcome.cause, outcome.status, outcome.detail
    model = call.model if call.model != call.request.model else ""
    return AttemptRecord(attempt, place.state.instance.id, place.entered, now, cause, status, detail, made, model)
