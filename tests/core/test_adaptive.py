"""The limits that find themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.adaptive import AdaptiveLimit, BatchLimit


def searching(most: int = 256) -> AdaptiveLimit:
    """The limit of a machine that was seen calm."""
    limit = AdaptiveLimit(most, adaptive=True)
    limit.looked()
    return limit


def test_doubles_each_second_until_the_first_sign() -> None:
    """A new instance under load is opened fast: two windows double the limit."""
    limit = searching()

    seen = []
    for _ in range(4):
        limit.tick(limit.limit, 0.5, 0.5, strained=False)
        seen.append(limit.limit)

    assert seen == [11, 16, 22, 32]


def test_doubles_in_each_window_while_tokens_come_fast() -> None:
    """Where twice as many cannot be too slow, each half second doubles; an unused limit, or a sign, is heeded all the
    same."""
    limit = searching()

    for _ in range(3):
        limit.tick(limit.limit, 0.2, 0.2, strained=False, easy=True)
    fast = limit.limit
    limit.tick(2, 0.2, 0.2, strained=False, easy=True)
    limit.tick(limit.limit, 0.2, 0.2, strained=True, easy=True)

    assert (fast, limit.limit) == (64, 64)


def test_grows_slowly_after_a_sign() -> None:
    """Two signs in a row end the doubling; then it is a tenth less at a sign, a twentieth more without."""
    limit = searching()
    for strained in (False, False, False, False, False, True, True):
        limit.tick(limit.limit, 0.5, 0.5, strained)
    before = limit.value

    limit.tick(limit.limit, 0.5, 0.5, strained=True)
    shrunk = limit.value
    limit.tick(limit.limit, 0.5, 0.5, strained=False)

    assert shrunk == pytest.approx(before * 0.9)
    assert limit.value == pytest.approx(shrunk * 1.05)


def test_the_first_streams_reading_their_prompts_are_no_sign() -> None:
    """Slow tokens while the limit is not even in use, and a single slow window, leave the slow start going."""
    limit = searching()
    limit.tick(2, 2.0, 2.0, strained=False)
    limit.tick(limit.limit, 2.0, 2.0, strained=False)
    limit.tick(limit.limit, 0.5, 0.5, strained=False)
    limit.tick(limit.limit, 0.5, 0.5, strained=False)

    assert limit.limit == 16


def test_an_unused_limit_does_not_grow() -> None:
    """Nothing is learned from a limit that nobody reached."""
    limit = searching()

    limit.tick(2, 0.5, 0.5, strained=False)

    assert limit.limit == 8


def test_a_burst_of_refusals_is_one_sign() -> None:
    """Ten refusals in a moment shrink the limit once."""
    limit = searching()
    limit.value = 100.0

    for _ in range(10):
        limit.refused(90, 50.0)

    assert limit.limit == 70


def test_an_engine_that_refuses_while_idle_is_not_overloaded() -> None:
    """Refusals with next to nothing in flight leave the limit for when it is well again."""
    limit = searching()
    limit.value = 100.0

    for second in range(10):
        limit.refused(1, float(second))

    assert limit.limit == 100


def test_an_engine_that_refuses_everything_is_ill() -> None:
    """Refusals while full shrink the limit; when it then refuses a lone request, too, that is taken back."""
    limit = searching()
    limit.value = 100.0

    limit.refused(90, 50.0)
    limit.refused(80, 52.0)
    shrunk = limit.limit
    limit.refused(1, 60.0)

    assert (shrunk, limit.limit) == (49, 100)


@pytest.mark.parametrize(("most", "limit", "ample"), [(256, 96, 108), (256, 4, 5), (100, 96, 100)])
def test_places_for_guests_are_an_eighth_more_within_the_bound(most: int, limit: int, ample: int) -> None:
    """At least one, and never beyond what the instance takes at all."""
    adaptive = searching(most)
    adaptive.value = float(limit)

    assert (adaptive.limit, adaptive.ample) == (limit, ample)


def test_settles_at_the_target_pace() -> None:
    """Where pace grows with what is in flight, the limit comes to rest near the target and stays there."""
    limit = searching()

    seen = []
    for _ in range(100):
        limit.tick(limit.limit, limit.limit / 100, limit.limit / 100, strained=False)
        seen.append(limit.limit)

    assert all(90 <= value <= 100 for value in seen[40:])


def test_a_fixed_limit_stays() -> None:
    """Without adaption the configured number holds, whatever is seen."""
    limit = AdaptiveLimit(10, adaptive=False)

    limit.refused(10, 1.0)
    limit.tick(10, 2.0, 2.0, strained=True)

    assert (limit.limit, limit.ample) == (10, 10)


def test_the_first_streams_go_two_at_a_time_until_the_machine_was_seen_calm() -> None:
    """How fast its tokens can be shows only then; signs of a crowd do not count before, and the search begins after."""
    limit = AdaptiveLimit(256, adaptive=True)
    limit.look(100.0)
    for _ in range(4):
        limit.tick(2, 3.0, 3.0, strained=True)

    looking = (limit.limit, limit.ample)
    limit.looked()

    assert looking == (1, 2)
    assert limit.limit == 8


def test_a_machine_that_is_never_calm_is_not_waited_for() -> None:
    """After ten seconds the search begins with what is known."""
    limit = AdaptiveLimit(256, adaptive=True)
    limit.look(100.0)

    limit.pass_time(109.9)
    before = limit.limit
    limit.pass_time(110.0)

    assert (before, limit.limit) == (1, 8)


def test_a_machine_that_is_busy_when_first_seen_is_not_emptied() -> None:
    """Whole answers show no pace and begin no look: the search goes on as it does."""
    limit = AdaptiveLimit(256, adaptive=True)

    limit.tick(limit.limit, 0.5, 0.5, strained=False)

    assert limit.limit == 11


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 300)), max_size=200))
def test_stays_within_its_bounds(signs: list[tuple[bool, bool, int]]) -> None:
    """Whatever the signs, at least one request may go and never more than the bound."""
    limit = searching(200)

    for at, (refused, strained, in_flight) in enumerate(signs):
        if refused:
            limit.refused(in_flight, float(at))
        limit.tick(in_flight, 0.5, 0.5, strained)

        assert 1 <= limit.limit <= 200


def test_batch_makes_way_while_tokens_are_slow_and_keeps_its_floor() -> None:
    """Interactive tokens over their target shrink batch down to its floor, and no further."""
    batch = BatchLimit(floor=0.1)
    batch.value = 90.0

    for _ in range(100):
        batch.tick(90, 100, tpot=0.06, target=0.05)

    assert batch.limit(100) == 10


def test_batch_does_not_grow_past_those_who_stand_still() -> None:
    """Streams to protect are there and none of them made a token: they may well wait for batch."""
    batch = BatchLimit(floor=0.1)
    before = batch.limit(100)

    batch.tick(before, 100, tpot=None, target=0.05, waiting=True)

    assert batch.limit(100) == before


def test_batch_grows_while_nobody_minds() -> None:
    """With nothing to protect, batch fills the instance in steps of four."""
    batch = BatchLimit(floor=0.1)

    batch.tick(batch.limit(100), 100, tpot=None, target=0.05)
    after_one = batch.limit(100)
    for _ in range(50):
        batch.tick(batch.limit(100), 100, tpot=None, target=0.05)

    assert (after_one, batch.limit(100)) == (12, 100)
