"""The built-in scenarios keep their targets, with a fifth of slack, on short runs of one seed.

`headrace simulate S1 ... --seeds 5` holds the same targets without slack, by median.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from headrace.sim.scenario import Scenario
from headrace.sim.scenarios import SCENARIOS
from headrace.sim.suite import POLICIES, Result, Suite

SLACK = 0.2
SHORT = {
    "S1": 60.0,
    "S2": 90.0,
    "S2-96": 90.0,
    "S3": 80.0,
    "S4": 90.0,
    "S4-half": 90.0,
    "S4-double": 90.0,
    "S5-overload": 60.0,
    "S6": 60.0,
    "S10": 60.0,
    "S10-spread": 60.0,
    "S10-single": 60.0,
}
"""Seconds; the others are run in full."""
PARTS = {part.name: part for parts in SCENARIOS.values() for part in parts}
HEAVY = {"S5-overload", "S8-hints"}


def short(name: str) -> Scenario:
    """A scenario as short as its question allows."""
    scenario = PARTS[name]
    return scenario.shorter(SHORT[name]) if name in SHORT else scenario


@cache
def result(name: str) -> Result:
    """One run under the fair policy, with what it is compared to."""
    return Suite().result(short(name), "fair", [1])


def cases() -> list[object]:
    """Each target of each scenario."""
    return [
        pytest.param(
            part.name,
            target.name,
            id=f"{part.name}-{target.name}",
            marks=[pytest.mark.slow] if part.name in HEAVY else [],
        )
        for part in PARTS.values()
        for target in part.targets
    ]


@pytest.mark.parametrize(("name", "target"), cases())
def test_a_target_is_met(name: str, target: str) -> None:
    """What users are promised holds in the modelled world."""
    verdict = next(verdict for verdict in result(name).verdicts if verdict.target.name == target)
    assert verdict.within(SLACK), f"{verdict.value:.4g}, not {verdict.target.sense} {verdict.target.limit:g}"


@pytest.mark.parametrize("name", ["S4-half", "S4-double"])
def test_a_wrong_price_that_is_not_calibrated_misses(name: str) -> None:
    """Without what the machine shows the same scenarios miss their targets: these can tell the difference."""
    told = short(name)
    fairness = replace(told.settings.fairness, calibrate=False)
    fixed = replace(told, settings=replace(told.settings, fairness=fairness))
    assert not all(verdict.ok for verdict in Suite().result(fixed, "fair", [1]).verdicts)


def test_names_of_scenarios_and_references_exist() -> None:
    """Each reference names a policy and clients that there are; each part belongs to the scenario it is named after."""
    for name, parts in SCENARIOS.items():
        for part in parts:
            assert part.name == name or part.name.startswith(f"{name}-")
            clients = {client.name for client in part.clients}
            for target in part.targets:
                if target.of is not None:
                    assert target.of.policy in POLICIES
                    assert target.of.instead is None or target.of.instead == PARTS[target.of.instead.name]
                    assert set(target.of.without) <= clients


def test_a_shorter_scenario_keeps_its_proportions() -> None:
    """The warm-up shrinks with it, and never grows."""
    assert (PARTS["S2"].shorter(75).warm_up, PARTS["S2"].shorter(300).warm_up) == (15, 30)
