"""A mistake around the gateway stays where it was made: nobody else's order is lost, nobody waits for ever."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import cast

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from headrace.core.scheduler import Scheduler
from headrace.core.settings import HedgeSettings, RoutingSettings, Settings
from headrace.errors import Fault
from headrace.model import Arrived, Decision, Ending, Event, Finished, Instance, Started, Woke
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.gateway import Gateway
from headrace.runtime.observe import Metrics
from headrace.runtime.relay import KEEP_BYTES
from headrace.runtime.stores import Answer, StoredLetter
from headrace.runtime.stores.memory import MemoryCache, MemoryDeadLetters
from headrace.testing import on_virtual_time
from tests.runtime.caller import Caller
from tests.runtime.engines import DOWN, OK, Attempt, Bench, Engines, request
from tests.runtime.virtual import later

_KEY = b"k" * 32
_LONG = b"x" * (KEEP_BYTES + 1)


class Mistake(Exception):
    """What nobody expected."""


def mistakes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as gone wrong."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


# ------------------------------------------------------------------------------------------------ the scheduler


class Stumbling:
    """A scheduler that decides well, and then, on the `nth` fact of a kind, falls over its own feet.

    `blind`: it falls before it has decided anything.
    """

    def __init__(self, kind: type[Event], nth: int, blind: bool) -> None:
        self._blind = blind
        self._own = Scheduler(Settings(), [Instance(id="gpu-1", max_concurrent=1)], Random(0))
        self._kind, self._left = kind, nth

    @property
    def orders(self) -> list[Decision]:
        return [] if self._blind and self._left == 0 else self._own.orders

    def handle(self, event: Event, now: float) -> list[Decision]:
        fails = isinstance(event, self._kind) and self._left == 1
        self._left -= isinstance(event, self._kind)
        decisions = [] if fails and self._blind else self._own.handle(event, now)
        if fails:
            raise Mistake
        return decisions


def stumbling(kind: type[Event], nth: int, blind: bool = False) -> tuple[Gateway, Engines]:
    """A gateway with such a scheduler, and its engines."""
    engines = Engines()
    scheduler = cast("Scheduler", Stumbling(kind, nth, blind))
    return Gateway(scheduler, lambda _: engines, dead_letters=MemoryDeadLetters()), engines


@pytest.mark.interpreted
@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("kind", [Arrived, Started, Finished])
@on_virtual_time
async def test_a_fact_that_cannot_be_decided_on_loses_no_order(
    kind: type[Event], blind: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The request that the fact is about ends with a 500; the one behind it in the queue is dispatched and answered.

    What is counted of each begins and ends, whatever went wrong.
    """
    gateway, engines = stumbling(kind, 2 if kind is Arrived else 1, blind)
    metrics = Metrics(CollectorRegistry(), ["m"])
    gateway.observe(metrics)
    first, second, third = Caller(), Caller(), Caller()
    for name, caller in (("first", first), ("second", second), ("third", third)):
        gateway.open(request(name), caller)
    while [attempt for attempt in engines.attempts if not (attempt.aborted or attempt.calls)]:
        attempt = engines.attempts[-1]
        attempt.calls.append("answered")
        attempt.answer(b"x")
    victim = second if kind is Arrived else first
    for caller in (first, second, third):
        ((ending, fault),) = caller.endings
        if caller is victim and (blind or kind is not Finished):
            assert (ending, fault and fault.status) == (Ending.INFERENCE_FAILURE, 500)
        else:
            assert (ending, caller.got) == (Ending.ANSWERED, [b"x"])
    assert mistakes(caplog) == [f"{kind.__name__} could not be decided on"]
    assert gateway.alive == gateway.flights == metrics.open == 0


