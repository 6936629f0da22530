"""The scene on a terminal: values in, rich tables and sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.bench.report import Spread
from headrace.cli.bench_tables import seconds
from headrace.cli.power_user.scene import Measured, Story
from headrace.cli.power_user.strategies import ENGINE, FIFO, FORWARDED, HELD, PRIORITY, STRATEGIES, Traffic
from headrace.cli.tables import plain_table

_LINE = 24
"""Columns of the line of waiting requests."""
_GOOD, _BAD = 1.5, 4.0
"""Median waits in seconds, from which on one is not good any more, and bad."""


def opening(traffic: Traffic) -> RenderableType:
    """What is about to be seen."""
    title = f"A power user asks {traffic.burst} long questions at once; two light users ask a short one now and then."
    rest = f"One engine answers {ENGINE['slots']} at a time. The same traffic under four strategies, live: about 45 s."
    return Group(Text(title, "bold"), Text(rest, "dim"))


def progress(measured: Sequence[Measured]) -> RenderableType:
    """How it stands: what is over, what is under way with its lines, and what is still to come."""
    table = results(measured)
    for strategy in STRATEGIES[len(measured) :]:
        table.add_row(Text(strategy.name, "dim"), Text(strategy.where, "dim"))
    now = measured[-1]
    return table if now.ended or not now.looks else Group(table, Text(), _lines(now))


def results(measured: Sequence[Measured]) -> Table:
    """One row for each strategy: what users felt, and what it cost."""
    table = plain_table(
        "\nstrategy", "\nwhere", "light\np50", "users'\np99", "power\np50", "user's\np99", "engine\nqueue", "tokens\n/s"
    )
    table.columns[0].no_wrap = False
    for column in table.columns[2:]:
        column.justify = "right"
    for one in measured:
        table.add_row(
            Text(one.strategy.name, "bold" if one.ended else "bold yellow"),
            one.strategy.where,
            _wait(one.light, "p50"),
            _wait(one.light, "p99"),
            *(seconds(getattr(one.power, name, None)) for name in ("p50", "p99")),
            str(one.longest_queue),
            f"{one.throughput:.0f}",
        )
    return table


def ending(story: Story) -> RenderableType:
    """What the numbers mean, and the strategies beside each other in words."""
    table = plain_table("strategy", "where", "main benefit", "limit")
    for column in table.columns:
        column.no_wrap = column.header == "where"
    for strategy in STRATEGIES:
        table.add_row(Text(strategy.name, "bold"), strategy.where, strategy.benefit, Text(strategy.limit, "dim"))
    return Group(_legend(story), Text(), *_sentences(story), Text(), table)


def _legend(story: Story) -> Text:
    light = story.of(FIFO).light
    return Text(
        "p50, p99: waits for the first word; of the light users' "
        f"{light.count if light is not None else 0} requests the p99 is the slowest. Alone they wait "
        f"{seconds(story.alone.first)}. engine queue: the most requests that ever waited inside the engine.",
        "dim",
    )


def _sentences(story: Story) -> Iterator[Text]:
    if story.failed:
        yield Text(f"{story.failed} requests were not answered.", "bold red")
    fifo, forwarded, held, priority = (story.of(one) for one in (FIFO, FORWARDED, HELD, PRIORITY))
    yield Text.assemble(
        ("Fairness alone changes nothing", "bold"),
        f" while everything is sent on at once: light users wait {_median(forwarded)} (FIFO: {_median(fifo)}), ",
        f"because the line of {forwarded.longest_queue} forms inside the engine.",
    )
    yield Text.assemble(
        ("With backpressure", "bold"),
        f" the line forms where it can be ordered: light users wait {_median(held)}, {_times(fifo, held)}; ",
        f"the last answer ends {_last(fifo, held)}.",
    )
    yield Text.assemble(
        ("With priorities in the engine", "bold"),
        f" light users wait {_median(priority)}, but {priority.longest_queue} requests pile up in it, ",
        "and whoever claims to be urgent is believed.",
    )
    if not story.failed and not story.holds:
        yield Text("Backpressure helped less than it should: was this machine busy with something else?", "bold red")


def _lines(now: Measured) -> Text:
    """Where requests stand at this moment."""
    look = now.looks[-1]
    slots = ENGINE["slots"]
    return Text.assemble(
        (f"{look.at:4.1f} s  ", "dim"),
        f"in the gateway {look.in_gateway:>3} ",
        (_bar(look.in_gateway), "cyan"),
        f" waiting in the engine {look.in_engine:>3} ",
        (_bar(look.in_engine), "red"),
        " slots ",
        ("●" * look.running, "green"),
        ("·" * max(0, slots - look.running), "dim"),
        f"  {now.answered} answered",
    )


def _bar(length: int) -> str:
    return "█" * min(_LINE, -(-length // 2))


def _wait(values: Spread | None, name: str) -> Text:
    value: float | None = getattr(values, name, None)
    if value is None:
        return Text(seconds(None))
    return Text(seconds(value), "green" if value < _GOOD else "yellow" if value < _BAD else "red")


def _median(one: Measured) -> str:
    return seconds(one.light.p50 if one.light is not None else None)


def _times(before: Measured, after: Measured) -> str:
    if before.light is None or after.light is None or not after.light.p50:
        return "which cannot be compared"
    ratio = before.light.p50 / after.light.p50
    return f"{ratio:.0f} times less" if ratio >= 2 else f"{ratio:.1f} times less"


def _last(before: Measured, after: Measured) -> str:
    later = after.seconds - before.seconds
    return f"{seconds(abs(later))} {'later' if later > 0 else 'earlier'}"
