"""Several callers, one model call: joining, leading, leaving, failing, and answers from the cache."""

from __future__ import annotations

import pytest

from headrace.core.limits import LimitRule
from headrace.core.settings import FairnessSettings, HealthSettings, LimitSettings, RecoverySettings, Settings
from headrace.model import CacheResult, Cause, Ending, Finished, Outcome, Probed, Remember, ServiceClass, Usage
from tests.core.inventory import nothing_held
from tests.core.script import Stage, arrive, begun, done, engine, failed, leave, looked, more, play, sealed, totals

_ONE_TRY = Settings(recovery=RecoverySettings(max_attempts=1, cooldown=0.0))


def shared(state: str) -> Stage:
    """A stage on which "lead", "f1" and "f2" share a call that is looking, queued, running or streaming."""
    stage = Stage(engine("a"), settings=_ONE_TRY)
    if state == "queued":
        stage.do(0.0, arrive("blocker", "else"))
    stage.do(0.0, arrive("lead", "ann", key="k", look_up=state == "looking"))
    if state == "streaming":
        stage.do(0.3, begun("lead"))
    assert stage.do(0.5, arrive("f1", "bob", key="k")) == ["join f1 to lead"]
    assert stage.do(1.0, arrive("f2", "cid", key="k")) == ["join f2 to lead"]
    return stage


def go_on(stage: Stage, state: str) -> None:
    """Bring the shared call to its engine, if it is not there."""
    if state == "queued":
        stage.do(2.0, done("blocker"))
    if state == "looking":
        stage.do(2.0, looked("lead", hit=False))


_STATES = ["looking", "queued", "running", "streaming"]


@pytest.mark.parametrize("state", _STATES)
def test_whoever_asks_the_same_joins(state: str) -> None:
    """One model call answers all three; the answer says who joined."""
    stage = shared(state)
    go_on(stage, state)
    assert stage.do(3.0, done("lead", 10, 20)) == [f"settle {name} answered" for name in ("lead", "f1", "f2")]
    assert [stage.settled[name].cache for name in ("lead", "f1")] == [CacheResult.MISS, CacheResult.JOINED]
    assert totals(stage)["joined"] == 2
    assert nothing_held(stage.scheduler)


@pytest.mark.parametrize("state", _STATES)
def test_when_the_leader_leaves_the_next_one_leads(state: str) -> None:
    """Nothing is aborted, nothing is sent again."""
    stage = shared(state)
    assert stage.do(1.5, leave("lead")) == ["settle lead cancelled"]
    go_on(stage, state)
    assert stage.do(3.0, done("lead")) == ["settle f1 answered", "settle f2 answered"]
    assert [name for name, _ in stage.sent if name == "lead"] == ["lead"]


@pytest.mark.parametrize("state", _STATES)
def test_when_a_follower_leaves_the_others_are_not_touched(state: str) -> None:
    """His leaving is his own."""
    stage = shared(state)
    assert stage.do(1.5, leave("f1")) == ["settle f1 cancelled"]
    go_on(stage, state)
    assert stage.do(3.0, done("lead")) == ["settle lead answered", "settle f2 answered"]


@pytest.mark.parametrize("state", _STATES)
def test_when_all_leave_the_call_ends(state: str) -> None:
    """The last one to go closes the connection; nothing is held."""
    stage = shared(state)
    stage.do(1.5, leave("lead"))
    stage.do(1.5, leave("f2"))
    orders = stage.do(1.5, leave("f1"))
    aborted = ["abort lead #1"] if state in {"running", "streaming"} else []
    assert orders == [*aborted, "settle f1 cancelled"]
    if state == "looking":
        stage.do(2.0, looked("lead", hit=False))
    if state == "queued":
        stage.do(2.0, done("blocker"))
    stage.wait(100.0)
    assert nothing_held(stage.scheduler)
    assert "lead" not in stage.running


def test_when_the_leader_fails_one_follower_tries_once_more() -> None:
    """The second failure is told to all who are left; at most two calls; the next request asks anew."""
    stage = shared("running")
    play(
        stage,
        [
            (
                2.0,
                failed("lead"),
                ["settle lead inference_failure", "bury lead inference_failure", "dispatch lead #2 a"],
            ),
            (
                3.0,
                failed("lead"),
                [
                    "settle f1 inference_failure",
                    "bury f1 inference_failure",
                    "settle f2 inference_failure",
                    "bury f2 inference_failure",
                ],
            ),
            (4.0, arrive("new", key="k"), ["join new", "dispatch new #1 a"]),
        ],
    )