@pytest.mark.interpreted
@on_virtual_time
async def test_a_look_at_the_clock_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    """Times that pass are noticed afterwards all the same."""
    gateway, _ = stumbling(Woke, 1)
    callers = [Caller(), Caller(), Caller()]
    for number, caller in enumerate(callers):
        gateway.open(request(f"r-{number}", deadline=gateway.now + 1.0 + number), caller)
    await later(5.0)
    assert [[ending for ending, _ in caller.endings] for caller in callers] == [[Ending.DEADLINE_EXPIRED]] * 3
    assert mistakes(caplog) == ["Woke could not be decided on"]
    assert gateway.alive == gateway.flights == 0


# ------------------------------------------------------------------------------------------------ what is around it


@on_virtual_time
async def test_an_observer_that_raises_costs_nobody_an_order(caplog: pytest.LogCaptureFixture) -> None:
    """Who counts may fail: the others still see every step, and what was decided is done."""
    bench = Bench()
    facts: list[Event] = []

    def fails(event: Event, decisions: Sequence[Decision], now: float) -> None:
        raise Mistake

    bench.gateway.observe(fails)
    bench.gateway.observe(lambda event, _, __: facts.append(event))
    caller, _ = bench.ask("a")
    bench.engines.attempts[0].answer(b"x")
    assert caller.endings == [(Ending.ANSWERED, None)]
    assert [type(fact) for fact in facts] == [Arrived, Started, Finished]
    assert len(mistakes(caplog)) == 3
    bench.assert_empty()


class Brittle(MemoryCache):
    """A cache that raises in `get` or `put`."""

    def __init__(self, where: str) -> None:
        super().__init__(Random(0))
        self.where = where

    def get(self, fingerprint: bytes, now: float) -> Answer | None:
        if self.where == "get":
            raise Mistake
        return super().get(fingerprint, now)

    def put(self, fingerprint: bytes, answer: Answer, now: float) -> None:
        if self.where == "put":
            raise Mistake
        super().put(fingerprint, answer, now)


