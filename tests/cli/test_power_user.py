"""`headrace demo --scene power-user`: four strategies before a real engine's queue, on virtual time."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from headrace.bench.report import Spread
from headrace.cli import Refused
from headrace.cli.demo import Scene, demo
from headrace.cli.power_user.command import power_user
from headrace.cli.power_user.plot import draw
from headrace.cli.power_user.scene import Measured, Story, play
from headrace.cli.power_user.screen import ending, opening, progress, results
from headrace.cli.power_user.strategies import (
    ENGINE,
    FIFO,
    FORWARDED,
    HELD,
    LIGHT,
    POWER,
    PRIORITY,
    STRATEGIES,
    Strategy,
    Traffic,
)
from headrace.testing import run_virtual

SMALL = Traffic(burst=28, apart=0.7, seconds=5.0)
SETTLE = 0.002
"""Real seconds of silence on all sockets after which virtual time jumps."""


class Watched:
    """Keeps what was shown while it ran."""

    def __init__(self) -> None:
        self.shown: list[list[Measured]] = []

    def __call__(self, measured: Sequence[Measured]) -> None:
        self.shown.append(list(measured))


@pytest.fixture(scope="module")
def watched() -> Watched:
    """What the story's progress showed."""
    return Watched()


@pytest.fixture(scope="module")
def story(watched: Watched) -> Story:
    """The scene with less traffic than usual."""
    return run_virtual(play(SMALL, watched), settle=SETTLE)


def light(story: Story, strategy: Strategy) -> Spread:
    """What the light users waited for."""
    waits = story.of(strategy).light
    assert waits is not None
    return waits


def test_only_backpressure_and_priorities_help_the_light_users(story: Story) -> None:
    """Under FIFO they wait for the burst; a fair queue that forwards all changes nothing; holding it back does, and so
    does an engine that lets them overtake."""
    fifo = light(story, FIFO).p50
    assert light(story, FORWARDED).p50 == pytest.approx(fifo, rel=0.05)
    assert light(story, HELD).p50 < fifo / 4
    assert light(story, HELD).p99 < light(story, FIFO).p99 / 2
    assert light(story, PRIORITY).p50 < fifo / 4


def test_the_line_forms_in_the_engine_unless_it_is_held_back(story: Story) -> None:
    """With backpressure hardly anything waits inside the engine, and then it waits in the gateway; else all of it."""
    held = story.of(HELD)
    assert held.longest_queue <= 3
    assert max(look.in_gateway for look in held.looks) >= SMALL.burst - ENGINE["slots"] - 4
    for strategy in (FIFO, FORWARDED, PRIORITY):
        one = story.of(strategy)
        assert one.longest_queue >= SMALL.burst - ENGINE["slots"]
        assert max(look.in_gateway for look in one.looks) == 0


def test_the_traffic_is_the_same_and_everybody_is_answered(story: Story) -> None:
    """Each strategy gets the same requests at the same times, and the engine does about as much work in a second."""
    for user in (POWER, *LIGHT):
        first, *others = [sorted(due for due, _ in one.waits[user]) for one in story.measured]
        assert all(other == pytest.approx(first) for other in others)
    assert story.failed == 0
    assert all(one.answered == one.asked > SMALL.burst for one in story.measured)
    fifo = story.of(FIFO).throughput
    assert all(one.throughput > 0.85 * fifo for one in story.measured)
    assert story.alone.first < light(story, HELD).p50
    assert story.holds


def test_the_screen_shows_it_as_it_goes_and_in_the_end(story: Story, watched: Watched) -> None:
    """While it runs: the lines of the moment, and what is to come. In the end a row for each, and what it means."""
    out = StringIO()
    console = Console(file=out, width=110, highlight=False)
    middle = next(shown for shown in watched.shown if len(shown) == 3 and shown[-1].looks[-1:] and shown[-1].answered)
    console.print(opening(SMALL), progress(middle))
    assert "in the gateway" in out.getvalue()
    assert all(strategy.name in out.getvalue() for strategy in STRATEGIES)
    out.truncate(0)
    console.print(results(story.measured), ending(story))
    text = " ".join(out.getvalue().split())
    assert "times less" in text
    assert "useless alone if" in text
    assert text.count(HELD.name) == 2


def test_a_run_that_shows_nothing_says_so(story: Story) -> None:
    """If backpressure did not help, or somebody was not answered, that is what the screen says and the story knows."""
    fifo = story.of(FIFO)
    useless = Measured(**{name: getattr(fifo, name) for name in Measured.__slots__} | {"strategy": HELD})
    failed = Measured(**{name: getattr(fifo, name) for name in Measured.__slots__} | {"answered": fifo.asked - 2})
    for wrong, words in ((useless, "helped less than it should"), (failed, "2 requests were not answered")):
        others = tuple(one for one in story.measured if one.strategy is not wrong.strategy)
        changed = Story(story.alone, story.traffic, (*others, wrong))
        out = StringIO()
        Console(file=out, width=110).print(ending(changed))
        assert not changed.holds
        assert words in out.getvalue()


def test_the_picture_is_drawn(story: Story, tmp_path: Path) -> None:
    """A PNG of some size, where matplotlib is."""
    pytest.importorskip("matplotlib")
    draw(story, tmp_path / "scene.png")
    assert (tmp_path / "scene.png").read_bytes().startswith(b"\x89PNG")


def test_json_and_exit_code_from_the_command(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object with an entry for each strategy, 0 when it shows what it should, and no picture in a wrong format."""

    def played(scene: Coroutine[object, object, Story]) -> Story:
        scene.close()
        return story

    monkeypatch.setattr("asyncio.run", played)
    assert power_user(None, quiet=True, traffic=SMALL) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["scene"], printed["failed"]) == ("power-user", 0)
    assert [entry["strategy"] for entry in printed["strategies"]] == [strategy.name for strategy in STRATEGIES]
    assert printed["strategies"][0]["light"]["ttft_p50"] > 2 * printed["strategies"][2]["light"]["ttft_p50"]
    assert power_user(None, quiet=False, traffic=SMALL) == 0
    assert FIFO.name in capsys.readouterr().out
    with pytest.raises(Refused, match="ends in none of"):
        power_user(tmp_path / "x.gif", quiet=True)


def test_scenes_and_the_options_that_belong_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    """`list` names the scenes; an option of another scene is refused before anything begins."""
    demo(scene=Scene.LIST)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["outage", "power-user", "failover"]
    with pytest.raises(Refused, match="--trace belongs to --scene outage or failover"):
        demo(scene=Scene.POWER_USER, trace=Path("x.json"))
    with pytest.raises(Refused, match="--plot belongs to --scene power-user or failover"):
        demo(plot=Path("x.png"))


@pytest.mark.slow
def test_the_scene_as_it_is_played() -> None:
    """With all its traffic it takes under a minute, and light users wait ten times less with backpressure."""
    story = run_virtual(play(Traffic()), settle=SETTLE)
    assert sum(one.seconds for one in story.measured) < 55
    assert light(story, HELD).p50 < light(story, FIFO).p50 / 10
    assert light(story, PRIORITY).p50 < light(story, FIFO).p50 / 10
