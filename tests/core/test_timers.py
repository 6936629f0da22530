"""The promises of `headrace.core.timers`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.timers import Timer, Timers


def test_subjects_come_up_in_the_order_of_their_times() -> None:
    """Equal times keep the order in which they were asked for; nothing comes before its time."""
    timers = Timers[str]()
    for when, subject in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (1.0, "a2")):
        timers.at(when, subject)
    assert timers.next() == 1.0
    assert timers.due(0.99) is None
    assert [timers.due(2.0) for _ in range(4)] == ["a", "a2", "b", None]
    assert timers.next() == 3.0


def test_what_was_taken_back_does_not_come_up() -> None:
    """Taking back twice, after it came up, or nothing at all, is fine."""
    timers = Timers[str]()
    timer = timers.at(1.0, "x")
    timers.at(2.0, "y")
    timers.cancel(timer)
    timers.cancel(timer)
    timers.cancel(None)
    assert timers.next() == 2.0
    assert len(timers) == 1
    assert timers.due(5.0) == "y"
    assert timers.due(5.0) is None


def test_memory_follows_what_is_pending() -> None:
    """A hundred thousand asked for and taken back leave next to nothing."""
    timers = Timers[int]()
    timers.at(1e9, -1)
    for number in range(100_000):
        timers.cancel(timers.at(1e6 + number, number))
    assert len(timers._heap) < 100
    assert len(timers) == 1


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=60), st.floats(0, 100))
def test_exactly_what_is_due_and_not_taken_back_comes_up(asked: list[tuple[float, bool]], now: float) -> None:
    """In order, once."""
    timers, made = Timers[int](), list[Timer]()
    for number, (when, _) in enumerate(asked):
        made.append(timers.at(when, number))
    for timer, (_, taken_back) in zip(made, asked, strict=True):
        if taken_back:
            timers.cancel(timer)
    seen: list[int] = []
    while (subject := timers.due(now)) is not None:
        seen.append(subject)
    wanted = sorted((when, n) for n, (when, taken_back) in enumerate(asked) if not taken_back and when <= now)
    assert seen == [number for _, number in wanted]
    assert len(timers) == sum(not taken_back and when > now for when, taken_back in asked)
