"""The notes that are told, each as a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.text import Text

from headrace.cli.failover.chronicle import Kind, Note
from headrace.cli.failover.scene import Story
from headrace.cli.failover.stage import ENGINES, JSON_USER
from headrace.model import BreakerState, Ending

STYLES = dict(zip(ENGINES, ("cyan", "yellow"), strict=True))
"""The colours of the engines."""
STATES = {BreakerState.CLOSED: "green", BreakerState.OPEN: "bold red", BreakerState.HALF_OPEN: "bold yellow"}

_BREAKER = {
    BreakerState.OPEN: "opens: it is not asked any more",
    BreakerState.HALF_OPEN: "is half open: one request may try",
    BreakerState.CLOSED: "closes: it gets a little first, then its share",
}


def told(story: Story) -> Iterator[tuple[Note, Text]]:
    """The notes worth a line, in their order; each begins with its second."""
    for note in story.chronicle.notes:
        sentence = _SENTENCES.get(note.kind)
        if sentence is not None:
            yield note, Text.assemble((f"{note.at:5.2f} s  ", "dim"), sentence(story, note))


def engine_name(name: str) -> Text:
    """An engine in its colour."""
    return Text(name, STYLES.get(name, ""))


def _killed(_: Story, note: Note) -> Text:
    return Text.assemble(engine_name(note.engine), (" is killed while it answers", "bold red"))


def _started(_: Story, note: Note) -> Text:
    return Text.assemble(engine_name(note.engine), (" is started again", "bold green"))


def _cut(story: Story, note: Note) -> Text:
    turn = next(turn for turn in story.turns[note.user] if turn.request == note.request)
    read = sum(at <= note.at for at in turn.read)
    return Text.assemble(f"{note.request}'s answer breaks off after {read} of {story.timetable.words} words")


def _resumed(_: Story, note: Note) -> Text:
    return Text.assemble(f"{note.request}'s answer ", ("goes on", "green"), " at ", engine_name(note.engine))


def _failed(_: Story, note: Note) -> Text:
    return Text.assemble(f"{note.request} does not reach ", engine_name(note.engine), f" ({note.said})")


def _retried(_: Story, note: Note) -> Text:
    return Text.assemble(f"{note.request} is sent to ", engine_name(note.engine), ", its user has not seen a thing")


def _probe(_: Story, note: Note) -> Text:
    return Text.assemble(f"{note.request} is the probe at ", engine_name(note.engine))


def _breaker(_: Story, note: Note) -> Text:
    state = BreakerState(note.said)
    return Text.assemble("the breaker of ", engine_name(note.engine), " ", (_BREAKER[state], STATES[state]))


def _down(_: Story, note: Note) -> Text:
    return Text.assemble("health checks say that ", engine_name(note.engine), " is down")


def _up(_: Story, note: Note) -> Text:
    return Text.assemble("a health check finds ", engine_name(note.engine), " again")


def _ended(_: Story, note: Note) -> Text:
    json = note.user == JSON_USER and note.said == Ending.STREAM_BROKEN
    told_so = f"{note.request} wanted JSON, which cannot go on elsewhere: " if json else f"{note.request} "
    return Text.assemble(told_so, ("ends with an error", "bold red"), f" ({note.said})")


def _dead_letter(_: Story, note: Note) -> Text:
    return Text(f"{note.request} is kept as a dead letter, to be replayed")


_SENTENCES: Mapping[Kind, Callable[[Story, Note], Text]] = {
    Kind.KILLED: _killed,
    Kind.STARTED: _started,
    Kind.CUT: _cut,
    Kind.RESUMED: _resumed,
    Kind.FAILED: _failed,
    Kind.RETRIED: _retried,
    Kind.PROBE: _probe,
    Kind.BREAKER: _breaker,
    Kind.DOWN: _down,
    Kind.UP: _up,
    Kind.ENDED: _ended,
    Kind.DEAD_LETTER: _dead_letter,
}