def test_the_follower_who_takes_over_may_succeed() -> None:
    """Only the leader hears of the failure."""
    stage = shared("running")
    stage.do(2.0, failed("lead"))
    assert stage.do(3.0, done("lead")) == ["settle f1 answered", "settle f2 answered"]
    stage.wait(200.0)
    assert nothing_held(stage.scheduler)


def test_after_a_take_over_waiting_is_bounded_again() -> None:
    """A follower whose wait had turned into running may have to wait once more: his class's time, not for ever."""
    settings = Settings(recovery=RecoverySettings(max_attempts=1), health=HealthSettings(grace=1000.0))
    stage = Stage(engine("a"), settings=settings)
    stage.do(0.0, arrive("lead", key="k"))
    stage.do(0.0, arrive("follow", "bob", key="k"))
    stage.wait(100.0)
    stage.do(100.0, failed("lead"))
    for _ in range(3):
        stage.do(101.0, Probed("a", healthy=False))
    assert stage.wait(159.9) == []
    assert stage.wait(160.0) == ["settle follow queue_timeout", "bury follow queue_timeout"]


def test_an_answer_that_was_begun_is_not_taken_over() -> None:
    """All have seen its beginning: all are told that it broke."""
    stage = shared("streaming")
    orders = stage.do(2.0, failed("lead", Cause.BROKEN_STREAM, committed=True))
    assert [order for order in orders if order.startswith("settle")] == [
        f"settle {name} stream_broken" for name in ("lead", "f1", "f2")
    ]


def test_a_mistake_of_the_callers_is_told_to_all() -> None:
    """The same request would be refused again: nobody takes over."""
    stage = shared("running")
    orders = stage.do(2.0, failed("lead", Cause.REJECTED, status=400))
    assert orders == [f"settle {name} rejected" for name in ("lead", "f1", "f2")]


def test_a_joiner_of_a_higher_class_lifts_the_place() -> None:
    """A batch call that an interactive caller joins is served as interactive, and falls back if he leaves."""
    stage = Stage(engine("a"), settings=Settings(fairness=FairnessSettings(slack=0.0)))
    play(
        stage,
        [
            (0.0, arrive("r0", "zed"), ["join r0", "dispatch r0 #1 a"]),
            (0.0, arrive("slow", "ann", key="k", service_class=ServiceClass.BATCH), ["join slow"]),
            (0.1, arrive("quick", "bob", key="k", service_class=ServiceClass.INTERACTIVE), ["join quick to slow"]),
        ],
    )
    assert stage.scheduler.snapshot(0.2).queued_by_class[ServiceClass.INTERACTIVE] == 1
    assert stage.scheduler.snapshot(0.2).queued_by_class[ServiceClass.BATCH] == 0
    stage.do(0.3, leave("quick"))
    assert stage.scheduler.snapshot(0.4).queued_by_class[ServiceClass.BATCH] == 1
    assert stage.do(1.0, done("r0")) == ["settle r0 answered", "dispatch slow #1 a"]


