"""An answer that broke off after its beginning was read: where it goes on, when it does not, and who pays what."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.settings import FairnessSettings, RecoverySettings, Settings
from headrace.model import Cause, Ending, Instance, Probed, Usage
from tests.core.inventory import nothing_held
from tests.core.script import Stage, arrive, begun, done, engine, failed, leave, more, play, totals

_PART = Usage(10, 30, estimated=True)


def able(name: str, limit: int = 1, **more: Any) -> Instance:
    """An instance that can go on from a part of an answer."""
    return engine(name, limit, resume=True, **more)


def with_recovery(**recovery: Any) -> Settings:
    """Default settings but for recovery."""
    return Settings(recovery=RecoverySettings(**recovery))


def broken(name: str, cause: Cause = Cause.BROKEN_STREAM, **outcome: Any) -> Any:
    """The fact that an answer broke off, of which the callers have read 30 tokens."""
    return failed(name, cause, **{"committed": True, "resumable": True, "usage": _PART, **outcome})


@pytest.mark.parametrize("cause", [Cause.BROKEN_STREAM, Cause.TIMEOUT, Cause.SERVER_ERROR, Cause.RATE_LIMITED])
def test_a_broken_answer_goes_on_at_another_instance(cause: Cause) -> None:
    """Whatever broke it: at once, and what is told at the end is the whole of it."""
    stage = Stage(able("a"), able("b"))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (1.0, begun("r"), []),
            (2.0, broken("r", cause), ["dispatch r #2 b"]),
            (3.0, begun("r"), []),
            (4.0, done("r", 10, 50), ["settle r answered"]),
        ],
    )
    settled = stage.settled["r"]
    assert (settled.usage, settled.attempts, settled.resumes) == (Usage(10, 50), 2, 1)
    assert (totals(stage)["retries"], totals(stage)["resumes"]) == (1, 1)
    assert nothing_held(stage.scheduler)


def test_only_an_instance_that_can_go_on_is_asked() -> None:
    """One that cannot is passed over, however idle; the one that can is waited for while it is busy."""
    stage = Stage(able("a"), engine("b"), able("c"))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (0.0, arrive("y", "zed"), ["join y", "dispatch y #1 b"]),
            (0.0, arrive("x", "zed"), ["join x", "dispatch x #1 c"]),
            (0.5, done("y"), ["settle y answered"]),
            (1.0, begun("r"), []),
            (2.0, broken("r"), []),
            (3.0, done("x"), ["settle x answered", "dispatch r #2 c"]),
            (4.0, done("r", 10, 50), ["settle r answered"]),
        ],
    )


def test_where_nobody_can_go_on_the_stream_ends_with_an_error() -> None:
    """The other instance is not asked to begin anew: the caller has read the beginning."""
    stage = Stage(able("a"), engine("b"))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, begun("r"))
    for _ in range(3):
        stage.do(1.5, Probed("a", healthy=False))
    assert stage.do(2.0, broken("r")) == ["settle r stream_broken", "bury r stream_broken"]
    (record,) = stage.buried["r"].letter.attempts
    assert (record.cause, record.produced) == (Cause.BROKEN_STREAM, 30)


def test_the_same_instance_goes_on_once_it_is_back() -> None:
    """It is the only one: after its cooldown and a back-off."""
    stage = Stage(able("a"), settings=with_recovery(cooldown=5.0, backoff=1.0))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, begun("r"))
    assert stage.do(2.0, broken("r")) == []
    assert stage.wait(7.0) == []
    assert stage.wait(9.0) == ["dispatch r #2 a"]


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({"resume": False}, {}),
        ({"max_resumes": 0}, {}),
        ({"max_attempts": 1}, {}),
        ({"budget_reserve": 0.0, "budget_ratio": 0.0}, {}),
        ({"on_server_error": False}, {}),
        ({}, {"resumable": False}),
    ],
)
def test_every_bound_on_attempts_holds_for_resumes(settings: dict[str, Any], outcome: dict[str, Any]) -> None:
    """Switched off, no attempt or budget left, a cause that is not retried, or a text that is not known: an error."""
    stage = Stage(able("a"), able("b"), settings=with_recovery(**settings))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, begun("r"))
    assert stage.do(2.0, broken("r", **outcome)) == ["settle r stream_broken", "bury r stream_broken"]
    assert nothing_held(stage.scheduler)


def test_an_answer_is_taken_up_again_only_so_often() -> None:
    """Twice by default, even where more attempts are allowed."""
    stage = Stage(*(able(name) for name in "abcd"), settings=with_recovery(max_attempts=9))
    stage.do(0.0, arrive("r"))
    for attempt in (2, 3):
        stage.do(stage.now, begun("r"))
        assert stage.do(stage.now, broken("r")) == [f"dispatch r #{attempt} {'abc'[attempt - 1]}"]
    assert stage.do(1.0, broken("r")) == ["settle r stream_broken", "bury r stream_broken"]


def test_many_resumes_leave_new_requests_their_retries() -> None:
    """Five of ten in reserve go to streams that broke off together; a request that fails unseen has one left."""
    stage = Stage(able("a", 50), able("b", 50), settings=with_recovery(budget_reserve=10.0, budget_ratio=0.0))
    for number in range(20):
        stage.do(0.0, arrive(f"s{number}"))
        stage.do(0.0, begun(f"s{number}"))
    for name in [name for name, instance in stage.sent if instance == "a"]:
        stage.do(1.0, broken(name))
    assert totals(stage)["resumes"] == 5
    stage.do(1.0, arrive("r"))
    assert stage.do(2.0, failed("r", Cause.CONNECT)) == []
    assert totals(stage)["retries"] == 6


@pytest.mark.parametrize("cause", [Cause.REJECTED, Cause.UPSTREAM_AUTH, Cause.CONNECT, Cause.PROTOCOL])
def test_a_caller_in_mid_answer_is_told_of_nothing_but_the_break(cause: Cause) -> None:
    """What the second engine says to the half answer is no business of a caller who asked something else."""
    stage = Stage(able("a"), able("b"), settings=with_recovery(max_attempts=2))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, begun("r"))
    stage.do(2.0, broken("r"))
    assert stage.do(3.0, failed("r", cause, resumable=True))[0] == "settle r stream_broken"
    fault = stage.settled["r"].fault
    assert fault is not None
    assert fault.code == "stream_incomplete"
    assert stage.settled["r"].usage == Usage(1, 30, estimated=True), "what was delivered"


def test_a_resume_that_fails_before_its_first_word_is_made_again() -> None:
    """Nothing was added to what the callers have, so the next one goes on from the same place."""
    stage = Stage(able("a"), able("b"), able("c"))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, begun("r"))
    stage.do(2.0, broken("r"))
    assert stage.do(3.0, failed("r", Cause.CONNECT, resumable=True)) == ["dispatch r #3 c"]
    assert stage.running["r"].resumes == 2


def test_only_what_is_new_is_charged() -> None:
    """The prompt once, and each token of the answer once: as if it had not broken."""
    charged: list[float] = []
    for breaks in (False, True):
        settings = Settings(fairness=FairnessSettings(calibrate=False))
        stage = Stage(able("a"), able("b"), settings=settings)
        stage.do(0.0, arrive("r", prompt_tokens=10))
        stage.do(1.0, begun("r"))
        stage.do(2.0, more("r", 30))
        if breaks:
            stage.do(3.0, broken("r"))
            stage.do(4.0, begun("r"))
        stage.do(5.0, more("r", 900))
        stage.do(6.0, done("r", 10, 930))
        charged.append(stage.scheduler.snapshot(6.0).service["acme/ann"])
    assert charged[0] == pytest.approx(charged[1])
    assert charged[0] == pytest.approx(10 + 2 * 930, rel=0.1)


def test_one_who_leaves_between_the_halves_pays_for_what_he_got() -> None:
    """Prompt and thirty tokens, not the estimate of the whole."""
    stage = Stage(able("a"), settings=Settings(fairness=FairnessSettings(calibrate=False)))
    for fact in (arrive("r", prompt_tokens=10), begun("r"), broken("r"), leave("r")):
        stage.do(0.0, fact)
    assert stage.scheduler.snapshot(0.0).service["acme/ann"] == pytest.approx(10 + 2 * 30)
    assert nothing_held(stage.scheduler)


def test_the_instance_that_goes_on_is_judged_by_its_own_tokens() -> None:
    """Ten tokens in a second, not forty."""
    stage = Stage(able("a"), able("b"))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, begun("r"))
    stage.do(2.0, broken("r"))
    stage.do(3.0, done("r", 10, 40))
    speeds = {view.id: view.speed for view in stage.scheduler.snapshot(3.0).instances}
    assert speeds == {"a": 0.0, "b": 10.0}


def test_half_an_answer_does_not_wait_for_ever() -> None:
    """Beyond its patience the caller is told that the stream broke, not that a queue was full."""
    stage = Stage(able("a"), able("b"), settings=with_recovery(resume_patience=20.0))
    stage.do(0.0, arrive("r"))
    stage.do(0.0, arrive("x", "zed"))
    stage.do(1.0, begun("r"))
    for _ in range(3):
        stage.do(1.0, Probed("a", healthy=False))
    assert stage.do(2.0, broken("r")) == []
    assert stage.wait(21.9) == []
    assert stage.wait(22.0) == ["settle r stream_broken", "bury r stream_broken"]
    assert stage.ending("x") is None


def test_followers_get_one_seamless_answer() -> None:
    """All who share the call stay on it, also one who joins between the halves; the leader may leave."""
    stage = Stage(able("a"), settings=with_recovery(cooldown=5.0))
    stage.do(0.0, arrive("r", key="k"))
    stage.do(0.0, arrive("s", "bob", key="k"))
    stage.do(1.0, begun("r"))
    stage.do(2.0, broken("r"))
    assert stage.do(3.0, arrive("t", "cid", key="k")) == ["join t to r"]
    stage.do(4.0, leave("r"))
    assert stage.wait(9.0) == ["dispatch r #2 a"]
    assert stage.do(10.0, done("r", 10, 50)) == ["settle s answered", "settle t answered"]
    assert stage.ending("r") is Ending.CANCELLED
    assert nothing_held(stage.scheduler)
