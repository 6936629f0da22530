"""How calls and tickets end: a finished attempt, a caller who leaves, a time that is over."""

from __future__ import annotations

from math import inf
from typing import Final

from headrace import errors
from headrace.core.accounts import Accounts
from headrace.core.attempts import Attempts
from headrace.core.book import Book
from headrace.core.dispatching import Dispatcher
from headrace.core.fallback import Fallbacks, Turn
from headrace.core.recovery import GiveUp, Recovery, Resume, Retry, begun, blocked
from headrace.core.settings import Settings
from headrace.core.ticket import Call, State, Ticket
from headrace.errors import Fault
from headrace.model import Abort, Cause, Ending, FallbackCause, Outcome, Remember, Usage

_OK: Final = Cause.OK
_ANSWERED: Final = Ending.ANSWERED
_FINAL = frozenset({_OK, Cause.REJECTED})
"""What the other one of two attempts could not change: an answer, and what is wrong with the request."""


class Endings:
    """Ends attempts, calls and tickets."""

    def __init__(
        self,
        settings: Settings,
        book: Book,
        attempts: Attempts,
        dispatcher: Dispatcher,
        accounts: Accounts,
        recovery: Recovery,
        fallbacks: Fallbacks,
    ) -> None:
        self._settings = settings
        self._book = book
        self._attempts = attempts
        self._dispatcher = dispatcher
        self._accounts = accounts
        self._recovery = recovery
        self._fallbacks = fallbacks

    def finish(self, call: Call, attempt: int, outcome: Outcome, now: float) -> None:
        """A running attempt of `call` ended. Of two, one that failed leaves the matter to the other."""
        if call.hedge is not None:
            if outcome.cause not in _FINAL and not outcome.committed:
                call.failures += 1
                self._attempts.drop(call, attempt, outcome, now)
                return
            self._attempts.decide(call, attempt, now)
        instance = self._attempts.release(call, outcome, now)
        if outcome.cause is _OK:
            self._succeed(call, outcome, instance, now)
            return
        call.failures += 1
        verdict = self._recovery.decide(call, outcome, now)
        turn = self._turn(call, verdict, outcome, now) if call.rest else None
        if turn is not None:
            self._dispatcher.turn(call, turn)
            verdict = Retry(0.0)
        if isinstance(verdict, GiveUp):
            self._give_up(call, verdict, outcome, now)
            return
        self._book.totals["retries"] += 1
        most = inf
        if isinstance(verdict, Resume):
            most = self._settings.recovery.resume_patience
            self._book.totals["resumes"] += 1
            call.resumes += 1
            if outcome.committed and outcome.usage is not None:
                call.carried = outcome.usage.completion
        call.produced = call.carried
        for ticket in call.members.values():
            self._book.schedule_expiry(ticket, now, most)
        if verdict.delay > 0:
            call.move(State.WAITING)
            call.retry = self._book.timers.at(now + verdict.delay, call)
        else:
            self._dispatcher.enqueue(call, now, head=True)

    def leave(self, ticket: Ticket, ending: Ending, fault: Fault | None, now: float) -> None:
        """Take one ticket out of its call: its caller left, its time is over, or it made room.

        With others in the call nothing happens at the engine: the next one leads.
        """
        call = ticket.call
        if len(call.members) == 1:
            self.leave_all(call, ending, fault, now)
            return
        ending, fault = _told(call, ending, fault)
        before = call.flow
        call.drop(ticket)
        self._book.settle(ticket, ending, fault, now, _delivered(call))
        if call.flow != before:
            self._dispatcher.replace(call)
            self._accounts.hand_over(call, before, now)

    def leave_all(self, call: Call, ending: Ending, fault: Fault | None, now: float) -> None:
        """End a call with all its tickets; what the engine did for nobody's sake any more is stopped."""
        ending, fault = _told(call, ending, fault)
        usage = _delivered(call)
        if call.state is State.RUNNING and call.place is not None:
            self._attempts.decide(call, call.number, now)
            self._book.out.append(Abort(call.id, call.number))
            place = call.place
            self._attempts.release(call, Outcome(Cause.ABORTED, detail=ending.value), now)
            self._accounts.abandon(call, place.entered, now, place.state.gate.prefill_seconds)
        else:
            self._dispatcher.unqueue(call)
            self._accounts.drop(call, usage, now)
        self._book.end(call, ending, fault, now, usage)

    def _succeed(self, call: Call, outcome: Outcome, instance: str, now: float) -> None:
        usage = outcome.usage or Usage(call.request.prompt_tokens, call.produced, estimated=True)
        self._accounts.settle(call, usage, now)
        keeps = call.request.remember and call.joinable and outcome.cacheable and call.fallback is None
        if keeps and call.key is not None:
            self._book.out.append(Remember(call.id, call.key))
        self._book.end(call, _ANSWERED, None, now, usage, instance)

    def _turn(self, call: Call, verdict: Retry | Resume | GiveUp, outcome: Outcome, now: float) -> Turn | None:
        """The model that takes over after a failed attempt: not while another instance can be tried at once."""
        if isinstance(verdict, Resume) or (isinstance(verdict, Retry) and not verdict.delay):
            return None
        cause = self._recovery.turns_for(call, outcome)
        turn = None if cause is None else self._fallbacks.next(call, cause, now)
        unpaid = isinstance(verdict, GiveUp) and cause is FallbackCause.EXHAUSTED
        return None if turn is None or (unpaid and not self._recovery.budget.take(now)) else turn

    def _give_up(self, call: Call, verdict: GiveUp, outcome: Outcome, now: float) -> None:
        """The call failed for good. Its leader is told; one follower may try once more, then all are told."""
        usage = outcome.usage or (_delivered(call) if begun(call, outcome) else None)
        self._accounts.drop(call, usage, now)
        if self._may_take_over(call, verdict, outcome, now):
            self._take_over(call, verdict, usage, now)
            return
        self._book.end(call, verdict.ending, verdict.fault, now, usage)

    def _take_over(self, call: Call, verdict: GiveUp, usage: Usage | None, now: float) -> None:
        leader = call.leader
        self._book.settle(leader, verdict.ending, verdict.fault, now, usage)
        call.drop(leader)
        call.taken_over = True
        call.failures = call.spent = 0
        call.produced = 0
        call.tried = ()
        for ticket in call.members.values():
            self._book.schedule_expiry(ticket, now)
        self._dispatcher.enqueue(call, now, head=True)

    def _may_take_over(self, call: Call, verdict: GiveUp, outcome: Outcome, now: float) -> bool:
        if len(call.members) < 2 or call.taken_over or begun(call, outcome) or verdict.ending is Ending.REJECTED:
            return False
        return blocked(call.choices, self._settings.recovery.longest_wait, now) is None


_OF_THE_QUEUE = frozenset({Ending.QUEUE_TIMEOUT, Ending.BACKPRESSURE, Ending.NO_INSTANCE})
"""Endings that tell of waiting; to one who reads an answer already it has broken off."""


def _told(call: Call, ending: Ending, fault: Fault | None) -> tuple[Ending, Fault | None]:
    if call.resumes and ending in _OF_THE_QUEUE:
        return Ending.STREAM_BROKEN, errors.stream_incomplete()
    return ending, fault


def _delivered(call: Call) -> Usage | None:
    """What the callers of a call got so far, estimated: prompt and tokens delivered. None: no content yet."""
    if not call.resumes and (call.state is not State.RUNNING or call.first is None):
        return None
    return Usage(call.request.prompt_tokens, call.produced, estimated=True)