def test_a_joiner_of_a_lower_class_changes_nothing() -> None:
    """The call keeps the leader's place."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r0", "zed"))
    stage.do(0.0, arrive("lead", key="k"))
    stage.do(0.0, arrive("batch", "bob", key="k", service_class=ServiceClass.BATCH))
    assert stage.scheduler.snapshot(0.2).queued_by_class[ServiceClass.NORMAL] == 1


def test_each_caller_has_his_own_deadline() -> None:
    """A follower's time is over: he is told; the leader's answer still comes."""
    stage = Stage(engine("a"))
    play(
        stage,
        [
            (0.0, arrive("lead", key="k"), ["join lead", "dispatch lead #1 a"]),
            (0.0, arrive("hasty", "bob", key="k", deadline=2.0), ["join hasty to lead"]),
            (2.0, more("lead", 5), ["settle hasty deadline_expired", "bury hasty deadline_expired"]),
            (3.0, done("lead"), ["settle lead answered"]),
        ],
    )


def test_a_sealed_answer_is_not_joined() -> None:
    """It can no longer be given from its first byte: a newcomer gets a call of his own."""
    stage = Stage(engine("a", 2))
    play(
        stage,
        [
            (0.0, arrive("lead", key="k"), ["join lead", "dispatch lead #1 a"]),
            (1.0, sealed("lead"), []),
            (2.0, arrive("new", key="k"), ["join new", "dispatch new #1 a"]),
            (3.0, done("lead"), ["settle lead answered"]),
            (3.5, arrive("third", key="k"), ["join third to new"]),
        ],
    )


def test_requests_without_a_key_are_never_shared() -> None:
    """Two equal ones make two calls."""
    stage = Stage(engine("a", 2))
    assert stage.do(0.0, arrive("r1")) == ["join r1", "dispatch r1 #1 a"]
    assert stage.do(0.0, arrive("r2")) == ["join r2", "dispatch r2 #1 a"]


def test_the_cost_is_shared() -> None:
    """Three users of one answer are charged a third each."""
    stage = shared("running")
    stage.do(3.0, done("lead", prompt=30, completion=0))
    users = stage.scheduler._fleet.states["a"].pools[0].tree.root.children["normal"].children["acme"].children
    assert {name: users[name].vt for name in ("ann", "bob", "cid")} == pytest.approx({"ann": 10, "bob": 10, "cid": 10})


# ---------------------------------------------------------------------------------------------------- the cache


def test_a_hit_answers_all_who_waited_for_it() -> None:
    """No engine is asked."""
    stage = shared("looking")
    assert stage.do(2.0, looked("lead", hit=True)) == [f"settle {name} answered" for name in ("lead", "f1", "f2")]
    assert {stage.settled[name].cache for name in ("lead", "f1", "f2")} == {CacheResult.HIT}
    assert totals(stage)["hits"] == 3
    assert not stage.sent
    assert nothing_held(stage.scheduler)


def test_a_miss_goes_to_the_queue() -> None:
    """The request is sent as if the cache had not been asked."""
    stage = Stage(engine("a"))
    play(
        stage,
        [
            (0.0, arrive("r", key="k", look_up=True), ["join r", "look up r"]),
            (0.1, looked("r", hit=False), ["dispatch r #1 a"]),
        ],
    )


def test_one_who_is_refused_after_the_cache_was_asked_is_told_and_kept() -> None:
    """He was accepted: he gets an answer and a dead letter."""
    stage = Stage(engine("a"), settings=_ONE_TRY)
    stage.do(0.0, arrive("r0"))
    stage.do(0.0, arrive("r", key="k", look_up=True))
    stage.do(0.0, failed("r0", Cause.RATE_LIMITED, retry_after=50.0))
    assert stage.do(0.1, looked("r", hit=False)) == ["settle r rate_limited", "bury r rate_limited"]


@pytest.mark.parametrize("cacheable", [True, False])
def test_finished_answers_are_remembered_if_they_may(cacheable: bool) -> None:
    """Wanted by the request and whole: stored. Cut by a length limit: not."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r", key="k", remember=True))
    event = Finished(stage.calls["r"], 1, Outcome(Cause.OK, Usage(1, 1), cacheable=cacheable))
    orders = stage.scheduler.handle(event, 1.0)
    assert any(isinstance(order, Remember) for order in orders) == cacheable


def test_failures_are_never_remembered() -> None:
    """Nothing is stored, and the next request asks the engine."""
    stage = Stage(engine("a"), settings=_ONE_TRY)
    stage.do(0.0, arrive("r", key="k", remember=True))
    orders = stage.do(1.0, failed("r"))
    assert not any(order.startswith("remember") for order in orders)
    assert "dispatch again #1 a" in stage.do(2.0, arrive("again", key="k", remember=True))


# ---------------------------------------------------------------------------------------------------- limits


def test_joining_counts_against_the_joiners_limit() -> None:
    """Who may ask twice a minute may not join a third time."""
    limits = LimitSettings(per_user=LimitRule(requests_per_minute=2))
    stage = Stage(engine("a"), settings=Settings(limits=limits))
    stage.do(0.0, arrive("lead", "ann", key="k"))
    assert stage.do(0.0, arrive("b1", "bob", key="k")) == ["join b1 to lead"]
    assert stage.do(0.0, arrive("b2", "bob", key="k")) == ["join b2 to lead"]
    assert stage.do(0.0, arrive("b3", "bob", key="k")) == ["settle b3 rate_limited"]


def test_a_leader_who_is_refused_does_not_hurt_those_who_follow() -> None:
    """The one over his limit never becomes a leader; the next with the same question does."""
    limits = LimitSettings(per_user=LimitRule(requests_per_minute=1))
    stage = Stage(engine("a", 2), settings=Settings(limits=limits))
    play(
        stage,
        [
            (0.0, arrive("other", "ann"), ["join other", "dispatch other #1 a"]),
            (0.0, arrive("lead", "ann", key="k"), ["settle lead rate_limited"]),
            (0.1, arrive("f1", "bob", key="k"), ["join f1", "dispatch f1 #1 a"]),
            (0.2, arrive("f2", "cid", key="k"), ["join f2 to f1"]),
            (1.0, done("f1"), ["settle f1 answered", "settle f2 answered"]),
        ],
    )
    assert stage.ending("f2") is Ending.ANSWERED
