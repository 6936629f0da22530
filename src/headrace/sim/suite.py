"""Runs scenarios under policies and seeds, and holds the results against the targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from random import Random
from statistics import median

from headrace.core.settings import PolicyName
from headrace.sim.baselines import Affinity, PassThrough, PollGate, RequestsPerMinute, in_turns
from headrace.sim.gateways import Gateways
from headrace.sim.measures import measure
from headrace.sim.policy import Headrace, Policy, instances_of
from headrace.sim.record import Record
from headrace.sim.scenario import Reference, Scenario, Sense, Target
from headrace.sim.world import World

Maker = Callable[[Scenario, Random], Policy]


def _headrace(name: PolicyName, scenario: Scenario, random: Random) -> Policy:
    kind = Headrace if scenario.gateways == 1 else Gateways
    return kind(scenario, name, random)


POLICIES: Mapping[str, Maker] = {
    **{policy.value: partial(_headrace, policy) for policy in PolicyName},
    "pass_through": lambda scenario, _: PassThrough(instances_of(scenario)),
    "pass_through_rr": lambda scenario, _: PassThrough(instances_of(scenario), in_turns),
    "pass_through_affinity": lambda scenario, _: PassThrough(instances_of(scenario), Affinity(scenario.prefix_block)),
    "rpm": lambda scenario, _: RequestsPerMinute(instances_of(scenario)),
    "poll_gate": lambda scenario, _: PollGate(instances_of(scenario)),
}
"""What can be compared: headrace's own three, and gateways as they are."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target held against what came out."""

    target: Target
    value: float

    @property
    def ok(self) -> bool:
        """The target is met."""
        return self.within(0.0)

    def within(self, slack: float) -> bool:
        """Met, if the limit were looser by the fraction `slack`."""
        if self.target.sense is Sense.AT_MOST:
            return self.value <= self.target.limit * (1 + slack)
        return self.value >= self.target.limit * (1 - slack)


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario under one policy."""

    scenario: Scenario
    policy: str
    seeds: tuple[int, ...]
    records: tuple[Record, ...]
    """By seed."""
    metrics: Mapping[str, float]
    """Medians over the seeds."""
    verdicts: tuple[Verdict, ...]

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "scenario": self.scenario.name,
            "policy": self.policy,
            "seeds": len(self.seeds),
            "metrics": {name: _plain(value) for name, value in self.metrics.items()},
            "targets": {
                verdict.target.name: {
                    "value": _plain(verdict.value),
                    "limit": verdict.target.limit,
                    "ok": verdict.ok,
                }
                for verdict in self.verdicts
            },
        }


class Suite:
    """Runs, each of them once: those that serve as references too.

    Args:
        on_time: is told (what runs, virtual seconds, of how many).
    """

    def __init__(self, on_time: Callable[[str, float, float], None] | None = None) -> None:
        self._on_time = on_time
        self._measured: dict[tuple[str, str, tuple[str, ...], float, int], Mapping[str, float]] = {}

    def result(self, scenario: Scenario, policy: str, seeds: Sequence[int]) -> Result:
        """One scenario under one policy, over several seeds.

        Raises:
            ConfigError: a trace of the scenario cannot be read.
        """
        records = tuple(self._run(scenario, policy, (), seed) for seed in seeds)
        measured = [self._metrics(record, ()) for record in records]
        metrics = {name: median(one[name] for one in measured) for name in measured[0] if _everywhere(name, measured)}
        verdicts = tuple(
            Verdict(target, median(self._value(target, scenario, record) for record in records))
            for target in scenario.targets
        )
        return Result(scenario, policy, tuple(seeds), records, metrics, verdicts)

    def _value(self, target: Target, scenario: Scenario, record: Record) -> float:
        value = self._metrics(record, ()).get(target.metric, float("nan"))
        if target.of is None:
            return value
        reference = self._reference(target.of, scenario, record.seed).get(target.metric, float("nan"))
        return value / reference if reference else float("nan")

    def _reference(self, of: Reference, scenario: Scenario, seed: int) -> Mapping[str, float]:
        if of.instead is not None:
            scenario = of.instead.shorter(scenario.duration)
        key = (scenario.name, of.policy, of.without, scenario.duration, seed)
        if key not in self._measured:
            self._metrics(self._run(scenario, of.policy, of.without, seed), of.without)
        return self._measured[key]

    def _run(self, scenario: Scenario, policy: str, without: tuple[str, ...], seed: int) -> Record:
        scenario = scenario.without(without)
        what, told = f"{scenario.name} {policy} seed {seed}", self._on_time

        def on_time(now: float) -> None:
            if told is not None:
                told(what, now, scenario.duration)

        return World(scenario, POLICIES[policy](scenario, Random(seed)), policy, seed, on_time).run()

    def _metrics(self, record: Record, without: tuple[str, ...]) -> Mapping[str, float]:
        scenario = record.scenario
        key = (scenario.name, record.policy, without, scenario.duration, record.seed)
        if key not in self._measured:
            self._measured[key] = measure(record)
        return self._measured[key]


def _everywhere(name: str, measured: Sequence[Mapping[str, float]]) -> bool:
    return all(name in one for one in measured)


def _plain(value: float) -> float | None:
    """JSON knows no nan."""
    return None if isnan(value) else round(value, 6)
