"""`docs/performance.md`: what was measured, put between the marks in it, and a picture. The rest is written by hand."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import OURS, STREAMS
from benchmarks.peers import TITLE
from benchmarks.report import Report
from headrace import __version__

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
PICTURE = PAGE.parent / "plots" / "performance.png"
_SHOWN = {
    "rps_1k": "requests/s, 1 KB",
    "rps_32k": "requests/s, 32 KB",
    "p50_us": "µs a request, 1 connection",
    "event_us": "CPU µs per event",
    f"kib_{STREAMS[-1]}": "KiB per open stream",
}
_MARKED = re.compile(r"(<!-- measured -->\n).*?(<!-- /measured -->)", re.DOTALL)


def write(reports: Sequence[Report], page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Put the reports between the page's marks, and draw the picture if others were measured, too."""
    parts = [f"Measured on {machine()}.\n"]
    for report in reports:
        notes = [*(f"* {note}" for note in report.notes), ""] if report.notes else []
        parts += [f"### {report.title}\n", markdown(report), *notes]
    text = page.read_text(encoding="utf-8")
    if not _MARKED.search(text):
        raise ValueError(f"{page} has no place for what was measured")
    inside = "\n".join(parts)
    page.write_text(_MARKED.sub(lambda found: f"{found[1]}{inside}{found[2]}", text), encoding="utf-8")
    beside = [report for report in reports if report.title.startswith(TITLE)]
    if beside:
        numbers = {name: value for report in beside for name, value in report.numbers.items()}
        draw(numbers, [row[0] for row in beside[0].rows], picture)


def markdown(report: Report) -> str:
    """The report's table."""
    lines = [report.columns, ["---", *["---:"] * (len(report.columns) - 1)], *report.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def machine() -> str:
    """What it was measured on, and when."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        found = re.search(r"model name\s*: (.*)", information.read_text())
        model = found[1] if found else model
    today = dt.datetime.now(dt.UTC).date()
    return (
        f"{today}: headrace {__version__}{' (compiled)' if compiled() else ''}, Python {platform.python_version()}, "
        f"{model} with {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    )


def compiled() -> bool:
    """Whether the deciding half runs as machine code."""
    from headrace.core import scheduler  # noqa: PLC0415 - where it was loaded from is what is asked

    return not str(scheduler.__file__).endswith(".py")


def draw(numbers: Mapping[str, float], names: Sequence[str], picture: Path) -> None:
    """What the gateways did, side by side. Without matplotlib nothing is drawn.

    A bar that would dwarf all others is cut; what it stands for is written beside it.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError:
        return
    colours = ["#2a6f97" if name.startswith(OURS) else "#c9d6df" for name in names]
    figure = Figure(figsize=(13, 0.8 + 0.32 * len(names)), layout="constrained")
    for axes, (value, title) in zip(figure.subplots(1, len(_SHOWN), sharey=True), _SHOWN.items(), strict=True):
        heights = [numbers.get(f"{name}_{value}", 0.0) for name in names]
        most = 2.2 * sorted(heights)[-2]
        bars = axes.barh(names, [min(height, most) for height in heights], color=colours)
        axes.bar_label(bars, [f"{height:,.0f}" if height else "" for height in heights], padding=3)
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.tick_params(left=False)
        axes.margins(x=0.25)
    axes.invert_yaxis()
    figure.savefig(picture, dpi=130)
