"""Every resource x every way a request can end: afterwards everything is given back.

Each way is played with a single caller and with two who share the call, whole and streamed; then time passes, and
each resource is looked at on its own, so that a leak is named by the test that fails.
"""

from __future__ import annotations

from functools import cache

import pytest

from headrace.model import Cause, Draining, Ending, Probed, Reconfigured, ServiceClass, Usage
from tests.core.hedged_ways import HEDGED_WAYS
from tests.core.inventory import RESOURCES, holdings
from tests.core.plays import Play, Way, all_leave, asked, freed, occupied
from tests.core.script import arrive, begun, done, engine, failed, leave, looked, more, sealed


def answered(stage: Play) -> None:
    """A first token, more tokens, the end."""
    asked(stage)
    stage.do(1.0, begun("r"))
    stage.do(1.5, more("r", 400))
    stage.do(2.0, done("r", 90, 500))


def answered_without_a_first_token(stage: Play) -> None:
    """A whole answer shows none."""
    asked(stage)
    stage.do(2.0, done("r"))


def sealed_and_answered(stage: Play) -> None:
    """The answer outgrew what is kept for late joiners."""
    asked(stage)
    stage.do(1.0, sealed("r"))
    stage.do(2.0, done("r"))


def answered_at_the_second_try(stage: Play) -> None:
    """The first attempt failed unseen."""
    asked(stage)
    stage.do(1.0, failed("r"))
    stage.do(2.0, done("r"))


def hit(stage: Play) -> None:
    """The cache had it."""
    asked(stage, look_up=True)
    stage.do(1.0, looked("r", hit=True))


def cancelled_while_looking(stage: Play) -> None:
    """All go before the cache answers, which then says yes."""
    asked(stage, look_up=True)
    all_leave(stage)
    stage.do(1.0, looked("r", hit=True))


def cancelled_while_queued(stage: Play) -> None:
    """All go before anything was sent."""
    occupied(stage)
    asked(stage)
    all_leave(stage)
    freed(stage)


def cancelled_while_running(stage: Play) -> None:
    """All go before the first token."""
    asked(stage)
    stage.do(1.0, leave("r"))
    all_leave(stage)


def cancelled_while_streaming(stage: Play) -> None:
    """All go after many more tokens than were expected."""
    asked(stage)
    stage.do(1.0, begun("r"))
    stage.do(2.0, more("r", 900))
    all_leave(stage)


def cancelled_while_waiting(stage: Play) -> None:
    """All go between two attempts."""
    stage.do(0.0, Reconfigured((engine("a", 1, window_tokens=500),)))
    asked(stage)
    stage.do(1.0, failed("r"))
    assert stage.scheduler.snapshot(1.0).waiting_retry == 1
    all_leave(stage)


def cancelled_while_following(stage: Play) -> None:
    """The follower goes, the leader is answered."""
    asked(stage)
    stage.do(1.0, leave("s"))
    stage.do(2.0, done("r"))


def timed_out_in_the_queue(stage: Play) -> None:
    """Nothing became free in time."""
    occupied(stage)
    asked(stage, queue_timeout=2.0)
    stage.wait(5.0)
    freed(stage)


def timed_out_while_looking(stage: Play) -> None:
    """The cache took longer than they would wait."""
    asked(stage, look_up=True, queue_timeout=2.0)
    stage.wait(5.0)
    stage.do(6.0, looked("r", hit=False))


def expired_in_the_queue(stage: Play) -> None:
    """The deadline passes before anything was sent."""
    occupied(stage)
    asked(stage, deadline=2.0)
    stage.wait(5.0)
    freed(stage)


def expired_while_running(stage: Play) -> None:
    """The deadline passes before the first token."""
    asked(stage, deadline=2.0)
    stage.wait(5.0)


def expired_while_streaming(stage: Play) -> None:
    """The deadline passes in mid-stream."""
    asked(stage, deadline=2.0)
    stage.do(1.0, begun("r"))
    stage.wait(5.0)


def expired_between_two_attempts(stage: Play) -> None:
    """The deadline passes while no instance is up."""
    asked(stage, deadline=9.0)
    stage.do(1.0, failed("r"))
    for _ in range(3):
        stage.do(1.0, Probed("a", healthy=False))
        stage.do(1.0, Probed("b", healthy=False))
    stage.wait(9.0)
    for name in ("a", "b"):
        stage.do(10.0, Probed(name, healthy=True))


def failed_for_good(cause: Cause, committed: bool) -> Way:
    """An attempt after the other fails until the callers are told."""

    def way(stage: Play) -> None:
        asked(stage)
        while {"r", "s"}.intersection(stage.calls) and "r" in stage.running:
            stage.do(stage.now, failed("r", cause, committed=committed))
            stage.wait(stage.now + 8.0)

    return way


def took_over(stage: Play) -> None:
    """The leader's only attempt fails; a follower, if any, makes his own."""
    asked(stage, max_attempts=1)
    stage.do(1.0, failed("r"))
    if "r" in stage.running:
        stage.do(2.0, done("r"))


def broke(stage: Play) -> None:
    """A part of the answer is there; the rest is to come from the other instance."""
    asked(stage)
    stage.do(1.0, begun("r"))
    stage.do(1.5, more("r", 400))
    stage.do(2.0, failed("r", Cause.BROKEN_STREAM, committed=True, resumable=True, usage=Usage(90, 410)))
    assert stage.running["r"].resumes == 1


