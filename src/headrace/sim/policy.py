"""What the world asks who goes where: the real scheduler, or something of the same shape to compare it with."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Protocol

from headrace.core.parts import part
from headrace.core.scheduler import Scheduler
from headrace.core.settings import PolicyName
from headrace.model import Decision, Event, Instance
from headrace.sim.scenario import Scenario

POLL_SECONDS = 0.25
"""How often headrace reads an engine's metrics."""

_WINDOW = 1.5
"""Un-started prompt tokens as a multiple of a step's budget: what the step under way reads, and some for the next."""


class Policy(Protocol):
    """Facts in, orders out. The facts are Arrived, Started, Progressed, Finished, Probed, Reported and Woke."""

    poll: float | None
    """Seconds between two readings of an engine's metrics; None: they are not read."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take one fact; `Dispatch`, `Abort`, `Join`, `Settle` and `WakeAt` are carried out."""
        ...

    def limits(self, now: float) -> dict[str, int]:
        """Most requests in flight it allows now, by instance; empty: no such limit."""
        ...


class Headrace:
    """The scheduler that the gateway runs, as it is."""

    poll: float | None = POLL_SECONDS

    def __init__(self, scenario: Scenario, policy: PolicyName, random: Random, *, gateway: int = 0) -> None:
        settings = replace(scenario.settings, fairness=replace(scenario.settings.fairness, policy=policy))
        self._scheduler = Scheduler(settings, instances_of(scenario, gateway, scenario.gateways), random)

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take one fact."""
        return self._scheduler.handle(event, now)

    def limits(self, now: float) -> dict[str, int]:
        """The present limit of each instance."""
        return {view.id: view.max_concurrent for view in self._scheduler.snapshot(now).instances}


def instances_of(scenario: Scenario, gateway: int = 0, gateways: int = 1) -> list[Instance]:
    """The machines as the scheduler of one of so many gateways knows them.

    The un-started window is one and a half step budgets; the spare places go to different gateways. Where a machine
    names no limit, it is found, up to what the engine takes at once.
    """
    return [
        part(
            Instance(
                id=machine.name,
                max_concurrent=machine.limit or machine.profile.max_seqs,
                adaptive=machine.limit is None,
                window_tokens=machine.window or int(_WINDOW * machine.profile.budget),
            ),
            gateway - number,
            gateways,
        )
        for number, machine in enumerate(scenario.machines)
    ]