@pytest.mark.parametrize("where", ["get", "put"])
@on_virtual_time
async def test_a_cache_that_raises_is_a_cache_that_misses(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """The engine is asked, and the answer is told, whether or not it could be looked up or kept."""
    engines, caller = Engines(), Caller()
    scheduler = Scheduler(Settings(), [Instance(id="gpu-1")], Random(0))
    gateway = Gateway(scheduler, lambda _: engines, dead_letters=MemoryDeadLetters(), cache=Brittle(where))
    gateway.open(request("a", fingerprint=_KEY, look_up=True, remember=True), caller)
    engines.attempts[0].say(b"x")
    engines.attempts[0].finish(outcome=replace(OK, cacheable=True))
    assert (caller.got, caller.endings) == ([b"x"], [(Ending.ANSWERED, None)])
    assert len(mistakes(caplog)) == 1
    assert gateway.alive == gateway.flights == 0


class Full(MemoryDeadLetters):
    """A store that takes no letter."""

    def add(self, letter: StoredLetter) -> None:
        raise Mistake


@on_virtual_time
async def test_a_letter_that_cannot_be_kept_costs_its_caller_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """He is told how his request ended all the same."""
    engines, caller = Engines(), Caller()
    engines.script = lambda attempt: attempt.port.finished(DOWN)
    scheduler = Scheduler(Settings(), [Instance(id="gpu-1")], Random(0))
    gateway = Gateway(scheduler, lambda _: engines, dead_letters=Full())
    gateway.open(request("a", max_attempts=1), caller)
    assert [ending for ending, _ in caller.endings] == [Ending.INFERENCE_FAILURE]
    assert mistakes(caplog) == ["Bury could not be carried out"]
    assert gateway.alive == gateway.flights == 0


class Clumsy(Caller):
    """A caller whose code raises at one moment, for the first time only."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self.moment = moment

    def _stumble(self, moment: str) -> None:
        if self.moment == moment:
            self.moment = ""
            raise Mistake

    def begin(self, head: AnswerHead) -> None:
        super().begin(head)
        self._stumble("begin")

    def write(self, data: bytes) -> bool:
        super().write(data)
        self._stumble("write")
        return True

    def end(self, ending: Ending, fault: Fault | None) -> None:
        super().end(ending, fault)
        self._stumble("end")


@pytest.mark.parametrize("moment", ["begin", "write", "end"])
@on_virtual_time
async def test_a_reader_that_raises_holds_nothing(moment: str, caplog: pytest.LogCaptureFixture) -> None:
    """It joins an answer under way and breaks: the others get theirs, nothing is held for it, and it is told once."""
    bench = Bench()
    leader, _ = bench.ask("leader", fingerprint=_KEY)
    bench.engines.attempts[0].say(b"one")
    clumsy, _ = bench.ask("clumsy", Clumsy(moment), fingerprint=_KEY)
    bench.engines.attempts[0].finish(b"two")
    assert (leader.got, leader.endings) == ([b"one", b"two"], [(Ending.ANSWERED, None)])
    assert len(clumsy.endings) == 1
    assert len(mistakes(caplog)) == 1
    bench.assert_empty()


# ------------------------------------------------------------------------------------------------ narrow places


@on_virtual_time
async def test_an_addition_to_an_id_is_itself_new() -> None:
    """An id that looks like another one with an addition takes nobody's place: all three are answered."""
    bench = Bench()
    callers = [bench.ask(name)[0] for name in ("a~1", "a", "a")]
    for attempt in bench.engines.attempts:
        attempt.answer(b"x")
    assert [caller.endings for caller in callers] == [[(Ending.ANSWERED, None)]] * 3
    bench.assert_empty()


@on_virtual_time
async def test_who_comes_as_the_beginning_goes_has_a_call_of_his_own(caplog: pytest.LogCaptureFixture) -> None:
    """An engine says more than is kept while it is being started; somebody asks the same in the middle of that."""
    bench, leader, late = Bench(), Caller(), Caller()
    bench.engines.script = _says_too_much(bench)
    _at_first_word(leader, lambda: bench.ask("late", late, fingerprint=_KEY))
    bench.ask("leader", leader, fingerprint=_KEY)
    first, second = bench.engines.attempts
    first.finish(b"end")
    second.answer(b"own")
    assert (leader.got, late.got) == ([b"one", _LONG, b"end"], [b"own"])
    assert mistakes(caplog) == []
    bench.assert_empty()


@pytest.mark.parametrize("leaves", [False, True])
@on_virtual_time
async def test_who_joins_as_the_beginning_goes_comes_anew(leaves: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A second attempt beside a late one says more than is kept, in the very step in which somebody joins.

    He is answered by a call of his own, as if he had come a moment later; one who leaves at that moment has none.
    """
    clock = [0.0]
    hedge = HedgeSettings(after=1.0, budget=1.0)
    bench = Bench(settings=Settings(routing=RoutingSettings(hedge=hedge)), instances=2, clock=lambda: clock[0])
    leader, _ = bench.ask("leader", fingerprint=_KEY)
    clock[0] = 2.0
    bench.engines.script = _says_too_much(bench)
    late = Caller()
    if leaves:
        _at_first_word(leader, lambda: bench.gateway.cancel("late", request("late").flow))
    bench.ask("late", late, fingerprint=_KEY)
    _, second, own = bench.engines.attempts
    second.finish(b"end")
    assert own.aborted == leaves
    own.answer(b"own")
    assert leader.got == [b"one", _LONG, b"end"]
    assert (late.got, len(late.endings)) == ([] if leaves else [b"own"], 1)
    assert mistakes(caplog) == []
    bench.assert_empty()


def _says_too_much(bench: Bench) -> Callable[[Attempt], None]:
    def begin(attempt: Attempt) -> None:
        bench.engines.script = None
        attempt.say(b"one", _LONG)

    return begin


def _at_first_word(caller: Caller, deed: Callable[[], object]) -> None:
    """Let `caller` do something when he is told the first thing."""

    def once() -> None:
        caller.on_write = None
        deed()

    caller.on_write = once
