"""What is refused at the door, and who makes room: limits, bounds of the queue, unknown models."""

from __future__ import annotations

import pytest

from headrace.core.limits import LimitRule
from headrace.core.settings import LimitSettings, QueueSettings, Settings
from headrace.model import Ending, ServiceClass
from tests.core.inventory import nothing_held
from tests.core.script import Stage, arrive, done, engine, failed, leave, play, totals


def limited(**rule: int) -> Settings:
    """A limit on each user."""
    return Settings(limits=LimitSettings(per_user=LimitRule(**rule)))


def test_the_eleventh_of_ten_a_minute_is_refused_with_the_exact_wait() -> None:
    """Ten in the first second, the eleventh at 20 s: 429, come back in 40 s; then it is let in."""
    stage = Stage(engine("a", 20), settings=limited(requests_per_minute=10))
    for number in range(10):
        stage.do(0.0, arrive(f"r{number}"))
    assert stage.do(20.0, arrive("r10")) == ["settle r10 rate_limited"]
    assert (stage.status("r10"), stage.retry_after("r10")) == (429, 40)
    fault = stage.settled["r10"].fault
    assert fault is not None
    assert "resets in 40000 ms" in fault.message
    assert stage.do(60.0, arrive("r11")) == ["join r11", "dispatch r11 #1 a"]
    assert not stage.buried


def test_one_users_limit_is_not_anothers() -> None:
    """Nor that of a user of the same name in another tenant."""
    stage = Stage(engine("a", 20), settings=limited(requests_per_minute=1))
    stage.do(0.0, arrive("r1"))
    assert stage.do(0.0, arrive("r2", "bob")) == ["join r2", "dispatch r2 #1 a"]
    assert stage.do(0.0, arrive("r3", tenant="other")) == ["join r3", "dispatch r3 #1 a"]


@pytest.mark.parametrize("way", ["answered", "failed", "left", "left the queue"])
def test_parallel_slots_come_back_whatever_the_end(way: str) -> None:
    """Two at a time: when one ends in any way another is let in."""
    stage = Stage(engine("a", 1 if way == "left the queue" else 9), settings=limited(concurrency=2))
    stage.do(0.0, arrive("r1", max_attempts=1))
    stage.do(0.0, arrive("r2", max_attempts=1))
    assert stage.do(0.0, arrive("r3")) == ["settle r3 rate_limited"]
    stage.do(1.0, {"answered": done("r2"), "failed": failed("r2")}.get(way, leave("r2")))
    assert "join r4" in stage.do(1.0, arrive("r4"))


def test_what_is_refused_after_the_limit_was_taken_gives_it_back() -> None:
    """A queue that is full does not use up the caller's requests per minute."""
    settings = Settings(queue=QueueSettings(size=1), limits=LimitSettings(per_user=LimitRule(requests_per_minute=3)))
    stage = Stage(engine("a"), settings=settings)
    for number in range(9):
        stage.do(0.0, arrive(f"r{number}"))
    endings = [stage.ending(f"r{number}") for number in range(9)]
    assert endings[:2] == [None, None]
    assert set(endings[2:]) == {Ending.BACKPRESSURE}


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    """503 with Retry-After; kept as a dead letter with the stage's name."""
    stage = Stage(engine("a"), settings=Settings(queue=QueueSettings(size=2)))
    for number in range(3):
        stage.do(0.0, arrive(f"r{number}"))
    assert stage.do(0.0, arrive("r3")) == ["settle r3 backpressure", "bury r3 backpressure:inference"]
    assert stage.status("r3") == 503
    assert (stage.retry_after("r3") or 0) >= 1
    assert totals(stage)["refused"] == 1


def test_one_user_may_not_fill_the_queue() -> None:
    """Beyond his part he hears 429; others still get in."""
    stage = Stage(engine("a"), settings=Settings(queue=QueueSettings(size=10, per_user=2)))
    for number in range(3):
        stage.do(0.0, arrive(f"r{number}"))
    stage.do(0.0, arrive("r3"))
    assert stage.status("r3") == 429
    assert stage.do(0.0, arrive("r4", "bob")) == ["join r4"]


def test_who_is_more_urgent_takes_the_place_of_the_newest_of_the_lowest_class() -> None:
    """The newest batch request goes, then the older, then the newest normal one; equals are never pushed out."""
    stage = Stage(engine("a"), settings=Settings(queue=QueueSettings(size=3)))
    batch, normal, interactive = ServiceClass.BATCH, ServiceClass.NORMAL, ServiceClass.INTERACTIVE
    play(
        stage,
        [
            (0.0, arrive("r0"), ["join r0", "dispatch r0 #1 a"]),
            (0.1, arrive("b1", service_class=batch), ["join b1"]),
            (0.2, arrive("n1", service_class=normal), ["join n1"]),
            (0.3, arrive("b2", service_class=batch), ["join b2"]),
            (
                1.0,
                arrive("i1", service_class=interactive),
                ["settle b2 backpressure", "bury b2 backpressure:inference", "join i1"],
            ),
            (1.1, arrive("n2"), ["settle b1 backpressure", "bury b1 backpressure:inference", "join n2"]),
            (1.2, arrive("n3"), ["settle n3 backpressure", "bury n3 backpressure:inference"]),
            (
                1.3,
                arrive("i2", service_class=interactive),
                ["settle n2 backpressure", "bury n2 backpressure:inference", "join i2"],
            ),
        ],
    )


def test_what_has_run_before_is_not_pushed_out() -> None:
    """A batch request that waits for its second attempt stays; the newcomer is refused."""
    stage = Stage(engine("a"), settings=Settings(queue=QueueSettings(size=1)))
    play(
        stage,
        [
            (0.0, arrive("b", service_class=ServiceClass.BATCH), ["join b", "dispatch b #1 a"]),
            (1.0, failed("b"), []),
            (2.0, arrive("n1"), ["join n1"]),
            (6.0, arrive("n2"), ["dispatch n1 #1 a", "join n2"]),
        ],
    )
    stage.wait(8.0)
    assert stage.scheduler.snapshot(8.0).queued == 2
    assert stage.do(8.0, leave("n2")) == ["settle n2 cancelled"]
    orders = stage.do(8.0, arrive("i", service_class=ServiceClass.INTERACTIVE))
    assert orders == ["settle i backpressure", "bury i backpressure:inference"]


def test_an_unknown_model_is_told_as_such() -> None:
    """404, no dead letter, no limit used."""
    stage = Stage(engine("a", 1, "gpt-*"))
    assert stage.do(0.0, arrive("r", model="llama")) == ["settle r model_not_found"]
    assert stage.status("r") == 404


def test_a_request_id_in_use_is_a_mistake_of_the_house() -> None:
    """Ids are made by the gateway: a second living one of the same name is a fault, not a result."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r"))
    with pytest.raises(ValueError, match="in use"):
        stage.do(0.0, arrive("r"))
    assert stage.do(1.0, done("r")) == ["settle r answered"]
    assert nothing_held(stage.scheduler)
