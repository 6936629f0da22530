"""What each of several gateways may use of an instance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.parts import part, part_of
from headrace.model import Instance


@given(total=st.integers(1, 10_000), gateways=st.integers(1, 64))
def test_parts_are_the_whole(total: int, gateways: int) -> None:
    """Together the gateways have what was granted, and no two differ by more than one; nobody has nothing."""
    parts = [part_of(total, number, gateways) for number in range(gateways)]
    assert sum(parts) == max(total, gateways)
    assert max(parts) - min(parts) <= 1


@given(places=st.integers(1, 300), window=st.none() | st.integers(1, 10_000), gateways=st.integers(1, 9))
def test_an_instance_is_split(places: int, window: int | None, gateways: int) -> None:
    """Its places and its window; no window stays none, and nothing else changes. The only gateway has all of it."""
    whole = Instance(id="a", max_concurrent=places, window_tokens=window, adaptive=True)
    parts = [part(whole, number, gateways) for number in range(gateways)]
    assert sum(each.max_concurrent for each in parts) == max(places, gateways)
    if window is None:
        assert {each.window_tokens for each in parts} == {None}
    else:
        assert sum(each.window_tokens or 0 for each in parts) == max(window, gateways)
    assert {(each.id, each.adaptive) for each in parts} == {("a", True)}
    assert part(whole, 0, 1) == whole
