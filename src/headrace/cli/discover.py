"""`headrace discover`: what an engine serves, registered with a running gateway.

An engine becomes one instance with all its models, since its models share its slots and its queue: an instance for each
would let through as many times too much. The instance bears the root URL it was found at as its source, and only
instances with that source are ever changed or removed here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace.cli import Refused
from headrace.cli.admin_client import AdminClient, Client, instance_path
from headrace.cli.groups import grouped
from headrace.cli.options import LOOPBACK
from headrace.config.environment import PORTS, address_of
from headrace.model import Engine, Tier
from headrace.wire.adapters.addresses import same_place
from headrace.wire.discovery import Found

if TYPE_CHECKING:
    from collections.abc import Iterator


class Change(StrEnum):
    """What becomes of the instance."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    ELSEWHERE = "registered by others"
    NOTHING = "nothing to do"


class Step(NamedTuple):
    """What is to be done at the gateway so that it knows what the engine serves."""

    change: Change
    instance: str | None = None
    """The id of the instance it is about; None: it gets one, or there is none."""
    models: tuple[str, ...] = ()


@grouped
def discover(
    where: Annotated[list[str], typer.Argument(metavar="[KIND] URL", help="Where it is; or its kind alone: here.")],
    *,
    name: Annotated[str | None, typer.Option("--id", help="Name of a new instance; else its kind and number.")] = None,
    tier: Annotated[Tier, typer.Option(help="local, or remote: used when no local one can answer.")] = Tier.LOCAL,
    max_concurrent: Annotated[
        int | None, typer.Option(min=1, help="Requests at a time; else as many as llama.cpp says, or 10.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Variable with the engine's key, here and at the gateway.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what is there.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take back what was registered from this URL.")] = False,
    client: Client,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found and done as JSON.")] = False,
) -> None:
    """List the models of an engine (LM Studio, Ollama, vLLM, llama.cpp, ...) and register it with a running gateway."""
    kind, address = place_of(where)
    if not dry_run:
        client.refuse_itself(address)
    if remove:
        _take_back(client, address, as_json=as_json)
        return
    found = _find(address, kind, api_key_env)
    if not as_json:
        print("\n".join(lines(found, address)))
    step: Step | None = None
    warnings: Sequence[str] = ()
    if not dry_run:
        at_once = max_concurrent or found.slots
        new = {"id": name, "tier": tier.value, "max_concurrent": at_once, "api_key_env": api_key_env}
        step, warnings = carry_out(client, plan(found, address, registered(client)), found, address, new)
    if as_json:
        print(json.dumps(document(found, address, step, warnings), ensure_ascii=False))
    elif step is not None:
        print("\n".join((told(step, address), *(f"warning: {warning}" for warning in warnings))))


def place_of(words: Sequence[str]) -> tuple[Engine | None, str]:
    """The kind, if it is named, and the base URL. A kind alone that has a usual port means this machine.

    Raises Refused and ConfigError for what is neither.
    """
    if len(words) > 2:
        raise Refused("give one URL, and the kind of the engine before it if you know it: discover ollama URL")
    kinds = {engine.value: engine for engine in Engine if engine not in (Engine.ECHO, Engine.WORKER)}
    alone = len(words) == 1 and words[0] in PORTS
    if len(words) == 1 and not alone:
        return None, address_of(words[0], None, "URL")
    if words[0] not in kinds:
        raise Refused(f"'{words[0]}' is no kind of engine; there are {', '.join(kinds)}")
    return kinds[words[0]], address_of(LOOPBACK if alone else words[1], PORTS.get(words[0]), "URL")


def plan(found: Found, address: str, registered: Sequence[Mapping[str, object]]) -> Step:
    """What to do at a gateway that has these instances. Doing it and asking again gives `unchanged`."""
    own = next(iter(_own(registered, address)), None)
    there = [
        name
        for entry in registered
        if entry is not own and same_place(str(entry.get("address"))) == same_place(address)
        for name in _served(entry)
    ]
    models = () if "*" in there else tuple(name for name in found.models if name not in there)
    if own is None:
        if models:
            return Step(Change.ADDED, None, models)
        return Step(Change.ELSEWHERE if found.models else Change.NOTHING)
    mine = str(own.get("id"))
    if not models:
        return Step(Change.REMOVED, mine)
    return Step(Change.UNCHANGED if set(models) == set(_served(own)) else Change.CHANGED, mine, models)


