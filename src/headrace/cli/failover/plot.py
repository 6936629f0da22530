"""The scene as a picture: above, each answer in the colour of the engine it came from; below, what each engine did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.bench.plot import COLOURS
from headrace.cli.failover.chronicle import Attempt, Kind
from headrace.cli.failover.scene import Story
from headrace.cli.failover.stage import ENGINES, EVERYBODY, JSON_USER, SLOTS
from headrace.model import BreakerState

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _FAINT = "#333333", "#e6e6e6"
_ENGINES = dict(zip(ENGINES, (COLOURS[0], COLOURS[4]), strict=True))
_STATES = {BreakerState.OPEN: "#f4c7c3", BreakerState.HALF_OPEN: "#fdeebf"}
_BAR = 0.62


def draw(story: Story, path: Path) -> None:
    """Write the picture; `bench.plot.check` says whether this can be. Raises OSError when it cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 6.4), layout="constrained", facecolor="white")
    answers, *lanes = figure.subplots(1 + len(ENGINES), 1, sharex=True, height_ratios=(3.2, 1, 1))
    _answers(answers, story)
    for name, lane in zip(ENGINES, lanes, strict=True):
        _lane(lane, story, name)
    for axes in (answers, *lanes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.grid(visible=True, axis="x", color=_FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        for note in story.chronicle.of(Kind.KILLED, Kind.STARTED):
            axes.axvline(note.at, color=_INK, linewidth=1.1, linestyle=(0, (4, 3)))
    for note in story.chronicle.of(Kind.KILLED, Kind.STARTED):
        told = f" {note.engine} is {'killed' if note.kind is Kind.KILLED else 'started again'}"
        answers.text(note.at, -0.75, told, fontsize=9, color=_INK, va="bottom")
    lanes[-1].set_xlabel("s", fontsize=9, color=_INK)
    lanes[-1].set_xlim(0, story.seconds)
    handles, names = answers.get_legend_handles_labels()
    more, states = lanes[-1].get_legend_handles_labels()
    figure.legend(handles + more, names + states, loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    figure.suptitle(_title(story), x=0.01, ha="left", fontsize=12, color=_INK)
    figure.savefig(path, dpi=150)


def _title(story: Story) -> str:
    totals = story.totals
    return (
        f"One of two engines is killed: {totals['answered']} of {totals['asked']} answers are whole, "
        f"{totals['resumed']} of them from both engines"
    )


def _answers(axes: Axes, story: Story) -> None:
    """A bar for each attempt at the answers of each user."""
    for name, colour in _ENGINES.items():
        mine = [one for one in story.chronicle.attempts.values() if one.engine == name]
        label = f"answered by {name}"
        for user in EVERYBODY:
            bars = [_bar(one, story.seconds) for one in mine if one.user == user]
            row = EVERYBODY.index(user) - _BAR / 2
            axes.broken_barh(bars, (row, _BAR), color=colour, edgecolor="white", linewidth=0.8, label=label)
            label = "_"
    for kind, marker, colour, size, label in (
        (Kind.RESUMED, "o", "white", 34, "goes on elsewhere"),
        (Kind.RETRIED, "^", "#009E73", 46, "answered elsewhere, unseen"),
        (Kind.ENDED, "X", "#c0392b", 80, "ends with an error"),
    ):
        notes = list(story.chronicle.of(kind))
        rows = [EVERYBODY.index(note.user) for note in notes]
        at = [note.at for note in notes]
        axes.scatter(
            at, rows, marker=marker, s=size, color=colour, edgecolors=_INK, linewidths=0.8, label=label, zorder=3
        )
    names = [f"{user} (JSON)" if user == JSON_USER else user for user in EVERYBODY]
    axes.set_yticks(range(len(EVERYBODY)), names)
    axes.set_ylim(len(EVERYBODY) - 0.4, -0.9)


def _bar(one: Attempt, until: float) -> tuple[float, float]:
    """Where an attempt begins, and how long it took."""
    return one.sent, (until if one.ended is None else one.ended) - one.sent


def _lane(axes: Axes, story: Story, name: str) -> None:
    """Answers under way at an engine, over the states of its breaker."""
    looks = story.chronicle.looks[name]
    ends = [*(look.at for look in looks[1:]), story.seconds]
    axes.stairs([look.in_flight for look in looks], [looks[0].at, *ends], fill=True, color=_ENGINES[name])
    for state, colour in _STATES.items():
        axes.bar(0, 0, color=colour, label=f"breaker {state.value.replace('_', ' ')}")
    for look, end in zip(looks, ends, strict=True):
        if look.breaker in _STATES:
            axes.axvspan(look.at, end, color=_STATES[look.breaker], linewidth=0, zorder=0)
    axes.set_ylim(0, SLOTS)
    axes.set_ylabel(f"{name}\nanswers\nunder way", fontsize=9, color=_INK)
