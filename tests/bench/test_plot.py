"""The picture: written for whatever a run came to, or refused with a sentence before it begins."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headrace.bench.patterns import PRESETS, read_users
from headrace.bench.plot import Undrawable, check, draw
from headrace.bench.report import report
from headrace.bench.run import Alone, Plan, Run
from headrace.testing import run_virtual
from tests.bench.world import Slots

needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is an extra")


@needs_matplotlib
@pytest.mark.parametrize("answers", [True, False], ids=["answered", "nobody answered"])
def test_a_run_is_drawn(tmp_path: Path, answers: bool) -> None:
    """Also one in which nobody got anything, and one with more users than colours."""

    async def main() -> bytes:
        users = (*PRESETS["flood"], *read_users(["more:rate=0.2,copies=9"]))
        asker, plan = Slots(4), Plan(users=users, model="m", duration=10, grace=0)
        asker.hang = not answers
        run = Run(plan, asker)
        window = await run.go()
        alone = Alone(0.1, 1.0) if answers else None
        draw(report(plan, run.tallies, window=window, url="u", started=0.0, alone=alone), tmp_path / "p.png")
        return (tmp_path / "p.png").read_bytes()

    assert run_virtual(main()).startswith(b"\x89PNG")


@needs_matplotlib
def test_an_unknown_ending_is_told_before_the_run(tmp_path: Path) -> None:
    """A picture that cannot be written is no reason to lose a run."""
    with pytest.raises(Undrawable, match=r"none of \.png, \.svg, \.pdf"):
        check(tmp_path / "p.gif")


def test_an_absent_library_is_told_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with the command."""
    monkeypatch.setattr("headrace.bench.plot.find_spec", lambda _: None)
    with pytest.raises(Undrawable, match=r"^pictures need matplotlib: \S+ -m pip install matplotlib$"):
        check(Path("p.png"))
