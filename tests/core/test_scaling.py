"""Advice on the number of instances: what callers feel decides, and it does not swing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.scaling import Action, Demand, ScalingSettings, evaluate, needed

SETTINGS = ScalingSettings()
CALM = Demand(
    seen=120.0,
    instances=2,
    usable=2,
    places=10.0,
    running=10.0,
    queued=0.0,
    queued_now=0,
    wait=0.0,
    refused=0,
)
"""Two instances, half of their places in use, nobody waits."""


def test_a_fleet_of_the_right_size_is_left_alone() -> None:
    """Between the two thresholds nothing is said."""
    advice = evaluate(CALM, SETTINGS)
    assert (advice.action, advice.count, advice.desired) == (Action.NONE, 0, 2)
    assert "50%" in advice.reason


def test_long_waits_ask_for_as_many_as_the_demand_needs() -> None:
    """20 running and 22 waiting at 10 places each and 70 % make six instances: four more."""
    crowded = replace(CALM, running=20.0, queued=22.0, queued_now=25, wait=9.0)
    assert needed(crowded, SETTINGS) == 6
    advice = evaluate(crowded, SETTINGS)
    assert (advice.action, advice.count, advice.desired) == (Action.UP, 4, 6)
    assert "9.0 s" in advice.reason


def test_refusals_ask_for_more_even_when_nobody_waits_long() -> None:
    """A queue that is full refuses at once, so the waits look fine."""
    advice = evaluate(replace(CALM, running=19.0, refused=7, wait=0.1), SETTINGS)
    assert (advice.action, advice.count) == (Action.UP, 1)
    assert "7 requests" in advice.reason


def test_a_standing_queue_asks_for_more_before_waits_are_long() -> None:
    """More waiting than the instances take at a time will wait long, whatever was measured so far."""
    advice = evaluate(replace(CALM, running=20.0, queued=21.0, queued_now=21, wait=0.5), SETTINGS)
    assert advice.action is Action.UP


def test_no_usable_instance_asks_for_one() -> None:
    """Everything is down and somebody waits: one more, whatever the measures say."""
    advice = evaluate(replace(CALM, usable=0, places=0.0, running=0.0, queued=1.0, queued_now=3), SETTINGS)
    assert (advice.action, advice.count) == (Action.UP, 1)


def test_waits_on_idle_machines_are_not_cured_by_more_of_them() -> None:
    """Something else holds the requests, and the advice says so."""
    advice = evaluate(replace(CALM, running=2.0, queued=5.0, queued_now=5, wait=30.0), SETTINGS)
    assert advice.action is Action.NONE
    assert "a user's bound" in advice.reason


def test_an_idle_fleet_shrinks_to_what_the_demand_needs() -> None:
    """Six calls on five instances of ten places need one."""
    advice = evaluate(replace(CALM, instances=5, usable=5, running=6.0), SETTINGS)
    assert (advice.action, advice.count, advice.desired) == (Action.DOWN, 4, 1)


IDLE = replace(CALM, instances=5, usable=5, running=1.0)


@pytest.mark.parametrize(
    "demand",
    [
        replace(IDLE, seen=60.0),
        replace(IDLE, since_change=100.0),
        replace(IDLE, since_up=299.0),
        replace(IDLE, queued_now=1),
    ],
    ids=["too little was seen", "the fleet changed", "more was asked for", "somebody waits"],
)
def test_fewer_are_not_asked_for_too_early(demand: Demand) -> None:
    """Shrinking waits for a whole window and for the cooldown."""
    assert evaluate(IDLE, SETTINGS).action is Action.DOWN
    assert evaluate(demand, SETTINGS).action is Action.NONE


def test_the_newest_instances_get_time_before_more_are_asked_for() -> None:
    """Right after a change the measures are still those of the smaller fleet."""
    crowded = replace(CALM, running=20.0, queued=22.0, queued_now=25, wait=9.0)
    assert evaluate(replace(crowded, since_change=10.0), SETTINGS).action is Action.NONE
    assert evaluate(replace(crowded, since_change=61.0), SETTINGS).action is Action.UP


def test_the_bounds_are_kept() -> None:
    """Never more than max_instances, never fewer than min_instances, and a fleet outside them is brought back."""
    crowded = replace(CALM, running=20.0, queued=400.0, queued_now=400, wait=60.0)
    assert evaluate(crowded, SETTINGS).desired == 10
    full = evaluate(replace(crowded, instances=10, usable=10, running=100.0), SETTINGS)
    assert (full.action, full.desired) == (Action.NONE, 10)
    assert "max_instances" in full.reason
    assert evaluate(replace(CALM, instances=0, usable=0), SETTINGS).desired == 1
    assert evaluate(replace(CALM, instances=12), SETTINGS).desired == 10
    nobody = replace(CALM, instances=3, usable=3, running=0.0)
    assert evaluate(nobody, ScalingSettings(min_instances=0)).desired == 0
    assert evaluate(nobody, SETTINGS).desired == 1


numbers = st.floats(0, 1000)
demands = st.builds(
    Demand,
    seen=numbers,
    instances=st.integers(0, 20),
    usable=st.integers(0, 20),
    places=numbers,
    running=numbers,
    queued=numbers,
    queued_now=st.integers(0, 1000),
    wait=numbers,
    refused=st.integers(0, 100),
    since_change=numbers,
    since_up=numbers,
)


@given(demands)
def test_advice_is_consistent_and_asking_changes_nothing(demand: Demand) -> None:
    """The same answer twice; the count is the difference; inside the bounds the advice stays inside them."""
    advice = evaluate(demand, SETTINGS)
    assert evaluate(demand, SETTINGS) == advice
    assert abs(advice.desired - demand.instances) == advice.count
    assert advice.reason
    assert (advice.count == 0) == (advice.action is Action.NONE)
    if advice.action is not Action.NONE:
        assert SETTINGS.min_instances <= advice.desired <= SETTINGS.max_instances


@given(st.floats(0.1, 200), st.integers(1, 10), st.floats(1, 50))
def test_following_the_advice_does_not_swing(running: float, instances: int, places: float) -> None:
    """A fleet that was shrunk as advised is not too small by the same measures, nor one that grew too large."""
    before = replace(
        CALM, instances=instances, usable=instances, places=places, running=min(running, instances * places)
    )
    advice = evaluate(before, SETTINGS)
    if advice.action is Action.DOWN:
        after = replace(before, instances=advice.desired, usable=advice.desired)
        assert after.utilisation <= SETTINGS.busy + 1e-6
        assert evaluate(after, SETTINGS).action is not Action.UP
