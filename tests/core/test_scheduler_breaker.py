"""Breaker, cooldown and health, seen from outside: who is blamed, who is asked again, and when."""

from __future__ import annotations

import pytest

from headrace.core.settings import BreakerSettings, QueueSettings, RecoverySettings, Settings
from headrace.model import BreakerState, Cause, Ending, Probed
from tests.core.inventory import holdings, nothing_held
from tests.core.script import Fact, Stage, arrive, begun, done, engine, failed, leave, play

_SETTINGS = Settings(
    breaker=BreakerSettings(threshold=5, recovery=60.0),
    recovery=RecoverySettings(max_attempts=1, cooldown=0.0),
    queue=QueueSettings(size=2000, per_user=2000),
)
_FAILURES = [Cause.CONNECT, Cause.TIMEOUT, Cause.SERVER_ERROR, Cause.BROKEN_STREAM, Cause.PROTOCOL]
_NEUTRAL = [Cause.REJECTED, Cause.RATE_LIMITED, Cause.UPSTREAM_AUTH, Cause.ABORTED]


def breaker(stage: Stage) -> BreakerState:
    """The state of the only instance's breaker."""
    return stage.scheduler.snapshot(stage.now).instances[0].breaker


def broken(limit: int = 1) -> Stage:
    """A stage at 0 s whose only instance has just failed five times."""
    stage = Stage(engine("a", limit), settings=_SETTINGS)
    for number in range(5):
        stage.do(0.0, arrive(f"f{number}"))
        stage.do(0.0, failed(f"f{number}"))
    return stage


@pytest.mark.parametrize("cause", _FAILURES)
def test_five_failures_in_a_row_open_it(cause: Cause) -> None:
    """Four leave it closed; the fifth opens it, and callers are told at the door without asking the engine."""
    stage = Stage(engine("a"), settings=_SETTINGS)
    for number in range(5):
        assert breaker(stage) is BreakerState.CLOSED
        stage.do(0.0, arrive(f"f{number}"))
        stage.do(0.0, failed(f"f{number}", cause))
    assert breaker(stage) is BreakerState.OPEN
    assert stage.do(15.0, arrive("r")) == ["settle r circuit_open", "bury r circuit_open"]
    assert (stage.status("r"), stage.retry_after("r")) == (503, 45)


@pytest.mark.parametrize("cause", _NEUTRAL)
def test_callers_mistakes_limits_and_bad_keys_never_open_it(cause: Cause) -> None:
    """Ten of each: it is closed and the next request reaches the engine once its cooldown is over."""
    stage = Stage(engine("a"), settings=_SETTINGS)
    for number in range(10):
        stage.do(number * 10.0, arrive(f"n{number}"))
        stage.do(number * 10.0, failed(f"n{number}", cause))
    assert breaker(stage) is BreakerState.CLOSED
    assert stage.do(200.0, arrive("r")) == ["join r", "dispatch r #1 a"]


def test_callers_who_leave_or_run_out_of_time_blame_nobody() -> None:
    """Ten of each in mid-stream: closed, and reliability untouched."""
    stage = Stage(engine("a"), settings=_SETTINGS)
    for number in range(10):
        at = number * 10.0
        stage.do(at, arrive(f"c{number}"))
        stage.do(at, begun(f"c{number}"))
        stage.do(at + 1.0, leave(f"c{number}"))
        stage.do(at + 2.0, arrive(f"d{number}", deadline=at + 4.0))
        stage.wait(at + 5.0)
        assert stage.ending(f"d{number}") is Ending.DEADLINE_EXPIRED
    assert breaker(stage) is BreakerState.CLOSED
    assert stage.scheduler.snapshot(stage.now).instances[0].reliability == 1.0


def test_failures_between_successes_do_not_add_up() -> None:
    """Only failures in a row count."""
    stage = Stage(engine("a"), settings=_SETTINGS)
    for number in range(40):
        stage.do(0.0, arrive(f"r{number}"))
        stage.do(0.0, failed(f"r{number}") if number % 4 else done(f"r{number}"))
    assert breaker(stage) is BreakerState.CLOSED


def crowd(stage: Stage) -> None:
    """A thousand callers who wait when the breaker lets the first probe through."""
    for number in range(1000):
        stage.do(60.0, arrive(f"w{number}"))


