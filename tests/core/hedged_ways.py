"""How a request can end while two attempts at it run."""

from __future__ import annotations

from headrace.model import Draining
from tests.core.plays import Play, Way, all_leave, asked
from tests.core.script import begun, done, failed


def hedged(stage: Play) -> None:
    """A streamed request whose first token is late runs at both instances; a whole one at one."""
    asked(stage)
    stage.wait(6.0)
    assert bool(stage.hedges) == stage.streamed


def hedged_and_answered(stage: Play) -> None:
    """The later attempt begins first."""
    hedged(stage)
    if stage.hedges:
        stage.do(7.0, begun("r", 2))
    stage.do(8.0, done("r"))


def hedged_and_outrun(stage: Play) -> None:
    """The first attempt begins first after all."""
    hedged(stage)
    stage.do(7.0, begun("r", 1))
    stage.do(8.0, done("r"))


def hedged_and_one_failed(stage: Play) -> None:
    """One of two fails, the other answers."""
    hedged(stage)
    stage.do(7.0, failed("r", attempt=1))
    stage.do(8.0, done("r"))


def hedged_and_both_failed(stage: Play) -> None:
    """First one, then the other."""
    hedged(stage)
    while "r" in stage.running:
        stage.do(stage.now, failed("r"))
        stage.wait(stage.now + 8.0)


def hedged_and_left(stage: Play) -> None:
    """All callers go while both run."""
    hedged(stage)
    all_leave(stage)


def hedged_and_expired(stage: Play) -> None:
    """The deadline passes while both run."""
    asked(stage, deadline=7.0)
    stage.wait(8.0)


def hedged_and_drained(stage: Play) -> None:
    """The house closes while both run."""
    hedged(stage)
    stage.do(6.0, Draining(until=10.0))
    stage.wait(20.0)


HEDGED_WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        hedged_and_answered,
        hedged_and_outrun,
        hedged_and_one_failed,
        hedged_and_both_failed,
        hedged_and_left,
        hedged_and_expired,
        hedged_and_drained,
    )
}
