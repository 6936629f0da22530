"""A run as a picture: waits over time, service received, first tokens and paces, use of the machines.

One column for each policy where time runs, one panel for all policies where they are compared. Colours are Okabe and
Ito's, which most colour-blind people can tell apart; groups and policies take different ones, and policies also
differ in their dashes. The first seed of each result is drawn.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.sim.measures import first_token, per_token, weighted
from headrace.sim.record import Record, Visit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from headrace.sim.suite import Result

GROUP_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
POLICY_COLOURS = ("#111827", "#E69F00", "#56B4E9", "#B45C8D")
POLICY_DASHES = ("-", "-", (0, (4, 1.5)), (0, (1.5, 1.5)))
_QUIET = "#6b7280"
_MOST_USERS = 12
_MOST_POLICIES = 4
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": "#374151",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


def require_matplotlib() -> None:
    """Raises ConfigError with what to do when matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError(f"pictures need matplotlib: {sys.executable} -m pip install matplotlib") from None


def draw(results: Sequence[Result]) -> bytes:
    """One scenario under up to four policies, as PNG.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    results = results[:_MOST_POLICIES]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(max(10.5, 3.6 * len(results)), 10), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        _fill(figure, results)
        out = io.BytesIO()
        figure.savefig(out, format="png")
    return out.getvalue()


def _fill(figure: Figure, results: Sequence[Result]) -> None:
    scenario = results[0].scenario
    figure.suptitle(f"{scenario.name}: {scenario.title}", x=0.01, ha="left", fontsize=13, fontweight="bold")
    halves = figure.subfigures(2, 1, squeeze=False, height_ratios=(2, 1))
    over_time, compared = halves[0, 0], halves[1, 0]
    rows = over_time.subplots(2, len(results), sharex=True, sharey="row", squeeze=False)
    colours = _colours(results[0].records[0])
    for column, result in enumerate(results):
        record = result.records[0]
        _waits(rows[0][column], record, colours)
        rows[0][column].set_title(result.policy)
        _services(rows[1][column], record, colours)
        rows[1][column].set_xlabel("time (s)")
    rows[0][0].set_ylabel("first token after (s)")
    rows[1][0].set_ylabel("service received by each user\n(1,000 weighted tokens)")
    _legend(over_time, colours)
    panels = compared.subplots(1, 3)
    _spread(panels[0], results, "first token after (s)", _firsts)
    _spread(panels[1], results, "time per output token (ms)", _paces)
    _use(panels[2], results)


def _legend(figure: SubFigure, colours: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    def mark(colour: str, label: str, shape: str, *, filled: bool) -> Line2D:
        face = colour if filled else "none"
        return Line2D([], [], linestyle="", marker=shape, color=colour, markerfacecolor=face, markersize=6, label=label)

    marks = [mark(colour, group, "o", filled=True) for group, colour in colours.items()]
    marks.append(mark(_QUIET, "no token until the end", "^", filled=False))
    figure.legend(handles=marks, loc="outside upper right", ncols=len(marks), handletextpad=0.1, columnspacing=1.2)


def _colours(record: Record) -> dict[str, str]:
    """A colour for each group, the largest first."""
    groups: dict[str, int] = {}
    for visit in record.visits:
        groups[visit.group] = groups.get(visit.group, 0) + 1
    order = sorted(groups, key=lambda group: -groups[group])
    return {group: GROUP_COLOURS[place % len(GROUP_COLOURS)] for place, group in enumerate(order)}


def _waits(axes: Axes, record: Record, colours: Mapping[str, str]) -> None:
    """Each request at its arrival; those that had no token until the end are drawn as open triangles."""
    end = record.scenario.duration
    for layer, (group, colour) in enumerate(colours.items()):
        visits = [visit for visit in record.visits if visit.group == group]
        served = [visit for visit in visits if visit.first is not None]
        never = [visit for visit in visits if visit.first is None]
        size = 26 if len(visits) < 100 else 9
        axes.scatter(
            [visit.arrived for visit in served],
            [max(0.01, first_token(visit, end)) for visit in served],
            s=size,
            color=colour,
            alpha=0.9 if len(visits) < 100 else 0.5,
            linewidths=0,
            zorder=2 + layer,
        )
        axes.scatter(
            [visit.arrived for visit in never],
            [max(0.01, first_token(visit, end)) for visit in never],
            s=size,
            marker="^",
            facecolors="none",
            edgecolors=colour,
            linewidths=0.7,
            alpha=0.6,
            zorder=2 + layer,
        )
    axes.set_yscale("log")
    axes.set_xlim(-0.02 * end, 1.01 * end)
    _seconds(axes)


def _seconds(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _services(axes: Axes, record: Record, colours: Mapping[str, str]) -> None:
    """Each user's service so far: users with a backlog should run in parallel."""
    ledgers = sorted(record.users.values(), key=lambda ledger: -sum(weighted(ledger)))
    for ledger in ledgers[:_MOST_USERS]:
        service = [value / 1000 for value in accumulate(weighted(ledger))][: int(record.scenario.duration)]
        axes.plot(service, color=colours.get(ledger.group, _QUIET), linewidth=1.4, alpha=0.85)
    if len(ledgers) > _MOST_USERS:
        note = f"the {_MOST_USERS} with most of {len(ledgers)} users"
        axes.text(0.02, 0.93, note, transform=axes.transAxes, color=_QUIET)


