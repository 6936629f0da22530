"""The world around a policy: virtual time, callers, engines. It carries out orders as the gateway does.

One heap of things that will happen; the clock jumps from one to the next. What a gateway would see of an engine is
told to the policy as facts: the first token, tokens every 250 ms, the end with its usage, metrics as old as their
poll, health checks. Everything random comes from the seed, so a run repeats exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from math import ceil
from random import Random
from typing import assert_never

from headrace.errors import Fault, engines_limited, invalid_request
from headrace.model import (
    Abort,
    AnswerForm,
    Arrived,
    Bury,
    Cause,
    Decision,
    Dispatch,
    EngineReport,
    Event,
    Finished,
    Join,
    LookUp,
    Outcome,
    Probed,
    Progressed,
    Remember,
    Reported,
    Request,
    Settle,
    Started,
    Usage,
    WakeAt,
    Woke,
)
from headrace.sim.callers import Ask, asks
from headrace.sim.engine import Fact, Kind
from headrace.sim.plant import Plant
from headrace.sim.policy import Policy
from headrace.sim.record import InstanceLedger, Record, UserLedger, Visit
from headrace.sim.scenario import Outage, Scenario, Trouble
from headrace.sim.sequence import Sequence

PROGRESS_SECONDS = 0.25
PROBE_SECONDS = 10.0
LIMIT_SECONDS = 5.0
REFUSAL_SECONDS = 0.005
"""How fast an engine says no."""


class _Flight:
    """One attempt at an engine."""

    __slots__ = ("attempt", "call", "key", "plant", "started", "unsaid", "visit")

    def __init__(self, call: str, attempt: int, plant: Plant, visit: Visit) -> None:
        self.call = call
        self.attempt = attempt
        self.key = f"{call}#{attempt}"
        self.plant = plant
        self.visit = visit
        self.started = False
        self.unsaid = 0
        """Tokens that were seen and not yet told as progress."""


class World:
    """One run of a scenario.

    Args:
        scenario: what happens.
        policy: who decides; this world is its only caller.
        name: the policy's name, for the record.
        seed: of everything random.
        on_time: is told the virtual time now and then.
    """

    def __init__(
        self, scenario: Scenario, policy: Policy, name: str, seed: int, on_time: Callable[[float], None] | None = None
    ) -> None:
        self._scenario = scenario
        self._policy = policy
        self._on_time = on_time
        self._random = Random(f"{seed}/world")
        self.record = Record(scenario, name, seed)
        self._seconds = ceil(scenario.duration) + 1
        self._plants = {machine.name: Plant(machine, scenario.prefix_block) for machine in scenario.machines}
        for machine in scenario.machines:
            self.record.instances[machine.name] = InstanceLedger(work=[0.0] * self._seconds)
        self._now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._turns = 0
        self._wake: float | None = None
        self._flights: dict[str, _Flight] = {}
        """By call."""
        self._attempts: dict[str, _Flight] = {}
        """By key."""
        self._waiting: dict[str, tuple[Ask, Visit]] = {}
        """Living requests by id."""
        self._numbered = 0

    def run(self) -> Record:
        """Let it happen; once."""
        scenario = self._scenario
        for ask in asks(scenario.clients, scenario.duration, self.record.seed, scenario.folder):
            self._at(ask.at, partial(self._arrive, ask))
        self._every(PROGRESS_SECONDS, self._sweep)
        self._every(1.0, self._note)
        self._every(LIMIT_SECONDS, self._note_limits)
        self._every(PROBE_SECONDS, self._probe)
        if self._policy.poll is not None:
            self._every(self._policy.poll, self._poll)
        for plant in self._plants.values():
            for outage in plant.machine.outages:
                if outage.trouble is Trouble.CRASHED:
                    self._at(outage.start, partial(self._crash, plant))
        while self._agenda and self._agenda[0][0] <= scenario.duration:
            self._now, _, happen = heappop(self._agenda)
            happen()
        return self._finish()

    # ------------------------------------------------------------------ time

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        self._turns += 1
        heappush(self._agenda, (when, self._turns, happen))

    def _every(self, seconds: float, happen: Callable[[], None]) -> None:
        def again() -> None:
            happen()
            self._at(self._now + seconds, again)

        self._at(seconds, again)

    # ------------------------------------------------------------------ callers

    def _arrive(self, ask: Ask) -> None:
        visit = Visit(ask.flow, ask.group, self._now, ask.prompt, ask.output)
        self.record.visits.append(visit)
        self._ledger(visit).wait(int(self._now), 1)
        self._ask(ask, visit)

    def _ask(self, ask: Ask, visit: Visit) -> None:
        self._numbered += 1
        client = ask.client
        request = Request(
            id=f"r{self._numbered}",
            flow=ask.flow,
            model="model",
            prompt_tokens=ask.prompt,
            output_cap=ask.output if client.hint else client.cap,
            form=AnswerForm.STREAM,
            deadline=None if client.deadline is None else visit.arrived + client.deadline,
            prefix=tuple(ask.chain[: ask.prompt // self._scenario.prefix_block]),
            prefix_block=self._scenario.prefix_block,
            payload=ask,
        )
        self._waiting[request.id] = (ask, visit)
        self._tell(Arrived(request))

    def _settle(self, order: Settle) -> None:
        ask, visit = self._waiting.pop(order.ticket)
        fault = order.fault
        if fault is not None and visit.first is None and visit.tries <= ask.client.retries and _worth_it(fault):
            self._at(self._now + self._patience(fault, visit.tries), partial(self._ask, ask, visit))
            visit.tries += 1
            return
        visit.ending, visit.finished = order.ending, self._now
        if visit.first is None:
            self._ledger(visit).wait(int(self._now), -1)
        if ask.talk is not None:
            following = ask.talk.answered(self._now)
            self._at(following.at, partial(self._arrive, following))

    def _patience(self, fault: Fault, tries: int) -> float:
        """As the official clients: 0.5 s doubling to 8 s with jitter, or what they were asked for."""
        if fault.retry_after is not None and 0 < fault.retry_after <= 60:
            return fault.retry_after
        return min(8.0, 0.5 * 2.0 ** (tries - 1)) * (1 - 0.25 * self._random.random())

    # ------------------------------------------------------------------ the policy

    def _tell(self, event: Event) -> None:
        self.record.events += 1
        for order in self._policy.handle(event, self._now):
            self._obey(order)

    def _obey(self, order: Decision) -> None:
        match order:
            case Dispatch():
                self._send(order)
            case Settle():
                self._settle(order)
            case Abort(call):
                flight = self._flights.pop(call)
                del self._attempts[flight.key]
                flight.plant.engine.abort(flight.key, self._now)
                self._watch(flight.plant)
            case WakeAt(when):
                self._wake = when
                if when is not None:
                    self._at(max(when, self._now), partial(self._woke, when))
            case Join() | Bury() | Remember() | LookUp():
                pass  # no request here has a fingerprint: nothing is shared, cached or replayed
            case _:
                assert_never(order)

    def _woke(self, when: float) -> None:
        if self._wake == when:
            self._wake = None
            self._tell(Woke())

    # ------------------------------------------------------------------ engines

    def _send(self, order: Dispatch) -> None:
        ask, visit = self._waiting[order.request.id]
        plant = self._plants[order.instance.id]
        flight = _Flight(order.call, order.attempt, plant, visit)
        self._flights[order.call] = self._attempts[flight.key] = flight
        visit.dispatched, visit.waited = self._now, order.waited
        visit.instance = plant.machine.name
        visit.attempts += 1
        outage = plant.outage(self._now)
        if outage is not None:
            self.record.instances[plant.machine.name].refusals += 1
        if outage is not None or not plant.engine.fits(ask.prompt, ask.output):
            self._at(self._now + REFUSAL_SECONDS, partial(self._end, flight, _refusal(outage)))
            return
        rank = order.request.flow.service_class.rank
        plant.engine.submit(Sequence(flight.key, ask.prompt, ask.output, ask.chain, rank), self._now)
        self._watch(plant)

    def _watch(self, plant: Plant) -> None:
        """Come back when the engine has something to say."""
        when = plant.engine.next_at
        if when is not None and when != plant.watched:
            plant.watched = when
            self._at(when, partial(self._look, plant, when))

    def _look(self, plant: Plant, when: float) -> None:
        if plant.watched != when:
            return
        plant.watched = None
        for fact in plant.engine.advance(self._now):
            self._see(plant, fact)
        self._watch(plant)

    def _see(self, plant: Plant, fact: Fact) -> None:
        flight = self._attempts.get(fact.key)
        if flight is None:
            return
        visit, second = flight.visit, int(self._now)
        visit.made += fact.tokens
        flight.unsaid += fact.tokens
        prompt = 0
        work = plant.decode_seconds(visit) * fact.tokens
        if fact.kind is Kind.FIRST:
            visit.cached = fact.cached
            prompt = visit.prompt - fact.cached
            work += plant.machine.profile.token * prompt
            visit.first = self._now
            self._ledger(visit).wait(second, -1)
        self._ledger(visit).serve(second, prompt, fact.tokens, fact.gpu)
        self.record.instances[plant.machine.name].work[second] += work
        match fact.kind:
            case Kind.FIRST:
                flight.started = True
                self._tell(Started(flight.call, flight.attempt))
            case Kind.TOKENS:
                tokens, flight.unsaid = flight.unsaid, 0
                self._tell(Progressed(flight.call, flight.attempt, tokens))
            case Kind.DONE:
                usage = Usage(visit.prompt, visit.output, visit.cached)
                self._end(flight, Outcome(Cause.OK, usage, committed=True, status=200))
            case _:
                assert_never(fact.kind)

    def _end(self, flight: _Flight, outcome: Outcome) -> None:
        if self._attempts.pop(flight.key, None) is None:
            return
        del self._flights[flight.call]
        self._tell(Finished(flight.call, flight.attempt, outcome))

    def _crash(self, plant: Plant) -> None:
        for key in plant.engine.crash(self._now):
            flight = self._attempts.get(key)
            if flight is not None:
                cause = Cause.BROKEN_STREAM if flight.started else Cause.CONNECT
                self._end(flight, Outcome(cause, committed=flight.started, detail="the engine crashed"))
        plant.watched = None

    # ------------------------------------------------------------------ at regular times

    def _sweep(self) -> None:
        for plant in self._plants.values():
            for fact in list(plant.engine.sweep(self._now)):
                self._see(plant, fact)
        if self._on_time is not None:
            self._on_time(self._now)

    def _poll(self) -> None:
        for plant in self._plants.values():
            self._tell(Reported(plant.machine.name, self._report(plant)))

    def _report(self, plant: Plant) -> EngineReport | None:
        outage = plant.outage(self._now)
        if outage is not None and outage.trouble is Trouble.CRASHED:
            return None
        return plant.report(self._now)

    def _probe(self) -> None:
        for plant in self._plants.values():
            outage = plant.outage(self._now)
            self._tell(Probed(plant.machine.name, outage is None or outage.trouble is not Trouble.CRASHED))

    def _note(self) -> None:
        for name, plant in self._plants.items():
            reading, ledger = plant.engine.reading(self._now), self.record.instances[name]
            ledger.in_flight.append(reading.running + reading.waiting)
            ledger.waiting.append(reading.waiting)

    def _note_limits(self) -> None:
        for name, limit in self._policy.limits(self._now).items():
            self.record.instances[name].limits.append(limit)

    # ------------------------------------------------------------------ books

    def _ledger(self, visit: Visit) -> UserLedger:
        user = visit.flow.user
        ledger = self.record.users.get(user)
        if ledger is None:
            ledger = self.record.users[user] = UserLedger(visit.group, self._seconds)
        return ledger

    def _finish(self) -> Record:
        for name, plant in self._plants.items():
            ledger = self.record.instances[name]
            ledger.busy, ledger.preemptions = plant.engine.busy, plant.engine.preemptions
        for user in self.record.users.values():
            user.close()
        return self.record


def _worth_it(fault: Fault) -> bool:
    """An official client would try again."""
    return fault.retryable is not False and (fault.status == 429 or fault.status >= 500)


def _refusal(outage: Outage | None) -> Outcome:
    """What an engine answers while it is unwell, or to a request that is too long for it."""
    if outage is None:
        return Outcome(Cause.REJECTED, status=400, fault=invalid_request("The prompt is too long."))
    if outage.trouble is Trouble.CRASHED:
        return Outcome(Cause.CONNECT, detail="connection refused")
    status = int(outage.trouble.value)
    cause = Cause.RATE_LIMITED
    fault = engines_limited(outage.retry_after or 1.0)
    return Outcome(cause, retry_after=outage.retry_after, status=status, fault=fault if status == 429 else None)
