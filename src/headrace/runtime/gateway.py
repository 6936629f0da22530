"""The gateway: carries out what the scheduler decides.

It owns the scheduler and is the only one to call it. `step` takes a fact, lets the scheduler decide and performs
the orders, without an await anywhere: that is the lock. A fact that turns up while orders are carried out waits in
line until they are done. Bytes do not pass through here: they go from the attempt to the relay to the readers.

What goes wrong with one fact or one order stays with it: it is logged, the other orders are carried out all the same,
and whom it leaves without an end is told of an internal error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, assert_never

from msgspec.structs import replace

from headrace.core.scheduler import Scheduler
from headrace.core.weighing import Weighing
from headrace.errors import Fault, internal_error
from headrace.model import (
    Abort,
    Arrived,
    Bury,
    Cancelled,
    Cause,
    DeadLetter,
    Decision,
    Dispatch,
    Draining,
    Ending,
    Event,
    Finished,
    Flow,
    Instance,
    Join,
    Learned,
    Looked,
    LookUp,
    Outcome,
    Progressed,
    Remember,
    Request,
    Sealed,
    Settle,
    Snapshot,
    Started,
    WakeAt,
    Woke,
)
from headrace.runtime.backend import Backend
from headrace.runtime.flight import Flight
from headrace.runtime.relay import Reader
from headrace.runtime.reply import Reply
from headrace.runtime.stores import Cache, DeadLetters, letter_of
from headrace.runtime.stores.keeping import Keeping, kept_of

_log = logging.getLogger(__name__)

_LOOKS_AGAIN = 1.0
"""Seconds until what is due is looked at again, after a look that failed."""


class Observer(Protocol):
    """Sees every fact with the orders that followed. Must not raise, must not wait."""

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """One step was decided and its orders carried out: engines and callers do not wait for what is counted."""
        ...


class Gateway:
    """One process's traffic: requests in, answers pushed to readers.

    Args:
        scheduler: decides; from now on nobody else may call it.
        backend: how attempts at an instance are carried out.
        cache: finished answers; None: `look_up` always misses.
        dead_letters: keeps what was not answered.
        clock: monotonic seconds; the running loop's clock when None.
        wall: wall clock, for dead letters.
        keeping: how much of a request's payload its dead letter holds.
        observers: see every step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Callable[[Instance], Backend],
        *,
        dead_letters: DeadLetters,
        cache: Cache | None = None,
        clock: Callable[[], float] | None = None,
        wall: Callable[[], float] = time.time,
        keeping: Keeping = Keeping.WHOLE,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._scheduler = scheduler
        self._backend = backend
        self._cache = cache
        self.dead_letters = dead_letters
        self._now = clock or self._first_look
        self._wall = wall
        self._keeping = keeping
        self._observers = list(observers)
        self._closest = list(observers)
        """Those that also see answers go on."""
        self._told, self._on_sealed = self.step, self._sealed
        """Both as replies and flights hold them: bound once, not for each."""
        self._replies: dict[str, Reply] = {}
        self._flights: dict[str, Flight] = {}
        self._facts: deque[Event] = deque()
        self._stepping = False
        self._wake: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None
        self._renamed = 0

    # ------------------------------------------------------------------ for callers

    def open(self, request: Request, reader: Reader) -> Reply:
        """Take a request. Everything that follows is told to `reader`; a refusal even before this returns.

        A request whose id is in use by another one gets an addition to its id.
        """
        if request.id in self._replies:
            request = self._rename(request)
        reply = self._replies[request.id] = Reply(self._told, request, reader)
        self.step(Arrived(request))
        return reply

    def snapshot(self) -> Snapshot:
        """What is held right now."""
        return self._scheduler.snapshot(self._now())

    def positions(self, flow: Flow) -> Sequence[tuple[str, int, float]]:
        """The waiting requests of the flow's user: request id, position from 1, seconds until the expected start."""
        return self._scheduler.positions(flow.tenant, flow.user)

    def places(self) -> Mapping[str, tuple[int, float]]:
        """Every waiting request's position and seconds until its expected start, by request id."""
        return self._scheduler.places()

    def weighs_prefix(self, model: str) -> bool:
        """Whether `Request.prefix` can matter for a request to `model`."""
        return self._scheduler.weighs_prefix(model)

    def weigh_up(self, request: Request) -> Weighing | None:
        """How `request` would be placed now; nothing is taken or sent. None: no instance serves its model."""
        return self._scheduler.weigh_up(request, self._now())

    def learned(self) -> tuple[Learned, ...]:
        """What is worth knowing of the instances after a restart."""
        return self._scheduler.learned(self._now())

    @property
    def now(self) -> float:
        """The scheduler's clock."""
        return self._now()

    def cancel(self, request_id: str, flow: Flow) -> bool:
        """End a request of the flow's user, whether it waits or runs. Its caller is told that it was cancelled.

        False: the user has no request of that id.
        """
        reply = self._replies.get(request_id)
        if reply is None or reply.request.flow[1:3] != flow[1:3]:
            return False
        self.step(Cancelled(request_id))
        return True

    def observe(self, observer: Observer, *, progress: bool = True) -> None:
        """Add an observer. Without `progress` it is not told of a `Progressed` that no order follows."""
        self._observers.append(observer)
        if progress:
            self._closest.append(observer)

    @property
    def alive(self) -> int:
        """Requests that have not ended."""
        return len(self._replies)

    @property
    def flights(self) -> int:
        """Model calls that are queued, running or waiting for another attempt."""
        return len(self._flights)

    async def drain(self, grace: float) -> None:
        """Take no new work, answer the queued at once, give the running `grace` seconds. Returns when all ended."""
        self.step(Draining(self._now() + grace))
        if self._replies:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def close(self) -> None:
        """End what is left at once and let go of timers."""
        await self.drain(0.0)
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        await self.dead_letters.close()

    # ------------------------------------------------------------------ the one step

    def step(self, event: Event) -> None:
        """Take a fact, decide, carry out. Facts that come up meanwhile are taken next, in order."""
        facts = self._facts
        if self._stepping:
            facts.append(event)
            return
        self._stepping = True
        try:
            self._take(event)
            while facts:
                self._take(facts.popleft())
        finally:
            self._stepping = False

    def _take(self, fact: Event) -> None:
        now = self._now()
        decisions: Sequence[Decision]
        try:
            decisions = self._scheduler.handle(fact, now)
        except Exception:  # noqa: BLE001 - the fact's outer edge: what it had led to until then is carried out
            _log.exception("%s could not be decided on", type(fact).__name__)
            decisions = self._scheduler.orders
            self._forsake(fact, decisions, now)
        if not decisions and type(fact) is Cancelled:
            decisions = self._stranded(fact.ticket)
        for decision in decisions:
            try:
                # By type, the most frequent first: a class pattern that does not match costs four times as much.
                if type(decision) is Settle:
                    self._settle(decision)
                elif type(decision) is Dispatch:
                    self._flights[decision.call].send(decision, self._backend(decision.instance))
                elif type(decision) is Join:
                    self._join(decision)
                else:
                    self._carry_out(decision, now)
            except Exception:  # noqa: BLE001 - the order's outer edge: those of others are carried out all the same
                _log.exception("%s could not be carried out", type(decision).__name__)
                self._take_back(decision)
        for observer in self._observers if decisions or type(fact) is not Progressed else self._closest:
            try:
                observer(fact, decisions, now)
            except Exception:  # noqa: BLE001 - the observer's outer edge: nobody waits for what it counts
                _log.exception("%s could not be observed", type(fact).__name__)

    def _carry_out(self, decision: WakeAt | Abort | LookUp | Remember | Bury, now: float) -> None:
        if type(decision) is WakeAt:
            self._wake_at(decision.when, now)
        elif type(decision) is Abort:
            self._flights[decision.call].abort(decision.attempt)
        elif type(decision) is LookUp:
            self._look_up(decision.call, decision.fingerprint, now)
        elif type(decision) is Remember:
            self._remember(decision.call, decision.fingerprint, now)
        elif type(decision) is Bury:
            self._bury(decision.letter, now)
        else:
            assert_never(decision)

    def _join(self, decision: Join) -> None:
        reply = self._replies[decision.ticket]
        flight = self._flights.get(decision.call)
        if flight is None:
            flight = self._flights[decision.call] = Flight(decision.call, self._told, reply.request, self._on_sealed)
        elif flight.sealed:
            # Its beginning went while the order to join was under way: the request comes anew and finds no such call.
            reply.again = True
            self._facts.extendleft((Cancelled(decision.ticket), Sealed(decision.call)))
            return
        flight.members += 1
        reply.flight = flight
        flight.attach(reply, decision.cache)

    def _settle(self, decision: Settle) -> None:
        reply = self._replies[decision.ticket]
        if reply.again:
            reply.again = False
            self._facts.appendleft(Arrived(reply.request))
            return
        del self._replies[decision.ticket]
        flight = reply.flight
        fault: Fault | None = decision.fault
        try:
            reply.settle(decision.ending, fault if fault is None else fault.after(decision.attempts))
        finally:
            if flight is not None:
                flight.members -= 1
                if flight.members == 0:
                    del self._flights[flight.call]
            if self._idle is not None and not self._replies:
                self._idle.set()

    def _sealed(self, call: str) -> None:
        """Nobody can join `call` any more; who is about to ask for it is to know that, so it goes to the front."""
        self._facts.appendleft(Sealed(call))
        if not self._stepping:
            self.step(self._facts.popleft())

    def _take_back(self, decision: Decision) -> None:
        """An order failed: the scheduler is told what came of it, so that nobody waits for ever."""
        match decision:
            case Dispatch():
                outcome = Outcome(Cause.ABORTED, detail="internal error", fault=internal_error())
                self._facts.append(Finished(decision.call, decision.attempt, outcome))
            case LookUp():
                self._facts.append(Looked(decision.call, hit=False))
            case Join():
                self._end_broken(decision.ticket)
            case _:
                pass

    def _forsake(self, fact: Event, decisions: Sequence[Decision], now: float) -> None:
        """A fact led to `decisions` and then to a mistake: end the requests that it was about and that they do not end.

        After a look at the clock there is another one soon.
        """
        settled = {decision.ticket for decision in decisions if isinstance(decision, Settle)}
        match fact:
            case Arrived(request):
                if request.id not in settled:
                    self._end_broken(request.id)
            case Started(call) | Progressed(call) | Finished(call) | Looked(call):
                for reply in tuple(self._replies.values()):
                    if reply.flight is not None and reply.flight.call == call and reply.id not in settled:
                        self._end_broken(reply.id)
            case Woke():
                self._wake_at(now + _LOOKS_AGAIN, now)
            case _:
                pass

    def _end_broken(self, ticket: str) -> None:
        """A request fell victim to a mistake: let it go, and tell its caller so."""
        if ticket in self._replies:
            self._replies[ticket].broken = True
            self._facts.append(Cancelled(ticket))

    def _stranded(self, ticket: str) -> Sequence[Decision]:
        """The end of a request that the scheduler knows nothing of, because it fell over its arrival or its end."""
        reply = self._replies.get(ticket)
        if reply is None or not reply.broken:
            return ()
        return (Settle(ticket, "", Ending.INFERENCE_FAILURE, internal_error()),)

    def _look_up(self, call: str, fingerprint: bytes, now: float) -> None:
        answer = self._cache.get(fingerprint, now) if self._cache is not None else None
        if answer is not None:
            self._flights[call].replay(answer)
        self.step(Looked(call, answer is not None))

    def _remember(self, call: str, fingerprint: bytes, now: float) -> None:
        answer = self._flights[call].answer()
        if self._cache is not None and answer is not None:
            self._cache.put(fingerprint, answer, now)

    def _bury(self, letter: DeadLetter, now: float) -> None:
        if letter.request.letter is not None:
            return  # sent again in vain: it is a letter already, and who sent it adds to that one
        kept = kept_of(letter.request.payload, self._keeping)
        died_at = self._wall() - (now - letter.died)
        self.dead_letters.add(letter_of(letter, died_at, kept.body, redacted=kept.redacted))

    def _wake_at(self, when: float | None, now: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None
        if when is not None:
            self._wake = asyncio.get_running_loop().call_later(max(0.0, when - now), self.step, Woke())

    def _first_look(self) -> float:
        """The running loop's clock, looked up once: asking which loop runs costs more than asking it for the time."""
        self._now = asyncio.get_running_loop().time
        return self._now()

    def _rename(self, request: Request) -> Request:
        asked = request.id
        while request.id in self._replies:
            self._renamed += 1
            request = replace(request, id=f"{asked}~{self._renamed}")
        return request