def test_one_probe_goes_whoever_waits() -> None:
    """A thousand waiting, room for ten: exactly one is sent; its success lets the others follow."""
    stage = broken(limit=10)
    stage.sent.clear()
    crowd(stage)
    assert stage.sent == [("w0", "a")]
    stage.do(61.0, done("w0"))
    assert len(stage.sent) == 11
    assert breaker(stage) is BreakerState.CLOSED


@pytest.mark.parametrize(
    "end",
    [
        failed("w0", Cause.REJECTED),
        failed("w0", Cause.UPSTREAM_AUTH),
        failed("w0", Cause.ABORTED),
        leave("w0"),
    ],
)
def test_a_probe_without_a_verdict_gives_way_to_the_next(end: Fact) -> None:
    """Whatever ends it, the lease is free again at once and the next in turn probes."""
    stage = broken(limit=10)
    crowd(stage)
    stage.sent.clear()
    stage.do(61.0, end)
    assert len(stage.sent) == 1
    assert holdings(stage.scheduler)["probe_leases"] == 1
    assert breaker(stage) is BreakerState.HALF_OPEN


def test_a_probe_that_is_limited_waits_as_long_as_asked_and_does_not_wedge() -> None:
    """429 during the probe: a cooldown, then the next probe; the breaker neither opens nor closes by it."""
    stage = broken(limit=10)
    crowd(stage)
    stage.sent.clear()
    stage.do(61.0, failed("w0", Cause.RATE_LIMITED, retry_after=7.0))
    assert stage.sent == []
    stage.wait(67.9)
    assert stage.sent == []
    stage.wait(68.0)
    assert len(stage.sent) == 1


def test_a_failed_probe_doubles_the_wait() -> None:
    """Those who wait stay; the next probe goes after 120 s."""
    stage = broken()
    stage.do(60.0, arrive("p", queue_timeout=1000.0))
    stage.do(60.0, arrive("w", queue_timeout=1000.0))
    stage.do(60.0, failed("p"))
    stage.sent.clear()
    stage.wait(179.9)
    assert stage.sent == []
    stage.wait(180.0)
    assert stage.sent == [("w", "a")]


def test_a_process_that_was_started_anew_is_probed_at_once() -> None:
    """A health check failed while it was open and the next one did not: nobody waits for the minute to be over."""
    stage = broken()
    stage.do(1.0, Probed("a", healthy=False))
    assert breaker(stage) is BreakerState.OPEN
    stage.do(8.0, Probed("a", healthy=True))
    assert breaker(stage) is BreakerState.HALF_OPEN
    assert stage.do(8.0, arrive("r")) == ["join r", "dispatch r #1 a"]
    stage.do(9.0, done("r"))
    assert breaker(stage) is BreakerState.CLOSED


def test_good_health_alone_does_not_end_the_wait() -> None:
    """An engine that answers its checks and fails every request waits its time."""
    stage = broken()
    for second in (1.0, 2.0, 3.0):
        stage.do(second, Probed("a", healthy=True))
    assert breaker(stage) is BreakerState.OPEN


def test_late_results_from_before_do_not_touch_the_probe() -> None:
    """Attempts sent while it was closed end after it opened: neither a success nor a failure of them decides."""
    stage = Stage(engine("a", 10), settings=_SETTINGS)
    for number in range(8):
        stage.do(0.0, arrive(f"r{number}"))
    for number in range(5):
        stage.do(1.0, failed(f"r{number}"))
    stage.do(2.0, done("r5"))
    assert breaker(stage) is BreakerState.OPEN
    stage.do(61.0, arrive("probe"))
    stage.do(62.0, failed("r6"))
    assert breaker(stage) is BreakerState.HALF_OPEN
    stage.do(63.0, done("probe"))
    stage.do(64.0, failed("r7"))
    assert breaker(stage) is BreakerState.CLOSED


def test_an_open_breaker_sends_its_share_to_the_others() -> None:
    """One of two is open: requests go to the other one, none is refused."""
    stage = Stage(engine("a"), engine("b"), settings=_SETTINGS)
    for number in range(12):
        stage.do(float(number), arrive(f"r{number}"))
        where = stage.sent[-1][1]
        stage.do(float(number), failed(f"r{number}") if where == "a" else done(f"r{number}"))
    assert [where for _, where in stage.sent].count("a") == 5
    assert stage.ending("r11") is Ending.ANSWERED


