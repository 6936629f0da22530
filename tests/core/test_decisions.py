"""The cost of a decision grows no faster than the logarithm of what waits."""

from __future__ import annotations

import pytest

from benchmarks.decisions import backlogged
from benchmarks.report import percentile


@pytest.mark.bench
def test_a_hundred_times_the_backlog_costs_a_few_times_the_time() -> None:
    """From 1,000 to 100,000 queued the logarithm grows by 1.7; cold memory adds to it, but nothing linear does."""
    few, many = (
        percentile([*arrive, *finish], 0.5)
        for arrive, finish in (backlogged(100, 1_000, 3_000), backlogged(10_000, 100_000, 3_000))
    )
    assert many <= 4.0 * few
