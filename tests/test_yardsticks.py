"""Percentiles, Jain's index and max-min shares, against what they are defined to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.yardsticks import jain, max_min_shares, percentile

demands = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e6), min_size=1)


def test_jain_is_one_for_equal_and_one_in_n_for_one_taker() -> None:
    """The two ends of the index; with fewer than two, or with nothing, there is none."""
    assert jain([5, 5, 5]) == pytest.approx(1.0)
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([9]) is jain([]) is jain([0, 0]) is None
    assert jain([2, 1]) == jain([200, 100]) == 0.9


@given(st.lists(st.floats(0.0, 1e6), max_size=20))
def test_jain_is_between_one_nth_and_one(shares: list[float]) -> None:
    """1 for equal shares, 1/n when one has all; None where there is nothing to compare."""
    index = jain(shares)
    if index is None:
        assert len(shares) < 2 or not any(share * share for share in shares)
    else:
        assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9


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


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_smallest_value_with_enough_below(values: list[float], fraction: float) -> None:
    """Nearest rank: it is one of the values, and no smaller one would do."""
    ordered = sorted(values)
    found = percentile(ordered, fraction)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= fraction * len(ordered) - 1e-9
    assert sum(value < found for value in ordered) < fraction * len(ordered) + 1e-9