def resumed(stage: Play) -> None:
    """The rest comes."""
    broke(stage)
    stage.do(3.0, begun("r"))
    stage.do(3.5, more("r", 50))
    stage.do(4.0, done("r", 90, 480))


def resumed_in_vain(stage: Play) -> None:
    """The other one fails as well, and there is no attempt left."""
    broke(stage)
    stage.do(3.0, failed("r", Cause.CONNECT, resumable=True))


def cancelled_while_resuming(stage: Play) -> None:
    """All go while the rest is awaited."""
    broke(stage)
    all_leave(stage)


def cancelled_between_two_halves(stage: Play) -> None:
    """All go while the one instance that could go on is left alone for a moment."""
    stage.do(0.0, Reconfigured((engine("a", 1, window_tokens=500, resume=True),)))
    asked(stage)
    stage.do(1.0, begun("r"))
    stage.do(2.0, failed("r", Cause.TIMEOUT, committed=True, resumable=True, usage=Usage(90, 10)))
    assert stage.scheduler.snapshot(2.0).waiting_retry == 1
    all_leave(stage)


def displaced(stage: Play) -> None:
    """More urgent ones take the place in the queue."""
    occupied(stage)
    asked(stage, service_class=ServiceClass.BATCH)
    for number in range(4):
        stage.do(1.0, arrive(f"i{number}", "zoe", service_class=ServiceClass.INTERACTIVE))
    assert stage.ending("r") is Ending.BACKPRESSURE
    for number in range(4):
        stage.do(2.0, leave(f"i{number}"))
    freed(stage)


def refused_when_full(stage: Play) -> None:
    """Refused at the door, after the limits were taken."""
    occupied(stage)
    for number in range(3):
        stage.do(0.0, arrive(f"q{number}", "zoe"))
    asked(stage)
    assert stage.ending("r") is Ending.BACKPRESSURE
    for number in range(3):
        stage.do(2.0, leave(f"q{number}"))
    freed(stage)


def drained_in_the_queue(stage: Play) -> None:
    """The house closes before anything was sent."""
    occupied(stage)
    asked(stage)
    stage.do(1.0, Draining(until=10.0))
    freed(stage)


def drained_while_running(stage: Play) -> None:
    """The house closes and the grace ends."""
    asked(stage)
    stage.do(1.0, Draining(until=10.0))
    stage.wait(20.0)


def instance_removed_while_queued(stage: Play) -> None:
    """Nobody serves the model any more."""
    occupied(stage)
    asked(stage)
    stage.do(1.0, Reconfigured(()))
    freed(stage)


def instance_removed_while_running(stage: Play) -> None:
    """The instance it may run at leaves the configuration."""
    asked(stage)
    stage.do(1.0, Reconfigured((engine("a", 1, window_tokens=500),)))
    if "r" in stage.running:
        stage.do(2.0, done("r"))


def probe_left(stage: Play) -> None:
    """The request is the probe of a breaker and its callers leave."""
    stage.do(0.0, Reconfigured((engine("a", 1, window_tokens=500),)))
    for name in ("x", "y"):
        stage.do(stage.now, arrive(name, "zed", max_attempts=1))
        stage.do(stage.now, failed(name))
        stage.wait(stage.now + 4.0)
    stage.wait(40.0)
    asked(stage)
    assert holdings(stage.scheduler)["probe_leases"] == 1
    all_leave(stage)


_WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        answered,
        answered_without_a_first_token,
        sealed_and_answered,
        answered_at_the_second_try,
        hit,
        cancelled_while_looking,
        cancelled_while_queued,
        cancelled_while_running,
        cancelled_while_streaming,
        cancelled_while_waiting,
        cancelled_while_following,
        timed_out_in_the_queue,
        timed_out_while_looking,
        expired_in_the_queue,
        expired_while_running,
        expired_while_streaming,
        expired_between_two_attempts,
        took_over,
        resumed,
        resumed_in_vain,
        cancelled_while_resuming,
        cancelled_between_two_halves,
        displaced,
        refused_when_full,
        drained_in_the_queue,
        drained_while_running,
        instance_removed_while_queued,
        instance_removed_while_running,
        probe_left,
    )
}
_WAYS |= {f"failed_{cause}": failed_for_good(cause, committed=False) for cause in Cause if cause is not Cause.OK}
_WAYS |= HEDGED_WAYS
_WAYS |= {f"broke_{cause}": failed_for_good(cause, committed=True) for cause in (Cause.BROKEN_STREAM, Cause.TIMEOUT)}


@cache
def left_after(way: str) -> dict[str, float]:
    """What is still held after the four plays of a way, summed."""
    left = dict.fromkeys(RESOURCES, 0.0)
    for shared in (False, True):
        for streamed in (False, True):
            stage = Play(shared, streamed)
            states = list(stage.scheduler._fleet.states.values())
            _WAYS[way](stage)
            for name in ("r", "s")[: 1 + shared]:
                assert stage.ending(name) is not None, f"{name} has ended"
            stage.wait(1000.0)
            gone = [state for state in states if state not in stage.scheduler._fleet.states.values()]
            held = holdings(stage.scheduler, gone)
            for resource in RESOURCES:
                left[resource] += abs(held[resource])
    return left


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("way", _WAYS)
def test_nothing_is_left(way: str, resource: str) -> None:
    """Each way of ending gives each resource back."""
    assert left_after(way)[resource] == 0
