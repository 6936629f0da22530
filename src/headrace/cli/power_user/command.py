"""`headrace demo --scene power-user`: play, show, draw."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from headrace.bench.plot import Undrawable, check
from headrace.bench.report import Spread
from headrace.cli import Refused
from headrace.cli.logs import configure
from headrace.cli.power_user import plot as picture
from headrace.cli.power_user.scene import Measured, Story, play
from headrace.cli.power_user.screen import ending, opening, progress, results
from headrace.cli.power_user.strategies import Traffic

WIDEST = 110
"""Columns beyond which lines are hard to follow with the eye."""


def power_user(plot: Path | None, *, quiet: bool, traffic: Traffic | None = None) -> int:
    """Play the scene; `quiet` prints one JSON object instead of tables. Returns the exit code.

    Raises:
        Refused: the picture cannot be drawn or written.
    """
    if plot is not None:
        try:
            check(plot)
        except Undrawable as error:
            raise Refused(str(error)) from None
    configure("error", "console")
    story = _played(traffic or Traffic(), quiet=quiet)
    if quiet:
        print(json.dumps(document(story), separators=(",", ":")))
    if plot is not None:
        try:
            picture.draw(story, plot)
        except OSError as error:
            raise Refused(f"cannot write {plot} ({error.strerror or error})") from error
        print(f"wrote {plot}", file=sys.stderr)
    return int(not story.holds)


def document(story: Story) -> dict[str, object]:
    """The result as JSON: times in seconds, throughput in answer tokens per second."""
    return {
        "scene": "power-user",
        "burst": story.traffic.burst,
        "alone_ttft": round(story.alone.first, 4),
        "failed": story.failed,
        "holds": story.holds,
        "strategies": [_entry(one) for one in story.measured],
    }


def _entry(one: Measured) -> dict[str, object]:
    return {
        "strategy": one.strategy.name,
        "where": one.strategy.where,
        "light": _waits(one.light),
        "power": _waits(one.power),
        "engine_longest_queue": one.longest_queue,
        "output_tokens_per_second": round(one.throughput, 1),
        "seconds": round(one.seconds, 2),
        "asked": one.asked,
        "answered": one.answered,
    }


def _waits(values: Spread | None) -> dict[str, float] | None:
    if values is None:
        return None
    found = {"ttft_p50": values.p50, "ttft_p99": values.p99, "ttft_mean": values.mean}
    return {"requests": values.count, **{name: round(value, 4) for name, value in found.items()}}


def _played(traffic: Traffic, *, quiet: bool) -> Story:
    if quiet:
        return asyncio.run(play(traffic))
    terminal = Console(highlight=False)
    if not terminal.is_terminal:
        console = Console(highlight=False, width=WIDEST)
        console.print(opening(traffic), "")
        story = asyncio.run(play(traffic))
        console.print(results(story.measured), "", ending(story), sep="\n")
        return story
    console = Console(highlight=False, width=min(WIDEST, terminal.width))
    console.print(opening(traffic), "")
    with Live(console=console, auto_refresh=False) as live:

        def show(measured: Sequence[Measured]) -> None:
            live.update(progress(measured), refresh=True)

        story = asyncio.run(play(traffic, show))
    console.print("", ending(story), sep="\n")
    return story
