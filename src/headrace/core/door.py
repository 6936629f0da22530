"""The door: what happens to a request before it is queued, in this order.

draining? -> known model? -> deadline? -> limits (checked and taken in one step) -> single-flight -> cache -> can
anything serve it soon? -> room in the queue? What is refused here was never accepted and holds nothing.
"""

from __future__ import annotations

from typing import Final

from headrace import errors
from headrace.core.accounts import Accounts
from headrace.core.book import Book
from headrace.core.catalogue import Route
from headrace.core.dispatching import Dispatcher
from headrace.core.endings import Endings
from headrace.core.fallback import Fallbacks
from headrace.core.limits import Denied, Lease, LimitRule
from headrace.core.pool import Pool
from headrace.core.recovery import Blocked, blocked
from headrace.core.settings import Settings
from headrace.core.ticket import Call, State, key_of
from headrace.model import CacheResult, Ending, LookUp, Request

_MISS: Final = CacheResult.MISS
_RUNNING: Final = State.RUNNING
_MAX_MEMBERS = 4096
"""Tickets that may share one call; a further one makes a call of its own."""


class Door:
    """Admits, joins or refuses."""

    def __init__(
        self,
        settings: Settings,
        book: Book,
        dispatcher: Dispatcher,
        accounts: Accounts,
        endings: Endings,
        fallbacks: Fallbacks,
    ) -> None:
        self._settings = settings
        self._book = book
        self._dispatcher = dispatcher
        self._accounts = accounts
        self._endings = endings
        self._fallbacks = fallbacks
        self._limited = settings.limits.per_user is not None or settings.limits.per_tenant is not None
        self._looking: set[str] = set()
        """Calls whose look-up has not been answered yet, whether or not they are still alive."""
        self.draining = False

    def arrive(self, request: Request, now: float) -> None:
        """Take a new request; its id must be new among the living.

        Raises:
            ValueError: a ticket of that id is alive.
        """
        book = self._book
        if request.id in book.tickets:
            raise ValueError(f"request id {request.id!r} is in use")
        found = self._fallbacks.begin(request)
        if self.draining:
            book.refuse(request, Ending.DRAINING, errors.draining(), now)
            return
        if found is None:
            book.refuse(request, Ending.MODEL_NOT_FOUND, errors.model_not_found(request.model), now)
            return
        if request.deadline is not None and request.deadline <= now:
            book.refuse(request, Ending.DEADLINE_EXPIRED, errors.deadline_exceeded(), now)
            return
        lease = self._limit(request, now) if self._limited else None
        if isinstance(lease, Denied):
            book.refuse(request, Ending.RATE_LIMITED, errors.rate_limited(lease.message, lease.retry_after), now)
            return
        self._place(request, found, lease, now)

    def _place(self, request: Request, found: tuple[Route | None, Pool], lease: Lease | None, now: float) -> None:
        """Join a running call, ask the cache, be sent at once, or queue; refused only for want of room."""
        book, dispatcher = self._book, self._dispatcher
        route, pool = found
        if request.fingerprint is not None:
            running = book.flights.find(key_of(request, request.model if route is None else route.model))
            if running is not None and len(running.members) < _MAX_MEMBERS:
                self._join(request, running, lease, now)
                return
        call = book.new_call(request, pool, now, route)
        looks = request.look_up and call.key is not None and len(self._looking) < self._settings.queue.size
        state = None
        if not looks:
            call.expected = self._accounts.expect(request)
            state = dispatcher.opening(call, now)
            if state is None:
                refusal = self._barred(call, now)
                if refusal is not None:
                    book.refuse(request, *refusal, now, lease)
                    return
                if call.fallback is not None:
                    state = dispatcher.opening(call, now)
        book.open(call)
        ticket = book.admit(request, call, lease, _MISS, now)
        if state is not None:
            if request.deadline is not None:
                book.schedule_deadline(ticket)
            dispatcher.straight(call, state, now)
            return
        book.schedule_expiry(ticket, now)
        if looks and call.key is not None:
            call.move(State.LOOKING)
            self._looking.add(call.id)
            book.out.append(LookUp(call.id, call.key))
        else:
            dispatcher.enqueue(call, now)

    def looked(self, call_id: str, hit: bool, now: float) -> None:
        """The cache answered."""
        self._looking.discard(call_id)
        call = self._book.calls.get(call_id)
        if call is None or call.state is not State.LOOKING:
            return
        if hit:
            self._book.totals["hits"] += len(call.members)
            for ticket in call.members.values():
                ticket.cache = CacheResult.HIT
            self._book.end(call, Ending.ANSWERED, None, now)
            return
        refusal = self._barred(call, now)
        if refusal is not None:
            self._endings.leave_all(call, *refusal, now)
        else:
            call.expected = self._accounts.expect(call.request)
            self._dispatcher.enqueue(call, now)

    def _join(self, request: Request, call: Call, lease: Lease | None, now: float) -> None:
        before = call.flow
        ticket = self._book.admit(request, call, lease, CacheResult.JOINED, now)
        if call.state is _RUNNING:
            self._book.schedule_deadline(ticket)
        else:
            self._book.schedule_expiry(ticket, now)
        self._book.totals["joined"] += 1
        if call.flow != before:
            self._dispatcher.replace(call)

    def _limit(self, request: Request, now: float) -> Lease | Denied | None:
        limits, flow = self._settings.limits, request.flow
        keys: list[tuple[str, LimitRule]] = []
        if limits.per_user is not None:
            keys.append((f"user:{flow.tenant}/{flow.user}", limits.per_user))
        if limits.per_tenant is not None:
            keys.append((f"tenant:{flow.tenant}", limits.per_tenant))
        if not keys:
            return None
        return self._book.limiter.take(keys, request.prompt_tokens + self._accounts.expect(request), now)

    def _barred(self, call: Call, now: float) -> Blocked | None:
        """Why `call` cannot even queue; where it helps, the newest call of a lower class makes room for it."""
        turn = self._fallbacks.elsewhere(call, now) if call.rest else None
        if turn is not None:
            self._dispatcher.turn(call, turn)
        obstacle = blocked(call.choices, self._settings.recovery.longest_wait, now)
        if obstacle is not None:
            return obstacle
        backlog = self._dispatcher.backlog
        if not backlog.bars(call):
            return None
        if backlog.user_full(call):
            most = self._settings.queue.per_user
            return Blocked(Ending.BACKPRESSURE, errors.user_queue_full(most, call.pool.drains_in(most)))
        full = Blocked(Ending.BACKPRESSURE, errors.queue_full(call.pool.drains_in(len(call.pool.tree))))
        victim = backlog.displaceable(call)
        if victim is None:
            return full
        self._endings.leave_all(victim, *full, now)
        return None
