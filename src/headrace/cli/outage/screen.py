"""The demo on a terminal: values in, rich text out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.outage.scene import FRIENDS, PERSISTENT, QUESTIONS, Story, Turn
from headrace.model import CacheResult

WIDEST = 100
"""Columns beyond which lines are hard to follow with the eye."""
_STYLES = dict(zip((*FRIENDS, PERSISTENT), ("cyan", "magenta", "blue", "yellow", "red"), strict=True))


def opening(model: str) -> RenderableType:
    """What is about to be seen."""
    title = Text.assemble(("Four users ask the same three questions, all at once.", "bold"), f" Model: {model}.")
    return Group(title, *(Text(f"  {number} {question}", "dim") for number, question in enumerate(QUESTIONS, 1)))


def first_act(turns: Sequence[Turn]) -> RenderableType:
    """Each answer with its user, and whether the model was called for it."""
    table = _table("gets", id=6, user=5, asks=4, gets=0, how=10, ms=4)
    for turn in turns:
        number = str(QUESTIONS.index(turn.question) + 1)
        table.add_row(turn.id, _user(turn.user), number, _answer(turn), _how(turn), f"{turn.took * 1000:.0f}")
    return table


def second_act(story: Story) -> RenderableType:
    """The outage, request by request."""
    title = Text.assemble(("The provider goes down, erin does not give up", "bold"), " (15 ms apart, no retries).")
    table = _table("because", id=6, user=5, is_told=18, because=0, ms=4)
    asked = {letter.request_id for letter in story.letters if letter.attempts}
    for turn in story.outage:
        because = Text("the provider was asked and said 503")
        if turn.id not in asked:
            because = Text("the breaker is open: nobody was asked", "dim")
        table.add_row(turn.id, _user(turn.user), _told(turn), because, f"{turn.took * 1000:.1f}")
    return Group(title, table)


def ending(story: Story) -> RenderableType:
    """Dead letters, totals, breaker."""
    title = Text.assemble(
        ("Nothing is lost: the dead letters", "bold"), ", each with its request, ready to be replayed."
    )
    table = _table("detail", id=6, user=5, reason=17, detail=0)
    for letter in story.letters:
        table.add_row(letter.request_id, _user(letter.user), Text(letter.reason, "yellow"), letter.detail)
    return Group(title, table, Text(), _totals(story))


def _totals(story: Story) -> RenderableType:
    figures = Table.grid(padding=(0, 2))
    names = [name for name in story.totals if name != "breaker"]
    style = "bold red" if story.opens_in else "bold green"
    figures.add_row(*(Text(str(story.totals[name]), "bold green") for name in names), Text(story.breaker.value, style))
    figures.add_row(*(Text(name.replace("_", " "), "dim") for name in names), Text("breaker", "dim"))
    again = f"The breaker lets one request through in {story.opens_in:.0f} s. " if story.opens_in else ""
    return Group(figures, Text(f"{again}All this took {story.seconds['total']:.2f} s.", "dim"))


def _answer(turn: Turn) -> Text:
    if turn.answer is None:
        return Text(str(turn.error), "red")
    return Text(" ".join(turn.answer.text.split()))


def _how(turn: Turn) -> Text:
    if turn.answer is None:
        return Text("failed", "red")
    match turn.answer.shared:
        case CacheResult.MISS:
            return Text("model call", "bold green")
        case CacheResult.JOINED:
            return Text("shared", "green")
        case CacheResult.HIT:
            return Text("from cache", "green")


def _told(turn: Turn) -> Text:
    if turn.error is None:
        return Text("answered", "green")
    return Text(f"{turn.error.fault.status} {turn.error.fault.code}", "red")


def _user(name: str) -> Text:
    return Text(name, _STYLES.get(name, ""))


def _table(wide: str, **widths: int) -> Table:
    """An empty table whose lines never wrap: columns of so many characters, and `wide`, which takes what they leave."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for name, width in widths.items():
        justify: JustifyMethod = "right" if name == "ms" else "left"
        style = "dim" if name in {"id", "ms"} else ""
        if name == wide:
            table.add_column(name, no_wrap=True, overflow="ellipsis", style=style, ratio=1)
        else:
            table.add_column(name.replace("_", " "), no_wrap=True, width=width, justify=justify, style=style)
    return table
