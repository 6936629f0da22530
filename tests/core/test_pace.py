"""What an instance's streams tell about its speed."""

from __future__ import annotations

import pytest

from headrace.core.pace import Pace


def test_the_mean_of_a_window() -> None:
    """Seconds per token are the tokens' mean over all streams, interactive ones apart."""
    pace = Pace()
    pace.close(0, 4, 1e-4, 100.0)
    pace.progressed(0.4, 10, protected=True)
    pace.progressed(0.8, 10, protected=False)

    pace.close(2, 4, 1e-4, 100.5)

    assert pace.tpot == pytest.approx(0.06)
    assert pace.tpot_protected == pytest.approx(0.04)


def test_a_silent_window_says_nothing() -> None:
    """Where no stream moved, the pace is unknown, not zero."""
    pace = Pace()
    pace.close(0, 4, 1e-4, 100.0)
    pace.progressed(0.4, 10, protected=True)
    pace.close(1, 4, 1e-4, 100.5)

    pace.close(0, 4, 1e-4, 101.0)

    assert pace.tpot is None
    assert pace.base == pytest.approx(0.04)


def test_the_decode_cost_leaves_prefill_out() -> None:
    """Half of the machine's time went to prompts: the other half is shared by the tokens made in it."""
    pace = Pace()
    pace.close(0, 4, 1e-4, 100.0)
    for window in range(1, 21):
        pace.progressed(10.0, 200, protected=False)
        pace.prompt_tokens += 2500
        pace.close(4, 4, 1e-4, 100.0 + 0.5 * window)

    assert pace.decode_seconds == pytest.approx(0.25 / 200)


def test_a_few_tokens_say_nothing_of_the_decode_cost() -> None:
    """Below two thousand tokens it stays unknown, and a lone stream on a large machine never counts."""
    pace = Pace()
    pace.close(0, 4, 1e-4, 100.0)
    pace.progressed(10.0, 200, protected=False)
    pace.close(4, 4, 1e-4, 100.5)
    few = pace.decode_seconds
    for window in range(2, 60):
        pace.progressed(0.5, 100, protected=False)
        pace.close(1, 256, 1e-4, 100.0 + 0.5 * window)

    assert (few, pace.decode_seconds) == (0.0, 0.0)


def test_slow_tokens_behind_prompts_are_no_crowd() -> None:
    """Where nearly all time goes to prompts, fewer streams would not be faster: slow tokens say nothing then."""
    busy, calm = Pace(), Pace()
    for window in range(1, 40):
        for pace, read in ((busy, 4950), (calm, 0)):
            pace.progressed(10.0, 100, protected=False)
            pace.prompt_tokens += read
            pace.close(4, 4, 1e-4, 100.0 + 0.5 * window)

    assert busy.crowded(0.05) == 0.0
    assert calm.crowded(0.05) == pytest.approx(2.0)


def test_time_that_went_to_prompts_is_no_slow_decoding() -> None:
    """Tokens take 100 ms; where half of it was reading, decoding took 50, and where nothing was read, all of it."""
    reading, calm, still = Pace(), Pace(), Pace()
    for window in range(1, 40):
        for pace, read in ((reading, 2500), (calm, 0)):
            pace.progressed(10.0, 100, protected=False)
            pace.prompt_tokens += read
            pace.close(4, 4, 1e-4, 100.0 + 0.5 * window)

    assert reading.decoding == pytest.approx(0.05, rel=0.01)
    assert calm.decoding == pytest.approx(0.1, rel=0.01)
    assert still.decoding == 0.0


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


def test_doubling_is_easy_up_to_a_quarter_of_the_target() -> None:
    """12 ms a token where 50 are borne: easy; 13 ms, or no token at all: not known to be."""
    fast, slower, silent = Pace(), Pace(), Pace()
    for pace, seconds in ((fast, 0.012), (slower, 0.013)):
        pace.close(0, 256, 1e-4, 100.0)
        pace.progressed(20 * seconds, 20, protected=True)
        pace.close(8, 256, 1e-4, 100.5)

    assert (fast.easy(0.05), slower.easy(0.05), silent.easy(0.05)) == (True, False, False)
