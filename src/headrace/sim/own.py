"""Scenarios that users write: one YAML file with machines, clients and, if they like, targets.

duration: 120
machines:
  - {name: gpu, profile: a100, count: 2, limit: 64}
clients:
  - {name: alice, arrivals: {type: poisson, rate: 2}, prompt: {type: uniform, low: 200, high: 900}}
  - {name: crawler, service_class: batch, arrivals: {type: burst, count: 500, at: 10}}
targets:
  - {metric: "ttft_p99[alice]", at_most: 0.5}
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from headrace.core.settings import FairnessSettings, Settings
from headrace.errors import ConfigError
from headrace.model import ServiceClass
from headrace.sim.engine import PREFIX_BLOCK
from headrace.sim.profile import A100, PROFILES, EngineProfile
from headrace.sim.scenario import PATIENT, Machine, Outage, Scenario, Sense, Target
from headrace.sim.trace import MOONCAKE_BLOCK, read
from headrace.sim.workload import Client, Count, Natural, Positive, Replay


class MachineSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine, or `count` equal ones."""

    name: str
    profile: str | EngineProfile = "a100"
    count: Count = 1
    limit: Count | None = None
    window: Count | None = None
    prefix_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    priority: bool = False
    """The engine admits by class."""
    outages: tuple[Outage, ...] = ()


class TargetSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a metric should be; one of the two limits."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    name: str = ""
    title: str = ""
    duration: Positive = 120.0
    warm_up: Natural = 0.0
    gateways: Count = 1
    machines: Annotated[tuple[MachineSpec, ...], msgspec.Meta(min_length=1)]
    clients: tuple[Client, ...] = ()
    targets: tuple[TargetSpec, ...] = ()
    contenders: str = ""
    class_weights: dict[ServiceClass, Positive] = {}
    user_weights: dict[str, Positive] = {}


def load(path: Path) -> Scenario:
    """The scenario that a file describes.

    Raises:
        ConfigError: the file cannot be read or used; the message names the place in it.
    """
    try:
        data: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        return _scenario(msgspec.convert(data, File), path)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_explained(str(error))}") from None


def from_journal(journal: Path, scenario: Scenario | None) -> Scenario:
    """Yesterday's traffic on the machines of `scenario`, or on one A100, for a tenth longer than it took then.

    Raises:
        ConfigError: the journal cannot be read.
    """
    rows = read(str(journal), "headrace", Path())
    client = Client(
        name="journal", arrivals=Replay(file=str(journal.absolute()), format="headrace", light=len(rows) // 20)
    )
    duration = max(1.0, 1.1 * max(row.at + row.took for row in rows))
    machines = scenario.machines if scenario is not None else (Machine(name="a100", profile=A100),)
    settings = scenario.settings if scenario is not None else Settings(queue=PATIENT)
    name = f"{scenario.name}+{journal.stem}" if scenario is not None else journal.stem
    title = f"{len(rows)} requests of {len({row.user for row in rows})} users"
    return Scenario(name=name, title=title, machines=machines, clients=(client,), duration=duration, settings=settings)


def _scenario(file: File, path: Path) -> Scenario:
    machines = tuple(machine for spec in file.machines for machine in _machines(spec, path))
    names = [machine.name for machine in machines] + [name for client in file.clients for name in client.names()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path}: the name '{twice}' is used twice")
    lost = next((client.name for client in file.clients if (client.gateways or 1) > file.gateways), None)
    if lost is not None:
        raise ConfigError(f"{path}: client '{lost}' enters through more gateways than there are ({file.gateways})")
    fairness = FairnessSettings()
    weights = {**fairness.class_weights, **file.class_weights}
    return Scenario(
        name=file.name or path.stem,
        title=file.title,
        machines=machines,
        clients=file.clients,
        duration=file.duration,
        gateways=file.gateways,
        warm_up=min(file.warm_up, file.duration),
        settings=Settings(
            queue=PATIENT, fairness=FairnessSettings(class_weights=weights, user_weights=file.user_weights)
        ),
        targets=tuple(_target(spec, path) for spec in file.targets),
        contenders=file.contenders,
        prefix_block=_prefix_block(file.clients, path),
        folder=path.parent,
    )


def _prefix_block(clients: Sequence[Client], path: Path) -> int:
    """Tokens of one block of the prefix caches: that of the traces with hashes, if there are any."""
    hashed = any(isinstance(client.arrivals, Replay) and client.arrivals.format == "mooncake" for client in clients)
    if hashed and any(client.session is not None for client in clients):
        raise ConfigError(f"{path}: sessions and traces with hashes count prefixes in different blocks; use two files")
    return MOONCAKE_BLOCK if hashed else PREFIX_BLOCK


def _machines(spec: MachineSpec, path: Path) -> list[Machine]:
    profile = PROFILES.get(spec.profile) if isinstance(spec.profile, str) else spec.profile
    if profile is None:
        raise ConfigError(
            f"{path}: machine '{spec.name}': there is no profile '{spec.profile}', only {', '.join(PROFILES)}"
        )
    names = [spec.name] if spec.count == 1 else [f"{spec.name}-{number + 1}" for number in range(spec.count)]
    return [
        Machine(
            name=name,
            profile=profile,
            limit=spec.limit,
            window=spec.window,
            prefix_tokens=spec.prefix_tokens,
            by_priority=spec.priority,
            outages=spec.outages,
        )
        for name in names
    ]


def _target(spec: TargetSpec, path: Path) -> Target:
    if spec.at_most is not None and spec.at_least is None:
        return Target(name=spec.metric, metric=spec.metric, limit=spec.at_most)
    if spec.at_least is not None and spec.at_most is None:
        return Target(name=spec.metric, metric=spec.metric, limit=spec.at_least, sense=Sense.AT_LEAST)
    raise ConfigError(f"{path}: the target '{spec.metric}' needs either at_most or at_least")


def _explained(message: str) -> str:
    """msgspec's message, with the nearest right name for an unknown one."""
    text = message.replace(" - at `$", " at `").replace("at `.", "at `")
    if "unknown field" in message:
        wrong = message.split("`")[1]
        known = {field for spec in (File, MachineSpec, TargetSpec, Client, Outage) for field in spec.__struct_fields__}
        near = get_close_matches(wrong, known, 1)
        if near:
            text += f"; did you mean `{near[0]}`?"
    return text