def test_a_failure_cools_its_instance_down_for_all() -> None:
    """For five seconds nobody is sent there; then it is used again, woken by its own timer."""
    stage = Stage(engine("a", 2), settings=Settings(recovery=RecoverySettings(max_attempts=1)))
    play(
        stage,
        [
            (0.0, arrive("r1"), ["join r1", "dispatch r1 #1 a"]),
            (1.0, failed("r1"), ["settle r1 inference_failure", "bury r1 inference_failure"]),
            (2.0, arrive("r2"), ["join r2"]),
        ],
    )
    assert stage.wait(5.99) == []
    assert stage.wait(6.0) == ["dispatch r2 #1 a"]


def test_three_failed_health_checks_take_an_instance_out_and_one_good_one_brings_it_back() -> None:
    """Those who wait are sent the moment it is back; while all are down newcomers are told so."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, arrive("r2"))
    for _ in range(2):
        stage.do(1.0, Probed("a", healthy=False))
    stage.do(1.0, Probed("a", healthy=False, busy=True))
    assert stage.do(1.0, arrive("r3")) == ["join r3"]
    stage.do(2.0, Probed("a", healthy=False))
    assert stage.do(2.0, arrive("r4")) == ["settle r4 no_instance", "bury r4 no_instance"]
    assert stage.do(3.0, done("r1")) == ["settle r1 answered"]
    assert stage.do(4.0, Probed("a", healthy=True)) == ["dispatch r2 #1 a"]


def test_who_waits_for_instances_that_stay_down_is_told() -> None:
    """Ten seconds may be a restart; then those in the queue hear 503 and when to come back, not a minute later."""
    stage = Stage(engine("a"), engine("b"))
    for name in ("r1", "r2", "r3", "r4"):
        stage.do(0.0, arrive(name))
    for name in ("a", "b"):
        for _ in range(3):
            stage.do(1.0, Probed(name, healthy=False))
    assert stage.wait(10.99) == []
    told = stage.wait(11.0)

    assert told == [f"{what} {name} no_instance" for name in ("r3", "r4") for what in ("settle", "bury")]
    assert (stage.status("r3"), stage.retry_after("r3")) == (503, 10)
    assert stage.do(12.0, done("r1")) == ["settle r1 answered"]
    assert stage.do(12.0, done("r2")) == ["settle r2 answered"]
    assert nothing_held(stage.scheduler)


def test_who_waits_through_a_short_restart_is_served() -> None:
    """Down for nine seconds, up, down again for nine: each time the wait begins anew, and nobody is told anything."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, arrive("r2"))
    for down, up in ((1.0, 10.0), (11.0, 20.0)):
        for _ in range(3):
            stage.do(down, Probed("a", healthy=False))
        assert stage.wait(up - 0.01) == []
        stage.do(up, Probed("a", healthy=True))

    assert stage.do(21.0, done("r1")) == ["settle r1 answered", "dispatch r2 #1 a"]


def test_one_instance_that_is_up_is_waited_for() -> None:
    """It is busy and the other one is down for good: who waits goes on waiting."""
    stage = Stage(engine("a"), engine("b"))
    for name in ("r1", "r2", "r3"):
        stage.do(0.0, arrive(name))
    for _ in range(3):
        stage.do(1.0, Probed("b", healthy=False))

    assert stage.wait(30.0) == []
    assert stage.do(31.0, done("r1")) == ["settle r1 answered", "dispatch r3 #1 a"]


def test_of_breaker_and_cooldown_the_longer_one_is_named() -> None:
    """An instance that failed and asked for 50 seconds is kept out by that, after its breaker's 20 seconds too."""
    settings = Settings(breaker=BreakerSettings(threshold=1, recovery=20.0), recovery=RecoverySettings(max_attempts=1))
    stage = Stage(engine("a"), engine("b"), settings=settings)
    stage.do(0.0, arrive("f"))
    stage.do(0.0, failed("f", Cause.SERVER_ERROR, retry_after=50.0))
    stage.do(0.0, arrive("long"))
    assert stage.do(0.0, arrive("r")) == ["join r"]
    stage.wait(30.0)
    assert stage.scheduler.snapshot(stage.now).instances[0].closed_seconds == {"cooldown": 30.0}
    assert stage.wait(51.0) == ["dispatch r #1 a"]