def _firsts(record: Record, group: str) -> list[float]:
    end = record.scenario.duration
    return [max(0.01, first_token(visit, end)) for visit in _of(record, group)]


def _paces(record: Record, group: str) -> list[float]:
    return [pace * 1000 for visit in _of(record, group) if (pace := per_token(visit)) is not None]


def _of(record: Record, group: str) -> list[Visit]:
    return record.groups.get(group, [])


def _watched(record: Record) -> str:
    """The group whose fate matters most: the one that asks least of a machine in all."""
    asked: dict[str, int] = {}
    for visit in record.visits:
        asked[visit.group] = asked.get(visit.group, 0) + visit.prompt + visit.output
    return min(asked, key=lambda group: asked[group])


def _spread(axes: Axes, results: Sequence[Result], label: str, values: Callable[[Record, str], list[float]]) -> None:
    """The part of the requests of the watched group that were at least so fast."""
    group = _watched(results[0].records[0])
    for number, result in enumerate(results):
        found = sorted(values(result.records[0], group))
        if found:
            parts = [(place + 1) / len(found) for place in range(len(found))]
            colour, dashes = POLICY_COLOURS[number], POLICY_DASHES[number]
            axes.step(found, parts, where="post", color=colour, linestyle=dashes, linewidth=1.8, label=result.policy)
    axes.set_title(f"requests of '{group}'" if len(_colours(results[0].records[0])) > 1 else "requests")
    axes.set_xlabel(label)
    axes.set_ylabel("part that was as fast")
    axes.set_ylim(0, 1.02)
    if "first" in label:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_xlim(left=0)
    # In a short run there may be nothing to compare yet.
    if len(results) > 1 and axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=8)


def _use(axes: Axes, results: Sequence[Result]) -> None:
    """How much of each machine's full-batch rate was used."""
    start = int(results[0].scenario.warm_up)
    seconds = results[0].scenario.duration - start
    names = list(results[0].records[0].instances)
    height = min(0.8 / len(results), 0.18 * len(names))
    for number, result in enumerate(results):
        used = [100 * sum(result.records[0].instances[name].work[start:]) / seconds for name in names]
        places = [place + (number - (len(results) - 1) / 2) * height for place in range(len(names))]
        bars = axes.barh(places, used, height=height * 0.85, color=POLICY_COLOURS[number])
        axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=7, color=_QUIET)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.set_title("use of the machines")
    axes.set_xlabel("% of the rate of a full batch")
    axes.grid(visible=False, axis="y")
