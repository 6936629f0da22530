"""`docs/performance.md`: what was measured, put between the marks in it, and a picture. The rest is written by hand."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Report
from headrace import __version__

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
PICTURE = PAGE.parent / "plots" / "performance.png"
_MARKED = re.compile(r"(<!-- measured -->\n).*?(<!-- /measured -->)", re.DOTALL)


def write(reports: Sequence[Report], page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Put the reports between the page's marks, and draw the picture if others were measured, too."""
    parts = [f"Measured on {machine()}.\n"]
    for report in reports:
        parts += [f"### {report.title}\n", markdown(report), *(f"* {note}" for note in report.notes), ""]
    text = page.read_text(encoding="utf-8")
    if not _MARKED.search(text):
        raise ValueError(f"{page} has no place for what was measured")
    inside = "\n".join(parts)
    page.write_text(_MARKED.sub(lambda found: f"{found[1]}{inside}{found[2]}", text), encoding="utf-8")
    for report in reports:
        if report.title == "Beside others" and report.rows:
            draw(report, picture)


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


def draw(report: Report, picture: Path) -> None:
    """Requests per second and memory of each gateway, side by side. Without matplotlib nothing is drawn."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError:
        return
    names = [row[0] for row in report.rows]
    shown = {"rps_1k": "requests/s, 1 KB", "rps_32k": "requests/s, 32 KB", "event_us": "CPU µs per event"}
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for axes, (value, title) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
        heights = [report.numbers.get(f"{name}_{value}", 0.0) for name in names]
        bars = axes.barh(names, heights, color=["#2a6f97" if name == "headrace" else "#c9d6df" for name in names])
        axes.bar_label(bars, fmt="{:,.0f}", padding=3)
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.invert_yaxis()
        axes.margins(x=0.2)
    figure.savefig(picture, dpi=130)
