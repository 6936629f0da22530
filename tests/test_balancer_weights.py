"""Each weight of the load balancer, from the file to the pick: changing it changes who gets the request."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from headrace.config import load
from headrace.core.instance_state import InstanceState
from headrace.core.scheduler import Scheduler
from headrace.model import Arrived, Dispatch, Flow, Request
from tests.written import Written

Learned = Callable[[InstanceState, InstanceState], None]


def _faster(a: InstanceState, b: InstanceState) -> None:
    a.speed, b.speed = 10.0, 90.0


def _surer(a: InstanceState, b: InstanceState) -> None:
    a.reliability = 0.5


def _emptier(a: InstanceState, b: InstanceState) -> None:
    a.load = 1000.0


def _alike(a: InstanceState, b: InstanceState) -> None:
    a.load = b.load = 100.0


def pick(written: Written, balancer: str, more_of_a: str, learned: Learned) -> str:
    """Which of two instances that are alike, but for what was learned or said of a, gets a request."""
    text = (
        f"load_balancer: {{strategy: weighted, {balancer}}}\n"
        f"instances: [{{id: a, address: 'http://a', {more_of_a}}}, {{id: b, address: 'http://b'}}]"
    )
    config = load(written(text), {})
    scheduler = Scheduler(config.scheduler_settings(), config.model_instances(), Random(1))
    states = scheduler._fleet.states
    learned(states["a"], states["b"])
    orders = scheduler.handle(Arrived(Request(id="r", flow=Flow(), model="m", prompt_tokens=100)), 0.0)
    (dispatch,) = (order for order in orders if isinstance(order, Dispatch))
    return dispatch.instance.id


@pytest.mark.parametrize(("weight", "learned"), [("speed", _faster), ("reliability", _surer), ("load", _emptier)])
def test_a_term_decides_unless_its_weight_is_0(written: Written, weight: str, learned: Learned) -> None:
    """With its usual weight the better one is picked; with 0 the two are alike, and the first goes first."""
    assert pick(written, "weights: {}", "", learned) == "b"
    assert pick(written, f"weights: {{{weight}: 0}}", "", learned) == "a"


@pytest.mark.parametrize(("said", "picked"), [("capacity: 0.5", "b"), ("capacity: 2", "a")])
def test_capacity_decides(written: Written, said: str, picked: str) -> None:
    """The stronger one, where all else is alike."""
    assert pick(written, "weights: {}", said, _alike) == picked


@pytest.mark.parametrize(("said", "picked"), [("weight: 3", "b"), ("weight: 0.2", "a")])
def test_an_instance_s_own_weight_decides(written: Written, said: str, picked: str) -> None:
    """The one where a request weighs less."""
    assert pick(written, "weights: {}", said, _alike) == picked
