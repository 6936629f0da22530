"""The promises of `headrace.core.breaker`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.breaker import Breaker, Permit
from headrace.model import BreakerState


def broken(at: float = 0.0, threshold: int = 3, recovery: float = 10.0) -> Breaker:
    """A breaker that has just opened."""
    breaker = Breaker(threshold, recovery, max_backoff=4.0)
    for _ in range(threshold):
        breaker.failure(at, breaker.acquire(at))
    return breaker


def test_it_opens_at_exactly_the_threshold() -> None:
    """Two of three failures leave it closed, the third opens it."""
    breaker = Breaker(threshold=3, recovery=60.0)
    for _ in range(2):
        breaker.failure(0.0, breaker.acquire(0.0))
    assert breaker.allows(0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED
    breaker.failure(0.0, breaker.acquire(0.0))
    assert not breaker.allows(0.0)
    assert breaker.state(0.0) is BreakerState.OPEN
    assert breaker.opens_in(15.0) == 45.0


def test_a_success_breaks_the_row_of_failures() -> None:
    """Only failures in a row count."""
    breaker = Breaker(threshold=2)
    for _ in range(10):
        breaker.failure(0.0, breaker.acquire(0.0))
        breaker.success(breaker.acquire(0.0))
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_neutral_results_neither_harm_nor_heal() -> None:
    """A caller's own mistakes between failures change nothing."""
    breaker = Breaker(threshold=2)
    breaker.failure(0.0, breaker.acquire(0.0))
    for _ in range(10):
        breaker.neutral(breaker.acquire(0.0))
    breaker.failure(0.0, breaker.acquire(0.0))
    assert breaker.state(0.0) is BreakerState.OPEN


def test_half_open_lets_exactly_one_probe_through() -> None:
    """While the probe runs everybody else finds it shut."""
    breaker = broken()
    assert not breaker.allows(9.99)
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    probe = breaker.acquire(10.0)
    assert probe
    assert not breaker.allows(10.0)
    assert not breaker.allows(1000.0)
    breaker.success(probe)
    assert breaker.state(10.0) is BreakerState.CLOSED
    assert breaker.allows(10.0)
    assert not breaker.acquire(10.0)


def test_failed_probes_double_the_wait_up_to_the_bound() -> None:
    """10 s, 20 s, 40 s, and never more than four times the first; a success starts over."""
    breaker, now, waits = broken(), 0.0, list[float]()
    for _ in range(5):
        now += breaker.opens_in(now)
        breaker.failure(now, breaker.acquire(now))
        waits.append(breaker.opens_in(now))
    assert waits == [20.0, 40.0, 40.0, 40.0, 40.0]
    now += 40.0
    breaker.success(breaker.acquire(now))
    for _ in range(3):
        breaker.failure(now, breaker.acquire(now))
    assert breaker.opens_in(now) == 10.0


def test_a_neutral_probe_gives_its_lease_back() -> None:
    """It stays half-open, and the next attempt may probe at once."""
    breaker = broken()
    breaker.neutral(breaker.acquire(10.0))
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    assert breaker.allows(10.0)
    assert breaker.acquire(10.0)


def test_late_results_of_the_closed_period_change_nothing() -> None:
    """Attempts from before it opened neither close it, nor lengthen the wait, nor open it anew after the probe."""
    breaker = Breaker(threshold=3, recovery=10.0)
    early = [breaker.acquire(0.0) for _ in range(12)]
    for permit in early[:3]:
        breaker.failure(0.0, permit)
    breaker.success(early[3])
    breaker.failure(8.0, early[4])
    breaker.neutral(early[5])
    assert breaker.state(8.0) is BreakerState.OPEN
    assert breaker.opens_in(8.0) == 2.0
    probe = breaker.acquire(10.0)
    breaker.success(early[6])
    breaker.failure(10.0, early[7])
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    assert not breaker.allows(10.0)
    breaker.success(probe)
    for permit in early[8:]:
        breaker.failure(11.0, permit)
    assert breaker.state(11.0) is BreakerState.CLOSED


