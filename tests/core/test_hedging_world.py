"""Many hedges in a world that misbehaves: two attempts at a time, in any order, ended in any way.

The state machine of `test_world` meets hedges now and then; here nearly every request is one.
"""

from __future__ import annotations

from random import Random

import pytest

from headrace.core.settings import HedgeSettings, RecoverySettings, RoutingSettings, Settings
from headrace.model import (
    AnswerForm,
    Arrived,
    Cancelled,
    Cause,
    Event,
    Finished,
    Flow,
    Outcome,
    Probed,
    Progressed,
    Reconfigured,
    Request,
    ServiceClass,
    Started,
    Usage,
    Woke,
)
from tests.core.script import engine
from tests.core.world import World

_SETTINGS = Settings(
    routing=RoutingSettings(hedge=HedgeSettings(after=0.2, budget=1.0)),
    recovery=RecoverySettings(cooldown=0.3, budget_reserve=50.0),
)
_ENGINES = tuple(engine(name, 8) for name in "abc")
_CAUSES = [Cause.OK] * 6 + [Cause.SERVER_ERROR, Cause.RATE_LIMITED, Cause.REJECTED, Cause.BROKEN_STREAM]


def event(world: World, random: Random, number: int) -> Event:
    """Something that may happen next; about attempts that run, that are over, or that never were."""
    chance = random.random()
    if chance < 0.2 or not world.requests:
        service_class = random.choice(list(ServiceClass))
        deadline = world.now + 1.0 if random.random() < 0.1 else None
        flow = Flow(service_class, "t", random.choice("xyz"), "")
        form = random.choice([AnswerForm.STREAM, AnswerForm.STREAM, AnswerForm.WHOLE])
        key = random.choice([None, None, b"k"])
        return Arrived(Request(id=f"r{number}", flow=flow, model="m", form=form, deadline=deadline, fingerprint=key))
    if chance < 0.24:
        return Cancelled(random.choice(list(world.requests)))
    if chance < 0.25:
        return Probed(random.choice("abc"), healthy=random.random() < 0.8)
    if chance < 0.26:
        return Reconfigured(tuple(random.sample(_ENGINES, random.randint(2, 3))))
    if chance < 0.6 or not world.running:
        return Woke()
    order = random.choice(list(world.running.values()))
    attempt = order.attempt if random.random() < 0.95 else random.randint(0, order.attempt)
    if chance < 0.72:
        return Started(order.call, attempt)
    if chance < 0.8:
        return Progressed(order.call, attempt, 10)
    cause = random.choice(_CAUSES)
    return Finished(order.call, attempt, Outcome(cause, Usage(3, 10), committed=random.random() < 0.2))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_becomes_of_two_attempts_the_promises_hold(seed: int) -> None:
    """Settled once, released as taken, one or two at a time and never at one place, and all of it replays."""
    random = Random(seed)
    world = World(_SETTINGS, _ENGINES, seed)
    hedged = won = 0
    for number in range(600):
        world.tell(event(world, random, number), random.choice([0.0, 0.0, 0.05, 0.2]))
        hedged = max(hedged, world.scheduler._book.totals["hedges"])
        won = world.scheduler._book.totals["hedges_won"]
    assert hedged > 10
    assert won > 1
    world.leave_nothing()
    world.replay()
