"""`headrace demo --scene failover`: an engine is killed under its streams and comes back, on virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from headrace.cli import Refused
from headrace.cli.demo import Scene, demo
from headrace.cli.failover.chronicle import Kind
from headrace.cli.failover.command import failover
from headrace.cli.failover.plot import draw
from headrace.cli.failover.scene import Story, play
from headrace.cli.failover.screen import ending, opening, progress
from headrace.cli.failover.stage import ENGINES, EVERYBODY, JSON_USER, USERS, Timetable
from headrace.testing import run_virtual
from tests.patience import GUARD

SETTLE = 0.002
"""Real seconds of silence on all sockets after which virtual time jumps."""


class Watched:
    """Keeps what the screen showed while it ran."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, story: Story) -> None:
        self.shown.append(printed(progress(story)))


def printed(*parts: RenderableType) -> str:
    """What a terminal without colours shows."""
    out = StringIO()
    Console(file=out, width=110, highlight=False).print(*parts)
    return out.getvalue()


@pytest.fixture(scope="module")
def watched() -> Watched:
    """What was shown."""
    return Watched()


@pytest.fixture(scope="module")
def story(watched: Watched) -> Story:
    """The scene as it is played."""
    return run_virtual(play(Timetable(), watched), settle=SETTLE)


def check(story: Story) -> None:
    """What the scene is there to show, whatever the order of things was."""
    totals = story.totals
    assert story.holds
    assert totals["wrong"] == 0
    assert totals["errors"] == totals["dead_letters"] == 1
    assert totals["resumed"] >= 2
    assert totals["probes"] >= 1
    assert totals["answered"] == totals["asked"] - 1
    assert totals["answered_since_back"] >= 2


def test_streams_go_on_elsewhere_and_nobody_else_notices(story: Story) -> None:
    """Each answer is whole but the one that could not go on, and that one's reader was told by an error."""
    check(story)
    assert story.seconds < 18.0
    assert all(turn.exact for user in USERS for turn in story.turns[user])
    (broken,) = (turn for turn in story.turns[JSON_USER] if not turn.exact)
    assert broken.told
    assert 0 < len(broken.read) < story.timetable.words


def test_the_words_of_a_resumed_answer_come_from_both_engines(story: Story) -> None:
    """First from the one that was killed, then from the other; the pause is short, and longer than any other's."""
    resumed = {note.request for note in story.chronicle.of(Kind.RESUMED)}
    (other,) = set(ENGINES) - {story.killed}
    gaps = dict[bool, float]()
    for turn in (turn for user in USERS for turn in story.turns[user]):
        gaps[turn.request in resumed] = max(turn.longest_gap, gaps.get(turn.request in resumed, 0.0))
        if turn.request in resumed:
            assert sorted(turn.engines, key=(story.killed, other).index) == turn.engines
            assert set(turn.engines) == {story.killed, other}
        else:
            assert len(set(turn.engines)) == 1
    assert gaps[False] < gaps[True] == story.longest_pause < 0.5


def test_the_breaker_opens_probes_and_closes(story: Story) -> None:
    """It opens at once, a probe fails at the dead engine unseen, one succeeds after the return, then all is well."""
    chronicle = story.chronicle
    states = [note.said for note in chronicle.of(Kind.BREAKER, engine=story.killed)]
    assert states == ["open", "half_open", "open", "half_open", "closed"]
    assert {note.engine for note in chronicle.of(Kind.BREAKER, Kind.DOWN, Kind.UP)} == {story.killed}
    (killed,), (started,) = list(chronicle.of(Kind.KILLED)), list(chronicle.of(Kind.STARTED))
    opened, *_, closed = [note.at for note in chronicle.of(Kind.BREAKER)]
    assert killed.at < opened < killed.at + 0.2
    assert started.at < closed == story.closed_at
    assert [one.user for one in chronicle.of(Kind.FAILED)] == [one.user for one in chronicle.of(Kind.RETRIED)]
    between = [one for one in chronicle.attempts.values() if one.engine == story.killed and opened < one.sent < closed]
    assert len(between) == len(list(chronicle.of(Kind.PROBE)))