def test_the_lease_belongs_to_the_attempt_that_took_it() -> None:
    """A probe overtaken by a trip or a reset no longer decides."""
    breaker = broken()
    overtaken = breaker.acquire(10.0)
    breaker.trip(11.0)
    probe = breaker.acquire(21.0)
    breaker.success(overtaken)
    breaker.neutral(overtaken)
    assert not breaker.allows(21.0)
    breaker.reset()
    breaker.failure(22.0, probe)
    breaker.failure(22.0, probe)
    assert breaker.state(22.0) is BreakerState.CLOSED


def test_an_attempt_sent_in_spite_of_it_changes_nothing() -> None:
    """Work forced through a shut breaker is no probe."""
    breaker = broken()
    forced = breaker.acquire(5.0)
    assert not forced
    breaker.success(forced)
    breaker.failure(5.0, forced)
    assert breaker.opens_in(5.0) == 5.0


def test_trip_and_reset_are_obeyed_at_once() -> None:
    """An operator's word needs no failures."""
    breaker = Breaker(threshold=5, recovery=60.0)
    breaker.trip(0.0)
    assert breaker.opens_in(0.0) == 60.0
    breaker.reset()
    assert breaker.allows(0.0)
    assert breaker.opens_in(0.0) == 0.0


def test_a_cause_that_is_over_lets_the_probe_go_at_once() -> None:
    """But the wait of one who opened it by hand stands, and a probe under way stays the only one."""
    breaker = broken()
    assert breaker.relent(1.0)
    assert breaker.allows(1.0)
    probe = breaker.acquire(1.0)
    assert not breaker.relent(2.0)
    assert not breaker.allows(2.0)
    breaker.failure(3.0, probe)
    assert breaker.opens_in(3.0) == 20.0, "a failed probe doubles the wait all the same"
    breaker.reset()
    assert not breaker.relent(4.0)
    breaker.trip(4.0)
    assert not breaker.relent(5.0)
    assert not breaker.allows(5.0)


@pytest.mark.parametrize(("threshold", "recovery", "backoff"), [(0, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, 0.5)])
def test_numbers_that_make_no_breaker_are_refused(threshold: int, recovery: float, backoff: float) -> None:
    """A wrong configuration fails at the start, not at the first failure."""
    with pytest.raises(ValueError, match="a breaker needs"):
        Breaker(threshold, recovery, backoff)


moves = st.lists(
    st.tuples(st.sampled_from(["send", "success", "failure", "neutral", "wait", "trip", "reset"]), st.integers(0, 7)),
    max_size=120,
)


@given(moves)
def test_whatever_happens_one_probe_at_most_and_the_waits_are_bounded(moves: list[tuple[str, int]]) -> None:
    """Late, doubled and disordered results: at most one undecided probe, and never shut beyond the bound."""
    breaker, now = Breaker(threshold=2, recovery=4.0, max_backoff=4.0), 0.0
    under_way, probes = list[Permit](), set[int]()
    for move, number in moves:
        if move == "send" and breaker.allows(now):
            permit = breaker.acquire(now)
            assert bool(permit) == (breaker.state(now) is BreakerState.HALF_OPEN)
            if permit:
                assert not probes
                probes = {id(permit)}
            under_way.append(permit)
        elif move == "wait":
            now += float(number)
        elif move == "trip":
            breaker.trip(now)
            probes = set()
        elif move == "reset":
            breaker.reset()
            probes = set()
        elif move != "send" and under_way:
            permit = under_way[number % len(under_way)]
            probes.discard(id(permit))
            if move == "success":
                breaker.success(permit)
            elif move == "failure":
                breaker.failure(now, permit)
            else:
                breaker.neutral(permit)
        assert 0.0 <= breaker.opens_in(now) <= 16.0
        assert breaker.allows(now) or breaker.state(now) is BreakerState.OPEN or probes


@given(st.integers(1, 5), st.integers(0, 20))
def test_it_always_comes_back(threshold: int, failed_probes: int) -> None:
    """After any number of failed probes, waiting out the wait and one good probe closes it."""
    breaker, now = Breaker(threshold, recovery=1.0, max_backoff=8.0), 0.0
    for _ in range(threshold):
        breaker.failure(now, breaker.acquire(now))
    for _ in range(failed_probes):
        now += breaker.opens_in(now)
        breaker.failure(now, breaker.acquire(now))
    now += breaker.opens_in(now)
    breaker.success(breaker.acquire(now))
    assert breaker.state(now) is BreakerState.CLOSED
