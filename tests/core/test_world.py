"""The scheduler in a world that misbehaves: facts come late, twice, out of order and about what is long over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from headrace.core.settings import (
    PolicyName,
    Strategy,
)
from headrace.errors import invalid_request
from headrace.model import (
    AnswerForm,
    Arrived,
    Cancelled,
    Cause,
    Dispatch,
    Drained,
    Draining,
    EngineReport,
    Event,
    Finished,
    Flow,
    Instance,
    Learned,
    Looked,
    Mended,
    Outcome,
    Probed,
    Progressed,
    Recalled,
    Reconfigured,
    Reported,
    Request,
    Sealed,
    ServiceClass,
    Settle,
    Started,
    Tripped,
    Usage,
    Woke,
)
from tests.core.world import World
from tests.core.world_settings import ENGINES, world_settings

_LATER = st.sampled_from([0.0, 0.0, 0.0, 0.001, 0.5, 3.0, 20.0])
_COUNT = st.integers(0, 1000)


_TOO_LONG = invalid_request("The prompt is too long.", code="context_length_exceeded")


class Misbehaving(RuleBasedStateMachine):
    """Does everything that can happen, in any order; `World` checks after every fact."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.arrived = 0
        self.past: list[Dispatch] = []

    @initialize(
        policy=st.sampled_from(PolicyName),
        strategy=st.sampled_from(Strategy),
        cap=st.sampled_from([None, None, 1]),
        limited=st.booleans(),
        led=st.booleans(),
        engines=st.sampled_from([ENGINES[:1], ENGINES[:2], ENGINES[:3], ENGINES[1:3], ENGINES[6:], ENGINES[2:3]]),
    )
    def begin(
        self,
        policy: PolicyName,
        strategy: Strategy,
        cap: int | None,
        limited: bool,
        led: bool,
        engines: tuple[Instance, ...],
    ) -> None:
        self.world = World(world_settings(policy, strategy, cap, limited, led), engines)

    # ------------------------------------------------------------------ callers

    @rule(
        user=st.sampled_from("xyz"),
        service_class=st.sampled_from(ServiceClass),
        model=st.sampled_from(["m1", "m1", "m2", "else", "one"]),
        prompt=st.sampled_from([1, 20, 40, 200]),
        form=st.sampled_from(AnswerForm),
        prefix=st.sampled_from([(), (), (1, 2), (1, 2, 3, 4)]),
        later=_LATER,
    )
    def ask(
        self,
        user: str,
        service_class: ServiceClass,
        model: str,
        prompt: int,
        form: AnswerForm,
        prefix: tuple[int, ...],
        later: float,
    ) -> None:
        """A plain request, perhaps one whose beginning others share."""
        self._arrive(
            Request(
                id=self._name(),
                flow=Flow(service_class, "t", user, ""),
                model=model,
                prompt_tokens=prompt,
                form=form,
                prefix=prefix,
                prefix_block=16 if prefix else 0,
            ),
            later,
        )

    @rule(
        user=st.sampled_from("xyz"),
        service_class=st.sampled_from(ServiceClass),
        shared=st.sampled_from([b"k1", b"k1", b"k2"]),
        look_up=st.booleans(),
        within=st.sampled_from([None, 0.0, 0.5, 5.0, 40.0]),
        patience=st.sampled_from([None, 0.0, 1.0]),
        attempts=st.sampled_from([None, 1, 4]),
        only=st.sampled_from([None, None, None, "a", "c"]),
        later=_LATER,
    )
    def ask_for_the_same(
        self,
        user: str,
        service_class: ServiceClass,
        shared: bytes,
        look_up: bool,
        within: float | None,
        patience: float | None,
        attempts: int | None,
        only: str | None,
        later: float,
    ) -> None:
        """A request that may share a call, with times and bounds of its own."""
        self._arrive(
            Request(
                id=self._name(),
                flow=Flow(service_class, "t", user, ""),
                model="m1",
                deadline=None if within is None else self.world.now + later + within,
                queue_timeout=patience,
                max_attempts=attempts,
                only=only,
                fingerprint=shared,
                look_up=look_up,
                remember=look_up,
            ),
            later,
        )

    @rule(which=_COUNT, later=_LATER)
    def leave(self, which: int, later: float) -> None:
        """Any caller goes, also one who is long served."""
        names = list(self.world.requests)
        if names:
            self.world.tell(Cancelled(names[which % len(names)]), later)

    # ------------------------------------------------------------------ engines

    @precondition(lambda self: self.world.running)
    @rule(
        which=_COUNT,
        cause=st.sampled_from(Cause),
        committed=st.booleans(),
        resumable=st.booleans(),
        retry_after=st.sampled_from([None, 1.0, 30.0]),
        later=_LATER,
    )
    def end(
        self, which: int, cause: Cause, committed: bool, resumable: bool, retry_after: float | None, later: float
    ) -> None:
        """An attempt ends in any way, sometimes twice."""
        order = self._one(which)
        usage = Usage(3, 40) if which % 2 else None
        wait = None if cause is Cause.OK else retry_after
        told = _TOO_LONG if cause is Cause.REJECTED and which % 3 else None
        outcome = Outcome(cause, usage, committed, wait, fault=told, resumable=resumable and cause is not Cause.OK)
        fact = Finished(order.call, order.attempt, outcome)
        self.past.append(order)
        self.world.tell(fact, later)
        assert self.world.tell(fact) == [], "told twice"

    @precondition(lambda self: self.world.running)
    @rule(which=_COUNT, later=_LATER)
    def answer(self, which: int, later: float) -> None:
        """An attempt ends well."""
        order = self._one(which)
        self.past.append(order)
        self.world.tell(Finished(order.call, order.attempt, Outcome(Cause.OK, Usage(10, which))), later)

    @precondition(lambda self: self.world.running)
    @rule(which=_COUNT, later=_LATER)
    def begin_to_answer(self, which: int, later: float) -> None:
        """The first content comes, perhaps again."""
        order = self._one(which)
        self.world.tell(Started(order.call, order.attempt), later)

    @precondition(lambda self: self.world.running)
    @rule(which=_COUNT, tokens=st.sampled_from([0, 32, 3000]))
    def produce(self, which: int, tokens: int) -> None:
        """Tokens come, with or without a first content before."""
        order = self._one(which)
        self.world.tell(Progressed(order.call, order.attempt, tokens))

    @precondition(lambda self: self.world.running)
    @rule(which=_COUNT)
    def seal(self, which: int) -> None:
        """An answer outgrows what is kept."""
        self.world.tell(Sealed(self._one(which).call))

    @precondition(lambda self: self.world.look_ups)
    @rule(which=_COUNT, hit=st.booleans(), later=_LATER)
    def look(self, which: int, hit: bool, later: float) -> None:
        """The cache answers, perhaps for a call that is over, perhaps twice."""
        calls = self.world.look_ups
        fact = Looked(calls.pop(which % len(calls)), hit)
        self.world.tell(fact, later)
        assert self.world.tell(fact) == []

    @rule(which=_COUNT, cause=st.sampled_from(Cause))
    def report_what_is_over(self, which: int, cause: Cause) -> None:
        """Stale and invented facts change nothing."""
        over = [order for order in self.past if order not in self.world.running.values()]
        call, attempt = (over[which % len(over)].call, over[which % len(over)].attempt) if over else ("call-0", 1)
        self.world.tell(Woke())
        facts: list[Event] = [
            Started(call, attempt),
            Progressed(call, attempt, 99),
            Finished(call, attempt, Outcome(cause)),
        ]
        facts += [Looked("call-0", hit=True), Sealed("call-0"), Cancelled("nobody"), Probed("nobody", healthy=False)]
        for fact in facts:
            assert self.world.tell(fact) == []

    # ------------------------------------------------------------------ operations

    @rule(name=st.sampled_from("abcd"), healthy=st.booleans(), busy=st.booleans(), times=st.integers(1, 3))
    def probe(self, name: str, healthy: bool, busy: bool, times: int) -> None:
        """Health checks end."""
        for _ in range(times):
            self.world.tell(Probed(name, healthy, busy))

    @rule(
        name=st.sampled_from("abef"),
        waiting=st.sampled_from([None, 0.0, 2.0, 9.0]),
        kv=st.sampled_from([None, 0.1, 0.95]),
        silent=st.booleans(),
        later=_LATER,
    )
    def report(self, name: str, waiting: float | None, kv: float | None, silent: bool, later: float) -> None:
        """An engine's metrics are polled, or could not be."""
        said = EngineReport(running=1.0, waiting=waiting, kv=kv, kv_tokens=64, preemptions=0.0)
        self.world.tell(Reported(name, None if silent else said), later)

    @rule(late=st.sampled_from([0.0, 0.0, 0.0, 0.2, 15.0]), times=st.integers(1, 4))
    def wake(self, late: float, times: int) -> None:
        """Time goes to where the scheduler wanted to be woken, or a little too far."""
        for _ in range(times):
            if self.world.wake is not None:
                self.world.tell(Woke(), max(0.0, self.world.wake - self.world.now) + late)

    @rule()
    def wake_too_early(self) -> None:
        """A timer fires that was replaced."""
        self.world.tell(Woke())

    @rule(pick=st.lists(st.sampled_from(ENGINES), max_size=4, unique_by=lambda instance: instance.id))
    def reconfigure(self, pick: list[Instance]) -> None:
        """Instances come, go, move and change their models under running and queued requests."""
        self.world.tell(Reconfigured(tuple(pick)))

    @rule(
        name=st.sampled_from("aabcdefx"),
        deed=st.sampled_from([Drained, lambda name: Drained(name, draining=False), Tripped, Mended]),
        later=_LATER,
    )
    def work_by_hand(self, name: str, deed: Callable[[str], Event], later: float) -> None:
        """The operator drains an instance, lets it have work again, opens or closes its breaker."""
        self.world.tell(deed(name), later)

    @rule(
        name=st.sampled_from("aabex"),
        speed=st.sampled_from([0.0, 40.0]),
        opens_in=st.sampled_from([None, None, 0.0, 5.0, 1e9]),
        cooldown=st.sampled_from([0.0, 0.0, 3.0]),
        limit=st.sampled_from([None, 0.0, 3.5, 1e9]),
    )
    def recall(self, name: str, speed: float, opens_in: float | None, cooldown: float, limit: float | None) -> None:
        """What an earlier process knew comes late, and may be nonsense."""
        learned = Learned(
            instance=name,
            speed=speed,
            opens_in=opens_in,
            wait=1.0,
            cooldown=cooldown,
            limit=limit,
            prefill_seconds=limit,
        )
        self.world.tell(Recalled((learned,)))

    @precondition(lambda self: self.arrived > 12)
    @rule(grace=st.sampled_from([0.0, 5.0, 30.0]), sure=st.integers(0, 3))
    def drain(self, grace: float, sure: int) -> None:
        """The process is told to stop."""
        if not sure:
            orders = self.world.tell(Draining(self.world.now + grace))
            running = {order.call for order in self.world.running.values()}
            assert all(self.world.joined[ticket] in running for ticket in self.world.alive()), orders

    def teardown(self) -> None:
        """Everybody leaves; nothing stays behind; the journal replays."""
        if hasattr(self, "world"):
            for call in self.world.look_ups:
                self.world.tell(Looked(call, hit=False))
            self.world.leave_nothing()
            self.world.replay()

    # ------------------------------------------------------------------ small things

    def _arrive(self, request: Request, later: float) -> None:
        orders = self.world.tell(Arrived(request), later)
        settled = any(isinstance(order, Settle) and order.ticket == request.id for order in orders)
        assert settled or request.id in self.world.joined, "every request is accepted or told why not"

    def _name(self) -> str:
        self.arrived += 1
        return f"r{self.arrived}"

    def _one(self, which: int) -> Dispatch:
        running = list(self.world.running.values())
        return running[which % len(running)]


def _run(examples: int, steps: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=checks,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(Misbehaving, settings=chosen)


def test_whatever_the_world_does_the_promises_hold() -> None:
    """Each ticket ends once, nothing leaks, nothing idles, nothing is late, the journal replays (see `World`)."""
    _run(examples=150, steps=40)


@pytest.mark.slow
def test_the_promises_hold_for_longer() -> None:
    """The same, with more and longer stories."""
    _run(examples=1000, steps=70)
