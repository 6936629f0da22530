"""`headrace instances`: see, add, change and drain the instances of a running gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import Refused
from headrace.cli.admin_client import AdminClient, AsJson, Client, instance_path
from headrace.cli.groups import grouped
from headrace.model import Tier

if TYPE_CHECKING:
    from rich.table import Table

instances = typer.Typer(help="The instances of a running gateway: list, add, remove, drain.", no_args_is_help=True)

COLUMNS = ("instance", "engine", "address", "models", "tier", "state", "in flight", "speed", "reliable", "source")

Id = Annotated[str, typer.Argument(metavar="ID", help="Name of the instance, as `list` shows it.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Names of instances, as `list` shows them.")]


@instances.command("list")
@grouped
def list_instances(*, client: Client, as_json: AsJson = False) -> None:
    """List the instances and how they are doing."""
    answer = client.get("/instances")
    if as_json:
        _print(answer)
        return
    found = _entries(answer.get("instances"))
    if found:
        _show(instances_table(found))
    else:
        print("no instances; `headrace instances add ADDRESS` adds one")


@instances.command("show")
@grouped
def show_instance(instance: Id, *, client: Client, as_json: AsJson = False) -> None:
    """Show everything about one instance."""
    answer = client.get(instance_path(instance))
    if as_json:
        _print(answer)
        return
    _show(details_table(_entry(answer)))


@instances.command("add")
@grouped
def add_instance(
    address: Annotated[str, typer.Argument(help="Base URL, as http://127.0.0.1:8001; none for echo.")] = "",
    *,
    name: Annotated[str | None, typer.Option("--id", help="Its name; else the engine's and a number.")] = None,
    engine: Annotated[str, typer.Option(help="openai (anything like it), vllm, llamacpp, ollama, ...")] = "openai",
    model: Annotated[
        list[str] | None, typer.Option(help="Name served: `name`, `*`, `pre-*`, `alias=upstream`. May be repeated.")
    ] = None,
    tier: Annotated[Tier, typer.Option(help="local, or remote: used when no local one can answer.")] = Tier.LOCAL,
    capacity: Annotated[float | None, typer.Option(help="Relative strength.")] = None,
    weight: Annotated[float | None, typer.Option(help="Load of one request with the strategy `weighted`.")] = None,
    max_concurrent: Annotated[str | None, typer.Option(help="Requests at a time, or auto.")] = None,
    window_tokens: Annotated[str | None, typer.Option(help="Prompt tokens not begun, auto, or none.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Variable of the gateway that holds its key.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="A label, as rack=7. May be repeated.")] = None,
    client: Client,
    as_json: AsJson = False,
) -> None:
    """Register an instance; it is used at once, and again after a restart of the gateway."""
    client.refuse_itself(address)
    given: dict[str, object] = {"id": name, "address": address, "engine": engine, "models": model or None}
    given |= {"tier": tier.value, "capacity": capacity, "weight": weight, "api_key_env": api_key_env}
    given |= {"max_concurrent": _count(max_concurrent), "metadata": dict(_label(text) for text in metadata or ())}
    body = {field: value for field, value in given.items() if value is not None}
    if window_tokens is not None:
        body["window_tokens"] = _count(window_tokens)
    _added(client.post("/instances", body), as_json=as_json)


def _added(answer: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        _print(answer)
        return
    entry = _entry(answer)
    print(f"added {entry.get('id')}: {entry.get('engine')}, {entry.get('address') or 'built in'}, {_models(entry)}")
    _warn(answer)


def _warn(answer: Mapping[str, object]) -> None:
    for warning in _texts(answer.get("warnings")):
        print(f"warning: {warning}")


@instances.command("remove")
@grouped
def remove_instances(which: Ids, *, client: Client) -> None:
    """Remove instances: what runs there ends there, what waits goes elsewhere."""
    for name in which:
        answer = client.delete(instance_path(name))
        print(f"removed {name}")
        _warn(answer)


@instances.command("drain")
@grouped
def drain_instances(which: Ids, *, client: Client) -> None:
    """Send nothing new to instances; what runs there ends."""
    for name in which:
        answer = client.post(instance_path(name, "drain"))
        print(f"{name} gets nothing new; {_entry(answer).get('in_flight')} requests are running there")
        _warn(answer)


@instances.command("undrain")
@grouped
def undrain_instances(which: Ids, *, client: Client) -> None:
    """Send to instances again."""
    for name in which:
        answer = client.post(instance_path(name, "undrain"))
        print(f"{name} is used again")
        _warn(answer)


@instances.command("reset")
@grouped
def reset_breakers(which: Ids, *, client: Client) -> None:
    """Close the circuit breakers of instances and end their cooldown."""
    _work_breakers("reset", which, client)


@instances.command("trip")
@grouped
def trip_breakers(which: Ids, *, client: Client) -> None:
    """Open the circuit breakers of instances: nothing is sent there until a probe finds them well."""
    _work_breakers("trip", which, client)


def _work_breakers(how: str, which: Sequence[str], client: AdminClient) -> None:
    for name in which:
        answer = client.post(instance_path(name, how).replace("/instances/", "/circuit-breakers/", 1))
        wait = answer.get("breaker_opens_in_seconds")
        more = f" for {wait:.0f} s" if isinstance(wait, int | float) and wait > 0 else ""
        print(f"the breaker of {name} is {answer.get('breaker')}{more}")
        _warn(answer)


# ------------------------------------------------------------------------------------------------------ what is shown


def instances_table(found: Sequence[Mapping[str, object]]) -> Table:
    """One row for each instance."""
    from headrace.cli.tables import plain_table

    table = plain_table(*COLUMNS)
    for entry in found:
        table.add_row(
            str(entry.get("id")),
            str(entry.get("engine")),
            str(entry.get("address") or "(built in)"),
            _models(entry),
            str(entry.get("tier")),
            state_of(entry),
            f"{entry.get('in_flight')} of {entry.get('limit')}",
            _number(entry.get("speed_tokens_per_second"), "tok/s"),
            _number(entry.get("reliability"), ""),
            str(entry.get("source")),
        )
    return table


def details_table(entry: Mapping[str, object]) -> Table:
    """One row for each thing known of an instance."""
    from headrace.cli.tables import plain_table

    table = plain_table("field", "value")
    for field, value in entry.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(value, dict):
            shown = ", ".join(f"{name}={text}" for name, text in value.items())
        table.add_row(field, "-" if shown is None or shown == "" else str(shown))
    return table


def state_of(entry: Mapping[str, object]) -> str:
    """How an instance is doing, in a word or two."""
    if entry.get("draining"):
        return "draining"
    if not entry.get("healthy"):
        return "down"
    if entry.get("breaker") != "closed":
        return f"breaker {str(entry.get('breaker')).replace('_', '-')}"
    gate = entry.get("gate")
    return "up" if gate == "open" else f"up, {gate}"


def _models(entry: Mapping[str, object]) -> str:
    return ", ".join(_texts(entry.get("models")))


def _number(value: object, unit: str) -> str:
    return f"{value:g} {unit}".rstrip() if isinstance(value, int | float) else "-"


def _entry(answer: Mapping[str, object]) -> Mapping[str, object]:
    entry = answer.get("instance")
    if not isinstance(entry, dict):
        raise Refused("the gateway's answer is not understood; is it of another version?")
    return entry


def _entries(value: object) -> list[Mapping[str, object]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else []


def _count(text: str | None) -> int | str | None:
    """A number as one; any other text as it is, for the gateway to judge."""
    if text is None or text == "none":
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else text


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Refused(f"'{text}' is no label; write it as rack=7")
    return name, value


def _show(table: Table) -> None:
    from headrace.cli.tables import show

    show(table)


def _print(answer: Mapping[str, object]) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=False))
