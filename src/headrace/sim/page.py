"""Results as one page that needs nothing else: tables and, where matplotlib is installed, the plots inside."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape

from headrace.sim.plots import draw
from headrace.sim.report import FELT, HEADS, WHOLE, groups_of, limit, shown
from headrace.sim.suite import Result

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; max-width: 1180px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 3rem } p.note { color: #6b7280 }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; font-size: 14px }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid #e5e7eb }
th { color: #6b7280; font-weight: 500 } td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left }
td.met { color: #00684d } td.missed { color: #b03a00; font-weight: 600 } img { max-width: 100% }
"""


def page(found: Sequence[Sequence[Result]]) -> str:
    """The page for several scenarios, each under several policies."""
    parts = [_section(results) for results in found]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>headrace simulate</title><style>{_STYLE}</style><h1>headrace simulate</h1>{''.join(parts)}</html>\n"
    )


def _section(results: Sequence[Result]) -> str:
    scenario = results[0].scenario
    picture = b64encode(draw(results)).decode()
    seeds = len(results[0].seeds)
    repeated = f"{seeds} seeds; medians. The picture shows the first" if seeds > 1 else "1 seed"
    note = f"{scenario.duration:g} virtual seconds, {repeated}."
    return (
        f"<h2>{escape(scenario.name)}: {escape(scenario.title)}</h2><p class=note>{note}</p>"
        f"{_felt(results)}{_whole(results)}{_targets(results)}"
        f'<img alt="{escape(scenario.name)}: waits, service, distributions, use" src="data:image/png;base64,{picture}">'
    )


def _felt(results: Sequence[Result]) -> str:
    rows: list[list[str]] = []
    for group in groups_of(results[0].metrics):
        for result in results:
            values = ((name, result.metrics.get(f"{name}[{group}]" if group else name)) for name in FELT)
            rows.append([group or "all", result.policy, *(shown(name, value) for name, value in values)])
    return _table(["users", "policy", *(HEADS.get(name, name) for name in FELT)], (map(_cell, row) for row in rows))


def _whole(results: Sequence[Result]) -> str:
    rows = ([("in all"), r.policy, *(shown(name, r.metrics.get(name)) for name in WHOLE)] for r in results)
    return _table(["", "policy", *(HEADS.get(name, name) for name in WHOLE)], (map(_cell, row) for row in rows))


def _targets(results: Sequence[Result]) -> str:
    if not results[0].verdicts:
        return ""
    rows: list[list[str]] = []
    for number, verdict in enumerate(results[0].verdicts):
        cells = [_cell(verdict.target.name), _cell(limit(verdict.target))]
        for result in results:
            one = result.verdicts[number]
            word = "met" if one.ok else "missed"
            cells.append(f"<td class={word}>{one.value:,.3f} {word}</td>")
        rows.append(cells)
    return _table(["target", "limit", *(result.policy for result in results)], rows)


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
