"""How configurations are shown on a terminal: pure functions from values to tables."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from headrace.config import Config
from headrace.model import Instance

PAPER_WIDTH = 160
"""Columns where the output goes into a file or a pipe."""


def show(*tables: Table) -> None:
    """Print tables to standard output, without colour where that is no terminal."""
    terminal = Console(highlight=False)
    console = terminal if terminal.is_terminal else Console(highlight=False, width=PAPER_WIDTH)
    for table in tables:
        console.print(table)


def plain_table(*columns: str, title: str | None = None) -> Table:
    """An empty table with headings and no box."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column not in ("models", "detail", "value"))
    return table


def model_names(instance: Instance) -> str:
    """The models an instance serves, as the configuration writes them."""
    return ", ".join(f"{m.name}={m.upstream}" if m.upstream else m.name for m in instance.models)


def instances_table(config: Config) -> Table:
    """One row for each engine; of a key only the name of its variable is shown."""
    table = plain_table("instance", "engine", "address", "models", "tier", "at once", "window", "key")
    for instance in config.model_instances():
        table.add_row(
            instance.id,
            instance.engine.value,
            instance.address or "(built in)",
            model_names(instance),
            instance.tier.value,
            str(instance.max_concurrent),
            "none" if instance.window_tokens is None else str(instance.window_tokens),
            instance.api_key_env or "none",
        )
    return table


def settings_table(config: Config) -> Table:
    """Every effective setting as a dotted key, except the instances; those that are not the default are marked."""
    table = plain_table("setting", "value", "")
    for (key, value), (_, default) in zip(_leaves(config, ""), _leaves(Config(), ""), strict=True):
        table.add_row(key, value, "" if value == default else f"default {default}")
    return table


def _leaves(section: BaseModel, path: str) -> Iterator[tuple[str, str]]:
    for name in type(section).model_fields:
        value: object = getattr(section, name)
        key = f"{path}.{name}" if path else name
        if key == "instances":
            continue
        if isinstance(value, BaseModel) and path != "limits":
            yield from _leaves(value, key)
        else:
            yield key, _shown(value)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return ", ".join(f"{key} {item}" for key, item in value.model_dump(exclude_none=True).items())
    if isinstance(value, dict):
        return ", ".join(f"{key} {item:g}" for key, item in value.items()) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
