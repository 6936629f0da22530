"""A question to the simulator: machines, callers, how long, and what the answer should be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from headrace.core.settings import QueueSettings, Settings
from headrace.model import ServiceClass
from headrace.sim.engine import PREFIX_BLOCK
from headrace.sim.profile import A100, EngineProfile
from headrace.sim.workload import Client

PATIENT = QueueSettings(size=1_000_000, per_user=1_000_000, timeouts=dict.fromkeys(ServiceClass, 1e9))
"""Queues without a bound: a scenario measures who waits, not who is refused."""


class Trouble(StrEnum):
    """What an engine does while it is unwell."""

    LIMITED = "429"
    OVERLOADED = "503"
    CRASHED = "crash"


class Outage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A time in which an engine refuses new work (what runs goes on), or is gone with everything it was doing."""

    start: float
    stop: float
    trouble: Trouble = Trouble.LIMITED
    retry_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One engine of the fleet."""

    name: str
    profile: EngineProfile = A100
    limit: int | None = None
    """Most in flight; None: the policy finds it, up to what the engine itself takes at once."""
    window: int | None = None
    """Un-started window in tokens; None: the engine's step budget."""
    prefix_tokens: int = 0
    by_priority: bool = False
    outages: tuple[Outage, ...] = ()


class Sense(StrEnum):
    """On which side of its limit a value should be."""

    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Reference:
    """Another run of the same seed that a metric is compared with."""

    policy: str = "pass_through"
    without: tuple[str, ...] = ()
    """Clients left out."""
    instead: Scenario | None = None
    """Another scenario, run for as long; None: the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a metric should be, by median over the seeds."""

    name: str
    metric: str
    limit: float
    sense: Sense = Sense.AT_MOST
    of: Reference | None = None
    """Divide by the same metric of that run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything but the policy and the seed."""

    name: str
    title: str
    machines: tuple[Machine, ...]
    clients: tuple[Client, ...]
    duration: float
    """Seconds."""
    gateways: int = 1
    """So many gateways share the machines; the policies that are not headrace's are one in any case."""
    warm_up: float = 0.0
    """Requests that come before this are not measured."""
    settings: Settings = field(default_factory=lambda: Settings(queue=PATIENT))
    targets: tuple[Target, ...] = ()
    slo: tuple[float, float] = (0.5, 0.05)
    """A request is good when its first token and its time per token (seconds) are within these."""
    contenders: str = ""
    """The group whose users all want more than their share: fairness is measured among them; "": among all."""
    prefix_block: int = PREFIX_BLOCK
    """Tokens of one block of the prefix caches."""
    knee: int | None = None
    """The best number in flight, where it is known: the limit at the end is compared with it."""
    folder: Path = Path()
    """Where relative names of trace files begin."""

    def shorter(self, duration: float) -> Scenario:
        """The same for `duration` seconds; the warm-up shrinks in proportion."""
        return replace(self, duration=duration, warm_up=self.warm_up * min(1.0, duration / self.duration))

    def without(self, names: tuple[str, ...]) -> Scenario:
        """The same with some clients left out."""
        return replace(self, clients=tuple(client for client in self.clients if client.name not in names))
