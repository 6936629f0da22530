"""The scene on a terminal: values in, rich text out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.bench_tables import seconds
from headrace.cli.failover.chronicle import Kind, Look
from headrace.cli.failover.log import STATES, STYLES, engine_name, told
from headrace.cli.failover.scene import Story, Turn
from headrace.cli.failover.stage import ENGINES, EVERYBODY, JSON_USER, SLOTS
from headrace.cli.tables import plain_table

LINES = 8
"""The log's last lines that are shown while it goes on."""
_CELLS = dict(zip(ENGINES, "█▒", strict=True))
"""A word of the engine: told apart without colours too."""


def opening() -> RenderableType:
    """What is about to be seen."""
    title = (
        f"{len(EVERYBODY)} users stream answers from two engines; one engine is killed in the middle and comes back."
    )
    rest = (
        f"Live, about 13 s. Each cell is a word, in the colour of the engine it came from; {JSON_USER} asks for JSON."
    )
    return Group(Text(title, "bold"), Text(rest, "dim"))


def progress(story: Story, *, whole: bool = False) -> RenderableType:
    """How it stands: engines, answers, and the end of the log, or the whole of it."""
    lines = [line for _, line in told(story)]
    if not whole:
        lines = lines[-LINES:] + [Text()] * (LINES - len(lines))
    return Group(_engines(story), Text(), _answers(story), Text(), *lines)


def ending(story: Story) -> RenderableType:
    """The totals and what they mean."""
    totals = story.totals
    figures = Table.grid(padding=(0, 2))
    figures.add_row(
        *(Text(str(value), "bold red" if name == "wrong" and value else "bold green") for name, value in totals.items())
    )
    figures.add_row(*(Text(name.replace("_", " "), "dim") for name in totals))
    return Group(figures, Text(), *_sentences(story))


def _engines(story: Story) -> Table:
    table = plain_table(f"{story.seconds:4.1f} s", "process", "health checks", "breaker", "answers under way")
    for column, width in zip(table.columns, (6, 7, 13, 9, SLOTS), strict=True):
        column.min_width = width
    for name in ENGINES:
        look = story.chronicle.looks[name][-1]
        gone = story.away and story.killed == name
        table.add_row(
            engine_name(name),
            Text("gone", "bold red") if gone else Text("runs", "green"),
            Text("up", "green") if look.healthy else Text("down", "bold red"),
            _breaker(look),
            Text("●" * look.in_flight, STYLES[name]) + Text("·" * max(0, SLOTS - look.in_flight), "dim"),
        )
    return table


def _breaker(look: Look) -> Text:
    return Text(look.breaker.value.replace("_", " "), STATES[look.breaker])


def _answers(story: Story) -> Table:
    table = plain_table("user", "answer", "whole", "went on", "retried", "broken")
    table.columns[1].min_width = story.timetable.words
    for column in table.columns[2:]:
        column.justify = "right"
    resumed, retried = ({note.request for note in story.chronicle.of(kind)} for kind in (Kind.RESUMED, Kind.RETRIED))
    for user in EVERYBODY:
        turns = story.turns[user]
        went_on = sum(turn.request in resumed for turn in turns)
        again = sum(turn.request in retried - resumed for turn in turns)
        broken = sum(turn.ended is not None and not turn.exact for turn in turns)
        table.add_row(
            user,
            _cells(turns[-1], story.timetable.words) if turns else Text(),
            str(sum(turn.exact for turn in turns)),
            Text(str(went_on or ""), "bold green"),
            Text(str(again or ""), "green"),
            Text(str(broken or ""), "bold red"),
        )
    return table


def _cells(turn: Turn, words: int) -> Text:
    """The words that were read of an answer, each in its engine's colour."""
    text = Text(no_wrap=True)
    for engine, of_it in groupby(turn.engines):
        text.append(_CELLS.get(engine, "?") * len(list(of_it)), STYLES.get(engine, ""))
    missing = words - len(turn.engines)
    if turn.ended is not None and not turn.exact:
        return text.append("✗", "bold red").append("·" * (missing - 1), "dim")
    return text.append("·" * missing, "dim")


def _sentences(story: Story) -> Iterator[Text]:
    totals, killed = story.totals, story.killed
    if totals["wrong"]:
        were = "was" if totals["wrong"] == 1 else "were"
        yield Text(f"{_answered(totals['wrong'])} {were} not complete and correct.", "bold red")
    yield Text.assemble(
        (f"{_answered(totals['resumed'])} that had begun went on at the other engine", "bold"),
        f", no word lost, none repeated; longest pause: {seconds(story.longest_pause)}.",
    )
    yield Text.assemble(
        (f"{_answered(totals['retried'])} that nobody had read from", "bold"),
        " came from the other engine at once: nobody saw anything of it.",
    )
    yield Text.assemble(
        (f"{_answered(totals['errors'])} ended with an error", "bold"),
        f" for {JSON_USER}, whose JSON has to come in one piece. Its request is a dead letter.",
    )
    closed = story.closed_at
    if closed is None or not totals["answered_since_back"]:
        yield Text(
            f"{killed or 'The engine'} is not in use again: was its port taken, or this machine busy?", "bold red"
        )
    else:
        down = closed - next(note.at for note in story.chronicle.of(Kind.KILLED))
        yield Text.assemble(
            (f"{killed} is in use again", "bold"),
            f" {down:.1f} s after it was killed; it has answered {totals['answered_since_back']} since.",
        )


def _answered(number: int) -> str:
    return f"{number} answer" if number == 1 else f"{number} answers"
