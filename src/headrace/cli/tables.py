"""How configurations are shown on a terminal: pure functions from values to tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from rich.console import Console, RenderableType
from rich.table import Table

from headrace.config import Config
from headrace.model import Instance

PAPER_WIDTH = 160
"""Columns where the output goes into a file or a pipe."""


def show(*parts: RenderableType) -> None:
    """Print tables and the like to standard output, without colour where that is no terminal."""
    terminal = Console(highlight=False)
    console = terminal if terminal.is_terminal else Console(highlight=False, width=PAPER_WIDTH)
    for part in parts:
        console.print(part)


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
    for name, field in type(section).model_fields.items():
        value: object = getattr(section, name)
        key = f"{path}.{name}" if path else name
        if key == "instances":
            continue
        # A section that need not be there is one setting: its keys have no defaults to be compared with.
        if isinstance(value, BaseModel) and field.get_default(call_default_factory=True) is not None:
            yield from _leaves(value, key)
        else:
            yield key, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_within(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_within, value)) or "none"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _within(value: object) -> str:
    """A value inside another one: what holds several is put in brackets."""
    text = _shown(value)
    return f"({text})" if isinstance(value, BaseModel | Mapping | list | tuple) else text
