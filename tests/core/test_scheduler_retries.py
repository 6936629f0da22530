"""After a failed attempt: where the next one goes, when, and what is told when there is none."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.core.settings import (
    BreakerSettings,
    FairnessSettings,
    RecoverySettings,
    RoutingSettings,
    Settings,
    Strategy,
)
from headrace.model import Cause, Ending, Probed, ServiceClass, Tier, Usage
from tests.core.inventory import nothing_held
from tests.core.script import Stage, arrive, begun, done, engine, failed, leave, more, play


def with_recovery(**recovery: object) -> Settings:
    """Default settings but for recovery."""
    return Settings(recovery=RecoverySettings(**recovery))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "cause", [Cause.CONNECT, Cause.TIMEOUT, Cause.SERVER_ERROR, Cause.BROKEN_STREAM, Cause.PROTOCOL, Cause.RATE_LIMITED]
)
def test_a_failed_attempt_goes_to_another_instance_at_once(cause: Cause) -> None:
    """The caller sees only the second instance's answer."""
    stage = Stage(engine("a"), engine("b"))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (1.0, failed("r", cause), ["dispatch r #2 b"]),
            (2.0, done("r"), ["settle r answered"]),
        ],
    )
    assert stage.settled["r"].attempts == 2
    assert stage.settled["r"].instance == "b"
    stage.wait(100.0)
    assert nothing_held(stage.scheduler)


def test_three_attempts_are_the_most() -> None:
    """Four instances, all failing: three are asked, then the caller is told and the request is kept."""
    stage = Stage(*(engine(name) for name in "abcd"))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (1.0, failed("r"), ["dispatch r #2 b"]),
            (2.0, failed("r"), ["dispatch r #3 c"]),
            (3.0, failed("r", detail="boom"), ["settle r inference_failure", "bury r inference_failure"]),
        ],
    )
    letter = stage.buried["r"].letter
    assert [(record.number, record.instance, record.ended) for record in letter.attempts] == [
        (1, "a", 1.0),
        (2, "b", 2.0),
        (3, "c", 3.0),
    ]
    assert letter.detail == "boom"
    assert stage.status("r") == 502


def test_a_caller_may_ask_for_fewer_attempts() -> None:
    """One attempt means no retry."""
    stage = Stage(engine("a"), engine("b"))
    play(
        stage,
        [
            (0.0, arrive("r", max_attempts=1), ["join r", "dispatch r #1 a"]),
            (1.0, failed("r"), ["settle r inference_failure", "bury r inference_failure"]),
        ],
    )


def test_after_the_first_content_nothing_is_repeated() -> None:
    """A broken stream that the caller has seen a part of ends with an error, not with a second beginning."""
    stage = Stage(engine("a"), engine("b"))
    play(
        stage,
        [
            (0.0, arrive("r", prompt_tokens=7), ["join r", "dispatch r #1 a"]),
            (1.0, begun("r"), []),
            (1.5, more("r", 32), []),
            (2.0, failed("r", Cause.BROKEN_STREAM, committed=True), ["settle r stream_broken", "bury r stream_broken"]),
        ],
    )
    assert stage.settled["r"].usage == Usage(7, 32, estimated=True)


@pytest.mark.parametrize(
    ("cause", "ending", "status"),
    [
        (Cause.REJECTED, Ending.REJECTED, 400),
        (Cause.ABORTED, Ending.INFERENCE_FAILURE, 502),
        (Cause.TIMEOUT, Ending.INFERENCE_TIMEOUT, 504),
        (Cause.UPSTREAM_AUTH, Ending.INFERENCE_FAILURE, 502),
        (Cause.BROKEN_STREAM, Ending.STREAM_BROKEN, 502),
        (Cause.RATE_LIMITED, Ending.INFERENCE_FAILURE, 429),
    ],
)
def test_what_cannot_be_repeated_is_told_by_its_cause(cause: Cause, ending: Ending, status: int) -> None:
    """The ending and the status say whose fault it was; the caller's own mistake leaves no dead letter."""
    stage = Stage(engine("a"), settings=with_recovery(max_attempts=1))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, failed("r", cause))
    assert stage.ending("r") is ending
    assert stage.status("r") == status
    assert ("r" in stage.buried) == (ending is not Ending.REJECTED)


@pytest.mark.parametrize(
    ("setting", "cause"),
    [("on_timeout", Cause.TIMEOUT), ("on_server_error", Cause.SERVER_ERROR), ("on_connect", Cause.CONNECT)],
)
def test_each_kind_of_retry_can_be_switched_off(setting: str, cause: Cause) -> None:
    """Switched off, the first failure is final."""
    stage = Stage(engine("a"), engine("b"), settings=with_recovery(**{setting: False}))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, failed("r", cause))
    assert stage.ending("r") is not None


