"""Deadlines, longest waits, callers who leave, and stopping."""

from __future__ import annotations

import pytest

from headrace.core.settings import QueueSettings, Settings
from headrace.model import Cancelled, Cause, Draining, Ending, Finished, Outcome, ServiceClass, Usage, Woke
from tests.core.inventory import nothing_held
from tests.core.script import Stage, arrive, begun, done, engine, failed, leave, looked, more, play, totals

# ---------------------------------------------------------------------------------------------------- deadlines


def test_one_deadline_covers_all_attempts() -> None:
    """It expires during the second attempt: that one is aborted and the caller told, whatever is left to try."""
    stage = Stage(engine("a"), engine("b"), engine("c"))
    play(
        stage,
        [
            (0.0, arrive("r", deadline=10.0), ["join r", "dispatch r #1 a"]),
            (6.0, failed("r"), ["dispatch r #2 b"]),
        ],
    )
    assert stage.wait(9.99) == []
    assert stage.wait(10.0) == ["abort r #2", "settle r deadline_expired", "bury r deadline_expired"]
    assert stage.status("r") == 504
    stage.wait(100.0)
    assert nothing_held(stage.scheduler)


def test_no_retry_is_planned_past_the_deadline() -> None:
    """The only instance is back after the deadline: the failure is told at once."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r", deadline=5.0))
    assert stage.do(1.0, failed("r")) == ["settle r inference_failure", "bury r inference_failure"]


def test_an_expired_request_never_reaches_an_engine() -> None:
    """The slot frees at the very moment of the deadline, and the wake-up is late: still not sent."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, arrive("r2", deadline=5.0))
    orders = stage.do(5.0, done("r1"))
    assert orders == ["settle r1 answered", "settle r2 deadline_expired", "bury r2 deadline_expired"]


def test_a_deadline_in_the_past_is_refused_at_the_door() -> None:
    """It was never accepted and is kept as a dead letter."""
    stage = Stage(engine("a"))
    assert stage.do(9.0, arrive("r", deadline=9.0)) == ["settle r deadline_expired", "bury r deadline_expired"]


def test_an_answer_that_comes_with_the_deadline_is_an_answer() -> None:
    """What is complete is delivered even if the wake-up would have come first."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r", deadline=5.0))
    assert stage.do(5.0, done("r")) == ["settle r answered"]


# ---------------------------------------------------------------------------------------------------- waits


@pytest.mark.parametrize(
    ("service_class", "longest"),
    [(ServiceClass.INTERACTIVE, 30.0), (ServiceClass.NORMAL, 60.0), (ServiceClass.BATCH, 86400.0)],
)
def test_each_class_waits_so_long_and_no_longer(service_class: ServiceClass, longest: float) -> None:
    """Then 503 with a time to come back, and a dead letter."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, arrive("r2", service_class=service_class))
    assert stage.wait(longest - 0.01) == []
    assert stage.wait(longest) == ["settle r2 queue_timeout", "bury r2 queue_timeout"]
    assert stage.status("r2") == 503
    assert stage.retry_after("r2") is not None


def test_a_request_may_bound_its_own_wait() -> None:
    """Its own bound replaces the class's, and only waiting counts: a running request is not cut by it."""
    stage = Stage(engine("a"))
    play(
        stage,
        [
            (0.0, arrive("r1", queue_timeout=2.0), ["join r1", "dispatch r1 #1 a"]),
            (0.0, arrive("r2", queue_timeout=2.0), ["join r2"]),
            (2.0, begun("r1"), ["settle r2 queue_timeout", "bury r2 queue_timeout"]),
            (50.0, done("r1"), ["settle r1 answered"]),
        ],
    )


def test_who_will_not_wait_is_sent_now_or_never() -> None:
    """A wait of nothing: dispatched if a place is free, else told at once."""
    stage = Stage(engine("a"))
    assert stage.do(0.0, arrive("r1", queue_timeout=0.0)) == ["join r1", "dispatch r1 #1 a"]
    stage.do(0.0, arrive("r2", queue_timeout=0.0))
    assert stage.wait(0.0) == ["settle r2 queue_timeout", "bury r2 queue_timeout"]