def carry_out(
    client: AdminClient, step: Step, found: Found, address: str, new: Mapping[str, object]
) -> tuple[Step, Sequence[str]]:
    """Do it; a new instance also gets the fields of `new` that are not None. Returns what was done, and warnings."""
    models = [{"name": model} for model in step.models]
    if step.change is Change.ADDED:
        given = {field: value for field, value in new.items() if value is not None}
        place = {"address": address, "engine": found.engine.value, "source": source_of(address)}
        answer = client.post("/instances", {**given, **place, "models": models})
        entry = answer.get("instance")
        return step._replace(instance=str(entry.get("id")) if isinstance(entry, dict) else None), _warned(answer)
    if step.change is Change.CHANGED and step.instance is not None:
        return step, _warned(client.patch(instance_path(step.instance), {"models": models}))
    if step.change is Change.REMOVED and step.instance is not None:
        client.delete(instance_path(step.instance))
    return step, ()


def lines(found: Found, address: str) -> Iterator[str]:
    """What is there, for a person."""
    slots = f", {found.slots} requests at a time" if found.slots else ""
    yield f"{found.engine.value} at {address}{slots}"
    yield from (f"  {model}" for model in found.models)
    if not found.models:
        yield "  it has no models"


def told(step: Step, address: str) -> str:
    """What was done, for a person."""
    many = "1 model" if len(step.models) == 1 else f"{len(step.models)} models"
    match step.change:
        case Change.ADDED:
            return f"added the instance {step.instance} with {many}"
        case Change.CHANGED:
            return f"the instance {step.instance} now has {many}"
        case Change.UNCHANGED:
            return f"the instance {step.instance} has them already"
        case Change.REMOVED:
            return f"removed the instance {step.instance}: it has no model any more that nobody else registered"
        case Change.ELSEWHERE:
            return f"other instances at {address} serve them already; nothing was changed"
        case Change.NOTHING:
            return "nothing was registered"


def document(found: Found, address: str, step: Step | None, warnings: Sequence[str]) -> dict[str, object]:
    """The same as JSON."""
    return {
        "address": address,
        "engine": found.engine.value,
        "models": list(found.models),
        "slots": found.slots,
        "change": None if step is None else step.change.value,
        "instance": None if step is None else step.instance,
        "warnings": list(warnings),
    }


def source_of(address: str) -> str:
    """How the gateway notes who registered an instance that was found at `address`."""
    return f"discovered:{same_place(address)}"


def _find(address: str, kind: Engine | None, variable: str | None) -> Found:
    from headrace.cli.engine_listing import find

    key = os.environ.get(variable, "").strip() if variable is not None else ""
    if variable is not None and not key:
        raise Refused(f"{variable} is not set; it holds the key of {address}")
    return find(address, kind, key or None)


def registered(client: AdminClient) -> list[Mapping[str, object]]:
    """The gateway's instances, as its admin API shows them."""
    entries = client.get("/instances").get("instances")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _own(registered: Sequence[Mapping[str, object]], address: str) -> list[Mapping[str, object]]:
    return [entry for entry in registered if entry.get("source") == source_of(address)]


def _served(entry: Mapping[str, object]) -> list[str]:
    """The names an instance serves; `alias=upstream` is the upstream one, which is what the engine lists."""
    models = entry.get("models")
    return [str(text).rpartition("=")[2] for text in models] if isinstance(models, list) else []


def _take_back(client: AdminClient, address: str, *, as_json: bool) -> None:
    """Remove what was registered from `address`, and say so."""
    taken = [str(entry.get("id")) for entry in _own(registered(client), address)]
    for name in taken:
        client.delete(instance_path(name))
    if as_json:
        print(json.dumps({"address": address, "removed": taken}))
    elif taken:
        print(f"removed {', '.join(taken)}")
    else:
        print(f"nothing was registered from {address}")


def _warned(answer: Mapping[str, object]) -> list[str]:
    warnings = answer.get("warnings")
    return [str(text) for text in warnings] if isinstance(warnings, list) else []
