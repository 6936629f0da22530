"""`headrace demo --scene failover`: play, show, write, draw."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.live import Live

from headrace.bench.plot import Undrawable, check
from headrace.cli import Refused
from headrace.cli.failover import plot as picture
from headrace.cli.failover.scene import Story, play
from headrace.cli.failover.screen import ending, log, opening, progress
from headrace.cli.failover.stage import Timetable
from headrace.cli.logs import configure

WIDEST = 110
"""Columns beyond which lines are hard to follow with the eye."""


def failover(plot: Path | None, trace: Path | None, *, quiet: bool) -> int:
    """Play the scene; `quiet` prints one JSON object instead of a screen. Returns the exit code.

    Raises:
        Refused: the picture or the trace cannot be made or written.
    """
    if plot is not None:
        try:
            check(plot)
        except Undrawable as error:
            raise Refused(str(error)) from None
    configure("error", "console")
    story = _played(quiet=quiet)
    if quiet:
        print(json.dumps(document(story), separators=(",", ":")))
    if trace is not None:
        _write(trace, story)
    if plot is not None:
        try:
            picture.draw(story, plot)
        except OSError as error:
            raise Refused(f"cannot write {plot} ({error.strerror or error})") from error
        print(f"wrote {plot}", file=sys.stderr)
    return int(not story.holds)


def document(story: Story) -> dict[str, object]:
    """The result as JSON; times in seconds."""
    closed = story.closed_at
    return {
        "scene": "failover",
        "killed": story.killed,
        **story.totals,
        "longest_pause": round(story.longest_pause, 4),
        "breaker_closed_at": None if closed is None else round(closed, 4),
        "seconds": round(story.seconds, 4),
        "holds": story.holds,
    }


def _write(path: Path, story: Story) -> None:
    try:
        path.write_text(story.chronicle.text(), encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot write {path} ({error.strerror or error})") from error


def _played(*, quiet: bool) -> Story:
    timetable = Timetable()
    if quiet:
        return asyncio.run(play(timetable))
    terminal = Console(highlight=False)
    if not terminal.is_terminal:
        console = Console(highlight=False, width=WIDEST)
        console.print(opening(), "")
        story = asyncio.run(play(timetable))
        console.print(log(story), "", ending(story), sep="\n")
        return story
    console = Console(highlight=False, width=min(WIDEST, terminal.width))
    console.print(opening(), "")
    with Live(console=console, auto_refresh=False) as live:

        def show(now: Story) -> None:
            live.update(progress(now), refresh=True)

        story = asyncio.run(play(timetable, show))
        live.update(progress(story, whole=True), refresh=True)
    console.print("", ending(story), sep="\n")
    return story
