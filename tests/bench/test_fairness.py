"""Percentiles, Jain's index and max-min shares, against what they are defined to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.fairness import jain, jain_max_min, max_min_shares, percentile

demands = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e6), min_size=1)


def test_jain_is_one_for_equal_and_one_in_n_for_one_taker() -> None:
    """The two ends of the index; with fewer than two, or with nothing, there is none."""
    assert jain([5, 5, 5]) == pytest.approx(1.0)
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([9]) is jain([]) is jain([0, 0]) is None


def test_shares_fill_up_from_below() -> None:
    """Who wants little gets it; the rest is shared by the others equally."""
    assert max_min_shares({"a": 2, "b": 100, "c": float("inf")}, 20) == {"a": 2, "b": 9, "c": 9}


@given(demands, st.floats(0, 1e6))
def test_shares_are_max_min_fair(wanted: dict[str, float], total: float) -> None:
    """Nobody gets more than he wants, all is given away if enough is wanted, and the unsatisfied have the most."""
    shares = max_min_shares(wanted, total)
    given_away = sum(shares.values())
    assert given_away == pytest.approx(min(total, sum(wanted.values())))
    most = max(shares.values())
    for name, share in shares.items():
        assert share <= wanted[name]
        assert share == wanted[name] or share == pytest.approx(most)


def test_the_light_user_s_wait_shows_in_the_index_of_all() -> None:
    """Serving a light user half of what he wanted is seen, though he never could have got an equal share."""
    wanted = {"flood": float("inf"), "light": 10.0}
    assert jain_max_min({"flood": 90.0, "light": 10.0}, wanted) == pytest.approx(1.0)
    low = jain_max_min({"flood": 98.0, "light": 2.0}, wanted)
    assert low is not None
    assert low < 0.75


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_smallest_value_with_enough_below(values: list[float], fraction: float) -> None:
    """Nearest rank: it is one of the values, and no smaller one would do."""
    ordered = sorted(values)
    found = percentile(ordered, fraction)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= fraction * len(ordered) - 1e-9
    assert sum(value < found for value in ordered) < fraction * len(ordered) + 1e-9
