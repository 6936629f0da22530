"""Options that several commands share, and how they become one configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args
from urllib.parse import urlsplit

import typer

from headrace.cli import Refused
from headrace.config import (
    Config,
    Finding,
    InstanceSection,
    ModelEntry,
    address_of,
    discover_environment,
    echo_instance,
    is_loopback,
    load,
)
from headrace.config.environment import PORTS
from headrace.config.instances import EngineName
from headrace.errors import ConfigError

LOOPBACK = "127.0.0.1"

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML file; else HEADRACE_CONFIG, else none."),
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The configuration that is in force, and what named its engines if no file did."""

    config: Config
    findings: tuple[Finding, ...] = ()
    path: Path | None = None


def config_path(path: Path | None, env: Mapping[str, str]) -> Path | None:
    """The file to read: the flag's, else the environment's, else none."""
    if path is not None:
        return path
    named = env.get("HEADRACE_CONFIG", "")
    return Path(named) if named else None


def choose(
    path: Path | None,
    env: Mapping[str, str],
    overrides: Mapping[str, object],
    *,
    engine: str | None = None,
    model: str | None = None,
) -> Chosen:
    """The configuration from file, environment and flags; `engine` replaces all instances by one.

    Raises ConfigError for what cannot be used and Refused for a listening address that would be open to everyone.
    """
    file = config_path(path, env)
    config = load(file, env, overrides)
    if engine is not None:
        section = one_engine(engine, model)
        named = config.model_copy(update={"instances": (section,)})
        chosen = Chosen(named, (Finding("--engine", section),), file)
    elif model is not None:
        raise Refused("--model names the model of --engine; models of configured instances are in the file")
    elif config.instances:
        chosen = Chosen(config, path=file)
    else:
        config, findings = discover_environment(env, config)
        chosen = Chosen(config, findings, file)
    refuse_open_doors(chosen.config)
    refuse_itself(chosen.config)
    return chosen


def one_engine(engine: str, model: str | None) -> InstanceSection:
    """The instance that `--engine` names: `echo`, a URL, `KIND=URL` with a KIND as vllm or llamacpp, or a KIND that has
    a usual port, which means this machine.

    Raises ConfigError for an address or a kind that cannot be used.
    """
    if engine == "echo":
        return echo_instance(model or "echo")
    kind, equals, address = engine.partition("=")
    if engine in PORTS:
        address = LOOPBACK
    elif not equals or "://" in kind:
        kind, address = "openai", engine
    kinds = [name for name in get_args(EngineName) if name != "echo"]
    if kind not in kinds:
        raise ConfigError(f"--engine: '{kind}' is no kind of engine; there are {', '.join(kinds)} and echo")
    return InstanceSection.model_validate(
        {
            "id": kind,
            "engine": kind,
            "address": address_of(address, PORTS.get(kind), "--engine"),
            "models": (ModelEntry(name=model or "*"),),
        }
    )


def refuse_open_doors(config: Config) -> None:
    """Raises Refused when others could reach a gateway that knows no keys, unless that is what was asked for."""
    server = config.server
    if not is_loopback(server.host) and not server.insecure:
        raise Refused(
            f"listening on {server.host} would let everyone who reaches this machine use your engines, since there are "
            "no keys yet; listen on 127.0.0.1 behind something that checks who calls, or say --insecure"
        )


def refuse_itself(config: Config) -> None:
    """Raises Refused when an instance is where headrace itself is to listen: its requests would come back to it."""
    server = config.server
    for instance in config.model_instances():
        place = urlsplit(instance.address)
        near = place.hostname == server.host or (is_loopback(place.hostname or "") and _reaches_loopback(server.host))
        if near and (place.port or {"https": 443}.get(place.scheme, 80)) == server.port:
            raise Refused(
                f"{instance.id} is at {instance.address}, where headrace itself is to listen; choose another port for "
                f"one of them, as with --port {server.port + 1}"
            )


def _reaches_loopback(host: str) -> bool:
    return is_loopback(host) or host in ("0.0.0.0", "::")