def test_a_request_that_runs_past_its_wait_still_ends_by_its_deadline() -> None:
    """The timer of the wait turns into the one of the deadline."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r", queue_timeout=2.0, deadline=20.0))
    assert stage.wait(19.99) == []
    assert stage.wait(20.0) == ["abort r #1", "settle r deadline_expired", "bury r deadline_expired"]


def test_the_dead_make_room_before_the_living_are_refused() -> None:
    """A queue full of those whose time is over is not full, even when the wake-up is late."""
    stage = Stage(engine("a"), settings=Settings(queue=QueueSettings(size=2)))
    for number in range(3):
        stage.do(0.0, arrive(f"r{number}", queue_timeout=5.0))
    orders = stage.do(6.0, arrive("new"))
    assert "join new" in orders
    assert stage.ending("r1") is Ending.QUEUE_TIMEOUT


# ---------------------------------------------------------------------------------------------------- leaving


def test_leaving_while_the_cache_is_asked() -> None:
    """The late answer of the cache finds nobody and changes nothing."""
    stage = Stage(engine("a"))
    play(
        stage,
        [
            (0.0, arrive("r", key="k", look_up=True), ["join r", "look up r"]),
            (0.1, leave("r"), ["settle r cancelled"]),
            (0.2, looked("r", hit=True), []),
        ],
    )
    assert nothing_held(stage.scheduler)


def test_leaving_the_queue_frees_the_place_for_the_next() -> None:
    """A full queue, one leaves, another is accepted; the engine never sees the one who left."""
    stage = Stage(engine("a"), settings=Settings(queue=QueueSettings(size=3)))
    for number in range(1, 5):
        stage.do(0.0, arrive(f"r{number}"))
    assert stage.scheduler.snapshot(0.5).queued == 3
    stage.do(1.0, leave("r3"))
    assert stage.scheduler.snapshot(1.0).queued == 2
    assert stage.do(2.0, arrive("r5")) == ["join r5"]
    for name in ("r1", "r2", "r4", "r5"):
        stage.do(5.0, done(name))
    assert [name for name, _ in stage.sent] == ["r1", "r2", "r4", "r5"]
    assert totals(stage)["cancelled"] == 1
    assert not stage.buried


def test_leaving_before_the_first_content_closes_the_connection() -> None:
    """The next one is sent in the same moment; nothing was delivered, nothing is counted as used."""
    stage = Stage(engine("a"))
    play(
        stage,
        [
            (0.0, arrive("r1"), ["join r1", "dispatch r1 #1 a"]),
            (0.0, arrive("r2"), ["join r2"]),
            (1.0, leave("r1"), ["abort r1 #1", "settle r1 cancelled", "dispatch r2 #1 a"]),
        ],
    )
    assert stage.settled["r1"].usage is None


def test_leaving_in_mid_stream_counts_what_was_delivered() -> None:
    """Prompt and tokens so far, marked as an estimate."""
    stage = Stage(engine("a"))
    play(
        stage,
        [
            (0.0, arrive("r", prompt_tokens=9), ["join r", "dispatch r #1 a"]),
            (1.0, begun("r"), []),
            (2.0, more("r", 64), []),
            (3.0, leave("r"), ["abort r #1", "settle r cancelled"]),
        ],
    )
    assert stage.settled["r"].usage == Usage(9, 64, estimated=True)
    assert stage.wait(100.0) == []
    assert nothing_held(stage.scheduler)


def test_what_is_over_cannot_be_ended_again() -> None:
    """Facts about settled tickets, finished calls and old attempts change nothing."""
    stage = Stage(engine("a"), engine("b"))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, failed("r"))
    call = stage.calls["r"]
    assert stage.do(1.0, Finished(call, 1, Outcome(Cause.OK))) == []
    stage.do(2.0, done("r"))
    for fact in (Finished(call, 2, Outcome(Cause.OK)), Cancelled("r"), Cancelled("nobody"), Woke()):
        assert stage.do(3.0, fact) == []


# ---------------------------------------------------------------------------------------------------- stopping


def test_draining_ends_what_waits_and_lets_run_what_runs() -> None:
    """The queued are told and kept; the running may finish until the given moment; nothing new is taken."""
    stage = Stage(engine("a"), settings=Settings())
    play(
        stage,
        [
            (0.0, arrive("r1"), ["join r1", "dispatch r1 #1 a"]),
            (0.0, arrive("r2"), ["join r2"]),
            (0.0, arrive("r3", key="k", look_up=True), ["join r3", "look up r3"]),
            (
                1.0,
                Draining(until=31.0),
                [
                    "settle r2 shutting_down",
                    "bury r2 shutting_down",
                    "settle r3 shutting_down",
                    "bury r3 shutting_down",
                ],
            ),
            (2.0, arrive("r4"), ["settle r4 draining"]),
            (3.0, done("r1"), ["settle r1 answered"]),
        ],
    )
    assert stage.status("r4") == 503
    assert stage.scheduler.snapshot(4.0).draining


def test_what_runs_when_the_grace_is_over_is_cut_and_kept() -> None:
    """The process can end: every ticket is settled, every connection closed."""
    stage = Stage(engine("a", 2))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, arrive("r2", key="k"))
    stage.do(0.0, arrive("r3", key="k"))
    stage.do(1.0, Draining(until=11.0))
    assert stage.wait(10.9) == []
    stage.wait(11.0)
    assert {stage.ending(name) for name in ("r1", "r2", "r3")} == {Ending.SHUTTING_DOWN}
    assert not stage.running
    stage.wait(100.0)
    assert nothing_held(stage.scheduler)
