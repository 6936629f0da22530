"""A run as a picture: who waited when, how the waits are spread, and who got how much service."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.bench.report import Report, UserReport
from headrace.bench.tally import BINS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")
"""Endings of names that can be written."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#882255")
"""Told apart by colour-blind people too (Okabe, Ito 2008; Tol)."""
_REST = "#999999"
_INK = "#333333"
_FLOOR = 0.001


class Undrawable(Exception):
    """There will be no picture; the message is one sentence that says why, or what to install."""


def check(path: Path) -> None:
    """Find out before a run whether it can be drawn there; raises Undrawable."""
    if find_spec("matplotlib") is None:
        raise Undrawable(f"pictures need matplotlib: {sys.executable} -m pip install matplotlib")
    if path.suffix.lower() not in FORMATS:
        raise Undrawable(f"{path} ends in none of {', '.join(FORMATS)}")


def draw(report: Report, path: Path) -> None:
    """Write the picture; `check` says whether this can be. Raises OSError when it cannot be written."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to load

    figure = Figure(figsize=(13.5, 4.6), layout="constrained", facecolor="white")
    over_time, spread, service = figure.subplots(1, 3)
    users = _coloured(report.users)
    _waits_over_time(over_time, users, report)
    _waits_spread(spread, users, report)
    _service(service, users, report)
    for axes in (over_time, spread, service):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
    lines, names = service.get_legend_handles_labels()
    known = dict(zip(names, lines, strict=True))
    figure.legend(
        known.values(), known, loc="outside lower center", ncols=min(len(known), 9), frameon=False, fontsize=9
    )
    figure.suptitle(_title(report), x=0.01, ha="left", fontsize=11, color=_INK)
    figure.savefig(path, dpi=150)


def _title(report: Report) -> str:
    text = f"{report.model} at {report.url}, {report.window:.0f} s"
    if report.jain_max_min is not None:
        text += f"   fairness (Jain, against max-min shares) {report.jain_max_min:.3f}"
    return text


def _coloured(users: Sequence[UserReport]) -> list[tuple[UserReport, str]]:
    """Each user with a colour, the same in every run; where there are too many, those who got least are grey."""
    most = sorted(users, key=lambda user: -user.service)[: len(COLOURS)]
    colours = iter(COLOURS)
    return [(user, next(colours) if user in most else _REST) for user in users]


def _duration(value: float, _: object = None) -> str:
    return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"


def _waits_over_time(axes: Axes, users: Sequence[tuple[UserReport, str]], report: Report) -> None:
    for user, colour in users:
        if user.waits:
            when, waits = zip(*user.waits, strict=True)
            size = 9 if len(when) > 100 else 22
            axes.scatter(when, [max(_FLOOR, wait) for wait in waits], s=size, color=colour, alpha=0.75, linewidths=0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_duration)
    axes.set_xlim(0, report.duration)
    _mark_alone(axes, report, horizontal=True)
    _labels(axes, "Each request's wait for its first token", "asked after, s", "wait")


def _waits_spread(axes: Axes, users: Sequence[tuple[UserReport, str]], report: Report) -> None:
    for user, colour in users:
        waits = sorted(max(_FLOOR, wait) for _, wait in user.waits)
        # Those that never began stay above the curve: it then ends below 100 %.
        lost = user.ttft.count - len(waits) if user.ttft is not None and user.ttft.floor is not None else 0
        if waits:
            heights = [100 * (place + 1) / (len(waits) + lost) for place in range(len(waits))]
            axes.step([waits[0], *waits], [0.0, *heights], where="post", color=colour, linewidth=1.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_duration)
    axes.set_ylim(0, 101)
    _mark_alone(axes, report, horizontal=False)
    _labels(axes, "Requests that waited at most so long", "wait for the first token", "% of the user's requests")


def _service(axes: Axes, users: Sequence[tuple[UserReport, str]], report: Report) -> None:
    steps = [report.duration * (place + 1) / BINS for place in range(BINS)]
    inside = sum(step <= report.window + report.duration / BINS for step in steps)
    for user, colour in users:
        curve = list(accumulate(user.curve))[:inside]
        label = "others" if colour == _REST else user.name
        axes.plot([0.0, *steps[:inside]], [0.0, *curve], color=colour, linewidth=1.8, label=label)
    axes.set_xlim(0, report.duration)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _labels(axes, "Service received", "after, s", "tokens (those of answers twice)")


def _mark_alone(axes: Axes, report: Report, *, horizontal: bool) -> None:
    """A line at the wait of a request that had the endpoint for itself."""
    if report.alone is None:
        return
    line = axes.axhline if horizontal else axes.axvline
    line(max(_FLOOR, report.alone.first), color=_INK, linewidth=0.9, linestyle=(0, (4, 3)))
    if horizontal:
        axes.annotate(
            "alone",
            (1.0, max(_FLOOR, report.alone.first)),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=_INK,
        )


def _labels(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    axes.set_xlabel(across, fontsize=9, color=_INK)
    axes.set_ylabel(up, fontsize=9, color=_INK)
