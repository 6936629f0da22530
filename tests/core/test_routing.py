"""The promises of `headrace.core.routing`: who may take a call, and who gets it."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from headrace.core.instance_state import InstanceState
from headrace.core.pool import Pool
from headrace.core.routing import Router, score, weight
from headrace.core.settings import RoutingSettings, Settings, Strategy
from headrace.model import AttemptRecord, Cause, Outcome, ServiceClass, Tier
from tests.core.calls import attempt, call, pool
from tests.core.script import engine, request


def router(
    strategy: Strategy = Strategy.FAIR_LOAD, speed: float = 1.0, reliability: float = 1.0, load: float = 1.0
) -> Router:
    """A router of one strategy."""
    settings = RoutingSettings(strategy=strategy, speed=speed, reliability=reliability, load=load)
    return Router(settings, Settings().gate, Random(3))


def send(route: Router, to: Pool, name: str = "r", **more: Any) -> InstanceState | None:
    """Choose for a new call and take the place."""
    made = call(to, name, **more)
    state = route.choose(made, 0.0)
    if state is not None:
        state.acquire(made.request, weight(state, made), False, 0.0)
        route.picked(state)
    return state


def ids(*states: InstanceState | None) -> list[str]:
    """Their ids, "-" for none."""
    return ["-" if state is None else state.instance.id for state in states]


@pytest.mark.parametrize("strategy", [strategy for strategy in Strategy if strategy is not Strategy.TWO_CHOICES])
def test_an_idle_fleet_is_used_evenly(strategy: Strategy) -> None:
    """Equals take turns, least recently picked first."""
    route, to = router(strategy), pool(*(engine(name, 9) for name in "abc"))
    assert ids(*(send(route, to) for _ in range(6))) == list("abcabc")


def test_least_in_flight_counts() -> None:
    """The emptiest one."""
    route, to = router(Strategy.LEAST_IN_FLIGHT), pool(engine("a", 9), engine("b", 9))
    for _ in range(3):
        to.members[0].acquire(request("x"), 1.0, False, 0.0)
    assert ids(*(send(route, to) for _ in range(3))) == ["b", "b", "b"]


def test_fair_load_weighs_what_waits_to_be_read_and_the_crowd() -> None:
    """A long unread prompt, or more in flight relative to the limit, sends the next one elsewhere."""
    route, to = router(), pool(engine("a", 100), engine("b", 100))
    to.members[0].acquire(request("x", prompt_tokens=5000), 1.0, False, 0.0)
    for _ in range(5):
        to.members[1].acquire(request("y", prompt_tokens=10), 1.0, False, 0.0)
    assert ids(send(route, to, prompt_tokens=100)) == ["b"]


def test_fair_load_gives_larger_machines_more() -> None:
    """Three times the places, about three times the requests."""
    route, to = router(), pool(engine("a", 30), engine("b", 10))
    went = Counter(ids(*(send(route, to, prompt_tokens=10) for _ in range(24))))
    assert 14 <= went["a"] <= 20


def test_weighted_reads_load_and_capacity() -> None:
    """Four times the capacity bears about four times the load."""
    route, to = router(Strategy.WEIGHTED), pool(engine("a", 9), engine("b", 9, capacity=4.0))
    assert ids(*(send(route, to, prompt_tokens=100) for _ in range(4))) == ["b", "b", "b", "a"]


def test_weighted_reads_speed() -> None:
    """The faster of two equals, unless speed is told to weigh nothing."""
    to = pool(engine("a", 9), engine("b", 9))
    to.members[0].speed, to.members[1].speed = 10.0, 90.0
    assert ids(router(Strategy.WEIGHTED).choose(call(to), 0.0)) == ["b"]
    assert ids(router(Strategy.WEIGHTED, speed=0.0).choose(call(to), 0.0)) == ["a"]


def test_weighted_reads_reliability() -> None:
    """The one that failed less, unless reliability is told to weigh nothing."""
    to = pool(engine("a", 9), engine("b", 9))
    attempt(to.members[0], [Cause.TIMEOUT], Settings(), now=-100.0)
    assert ids(router(Strategy.WEIGHTED).choose(call(to), 0.0)) == ["b"]
    assert ids(router(Strategy.WEIGHTED, reliability=0.0).choose(call(to), 0.0)) == ["a"]


def test_an_unknown_speed_reads_as_the_average() -> None:
    """A cold instance is neither starved nor flooded beside a known one."""
    route, to = router(Strategy.WEIGHTED), pool(engine("a", 9), engine("b", 9))
    to.members[0].speed = 80.0
    assert ids(*(send(route, to, prompt_tokens=100) for _ in range(4))) == ["a", "b", "a", "b"]


def test_two_choices_takes_the_less_loaded_of_two_drawn() -> None:
    """The fullest of many is never chosen, the others get about the same."""
    route, to = router(Strategy.TWO_CHOICES), pool(*(engine(name, 1000) for name in "abcde"))
    for _ in range(500):
        to.members[0].acquire(request("x"), 1.0, False, 0.0)
    went = Counter(ids(*(send(route, to) for _ in range(400))))
    assert went["a"] == 0
    assert all(80 <= went[name] <= 120 for name in "bcde")


def test_local_ones_go_first_even_when_they_are_full() -> None:
    """Full is not gone: the call waits. Shut is gone: the remote one is used."""
    route, to = router(), pool(engine("near"), engine("cloud", tier=Tier.REMOTE))
    assert ids(send(route, to), send(route, to)) == ["near", "-"]
    to.members[0].draining = True
    assert ids(send(route, to)) == ["cloud"]


def test_one_that_was_tried_is_used_only_when_no_other_is_open() -> None:
    """Fresh ones first; a tried one rather than idling; never one that refused the key while another is up."""
    to = pool(engine("a"), engine("b"))
    made = call(to)
    made.tried = ("a",)
    assert ids(router().choose(made, 0.0)) == ["b"]
    to.members[1].acquire(request("x"), 1.0, False, 0.0)
    assert ids(router().choose(made, 0.0)) == ["a"]
    made.records = (AttemptRecord(1, "a", 0.0, 0.0, Cause.UPSTREAM_AUTH),)
    assert ids(router().choose(made, 0.0)) == ["-"]


def test_a_choice_that_is_not_used_does_not_take_a_turn() -> None:
    """Asking is free; only `picked` moves the turn on."""
    route, to = router(Strategy.ROUND_ROBIN), pool(engine("a", 9), engine("b", 9))
    for _ in range(5):
        route.choose(call(to), 0.0)
    assert ids(*(send(route, to) for _ in range(4))) == ["a", "b", "a", "b"]


def test_a_call_bound_to_an_instance_goes_nowhere_else() -> None:
    """It waits for that one while others are idle, and knows none once that one is not there."""
    route, to = router(), pool(engine("a"), engine("b"))
    assert ids(send(route, to, only="b"), send(route, to, only="b"), send(route, to)) == ["b", "-", "a"]
    assert ids(send(route, to, only="elsewhere")) == ["-"]


def test_weighted_reads_an_instance_s_own_weight() -> None:
    """Where a request weighs four times as much, a quarter of the requests go."""
    route, to = router(Strategy.WEIGHTED), pool(engine("a", 9), engine("b", 9, weight=4.0))
    went = Counter(ids(*(send(route, to, prompt_tokens=100) for _ in range(10))))
    assert went == {"a": 8, "b": 2}


def test_weighted_can_ignore_what_is_there_already() -> None:
    """With a load of 0 the stronger one takes all, however much it has."""
    to = pool(engine("a", 9), engine("b", 9, capacity=2.0))
    to.members[1].load = 1e6
    assert ids(router(Strategy.WEIGHTED).choose(call(to), 0.0)) == ["a"]
    assert ids(router(Strategy.WEIGHTED, load=0.0).choose(call(to), 0.0)) == ["b"]


def test_weighted_is_the_formula() -> None:
    """(load + weight) / (capacity x speed / doubt), to the last digit."""
    to = pool(engine("a", 9, capacity=2.0), engine("b", 9))
    state = to.members[0]
    state.speed, state.reliability, state.load = 90.0, 0.8, 500.0
    made = call(to, prompt_tokens=100)
    made.expected = 50
    settings = RoutingSettings(strategy=Strategy.WEIGHTED, speed=0.5, reliability=2.0, load=3.0)
    strength = 2.0 * (1.0 + 0.5 * (90.0 / 60.0 - 1.0)) / (1.0 + 2.0 * (1.0 - 0.8))
    assert score(settings, state, made, 60.0) == pytest.approx((500.0 * 3.0 + 100 + 2 * 50) / strength)


def test_an_exact_name_and_a_pattern_are_both_candidates() -> None:
    """A machine that serves everything takes its part of a model that another one names."""
    route, to = router(), pool(engine("a", 9, "m"), engine("b", 9, "*"), engine("c", 9, "other"))
    assert ids(*(send(route, to) for _ in range(4))) == list("abab")


def test_a_session_stays_where_it_was_read() -> None:
    """Turns with the same beginning go to one instance while it has room; another session goes elsewhere."""
    route, to = router(), pool(engine("a", 9), engine("b", 9))
    went = []
    for prefix in ((1,), (2,), (1,), (2,), (1,), (1,)):
        state = send(route, to, prefix=prefix, prefix_block=200, prompt_tokens=200)
        went += ids(state)
        assert state is not None
        state.gate.unstarted = 0
    assert went == list("ababaa")


def test_a_full_local_instance_is_waited_for_as_long_as_was_said() -> None:
    """Then a remote one may take the request, but never while a local one is open; a class of its own time."""
    spill = {ServiceClass.NORMAL: 5.0, ServiceClass.INTERACTIVE: 0.0}
    settings = RoutingSettings(strategy=Strategy.ROUND_ROBIN, spill_after=spill)
    route = Router(settings, Settings().gate, Random(3))
    to = pool(engine("near"), engine("cloud", 9, tier=Tier.REMOTE))
    made = call(to)
    assert ids(route.choose(made, 6.0)) == ["near"]
    place = to.members[0].acquire(request("x"), 1.0, False, 0.0)
    assert ids(route.choose(made, 4.9)) == ["-"]
    assert route.asks_again == 5.0
    assert ids(route.choose(made, 5.0)) == ["cloud"]
    assert ids(route.choose(call(to, "u", service_class=ServiceClass.INTERACTIVE), 0.0)) == ["cloud"]
    assert ids(route.choose(call(to, "v", service_class=ServiceClass.BATCH), 1e6)) == ["-"]
    to.members[0].release(place, Outcome(Cause.OK), Settings().recovery, 5.0)
    assert ids(route.choose(made, 6.0)) == ["near"]


def _preferring(route: Router, to: Pool, now: float, **more: Any) -> list[InstanceState | None]:
    """What is chosen for forty calls while nobody but the first instance is ever really sent one."""
    chosen = []
    for number in range(40):
        chosen.append(route.choose(call(to, str(number), **more), now))
        route.picked(to.members[0])
    return chosen


@pytest.mark.parametrize("strategy", [Strategy.FAIR_LOAD, Strategy.WEIGHTED])
@pytest.mark.parametrize("why", ["measured slow", "waits for its probe"])
def test_what_was_learned_badly_once_does_not_keep_an_idle_instance_out_for_ever(strategy: Strategy, why: str) -> None:
    """One request in some thirty tries it, also where that request is the probe that closes its breaker."""
    route, to = router(strategy), pool(engine("a", 9), engine("b", 9))
    b = to.members[1]
    b.gate.prefill_seconds *= 10
    attempt(b, [Cause.SERVER_ERROR] * 5, Settings())
    b.cooldown_until = 0.0
    if why == "measured slow":
        b.breaker.reset()
    else:
        assert b.breaker.relent(1.0)
    went = _preferring(route, to, 1.0)
    assert went.index(b) == 32


def test_a_conversation_is_not_taken_from_its_cache_to_try_an_idle_instance() -> None:
    """The others may learn from requests that lose nothing there."""
    route, to = router(), pool(engine("a", 9), engine("b", 9))
    to.members[1].gate.prefill_seconds *= 10
    known = {"prefix": (1,), "prefix_block": 200, "prompt_tokens": 400}
    to.members[0].index.add((1,), 200)
    turns = _preferring(route, to, 0.0, **known)
    assert set(ids(*turns)) == {"a"}
    assert ids(route.choose(call(to, "other"), 0.0)) == ["b"]