def test_a_rejected_key_is_never_tried_again_where_it_was_rejected() -> None:
    """Another instance may have a good key; the first is not asked again even when the other is full."""
    stage = Stage(engine("a"), engine("b"))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (0.0, arrive("other"), ["join other", "dispatch other #1 b"]),
            (1.0, failed("r", Cause.UPSTREAM_AUTH), []),
            (9.0, done("other"), ["settle other answered", "dispatch r #2 b"]),
            (9.5, failed("r", Cause.UPSTREAM_AUTH), ["settle r inference_failure", "bury r inference_failure"]),
        ],
    )


def test_an_instance_back_from_its_cooldown_is_used_while_the_others_are_full() -> None:
    """The retry waits for the full one only as long as the first cools down; then no place stays idle."""
    stage = Stage(engine("a"), engine("b"))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (0.0, arrive("other"), ["join other", "dispatch other #1 b"]),
            (1.0, failed("r"), []),
            (6.0, more("other", 1), ["dispatch r #2 a"]),
        ],
    )


def test_a_lone_instance_is_tried_again_after_its_cooldown_and_a_back_off() -> None:
    """The wait is the cooldown plus a back-off with jitter, doubled for the second retry."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, failed("r"))
    assert stage.wait(6.24) == []
    assert stage.wait(6.51) == ["dispatch r #2 a"]
    stage.do(10.0, failed("r"))
    assert stage.wait(15.49) == []
    assert stage.wait(16.01) == ["dispatch r #3 a"]


def test_nobody_waits_longer_than_makes_sense() -> None:
    """All instances asked to be left alone for long: the caller is told how long at once."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r"))
    stage.do(0.0, failed("r", Cause.RATE_LIMITED, retry_after=30.0))
    assert stage.ending("r") is Ending.INFERENCE_FAILURE
    assert (stage.status("r"), stage.retry_after("r")) == (429, 30)


def test_when_one_instance_is_limited_the_others_answer_each_asked_once() -> None:
    """A and B say 429, C answers, D is down and never asked."""
    settings = with_recovery(max_attempts=6)
    stage = Stage(*(engine(name) for name in "abcd"), settings=settings)
    for _ in range(3):
        stage.do(0.0, Probed("d", healthy=False))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (0.1, failed("r", Cause.RATE_LIMITED, retry_after=30.0), ["dispatch r #2 b"]),
            (0.2, failed("r", Cause.RATE_LIMITED, retry_after=20.0), ["dispatch r #3 c"]),
            (1.0, done("r"), ["settle r answered"]),
        ],
    )


def test_when_all_are_limited_the_soonest_return_is_told() -> None:
    """Two attempts, not six; the wait is the smaller one."""
    stage = Stage(engine("a"), engine("b"), settings=with_recovery(max_attempts=6))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (0.0, failed("r", Cause.RATE_LIMITED, retry_after=30.0), ["dispatch r #2 b"]),
            (
                0.0,
                failed("r", Cause.RATE_LIMITED, retry_after=20.0),
                ["settle r inference_failure", "bury r inference_failure"],
            ),
        ],
    )
    assert (stage.status("r"), stage.retry_after("r")) == (429, 20)


