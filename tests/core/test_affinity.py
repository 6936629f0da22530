"""Which instance has read a prompt's beginning before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.affinity import PrefixIndex


def test_matches_the_longest_known_beginning() -> None:
    """A prompt that shares its first blocks matches exactly these."""
    index = PrefixIndex()
    index.add((1, 2, 3), 128)

    assert index.match((1, 2, 9, 3)) == 2
    assert index.match((7, 1)) == 0
    assert index.match((1, 2, 3, 4)) == 3


def test_the_tail_goes_before_the_head() -> None:
    """Under pressure a prompt loses its end first: what is left of it still matches."""
    index = PrefixIndex(tokens=4 * 128)
    index.add((1, 2, 3, 4), 128)

    index.add((9,), 128)

    assert index.match((1, 2, 3, 4)) == 3
    assert index.match((9,)) == 1


@given(st.lists(st.lists(st.integers(0, 50), max_size=12), max_size=60))
def test_never_holds_more_than_the_cache(prompts: list[list[int]]) -> None:
    """The index stays within the engine's cache, whatever is sent."""
    index = PrefixIndex(tokens=10 * 64)

    for prompt in prompts:
        index.add(tuple(dict.fromkeys(prompt)), 64)

        assert len(index) <= 10
