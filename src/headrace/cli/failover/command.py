"""`headrace demo --scene failover`: play, show, write, draw."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

from headrace.cli.failover import plot as picture
from headrace.cli.failover.scene import Story, play
from headrace.cli.failover.screen import ending, opening, progress
from headrace.cli.failover.stage import Timetable
from headrace.cli.live import watched
from headrace.cli.logs import configure
from headrace.cli.written import refuse_undrawable, refuse_unwritable, writing


def failover(plot: Path | None, trace: Path | None, *, quiet: bool) -> int:
    """Play the scene; `quiet` prints one JSON object instead of a screen. Returns the exit code.

    Raises:
        Refused: the picture or the trace cannot be made or written.
    """
    refuse_undrawable(plot)
    refuse_unwritable(trace)
    configure("error", "console")
    acted = partial(play, Timetable())
    if quiet:
        story = asyncio.run(acted())
        print(json.dumps(document(story), separators=(",", ":")))
    else:
        story = watched(acted, opening(), progress, partial(progress, whole=True), ending)
    if trace is not None:
        with writing(trace):
            trace.write_text(story.chronicle.text(), encoding="utf-8")
    if plot is not None:
        with writing(plot):
            picture.draw(story, plot)
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
