"""The promises of `headrace.core.recovery`: again or not, when, and what is told."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.pool import Pool
from headrace.core.recovery import GiveUp, Recovery, Resume, Retry, RetryBudget, blocked, returns_in
from headrace.core.settings import BreakerSettings, RecoverySettings, Settings
from headrace.errors import Fault
from headrace.model import Cause, Ending, Outcome
from tests.core.calls import attempt, call, pool
from tests.core.script import engine

_SETTINGS = RecoverySettings(max_attempts=3, backoff=0.5, backoff_cap=8.0, longest_wait=10.0)


def decide(to: Pool, outcome: Outcome, failures: int = 1, now: float = 0.0, **asked: Any) -> Retry | Resume | GiveUp:
    """The verdict on a call that failed so often, last at `a`."""
    made = call(to, **asked)
    made.failures = failures
    made.tried = ("a",)
    return Recovery(_SETTINGS, Random(1)).decide(made, outcome, now)


def cooling(*seconds: float) -> Pool:
    """Instances a, b, … that cool down for so long."""
    to = pool(*(engine(name) for name in "abcd"[: len(seconds)]))
    for state, until in zip(to.members, seconds, strict=True):
        state.cooldown_until = until
    return to


def test_another_instance_is_tried_without_waiting() -> None:
    """There is one that was not tried."""
    assert decide(cooling(5.0, 0.0), Outcome(Cause.SERVER_ERROR)) == Retry(0.0)


@pytest.mark.parametrize(("failures", "longest"), [(1, 0.5), (2, 1.0)])
def test_when_none_is_left_it_waits_for_the_soonest_and_a_growing_back_off(failures: int, longest: float) -> None:
    """The soonest return plus half to all of the back-off."""
    verdict = decide(cooling(4.0, 7.0), Outcome(Cause.SERVER_ERROR), failures)
    assert isinstance(verdict, Retry)
    assert 4.0 + longest / 2 <= verdict.delay <= 4.0 + longest


@pytest.mark.parametrize(
    ("outcome", "failures", "asked"),
    [
        (Outcome(Cause.SERVER_ERROR), 3, {}),
        (Outcome(Cause.SERVER_ERROR), 1, {"max_attempts": 1}),
        (Outcome(Cause.SERVER_ERROR, committed=True), 1, {}),
        (Outcome(Cause.REJECTED), 1, {}),
        (Outcome(Cause.ABORTED), 1, {}),
        (Outcome(Cause.SERVER_ERROR), 1, {"deadline": 4.1}),
    ],
)
def test_it_gives_up(outcome: Outcome, failures: int, asked: dict[str, Any]) -> None:
    """Attempts used up, content seen, a mistake of the caller, or no time left."""
    assert isinstance(decide(cooling(4.0), outcome, failures, **asked), GiveUp)


def test_a_wait_beyond_the_longest_is_told_instead() -> None:
    """All are away for 20 s and more: 429 with the smallest wait."""
    verdict = decide(cooling(30.0, 20.0), Outcome(Cause.RATE_LIMITED, retry_after=30.0))
    assert isinstance(verdict, GiveUp)
    assert (verdict.fault.status, verdict.fault.retry_after) == (429, 20.0)


def test_the_engines_own_words_are_passed_on() -> None:
    """A fault that came with the outcome is told as it is."""
    own = Fault(400, "invalid_request_error", "context_length_exceeded", "Too long.")
    verdict = decide(cooling(0.0), Outcome(Cause.REJECTED, fault=own))
    assert verdict == GiveUp(Ending.REJECTED, own)


# ---------------------------------------------------------------------------------------------------- the budget


def test_the_reserve_allows_retries_before_any_traffic_and_comes_back_in_a_quiet_minute() -> None:
    """Ten at once, not eleven; half a minute later five more."""
    budget = RetryBudget(0.2, 10.0)
    assert [budget.take(0.0) for _ in range(11)] == [True] * 10 + [False]
    assert [budget.take(30.0) for _ in range(6)] == [True] * 5 + [False]


def test_traffic_pays_for_retries_up_to_a_cap() -> None:
    """A fifth of the first attempts; however much traffic there was, no more than a hundred at once."""
    budget = RetryBudget(0.2, 0.0)
    for _ in range(50):
        budget.pay_in()
    assert sum(budget.take(0.0) for _ in range(50)) == 10
    for _ in range(100_000):
        budget.pay_in()
    assert sum(budget.take(0.0) for _ in range(500)) == 100


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 30.0)), max_size=200))
def test_retries_never_exceed_what_was_paid_in_and_the_quiet_reserve(moves: list[tuple[bool, float]]) -> None:
    """Over any story: retries <= reserve + ratio x traffic + what time gave back."""
    budget, now, paid, retried = RetryBudget(0.2, 5.0), 0.0, 0, 0
    for pays, later in moves:
        now += later
        if pays:
            budget.pay_in()
            paid += 1
        else:
            retried += budget.take(now)
    assert retried <= 5.0 + 0.2 * paid + now * 5.0 / 60.0 + 1e-6


# ---------------------------------------------------------------------------------------------------- at the door


def test_the_soonest_return_counts_only_those_that_return_by_themselves() -> None:
    """One that is down does not count; when all are, there is none."""
    to = cooling(9.0, 3.0)
    assert returns_in(to.members, 1.0) == 2.0
    to.members[1].healthy = False
    assert returns_in(to.members, 1.0) == 8.0
    to.members[0].healthy = False
    assert returns_in(to.members, 1.0) is None


@pytest.mark.parametrize(
    ("seconds", "ending"),
    [((0.0, 50.0), None), ((9.0, 50.0), None), ((11.0, 50.0), Ending.NO_INSTANCE)],
)
def test_waiting_makes_sense_while_one_comes_back_soon(seconds: tuple[float, ...], ending: Ending | None) -> None:
    """Within the longest wait a request queues; beyond it the caller is told at once."""
    obstacle = blocked(cooling(*seconds).members, 10.0, 0.0)
    assert (obstacle and obstacle.ending) == ending


def test_open_breakers_and_instances_that_are_down_are_told_apart() -> None:
    """The code says which; the wait is that of the first breaker."""
    settings = Settings(breaker=BreakerSettings(threshold=1, recovery=40.0))
    to = pool(engine("a"), engine("b"), settings=settings)
    for state in to.members:
        attempt(state, [Cause.TIMEOUT], settings)
    obstacle = blocked(to.members, 10.0, 12.0)
    assert obstacle is not None
    assert (obstacle.ending, obstacle.fault.retry_after) == (Ending.CIRCUIT_OPEN, 30.0)
    for state in to.members:
        state.healthy = False
    obstacle = blocked(to.members, 10.0, 12.0)
    assert obstacle is not None
    assert obstacle.ending is Ending.NO_INSTANCE
