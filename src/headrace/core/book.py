"""The register of everything alive: tickets, calls, their timers, and the orders of the event at hand.

Tickets are admitted here and end here, each exactly once; what a ticket holds (its limit lease, its timer) is
given back here.
"""

from __future__ import annotations

from math import inf
from typing import Final

from headrace.core.catalogue import Route
from headrace.core.dedup import FlightIndex
from headrace.core.limits import Lease, Limiter
from headrace.core.pool import Pool
from headrace.core.settings import Settings
from headrace.core.ticket import Call, State, Ticket
from headrace.core.timers import Timers
from headrace.errors import Fault
from headrace.model import (
    AttemptRecord,
    Bury,
    CacheResult,
    DeadLetter,
    Decision,
    Ending,
    Join,
    Request,
    Settle,
    Usage,
)

_DONE: Final = State.DONE
_CLOSED = frozenset({Ending.ANSWERED, Ending.REJECTED, Ending.CANCELLED})
"""Endings without a dead letter: the caller has an answer, or is gone."""
_TURNED_AWAY = _CLOSED | {Ending.RATE_LIMITED, Ending.MODEL_NOT_FOUND, Ending.DRAINING}
"""The same at the door, where a limit and a closing house are told and nothing is kept."""

_SIDES = {Ending.ANSWERED: "answered", Ending.CANCELLED: "cancelled"}
"""The side of the balance accepted = answered + failed + cancelled that an accepted ticket ends on; others: failed."""

_TOTALS = (
    "accepted",
    "refused",
    "answered",
    "failed",
    "cancelled",
    "model_calls",
    "joined",
    "hits",
    "retries",
    "resumes",
    "fallbacks",
    "hedges",
    "hedges_won",
)


class Book:
    """Tickets and calls that are alive; the only place where a ticket begins and ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.tickets: dict[str, Ticket] = {}
        self.calls: dict[str, Call] = {}
        self.flights = FlightIndex()
        self.limiter = Limiter()
        self.timers: Timers[Ticket | Call | Pool] = Timers()
        self.totals: dict[str, int] = dict.fromkeys(_TOTALS, 0)
        self.out: list[Decision] = []
        """Orders of the event at hand."""
        self._numbered = 0

    def new_call(self, request: Request, pool: Pool, now: float, route: Route | None = None) -> Call:
        """A call that is not yet in the book; `open` enters it."""
        self._numbered += 1
        return Call(f"call-{self._numbered}", request, pool, now, route)

    def open(self, call: Call) -> None:
        """Enter a call: others may join it from now on."""
        self.calls[call.id] = call
        if call.key is not None:
            self.flights.add(call)

    def end(
        self,
        call: Call,
        ending: Ending,
        fault: Fault | None,
        now: float,
        usage: Usage | None = None,
        instance: str = "",
    ) -> None:
        """End a call with all its tickets. They part, so that nothing is left for the garbage collector to find."""
        call.move(_DONE)
        del self.calls[call.id]
        if call.key is not None:
            self.flights.drop(call)
        for timer in (call.retry, call.promotion, call.hedging):
            if timer is not None:
                self.timers.cancel(timer)
        for ticket in call.members.values():
            self.settle(ticket, ending, fault, now, usage, instance)
        call.members.clear()

    def admit(self, request: Request, call: Call, lease: Lease | None, cache: CacheResult, now: float) -> Ticket:
        """Begin a ticket: the request has passed the door."""
        ticket = Ticket(request, call, now, lease, cache)
        self.totals["accepted"] += 1
        self.tickets[request.id] = ticket
        call.add(ticket)
        self.out.append(Join(request.id, call.id, cache))
        return ticket

    def schedule_expiry(self, ticket: Ticket, now: float, most: float = inf) -> None:
        """From `now` the ticket may wait for its class's time and at most `most`, but not past its deadline."""
        request = ticket.request
        longest = self._settings.queue.longest(request)
        when = now + (longest if longest < most else most)
        if request.deadline is not None and request.deadline < when:
            when = request.deadline
        if ticket.timer is not None:
            self.timers.cancel(ticket.timer)
        ticket.timer = self.timers.at(when, ticket)

    def schedule_deadline(self, ticket: Ticket) -> None:
        """The ticket does not wait: only its deadline ends it, if it has one."""
        deadline = ticket.request.deadline
        if deadline is not None:
            ticket.timer = self.timers.at(deadline, ticket)

    def settle(
        self,
        ticket: Ticket,
        ending: Ending,
        fault: Fault | None,
        now: float,
        usage: Usage | None = None,
        instance: str = "",
    ) -> None:
        """End a ticket."""
        call, request = ticket.call, ticket.request
        del self.tickets[request.id]
        if ticket.timer is not None:
            self.timers.cancel(ticket.timer)
        if ticket.lease is not None:
            spent = usage.prompt + usage.completion if usage is not None else 0
            self.limiter.settle(ticket.lease, spent, now)
        self.totals[_SIDES.get(ending, "failed")] += 1
        attempts = len(call.records) + (1 if instance else 0)
        self.out.append(
            Settle(request.id, call.id, ending, fault, ticket.cache, usage, instance, attempts, call.resumes)
        )
        if ending not in _CLOSED:
            self._bury(request, ending, fault, ticket.arrived, now, call.records)

    def refuse(self, request: Request, ending: Ending, fault: Fault, now: float, lease: Lease | None = None) -> None:
        """Turn a request away at the door: it was never accepted."""
        if lease is not None:
            self.limiter.refund(lease, now)
        self.totals["refused"] += 1
        self.out.append(Settle(request.id, "", ending, fault))
        if ending not in _TURNED_AWAY:
            self._bury(request, ending, fault, now, now, ())

    def _bury(
        self,
        request: Request,
        ending: Ending,
        fault: Fault | None,
        arrived: float,
        now: float,
        attempts: tuple[AttemptRecord, ...],
    ) -> None:
        reason = f"{ending.value}:inference" if ending is Ending.BACKPRESSURE else ending.value
        detail = attempts[-1].detail if attempts else ""
        if not detail and fault is not None:
            detail = fault.message
        letter = DeadLetter(
            request=request, ending=ending, reason=reason, detail=detail, arrived=arrived, died=now, attempts=attempts
        )
        self.out.append(Bury(letter))
