"""Fairness as users feel it: against what each of them could have had."""

from __future__ import annotations

import pytest

from headrace.bench.fairness import jain_max_min


def test_the_light_user_s_wait_shows_in_the_index_of_all() -> None:
    """Serving a light user half of what he wanted is seen, though he never could have got an equal share."""
    wanted = {"flood": float("inf"), "light": 10.0}
    assert jain_max_min({"flood": 90.0, "light": 10.0}, wanted) == pytest.approx(1.0)
    low = jain_max_min({"flood": 98.0, "light": 2.0}, wanted)
    assert low is not None
    assert low < 0.75
