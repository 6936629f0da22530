"""The promises of `headrace.core.received`: who was served how much of late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.received import Received
from headrace.core.settings import Settings
from headrace.model import AnswerForm, Flow, Reported, ServiceClass, Woke
from tests.core.script import Stage, arrive, begun, done, engine


def _flow(user: str) -> Flow:
    return Flow(ServiceClass.NORMAL, "acme", user)


@pytest.mark.parametrize("start", [0.0, 1e6, 1e9])
def test_a_steady_rate_reads_as_the_last_minute(start: float) -> None:
    """Ten units a second for an hour read as about 600, at whatever time of the clock."""
    received = Received()
    for second in range(3600):
        received.add(_flow("ann"), 10.0, start + second)
    assert received.top(1, start + 3600)["acme/ann"] == pytest.approx(600.0, rel=0.02)


def test_service_long_past_is_forgotten() -> None:
    """Ten minutes later next to nothing is left of it."""
    received = Received()
    received.add(_flow("ann"), 1000.0, 0.0)
    assert received.top(1, 600.0)["acme/ann"] < 0.1


@given(st.integers(1, 30_000))
def test_bounded_however_many_users(users: int) -> None:
    """Ten thousand are kept at most, and the one with most service among them."""
    received = Received()
    received.add(_flow("heavy"), 1e6, 0.0)
    for number in range(users):
        received.add(_flow(str(number)), 1.0, 0.0)
    assert len(received) <= 10_000
    assert list(received.top(1, 0.0)) == ["acme/heavy"]


def test_the_snapshot_tells_who_was_served_and_how_far_apart_they_are() -> None:
    """One place, two users who wait: each is served once, and the index says that they are equal."""
    stage = Stage(engine("a"), settings=Settings())
    for number in range(6):
        stage.do(0.0, arrive(f"r{number}", "ann" if number % 2 else "bob", prompt_tokens=100, output_cap=50))
    for _ in range(3):
        name = next(iter(stage.running))
        stage.do(stage.now + 1.0, begun(name))
        stage.do(stage.now + 1.0, done(name, 100, 50))
    view = stage.scheduler.snapshot(stage.now)
    assert set(view.service) == {"acme/ann", "acme/bob"}
    assert view.jain == pytest.approx(1.0, abs=0.05)
    assert view.spread <= 200.0
    assert view.estimate_error == 0.0
    assert view.refunded == 0.0


def test_the_snapshot_tells_how_long_each_reason_kept_something_waiting() -> None:
    """Seconds count by reason while something waits, the one under way included, and only then."""
    stage = Stage(engine("a", 2, window_tokens=1000))
    stage.do(0.0, arrive("r1", prompt_tokens=800, form=AnswerForm.STREAM))
    stage.do(1.0, arrive("r2", prompt_tokens=800, form=AnswerForm.STREAM))
    stage.do(3.0, begun("r1"))
    stage.do(4.0, arrive("r3", prompt_tokens=10))
    stage.do(7.0, done("r1"))
    stage.do(20.0, Reported("a", None))
    closed = stage.scheduler.snapshot(30.0).instances[0].closed_seconds
    assert closed == {"window": 2.0, "in_flight": 3.0}
    stage.do(31.0, Woke())
    assert stage.scheduler.snapshot(40.0).instances[0].closed_seconds == closed
