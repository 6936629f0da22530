"""What an instance's streams tell about its speed."""

from __future__ import annotations

import pytest

from headrace.core.pace import Pace


def test_the_mean_of_a_window() -> None:
    """Seconds per token are the tokens' mean over all streams, interactive ones apart."""
    pace = Pace()
    pace.tick(0, 4, 1e-4, 100.0)
    pace.progressed(0.4, 10, protected=True)
    pace.progressed(0.8, 10, protected=False)

    closed = pace.tick(2, 4, 1e-4, 100.5)

    assert closed
    assert pace.tpot == pytest.approx(0.06)
    assert pace.tpot_protected == pytest.approx(0.04)


def test_a_silent_window_says_nothing() -> None:
    """Where no stream moved, the pace is unknown, not zero."""
    pace = Pace()
    pace.tick(0, 4, 1e-4, 100.0)
    pace.progressed(0.4, 10, protected=True)
    pace.tick(1, 4, 1e-4, 100.5)

    pace.tick(0, 4, 1e-4, 101.0)

    assert pace.tpot is None
    assert pace.base == pytest.approx(0.04)


def test_the_decode_cost_leaves_prefill_out() -> None:
    """Half of each step spent on prompts, four streams: a token costs an eighth of the step."""
    pace = Pace()
    pace.tick(0, 4, 1e-4, 100.0)
    pace.progressed(0.8, 10, protected=False)
    pace.prefilled(2500)

    pace.tick(4, 4, 1e-4, 100.5)

    assert pace.decode_seconds == pytest.approx(0.08 * 0.5 / 4)


@pytest.mark.parametrize(
    ("base", "target"),
    [(0.0, 0.05), (0.011, 0.05), (0.03, 0.12), (0.06, 0.15), (0.1, 0.2)],
    ids=["unknown", "fast", "slow", "very slow", "a laptop"],
)
def test_the_target_fits_the_machine(base: float, target: float) -> None:
    """A machine that is slow when idle is not held to a pace it cannot have."""
    pace = Pace()
    pace.base = base

    assert pace.target(0.05, 0.15) == pytest.approx(target)
