"""The scene as a picture: above, how long each request waited for its first word; below, where the line stood."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.bench.plot import COLOURS
from headrace.cli.bench_tables import seconds
from headrace.cli.power_user.scene import Measured, Story
from headrace.cli.power_user.strategies import LIGHT, POWER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _FAINT = "#333333", "#e6e6e6"
_POWER, _LIGHT = COLOURS[1], COLOURS[0]
_GATEWAY, _ENGINE = "#9ecae1", "#de7065"
_FLOOR = 0.01
_MARKS = (0.01, 0.1, 1.0, 10.0)


def draw(story: Story, path: Path) -> None:
    """Write the picture; `bench.plot.check` says whether this can be. Raises OSError when it cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 6.2), layout="constrained", facecolor="white")
    rows = figure.subplots(2, len(story.measured), sharex=True, sharey="row", squeeze=False)
    for column, one in enumerate(story.measured):
        _waits(rows[0][column], one)
        _lines(rows[1][column], one)
        rows[1][column].set_xlabel("s", fontsize=9, color=_INK)
    rows[0][0].set_ylabel("wait for the first word", fontsize=9, color=_INK)
    rows[1][0].set_ylabel("requests waiting", fontsize=9, color=_INK)
    rows[0][0].set_xlim(0, max(one.seconds for one in story.measured))
    rows[1][0].set_ylim(bottom=0)
    for axes in rows.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.grid(visible=True, color=_FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
    _legend(rows[0][0], rows[1][0])
    figure.suptitle(
        f"{story.traffic.burst} long questions of one user at once, and two light users: one traffic, four strategies",
        x=0.01,
        ha="left",
        fontsize=12,
        color=_INK,
    )
    figure.savefig(path, dpi=150)


def _waits(axes: Axes, one: Measured) -> None:
    """Each request at the time it was asked."""
    _dots(axes, one, [POWER], _POWER, 16, "the power user")
    _dots(axes, one, LIGHT, _LIGHT, 40, "the light users")
    axes.set_yscale("log")
    axes.set_ylim(_FLOOR / 1.3, 20)
    axes.set_yticks(_MARKS, [f"{mark:g} s" if mark >= 1 else f"{mark * 1000:g} ms" for mark in _MARKS])
    light = f"light users: median {seconds(one.light.p50)}" if one.light is not None else ""
    axes.set_title(f"{one.strategy.name}\n{light}", loc="left", fontsize=10, color=_INK)


def _dots(axes: Axes, one: Measured, users: Sequence[str], colour: str, size: float, label: str) -> None:
    points = [point for user in users for point in one.waits[user]]
    times, waits = [at for at, _ in points], [max(_FLOOR, wait) for _, wait in points]
    axes.scatter(times, waits, s=size, color=colour, alpha=0.8, linewidths=0, label=label)


def _lines(axes: Axes, one: Measured) -> None:
    """What waits inside the engine, and on top of it what waits in the gateway."""
    times = [look.at for look in one.looks]
    engine, gateway = [look.in_engine for look in one.looks], [look.in_gateway for look in one.looks]
    axes.stackplot(
        times, engine, gateway, labels=("in the engine's own queue", "in the gateway"), colors=(_ENGINE, _GATEWAY)
    )


def _legend(waits: Axes, lines: Axes) -> None:
    waits.legend(loc="lower right", frameon=False, fontsize=9)
    lines.legend(loc="upper right", frameon=False, fontsize=9)
