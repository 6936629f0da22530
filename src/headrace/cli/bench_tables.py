"""How a run of `headrace bench` is shown on a terminal: pure functions from values to tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from headrace.bench.report import Report, Spread, UserReport, spread
from headrace.bench.run import Run
from headrace.bench.tally import Tally
from headrace.cli.tables import plain_table

_Columns = list[tuple[str, str, tuple[str, ...]]]
"""Heading, field of a user's report, percentiles."""

NOTHING = "-"
SHOWN_LIVE = 20
"""Rows of the table while it runs; the final ones have all users."""
SHOWN_ERRORS = 3
WIDE = 96
"""Columns of a terminal from which all waits fit into one table."""
BAR = 12
"""Columns of a share of 100 %."""


def live_table(run: Run) -> Table:
    """How it stands: one row for each user."""
    plan, now = run.plan, run.now
    left = max(0.0, plan.duration - now)
    state = f"{left:.0f} s to go" if left else "waiting for what is under way"
    columns = ("sent", "served", "failed", "running", "TTFT p50", "p95", "tokens/s", "share", "")
    table = _table(f"{plan.model}: {state}. Ctrl-C ends it.", "user", *columns)
    table.columns[-1].justify = "left"
    total = sum(tally.service for tally in run.tallies.values())
    for user in plan.users[:SHOWN_LIVE]:
        tally = run.tallies[user.name]
        waits = spread(tally.samples.first)
        share = tally.service / total if total else 0.0
        table.add_row(
            user.name,
            str(tally.asked),
            str(tally.served),
            str(_failed(tally)),
            str(tally.running),
            seconds(waits.p50 if waits else None),
            seconds(waits.p95 if waits else None),
            f"{tally.output_tokens / max(0.001, min(now, tally.window)):.1f}",
            f"{share:.0%}",
            "█" * round(BAR * share),
        )
    if len(plan.users) > SHOWN_LIVE:
        table.caption = f"and {len(plan.users) - SHOWN_LIVE} more users"
    return table


def waits_tables(report: Report, width: int) -> Iterator[Table]:
    """What users felt: one table, or two where so many columns are too many for the terminal."""
    begin: _Columns = [("TTFT", "ttft", ("p50", "p95", "p99")), ("TPOT", "tpot", ("p50", "p99"))]
    end: _Columns = [("whole", "whole", ("p50", "p99"))]
    if any(user.queued is not None for user in report.users):
        end.append(("queue", "queued", ("p50", "p99")))
    parts = [("Waits", begin + end)] if width >= WIDE else [("Waits for tokens", begin), ("Waits in all", end)]
    for title, columns in parts:
        headings = (at if place else f"{name} {at}" for name, _, values in columns for place, at in enumerate(values))
        table = _table(title, "user", *headings)
        for user in report.users:
            found = {"ttft": user.ttft, "tpot": user.tpot, "whole": user.whole, "queued": user.queued}
            table.add_row(user.name, *(text for _, field, values in columns for text in _at(found[field], *values)))
        yield table


def service_table(report: Report) -> Table:
    """What users got."""
    columns = ("sent", "served", "failed", "open", "req/s", "tokens/s", "service", "share", "backlog")
    table = _table("Service", "user", *columns)
    for user in report.users:
        mark = "~" if user.estimated else ""
        table.add_row(
            user.name,
            str(user.asked),
            str(user.served),
            str(sum(user.errors.values())),
            str(user.unfinished) + (f"+{user.held}" if user.held else ""),
            f"{user.requests_per_second:.2f}",
            f"{mark}{user.output_tokens_per_second:.1f}",
            f"{mark}{user.service:.0f}",
            f"{user.share:.0%}",
            f"{user.backlogged:.0%}",
        )
    return table


def patterns(users: Sequence[UserReport]) -> Iterator[str]:
    """Who did what."""
    width = max(len(user.name) for user in users)
    for user in users:
        yield f"  {user.name:<{width}}  {user.pattern}"


def verdict(report: Report) -> Iterator[str]:
    """The run in a few sentences."""
    if report.interrupted:
        yield f"Ended early, after {report.window:.1f} of {report.duration:g} s."
    for user in report.users:
        if user.errors:
            yield f"{user.name} failed {sum(user.errors.values())} times: {_errors(user.errors)}."
    if any(user.estimated for user in report.users):
        yield "~ The endpoint reports no usage: tokens are chunks, prompts are words."
    yield from _comparison(report)
    yield from _fairness(report)


def seconds(value: float | None) -> str:
    """A duration for people: 830 µs, 12 ms, 1.3 s, 95 s."""
    if value is None:
        return NOTHING
    if value < 0.001:
        return f"{value * 1e6:.0f} µs" if value else "0 s"
    if value < 1:
        return f"{value * 1000:.3g} ms" if value < 0.1 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def _comparison(report: Report) -> Iterator[str]:
    """The heaviest user's waits beside those of the others, and beside an empty endpoint."""
    if report.alone is not None:
        yield f"A request alone had its first token after {seconds(report.alone.first)}."
    waiting = [user for user in report.users if user.ttft is not None]
    if len(waiting) < 2:
        return
    heavy = max(waiting, key=lambda user: user.service)
    others = sorted((user for user in waiting if user is not heavy), key=lambda user: user.ttft.p50 if user.ttft else 0)
    least, most = _at(others[0].ttft, "p50")[0], _at(others[-1].ttft, "p50")[0]
    span = least if least == most else f"{least} to {most}"
    yield f"{heavy.name}, who got most, waited {_at(heavy.ttft, 'p50')[0]} (median); the others {span}."


def _fairness(report: Report) -> Iterator[str]:
    hungry = sum(user.wanted_more for user in report.users)
    if report.jain is not None:
        yield f"Jain's index over the {hungry} users that wanted more than they got: {report.jain:.3f}."
    elif hungry == 0:
        yield "Nobody wanted more than they got, so this says nothing about fairness: ask for more at once."
    if report.jain_max_min is not None:
        yield f"Jain's index of service against max-min fair shares, all users: {report.jain_max_min:.3f} (1 is fair)."


def _errors(errors: Mapping[str, int]) -> str:
    shown = [f"{name} {count}x" for name, count in list(errors.items())[:SHOWN_ERRORS]]
    more = len(errors) - SHOWN_ERRORS
    return ", ".join(shown) + (f" and {more} other kinds" if more > 0 else "")


def _failed(tally: Tally) -> int:
    return sum(tally.results.values()) - tally.served - tally.results["unfinished"]


def _at(values: Spread | None, *names: str) -> list[str]:
    """The named percentiles; those that are only lower bounds are marked so."""
    if values is None:
        return [NOTHING] * len(names)
    found = {"p50": values.p50, "p95": values.p95, "p99": values.p99}
    bound = values.floor
    return [("≥" if bound is not None and found[name] >= bound else "") + seconds(found[name]) for name in names]


def _table(title: str, first: str, *numbers: str) -> Table:
    """A table whose columns are right-aligned but the first."""
    table = plain_table(first, *numbers, title=title)
    table.padding = (0, 1, 0, 0)
    for column in table.columns[1:]:
        column.justify = "right"
    return table
