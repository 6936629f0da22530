"""The measures say what they claim, above all where something has not ended."""

from __future__ import annotations

import math

import pytest

from headrace.model import Ending, Flow
from headrace.sim.measures import evenness, measure, quantile, service_difference
from headrace.sim.record import InstanceLedger, Record, UserLedger, Visit
from headrace.sim.scenario import Machine, Scenario


def visit(
    user: str, arrived: float, first: float | None = None, finished: float | None = None, **more: object
) -> Visit:
    """A visit of 100 prompt and 11 output tokens."""
    made = Visit(Flow(user=user), user, arrived, 100, 11, first=first, finished=finished)
    if finished is not None:
        made.ending, made.made = Ending.ANSWERED, 11
    for name, value in more.items():
        setattr(made, name, value)
    return made


def record(*visits: Visit, duration: float = 100.0, contenders: str = "") -> Record:
    """A run with one machine."""
    scenario = Scenario(
        name="t", title="", machines=(Machine(name="m"),), clients=(), duration=duration, contenders=contenders
    )
    made = Record(scenario, "fair", 1, list(visits))
    made.instances["m"] = InstanceLedger(work=[0.0] * 101)
    for one in visits:
        made.users.setdefault(one.flow.user, UserLedger(one.group, 101))
    return made


def test_quantiles_are_values_that_occurred() -> None:
    """The nearest rank: p99 of nine values is the largest; nothing has no quantile."""
    assert quantile(range(1, 10), 0.99) == 9
    assert quantile([3, 1, 2], 0.5) == 2
    assert math.isnan(quantile([], 0.5))


def test_who_is_alone_is_served_evenly() -> None:
    """A measure of one user, or of nothing, must not spoil a median over seeds."""
    assert evenness([7]) == evenness([0, 0]) == 1.0
    assert evenness([2, 1]) == 0.9


def test_who_still_waits_counts_with_the_time_so_far() -> None:
    """A starved user's first token is not left out: it has taken at least until the end."""
    found = measure(record(visit("a", 10, 11, 12, dispatched=10.5, waited=0.5), visit("b", 20)))
    assert found["ttft_p99[b]"] == 80
    assert found["wait_p99[b]"] == 80
    assert (found["ttft_p99[a]"], found["wait_p99[a]"]) == (1, 0.5)
    assert found["tpot_p50[a]"] == pytest.approx(0.1)
    assert (found["asked"], found["answered"]) == (2, 1)


def test_refused_requests_are_failures_and_no_waits() -> None:
    """A refusal in no time must not make the waits look short."""
    found = measure(record(visit("a", 10, 40, 41), visit("a", 11, ending=Ending.RATE_LIMITED)))
    assert found["ttft_p50"] == 30
    assert found["failed"] == 1


def test_good_requests_meet_both_objectives_and_open_ones_do_not_count() -> None:
    """Fast enough to begin (0.5 s) and to write (50 ms); one under way is neither good nor bad, one too late is bad."""
    good, slow = visit("a", 0, 0.4, 0.8), visit("a", 0, 0.4, 5.0)
    late, running = visit("a", 0, 2.0, 2.1), visit("a", 99, 99.3)
    starving = visit("a", 50)
    assert measure(record(good, slow, late, running, starving))["good"] == 0.25


def test_service_difference_looks_only_where_both_wait() -> None:
    """What grows while one of the two had nothing to ask for is no unfairness."""
    one, other = UserLedger("a", 10), UserLedger("b", 10)
    for second in range(10):
        one.serve(second, 100, 0, 0.0)
        one.wait(second, 1 if second == 0 else 0)
        if second in (3, 7):
            other.wait(second, 1 if second == 3 else -1)
    one.close()
    other.close()
    assert other.least_waiting == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert service_difference([one, other], 0) == 300


def test_outputs_weigh_twice_and_max_min_sees_the_starved() -> None:
    """Of two users who want all, one who got a third of the other has half of his fair share."""
    run = record(visit("a", 0), visit("b", 0))
    for user, output in (("a", 75), ("b", 25)):
        run.users[user].serve(1, 0, output, 0.0)
    for _ in range(10):
        run.visits += (visit("a", 1), visit("b", 1))
    found = measure(run)
    assert found["max_min"] == pytest.approx(0.5)
    assert found["jain"] == pytest.approx(evenness([150, 50]))
    assert found["output_rate[a]"] == 0.75
