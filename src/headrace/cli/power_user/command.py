"""`headrace demo --scene power-user`: play, show, draw."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

from headrace.bench.report import Spread
from headrace.cli.live import watched
from headrace.cli.logs import configure
from headrace.cli.power_user import plot as picture
from headrace.cli.power_user.scene import Measured, Story, play
from headrace.cli.power_user.screen import ending, opening, progress, results
from headrace.cli.power_user.strategies import Traffic
from headrace.cli.written import refuse_undrawable, writing


def power_user(plot: Path | None, *, quiet: bool, traffic: Traffic | None = None) -> int:
    """Play the scene; `quiet` prints one JSON object instead of tables. Returns the exit code.

    Raises:
        Refused: the picture cannot be drawn or written.
    """
    refuse_undrawable(plot)
    configure("error", "console")
    traffic = traffic or Traffic()
    acted = partial(play, traffic)
    if quiet:
        story = asyncio.run(acted())
        print(json.dumps(document(story), separators=(",", ":")))
    else:
        story = watched(acted, opening(traffic), progress, lambda story: results(story.measured), ending)
    if plot is not None:
        with writing(plot):
            picture.draw(story, plot)
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
