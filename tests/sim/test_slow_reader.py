"""Engines that read prompts slowly: they are kept at work, and tokens still come faster than with nothing held back."""

from __future__ import annotations

from functools import cache
from random import Random
from statistics import median
from typing import NamedTuple

import msgspec
import pytest

from headrace.core.settings import PolicyName
from headrace.sim.baselines import PassThrough
from headrace.sim.policy import Headrace, Policy, instances_of
from headrace.sim.profile import SLOW, EngineProfile
from headrace.sim.scenario import Machine, Scenario
from headrace.sim.workload import Burst, Client, Exponential, Uniform
from headrace.sim.world import World

SECONDS = 150.0
LAPTOP = msgspec.structs.replace(SLOW, name="laptop", step=0.06, token=2e-3, max_seqs=32)
"""500 prompt tokens per second."""


class Ran(NamedTuple):
    """What a machine did in a flood."""

    rate: float
    """Tokens per second, read and made."""
    tpot: float
    """Seconds per token of a typical answer."""


@cache
def flood(profile: EngineProfile, limit: int | None, held: bool = True) -> Ran:
    """One user's 2,000 requests at once, a thousand tokens in and three hundred out on average."""
    client = Client(
        name="power",
        arrivals=Burst(count=2000),
        prompt=Uniform(low=500, high=1500),
        output=Exponential(mean=300, most=4000),
    )
    machine = Machine(name="a", profile=profile, limit=limit)
    scenario = Scenario(name="slow", title="reads slowly", machines=(machine,), clients=(client,), duration=SECONDS)
    policy: Policy = PassThrough(instances_of(scenario))
    if held:
        policy = Headrace(scenario, PolicyName.FAIR, Random(1))
    visits = World(scenario, policy, "one", 1).run().visits
    done = [(v.finished - v.first) / (v.output - 1) for v in visits if v.finished and v.first and v.output > 20]
    tokens = sum(visit.made + (visit.prompt if visit.first is not None else 0) for visit in visits)
    return Ran(tokens / SECONDS, median(done))


@pytest.mark.parametrize("profile", [SLOW, LAPTOP], ids=["slow", "laptop"])
def test_the_pace_of_reading_does_not_shut_the_gate(profile: EngineProfile) -> None:
    """With as many places as the engine has, it does 93 % of what it does with everything in its own queue, and tokens
    come sooner."""
    held, given = flood(profile, profile.max_seqs), flood(profile, None, held=False)

    assert held.rate >= 0.93 * given.rate
    assert held.tpot <= 0.9 * given.tpot


@pytest.mark.parametrize("profile", [SLOW, LAPTOP], ids=["slow", "laptop"])
def test_a_found_limit_is_not_that_of_a_fast_machine(profile: EngineProfile) -> None:
    """Though it begins under a flood, the machine is given three quarters of what it can do, with tokens at a pace that
    is twice as fast."""
    found, given = flood(profile, None), flood(profile, None, held=False)

    assert found.rate >= 0.75 * given.rate
    assert found.tpot <= 0.5 * given.tpot
