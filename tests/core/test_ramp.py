"""Slow start: an instance that comes back gets little at first, unless it is the only one that can answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ramp import Ramp
from headrace.core.settings import BreakerSettings, RoutingSettings, Settings
from headrace.model import Cause, Drained, Instance, InstanceView, Mended, Probed, Reconfigured, Tier, Tripped
from tests.core.inventory import nothing_held
from tests.core.script import Fact, Stage, arrive, done, engine, failed, request

SETTINGS = Settings(breaker=BreakerSettings(threshold=1, recovery=10.0))


def view(stage: Stage, name: str) -> InstanceView:
    """One instance as it can be seen now."""
    return next(one for one in stage.scheduler.snapshot(stage.now).instances if one.id == name)


def at(stage: Stage) -> Counter[str]:
    """How many requests run at each instance."""
    return Counter(order.instance.id for order in stage.running.values())


def crowd(stage: Stage, number: int, now: float = 0.0, **more: object) -> None:
    """So many requests of as many users arrive."""
    for _ in range(number):
        name = f"r{len(stage.calls) + len(stage.settled) + 1}"
        stage.do(now, arrive(name, f"user-{name}", **more))


# ---------------------------------------------------------------------------------------------------- the curve


def test_it_begins_with_one_and_doubles_in_equal_times() -> None:
    """Sixteen after eight seconds: one more doubling each two seconds; before its time it is one."""
    ramp = Ramp(100.0, 8.0)
    assert [ramp.limit(16, 100.0 + passed) for passed in (-5.0, 0.0, 2.0, 4.0, 6.0, 8.0, 100.0)] == [
        1, 1, 2, 4, 8, 16, 16,
    ]  # fmt: skip


def test_each_answer_adds_one() -> None:
    """What was sent before it came back does not count; the limit of the gate is never exceeded."""
    ramp = Ramp(100.0, 8.0)
    ramp.answered(99.0)
    assert ramp.limit(16, 100.0) == 1
    for number in range(2, 20):
        ramp.answered(100.0)
        assert ramp.limit(16, 100.0) == min(16, number)


@given(
    most=st.integers(1, 1000),
    seconds=st.floats(0.01, 100.0),
    number=st.integers(0, 1000),
    answers=st.integers(0, 20),
)
def test_it_says_truly_when_it_allows_more(most: int, seconds: float, number: int, answers: int) -> None:
    """At the time that `exceeds` tells, the limit is above the number; a moment before it is not."""
    ramp = Ramp(50.0, seconds)
    for _ in range(answers):
        ramp.answered(50.0)
    when = ramp.exceeds(number, most)
    if number >= most:
        assert when == float("inf")
        return
    assert ramp.limit(most, when) > number
    assert when == ramp.begins or ramp.limit(most, when - 0.01 * seconds) <= number


# ---------------------------------------------------------------------------------------------------- in a fleet


def test_an_instance_that_comes_back_under_load_is_not_flooded() -> None:
    """Twenty wait: it gets one, then two, four, eight within five seconds, and nobody is forgotten meanwhile."""
    stage = Stage(engine("a", 8), engine("b", 8))
    stage.do(0.0, Drained("b"))
    crowd(stage, 28)
    assert at(stage) == {"a": 8}
    stage.do(10.0, Drained("b", draining=False))
    seen = [at(stage)["b"]]
    for tenth in range(1, 51):
        stage.wait(10.0 + tenth / 10)
        seen.append(at(stage)["b"])
    assert [seen.index(number) / 10 for number in range(1, 9)] == [0.0, 1.7, 2.7, 3.4, 3.9, 4.4, 4.7, 5.0]
    assert view(stage, "b").ramp is None
    assert at(stage) == {"a": 8, "b": 8}


def test_answers_let_it_grow_faster() -> None:
    """Each round of answers doubles it, in no time at all."""
    stage = Stage(engine("a", 8), engine("b", 8))
    stage.do(0.0, Drained("b"))
    crowd(stage, 40)
    stage.do(10.0, Drained("b", draining=False))
    rounds: list[int] = []
    for _ in range(4):
        names = [name for name, order in stage.running.items() if order.instance.id == "b"]
        rounds.append(len(names))
        for name in names:
            stage.do(10.0, done(name))
    assert rounds == [1, 2, 4, 8]


def returns() -> Sequence[tuple[str, list[tuple[float, Fact]], float]]:
    """Why b was away, what happens to it, and when it is back."""
    down: list[tuple[float, Fact]] = [
        (0.0, Probed("b", healthy=False, definite=True)),
        (5.0, Probed("b", healthy=True)),
    ]
    return [
        ("health", down, 5.0),
        ("drain", [(0.0, Drained("b")), (5.0, Drained("b", draining=False))], 5.0),
        ("mended", [(0.0, Tripped("b")), (5.0, Mended("b"))], 5.0),
        ("added", [(0.0, Reconfigured((engine("a", 8),))), (5.0, Reconfigured((engine("a", 8), engine("b", 8))))], 5.0),
        ("asked", [(0.0, arrive("x", only="b")), (0.0, failed("x", Cause.RATE_LIMITED, retry_after=20.0))], 20.0),
        ("cooldown", [(0.0, arrive("x", only="b")), (0.0, failed("x", Cause.CONNECT))], 5.0),
    ]  # fmt: skip


@pytest.mark.parametrize(("facts", "back"), [case[1:] for case in returns()], ids=[case[0] for case in returns()])
def test_whatever_kept_it_away_it_begins_with_one(facts: list[tuple[float, Fact]], back: float) -> None:
    """Health, drain, a breaker closed by hand, an addition under load, a wait it asked for, a failure."""
    settings = Settings(breaker=BreakerSettings(threshold=3))
    stage = Stage(engine("a", 8), engine("b", 8), settings=settings)
    for when, fact in facts:
        if when == 0.0:
            stage.do(0.0, fact)
    crowd(stage, 20)
    assert at(stage)["b"] == 0
    for when, fact in facts:
        if when > 0.0:
            stage.do(when, fact)
    stage.wait(back)
    assert at(stage)["b"] == 1
    assert view(stage, "b").ramp == 1
    stage.wait(back + 2.5)
    assert at(stage)["b"] == 2
    stage.wait(back + 5.0)
    assert at(stage)["b"] == 8


def test_a_breaker_that_closes_after_its_probe_lets_in_little_at_first() -> None:
    """One probe, then two, four, eight with the answers or with time; not everything that waits."""
    stage = Stage(engine("a", 4), engine("b", 8), settings=SETTINGS)
    stage.do(0.0, Tripped("b"))
    crowd(stage, 30)
    assert at(stage) == {"a": 4}
    stage.wait(10.0)
    (probe,) = [name for name, order in stage.running.items() if order.instance.id == "b"]
    stage.do(11.0, done(probe))
    assert at(stage)["b"] == 1
    stage.wait(16.0)
    assert at(stage)["b"] == 8


def test_the_only_instance_is_not_held_back() -> None:
    """Nobody else could take what waits: all of it is sent at once."""
    stage = Stage(engine("a", 8))
    stage.do(0.0, Probed("a", healthy=False, definite=True))
    stage.do(5.0, Probed("a", healthy=True))
    crowd(stage, 12, 5.0)
    assert at(stage) == {"a": 8}
    assert view(stage, "a").closed_because == "in_flight"


def test_what_others_cannot_take_goes_to_it_at_once() -> None:
    """Another model, a request that is bound to it, a fleet that comes back as a whole, a peer that went away."""
    other = Stage(engine("a", 8, "m"), engine("b", 8, "m", "n"))
    other.do(0.0, Drained("b"))
    other.do(1.0, Drained("b", draining=False))
    crowd(other, 5, 1.0, model="n")
    assert at(other) == {"b": 5}
    bound = Stage(engine("a", 8), engine("b", 8))
    bound.do(0.0, Drained("b"))
    bound.do(1.0, Drained("b", draining=False))
    crowd(bound, 5, 1.0, only="b")
    assert at(bound) == {"b": 5}
    both = Stage(engine("a", 8), engine("b", 8))
    for name in "ab":
        both.do(0.0, Probed(name, healthy=False, definite=True))
    for name in "ab":
        both.do(1.0, Probed(name, healthy=True))
    crowd(both, 16, 1.0)
    assert at(both) == {"a": 8, "b": 8}
    left = Stage(engine("a", 2), engine("b", 8))
    left.do(0.0, Drained("b"))
    crowd(left, 10)
    left.do(1.0, Drained("b", draining=False))
    assert at(left) == {"a": 2, "b": 1}
    left.do(1.0, Drained("a"))
    assert at(left) == {"a": 2, "b": 8}


def test_who_is_bound_to_it_is_not_held_back() -> None:
    """Others wait for the instances that run already; nobody else could take this one."""
    stage = Stage(engine("a", 4), engine("b", 1))
    stage.do(0.0, Drained("a"))
    stage.do(0.0, Drained("a", draining=False))
    crowd(stage, 2)
    assert at(stage) == {"a": 1, "b": 1}
    assert stage.do(0.0, arrive("other", "ann")) == ["join other"]
    assert stage.do(0.0, arrive("bound", "bob", only="a")) == ["join bound", "dispatch bound #1 a"]


def test_a_remote_instance_is_no_reason_to_hold_a_local_one_back() -> None:
    """It would be asked first what is cheap here; and the other way round."""
    stage = Stage(engine("a", 8), engine("far", 8, tier=Tier.REMOTE))
    stage.do(0.0, Drained("a"))
    stage.do(1.0, Drained("a", draining=False))
    crowd(stage, 8, 1.0)
    assert at(stage) == {"a": 8}


def test_a_failure_among_successes_is_no_return() -> None:
    """Its cooldown is ended by the next success: it was not away, and keeps what it may have."""
    stage = Stage(engine("a", 8), engine("b", 8), settings=Settings(breaker=BreakerSettings(threshold=9)))
    for number in range(6):
        stage.do(0.0, arrive(f"b{number}", only="b"))
    stage.do(1.0, failed("b0", Cause.REJECTED))
    stage.do(1.0, failed("b1"))
    assert view(stage, "b").cooldown == 5.0
    stage.do(1.1, done("b2"))
    assert view(stage, "b").ramp is None
    assert stage.do(1.1, arrive("more", only="b")) == ["join more", "dispatch more #1 b"]


def test_it_can_be_turned_off() -> None:
    """With 0 seconds everything that fits goes at once."""
    settings = Settings(routing=RoutingSettings(slow_start=0.0))
    stage = Stage(engine("a", 8), engine("b", 8), settings=settings)
    stage.do(0.0, Drained("b"))
    crowd(stage, 20)
    stage.do(1.0, Drained("b", draining=False))
    assert at(stage) == {"a": 8, "b": 8}


def test_it_is_seen_why_nothing_more_goes_there() -> None:
    """In the view, in the time that gates were shut, and in how a request would be placed."""
    stage = Stage(engine("a", 1), engine("b", 8))
    stage.do(0.0, Drained("b"))
    crowd(stage, 4)
    stage.do(1.0, Drained("b", draining=False))
    shown = view(stage, "b")
    assert (shown.closed_because, shown.ramp, shown.in_flight) == ("slow_start", 1, 1)
    weighing = stage.scheduler.weigh_up(request("w"), 1.0)
    assert weighing is not None
    assert [candidate.gate for candidate in weighing.candidates] == ["in_flight", "slow_start"]
    stage.now = 1.5
    assert view(stage, "b").closed_seconds == {"draining": 1.0, "slow_start": 0.5}


@pytest.mark.parametrize("fleet", [(engine("a", 3), engine("b", 3)), (engine("a", 3), engine("b", 300))])
def test_nothing_is_left_waiting_when_a_slow_start_is_over(fleet: tuple[Instance, ...]) -> None:
    """Its growth alone wakes the scheduler: no other fact is needed for what waits to be sent."""
    stage = Stage(*fleet)
    stage.do(0.0, Drained("b"))
    crowd(stage, 200)
    stage.do(1.0, Drained("b", draining=False))
    stage.wait(6.0)
    assert at(stage) == {"a": 3, "b": min(197, fleet[1].max_concurrent)}
    for name in list(stage.calls):
        if name in stage.running:
            stage.do(7.0, done(name))
    while stage.running:
        stage.do(8.0, done(next(iter(stage.running))))
    stage.wait(1000.0)
    assert nothing_held(stage.scheduler)
