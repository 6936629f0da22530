"""What is played while it is watched: as it goes on a terminal, at its end on paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.cli.live import watched


async def _play(told: Callable[[int], None] | None) -> str:
    """Tells how it stands twice, if anybody listens."""
    if told is not None:
        told(1)
        told(2)
    return "story"


def _shown() -> str:
    return watched(
        _play,
        "opening",
        lambda now: f"now {now}",
        lambda story: f"all of the {story}",
        lambda story: f"so ends the {story}",
    )


def test_on_paper_only_the_end_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A file gets what is about to come, all of it, and what it means."""
    assert _shown() == "story"
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown == ["opening", "", "all of the story", "", "so ends the story"]


def test_on_a_terminal_it_is_followed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state is shown when it is told, and all of it stays in the end."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert _shown() == "story"
    out = capsys.readouterr().out
    places = [out.index(text) for text in ("opening", "now 1", "now 2", "all of the story", "so ends the story")]
    assert places == sorted(places)