def test_while_the_only_instance_is_limited_callers_are_told_at_the_door() -> None:
    """Ten seconds later another caller hears 429 and the remaining wait; the engine is not asked."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, failed("r1", Cause.RATE_LIMITED, retry_after=30.0))
    assert stage.retry_after("r1") == 30
    assert stage.do(10.0, arrive("r2")) == ["settle r2 rate_limited"]
    assert (stage.status("r2"), stage.retry_after("r2")) == (429, 20)
    assert stage.do(30.0, arrive("r3")) == ["join r3", "dispatch r3 #1 a"]


@pytest.mark.parametrize(
    ("statuses", "told"), [((503, 503), 503), ((529, 429), 503), ((429, 429), 429)], ids=["full", "both", "limited"]
)
def test_engines_that_are_full_are_no_limit_of_the_caller(statuses: tuple[int, int], told: int) -> None:
    """While all cool down callers hear 503 if one is overloaded, and 429 only if every one limits its rate."""
    stage = Stage(engine("a"), engine("b"), settings=Settings(recovery=RecoverySettings(max_attempts=1)))
    for number in range(2):
        stage.do(0.0, arrive(f"r{number}"))
    for number, status in enumerate(statuses):
        stage.do(0.0, failed(f"r{number}", Cause.RATE_LIMITED, retry_after=30.0, status=status))

    stage.do(10.0, arrive("r"))

    assert (stage.status("r"), stage.retry_after("r")) == (told, 20)


def test_a_long_request_to_stay_away_is_obeyed_within_reason() -> None:
    """An hour is cut to the cap; a success of an older stream does not end what the engine asked for."""
    stage = Stage(engine("a", 2))
    stage.do(0.0, arrive("old"))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, failed("r", Cause.RATE_LIMITED, retry_after=3600.0))
    stage.do(2.0, done("old"))
    assert stage.do(3.0, arrive("r2")) == ["settle r2 rate_limited"]
    assert stage.retry_after("r2") == 58


def test_local_instances_go_first_and_remote_ones_help_when_they_failed() -> None:
    """While a local one is merely full the request waits for it; when none is left the remote one is used."""
    stage = Stage(engine("cloud", tier=Tier.REMOTE), engine("near"))
    play(
        stage,
        [
            (0.0, arrive("r1"), ["join r1", "dispatch r1 #1 near"]),
            (0.0, arrive("r2"), ["join r2"]),
            (1.0, failed("r1"), ["dispatch r1 #2 cloud"]),
            (2.0, done("r1"), ["settle r1 answered", "dispatch r2 #1 cloud"]),
            (7.0, arrive("r3"), ["join r3", "dispatch r3 #1 near"]),
        ],
    )


def test_one_who_waited_long_enough_goes_to_a_remote_instance() -> None:
    """At that very moment, without any other event; who comes when a local place is free goes there."""
    settings = Settings(routing=RoutingSettings(spill_after={ServiceClass.NORMAL: 3.0}))
    stage = Stage(engine("cloud", 9, tier=Tier.REMOTE), engine("near"), settings=settings)
    play(
        stage,
        [
            (0.0, arrive("r1"), ["join r1", "dispatch r1 #1 near"]),
            (0.0, arrive("r2"), ["join r2"]),
            (1.0, arrive("r3"), ["join r3"]),
            (2.0, done("r1"), ["settle r1 answered", "dispatch r2 #1 near"]),
        ],
    )
    assert stage.wait(3.9) == []
    assert stage.wait(4.0) == ["dispatch r3 #1 cloud"]
    assert stage.do(5.0, done("r2")) == ["settle r2 answered"]
    assert stage.do(5.0, arrive("r4")) == ["join r4", "dispatch r4 #1 near"]


def test_retries_are_tied_to_traffic() -> None:
    """With no reserve and a fifth of the traffic, five first attempts pay for one retry."""
    recovery = RecoverySettings(budget_reserve=0.0, budget_ratio=0.2, cooldown=0.0)
    settings = Settings(recovery=recovery, breaker=BreakerSettings(threshold=100))
    stage = Stage(engine("a", 9), engine("b", 9), settings=settings)
    for number in range(20):
        stage.do(float(number), arrive(f"r{number}"))
        stage.do(float(number), failed(f"r{number}"))
        if f"r{number}" in stage.running:
            stage.do(float(number), done(f"r{number}"))
    endings = Counter(stage.ending(f"r{number}") for number in range(20))
    assert endings[Ending.ANSWERED] == 4


def test_a_retry_goes_before_the_users_other_requests() -> None:
    """It has waited already: it returns to the head of its own queue."""
    stage = Stage(engine("a"), engine("b", tier=Tier.REMOTE))
    play(
        stage,
        [
            (0.0, arrive("r1"), ["join r1", "dispatch r1 #1 a"]),
            (0.0, arrive("r2", deadline=50.0), ["join r2"]),
            (1.0, failed("r1"), ["dispatch r1 #2 b"]),
            (2.0, failed("r1"), []),
        ],
    )
    assert stage.wait(8.0)[0] == "dispatch r2 #1 a"


def test_leaving_between_two_attempts_ends_it_quietly() -> None:
    """A caller who goes while his call waits for its next try leaves nothing behind and blames nobody."""
    stage = Stage(engine("a"))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (1.0, failed("r"), []),
            (2.0, leave("r"), ["settle r cancelled"]),
        ],
    )
    assert stage.wait(100.0) == []
    assert nothing_held(stage.scheduler)


@pytest.mark.parametrize("strategy", Strategy)
def test_after_one_instance_restarts_all_get_their_share(strategy: Strategy) -> None:
    """300 requests over three instances, one of which was down: a hundred each, no flood to the newcomer."""
    settings = Settings(routing=RoutingSettings(strategy=strategy), fairness=FairnessSettings())
    stage = Stage(*(engine(name, 4) for name in "abc"), settings=settings)
    for _ in range(3):
        stage.do(0.0, Probed("a", healthy=False))
    for number in range(8):
        stage.do(0.0, arrive(f"before{number}"))
    stage.do(1.0, Probed("a", healthy=True))
    stage.sent.clear()
    for number in range(300):
        stage.do(1.0 + number, arrive(f"r{number}"))
        stage.do(1.5 + number, done(next(iter(stage.running))))
    counts = Counter(instance for _, instance in stage.sent)
    assert all(abs(counts[name] - 100) <= 12 for name in "abc"), counts
