"""The queue at an engine, between two polls."""

from __future__ import annotations

import pytest

from headrace.core.engine_view import EngineView
from headrace.model import EngineReport


def view(report: EngineReport, in_flight: int, pending: int) -> EngineView:
    """What is known right after a poll with so many requests of ours there."""
    seen = EngineView(stale_after=1.0, waiting_below=3.0)
    seen.take(report, in_flight, pending, 100.0)
    return seen


def test_what_was_being_read_at_the_poll_leaves_the_queue_as_long_as_it_is() -> None:
    """Two of three un-started ones were in the batch: their first tokens take nothing out of the queue."""
    seen = view(EngineReport(running=6, waiting=1), in_flight=7, pending=3)

    seen.begun += 1
    seen.begun += 1
    after_two = seen.waiting(100.1)
    seen.begun += 1

    assert (after_two, seen.waiting(100.1)) == (1.0, 0.0)


def test_what_the_engine_has_not_counted_yet_waits() -> None:
    """Sent just before the poll and neither running nor waiting in it: it stands in the queue all the same."""
    seen = view(EngineReport(running=2, waiting=0), in_flight=5, pending=4)

    assert seen.waiting(100.1) == 3.0


@pytest.mark.parametrize("running", [0, 3, 50])
def test_a_wrong_count_of_running_cannot_shut_the_gate_for_good(running: int) -> None:
    """Whatever the engine says, the queue is at most what it reports and our own un-started requests."""
    seen = view(EngineReport(running=running, waiting=2), in_flight=5, pending=4)

    waiting = seen.waiting(100.1)

    assert waiting is not None
    assert 2.0 <= waiting <= 6.0


def test_sends_and_begins_move_it_between_polls() -> None:
    """Each request sent after the poll adds one."""
    seen = view(EngineReport(running=4, waiting=1), in_flight=5, pending=1)

    seen.sent += 1
    seen.sent += 1

    assert seen.waiting(100.1) == 3.0


def test_a_wide_engine_takes_a_burst_without_a_queue() -> None:
    """It was seen to run sixteen and runs two: ten more have places, though none of them has begun."""
    seen = view(EngineReport(running=2, waiting=0), in_flight=2, pending=0)

    for _ in range(10):
        seen.sent += 1

    assert (seen.waiting(100.1, breadth=16), seen.waiting(100.1, breadth=0)) == (0.0, 10.0)


def test_each_end_makes_a_place_for_one_that_waits() -> None:
    """Full at the poll, two waiting; three ended since: the queue is empty."""
    seen = view(EngineReport(running=8, waiting=2), in_flight=10, pending=2)

    for _ in range(3):
        seen.left += 1

    assert seen.waiting(100.1, breadth=8) == 0.0


def test_what_an_engine_ran_before_is_no_room_while_its_queue_is_too_long() -> None:
    """It ran sixteen once; now four wait beside two, so it runs two."""
    seen = view(EngineReport(running=2, waiting=4), in_flight=6, pending=4)

    assert seen.waiting(100.1, breadth=16) == 4.0
