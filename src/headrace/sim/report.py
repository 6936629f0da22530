"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.sim.scenario import Target
from headrace.sim.suite import Result, Verdict

_MOST_GROUPS = 6
FELT = ("asked", "answered", "failed", "wait_p50", "wait_p99", "ttft_p50", "ttft_p99", "tpot_p50")
"""Measures of a group."""
WHOLE = ("output_rate", "jain", "service_difference", "hit_rate", "utilisation", "engine_waiting_p99", "limit")
"""Measures of the whole."""
HEADS = {
    "wait_p50": "gateway wait p50",
    "wait_p99": "p99",
    "ttft_p50": "first token p50",
    "ttft_p99": "p99",
    "tpot_p50": "per token p50",
    "output_rate": "output tok/s",
    "service_difference": "service difference",
    "hit_rate": "cache hits",
    "engine_waiting_p99": "waiting in engine p99",
    "limit": "in-flight limit",
}
"""Measure -> heading, where they differ."""


def tables(results: Sequence[Result]) -> RenderableType:
    """All that is to be said about one scenario under several policies."""
    scenario = results[0].scenario
    seeds = len(results[0].seeds)
    title = Text(f"\n{scenario.name}  {scenario.title}", style="bold")
    title.append(f"   ({scenario.duration:g} s, {seeds} seed{'s' if seeds > 1 else ''}, medians)", style="dim")
    parts: list[RenderableType] = [title, felt(results), whole(results)]
    if scenario.targets:
        parts.append(targets(results))
    return Group(*parts)


def felt(results: Sequence[Result]) -> Table:
    """What each group of users felt, under each policy."""
    table = _table("users", "policy", *(HEADS.get(name, name) for name in FELT))
    groups = groups_of(results[0].metrics)
    for group in groups:
        for number, result in enumerate(results):
            cells = (shown(name, result.metrics.get(f"{name}[{group}]" if group else name)) for name in FELT)
            table.add_row(group or "all" if number == 0 else "", result.policy, *cells)
    return table


def whole(results: Sequence[Result]) -> Table:
    """Fairness and machines, under each policy."""
    table = _table("", "policy", *(HEADS.get(name, name) for name in WHOLE))
    for number, result in enumerate(results):
        cells = (shown(name, result.metrics.get(name)) for name in WHOLE)
        table.add_row("in all" if number == 0 else "", result.policy, *cells)
    return table


def targets(results: Sequence[Result]) -> Table:
    """Each target, and whether each policy meets it."""
    table = _table("target", "limit", *(result.policy for result in results))
    for number, target in enumerate(results[0].scenario.targets):
        verdicts = (result.verdicts[number] for result in results)
        table.add_row(target.name, limit(target), *(_judged(verdict) for verdict in verdicts))
    return table


def limit(target: Target) -> str:
    """A target's limit in words."""
    of = ""
    if target.of is not None:
        whom = f" without {', '.join(target.of.without)}" if target.of.without else ""
        where = f" in {target.of.instead.name}" if target.of.instead is not None else ""
        of = f" x {target.of.policy}{whom}{where}"
    return f"{target.sense.value} {target.limit:,g}{of}"


def shown(name: str, value: float | None) -> str:
    """A measure as people read it: times in s or ms, counts whole, parts with three digits."""
    if value is None or isnan(value):
        return "-"
    if name.startswith("tpot"):
        return f"{value * 1000:.0f} ms"
    if name.startswith(("wait", "ttft")):
        return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"
    return f"{value:.3f}" if abs(value) < 2 and value != int(value) else f"{value:,.0f}"


def _judged(verdict: Verdict) -> Text:
    value = verdict.value
    number = "-" if isnan(value) else f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
    return Text(f"{number} met", style="green") if verdict.ok else Text(f"{number} MISSED", style="bold red")


def groups_of(metrics: Mapping[str, float]) -> list[str]:
    """The groups worth a row each; [""] when there is only one."""
    found = [name[len("asked[") : -1] for name in metrics if name.startswith("asked[")]
    return (found if len(found) > 1 else [])[:_MOST_GROUPS] or [""]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right", no_wrap=True)
    return table
