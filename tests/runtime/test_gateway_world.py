"""Whatever engines and callers do in the middle of whatever, the gateway gets no order that it cannot carry out."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headrace.core.settings import PolicyName, Strategy
from headrace.model import Dispatch
from headrace.runtime.observe import Metrics
from headrace.testing import run_virtual
from tests.runtime.meddling_world import World

_HISTORIES = st.lists(st.one_of(st.integers(0, 8 * 3 * 5 * 3 * 3 * 64), st.just(-1)), max_size=60)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_HISTORIES, st.sampled_from(list(Strategy)), st.sampled_from(list(PolicyName)))
@example([0, 11960, 0, 0, 11960, -1], Strategy.FAIR_LOAD, PolicyName.FAIR)  # one ends while it is being broken off
def test_every_order_can_be_carried_out(
    caplog: pytest.LogCaptureFixture, history: list[int], strategy: Strategy, policy: PolicyName
) -> None:
    """Each caller who stays is told one end, nothing is held after the last, no order is without its call, and of each
    attempt that was sent one end is counted."""

    registry, sent = CollectorRegistry(), list[Dispatch]()

    async def play() -> World:
        world = World(strategy, policy)
        world.gateway.observe(Metrics(registry, ["m1"]))
        world.gateway.observe(lambda _, orders, __: sent.extend(o for o in orders if isinstance(o, Dispatch)))
        for number in history:
            if number < 0:
                await world.pass_time(len(world.callers))
            else:
                world.act(number)
        await world.over()
        return world

    caplog.clear()
    world = run_virtual(play())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert all(len(caller.endings) == 1 for caller, _ in world.callers if not caller.left)
    assert world.gateway.alive == world.gateway.flights == 0
    snapshot = world.gateway.snapshot()
    assert (snapshot.queued, snapshot.running, snapshot.waiting_retry, snapshot.looking) == (0, 0, 0, 0)
    assert {view.in_flight for view in snapshot.instances} <= {0}
    assert _counted(registry) == len(sent)


def _counted(registry: CollectorRegistry) -> float:
    return sum(
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "headrace_attempts_total"
    )
