"""What an engine has shown of its width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.breadth import Breadth
from headrace.core.pace import Pace

STEP = 0.02


def breadth(step: float = STEP) -> Breadth:
    """That of an engine whose steps are known to take so long."""
    pace = Pace()
    pace.base = step
    return Breadth(pace)


def test_streams_that_are_there_together_count() -> None:
    """Three that begin one after another and none has ended: at least three at a time."""
    seen = breadth()

    for number in range(3):
        seen.begun(0.0, 1.0 + number)

    assert (seen.running, seen.most) == (3, 3)


def test_those_that_begin_in_one_step_count_though_each_ends_at_once() -> None:
    """Answers of one token: four begin and end in the same step, so the engine ran four."""
    seen = breadth()

    for _ in range(4):
        seen.begun(0.0, 1.0)
        seen.ended(0.0, 1.0)

    assert (seen.running, seen.most) == (0, 4)


def test_what_ends_in_a_step_was_in_it_with_what_begins_in_it() -> None:
    """The last token of one and the first of another come together: both were in the batch."""
    seen = breadth()
    seen.begun(0.0, 1.0)

    seen.ended(0.0, 2.0)
    seen.begun(0.5, 2.001)

    assert (seen.running, seen.most) == (1, 2)


def test_a_place_that_was_handed_on_is_one_place() -> None:
    """What begins a step after another ended, or was sent only then, may sit in its place."""
    later, sent_then = breadth(), breadth()
    for seen, entered, begins in ((later, 0.5, 2.0 + STEP), (sent_then, 2.0, 2.001)):
        seen.begun(0.0, 1.0)
        seen.ended(0.0, 2.0)
        seen.begun(entered, begins)

    assert (later.most, sent_then.most) == (1, 1)


def test_fast_steps_are_not_taken_for_one() -> None:
    """Where a step takes a millisecond, what comes a millisecond later belongs to the next."""
    seen = breadth(0.001)
    seen.begun(0.0, 1.0)

    seen.ended(0.0, 2.0)
    seen.begun(0.5, 2.001)

    assert seen.most == 1


def test_what_was_seen_long_ago_is_forgotten() -> None:
    """An engine that came back with fewer places is found out within a minute; a lasting width is kept."""
    shrunk, lasting = breadth(), breadth()
    for seen in (shrunk, lasting):
        seen.shown(40, 100.0)
    for second in range(100, 200, 5):
        shrunk.shown(8, float(second))
        lasting.shown(40, float(second))

    assert (shrunk.most, lasting.most) == (8, 40)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), max_size=40), st.integers(1, 8))
def test_never_more_than_the_engine_has(arrivals: list[tuple[int, int]], slots: int) -> None:
    """An engine of so many slots that tells each step's tokens at once never seems wider, however the work comes."""
    seen, waiting, running = breadth(), list[tuple[float, int]](), list[int]()
    steps = [*arrivals, *[(0, 1)] * 400]
    for number, (count, length) in enumerate(steps):
        now = number * STEP
        waiting += [(now, length)] * count
        admitted = [waiting.pop(0) for _ in range(min(slots - len(running), len(waiting)))]
        end = now + STEP
        running = [left - 1 for left in running]
        for _ in range(running.count(0)):
            seen.ended(0.0, end)
        running = [left for left in running if left]
        for entered, left in admitted:
            seen.begun(entered, end)
            if left == 1:
                seen.ended(0.0, end)
            else:
                running.append(left - 1)
        assert seen.running == len(running)
        assert seen.most <= slots