def test_the_trace_is_the_notes_as_json(story: Story) -> None:
    """In order of time, each with its kind; every request that was sent has an end."""
    entries = json.loads(story.chronicle.text())
    assert [entry["t"] for entry in entries] == sorted(entry["t"] for entry in entries)
    assert {entry["kind"] for entry in entries} == set(Kind)
    sent = {entry["request_id"] for entry in entries if entry["kind"] == "sent"}
    assert {entry["request_id"] for entry in entries if entry["kind"] in ("answered", "ended")} == sent
    assert len(sent) == story.totals["asked"]


def test_the_screen_shows_it_as_it_goes_and_in_the_end(story: Story, watched: Watched) -> None:
    """While it runs: engines, answers by engine, the log. In the end the totals and what they mean."""
    assert "gpu-1" in watched.shown[0]
    gone = next(shown for shown in watched.shown if "gone" in shown)
    assert "is killed while it answers" in gone
    mixed = next(shown for shown in watched.shown if any("█" in line and "▒" in line for line in shown.splitlines()))
    assert "goes on at" in mixed
    assert all(user in mixed for user in EVERYBODY)
    assert len(opening_and(mixed)) <= 24
    text = " ".join(printed(opening(), progress(story, whole=True), ending(story)).split())
    assert "no word lost, none repeated" in text
    assert f"{story.killed} is in use again" in text
    assert "wanted JSON" in text


def opening_and(shown: str) -> list[str]:
    """The lines of a terminal while the scene runs."""
    return [*printed(opening()).splitlines(), *shown.splitlines()]


def test_a_wrong_word_is_seen(story: Story) -> None:
    """An answer in which one is missing or comes twice counts as wrong, and the scene does not hold."""
    user = USERS[0]
    turn, *others = story.turns[user]
    assert turn.answer is not None
    for text in (turn.expected.replace(" 7 ", " "), turn.expected.replace(" 7 ", " 7 7 ")):
        wrong = replace(turn, answer=replace(turn.answer, text=text))
        changed = replace(story, turns={**story.turns, user: [wrong, *others]})
        assert changed.totals["wrong"] == 1
        assert not changed.holds
        assert "1 answer was not" in printed(ending(changed))


def test_an_engine_that_does_not_come_back_is_said_so() -> None:
    """The scene ends in time, answers go on being whole, and it does not claim to hold."""
    story = run_virtual(play(Timetable(longest=5.0)), settle=SETTLE)
    assert story.away
    assert story.closed_at is None
    assert (story.totals["wrong"], story.totals["answered_since_back"]) == (0, 0)
    assert not story.holds
    assert "is not in use again" in printed(ending(story))


def test_the_picture_is_drawn(story: Story, tmp_path: Path) -> None:
    """A PNG of some size, where matplotlib is."""
    pytest.importorskip("matplotlib")
    draw(story, tmp_path / "scene.png")
    assert (tmp_path / "scene.png").read_bytes().startswith(b"\x89PNG")


def test_json_trace_and_exit_code_from_the_command(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object with the totals and 0, a trace where it is wanted; no picture in a wrong format, no trace nowhere."""

    def played(scene: Coroutine[object, object, Story]) -> Story:
        scene.close()
        return story

    monkeypatch.setattr("asyncio.run", played)
    trace = tmp_path / "trace.json"
    assert failover(None, trace, quiet=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["scene"], document["holds"], document["killed"]) == ("failover", True, story.killed)
    assert document["resumed"] == story.totals["resumed"]
    assert trace.read_text(encoding="utf-8") == story.chronicle.text()
    assert failover(None, None, quiet=False) == 0
    assert "goes on at" in capsys.readouterr().out
    with pytest.raises(Refused, match="ends in none of"):
        failover(tmp_path / "x.gif", None, quiet=True)
    with pytest.raises(Refused, match="cannot write"):
        failover(None, tmp_path / "nowhere" / "x.json", quiet=True)


def test_its_options_are_its_own() -> None:
    """A provider belongs to another scene; that is said before anything begins."""
    with pytest.raises(Refused, match="--provider belongs to --scene outage"):
        demo(scene=Scene.FAILOVER, provider="openai")


@pytest.mark.slow
def test_the_scene_as_it_is_played() -> None:
    """On the real clock it shows the same; on a busy machine it may take longer."""
    check(asyncio.run(play(Timetable(longest=GUARD))))
