"""A second attempt beside a late first one: when it is made, who wins, and what is left of the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.core.hedging import FirstTokens
from headrace.core.settings import HedgeSettings, RecoverySettings, RoutingSettings, Settings
from headrace.model import AnswerForm, Cause, Draining, Ending, Event, Probed, ServiceClass, Tier
from tests.core.inventory import nothing_held
from tests.core.script import Fact, Stage, arrive, begun, done, engine, failed, leave, more, play, totals

RICH = HedgeSettings(after=2.0, budget=1.0)


def hedging(hedge: HedgeSettings = RICH, **recovery: Any) -> Settings:
    """Settings that hedge."""
    return Settings(routing=RoutingSettings(hedge=hedge), recovery=RecoverySettings(**recovery))


def stream(name: str, user: str = "ann", **more_of_it: Any) -> Event:
    """A streamed request."""
    return arrive(name, user, **{"form": AnswerForm.STREAM, "prompt_tokens": 100, **more_of_it})


def raced(**recovery: Any) -> Stage:
    """Two attempts of `r` run: the first at a, the second at b."""
    stage = Stage(engine("a"), engine("b"), engine("c"), settings=hedging(**recovery))
    assert stage.do(0.0, stream("r")) == ["join r", "dispatch r #1 a"]
    assert stage.wait(1.9) == []
    assert stage.wait(2.0) == ["hedge r #2 b"]
    return stage


def held(stage: Stage) -> Mapping[str, int]:
    """Requests in flight by instance."""
    return {view.id: view.in_flight for view in stage.scheduler.snapshot(stage.now).instances}


def test_without_being_asked_for_nothing_is_hedged() -> None:
    """A late first content is waited for."""
    stage = Stage(engine("a"), engine("b"))
    stage.do(0.0, stream("r"))
    assert stage.wait(1000.0) == []


def test_whoever_begins_first_answers_and_the_other_is_broken_off() -> None:
    """The second began: it is the one attempt from then on; the first is nobody's fault."""
    stage = raced()
    assert stage.do(3.0, begun("r", 2)) == ["abort r #1"]
    assert held(stage) == {"a": 0, "b": 1, "c": 0}
    assert stage.do(4.0, done("r")) == ["settle r answered"]
    assert (stage.settled["r"].instance, stage.settled["r"].attempts) == ("b", 2)
    assert (totals(stage)["hedges"], totals(stage)["hedges_won"], totals(stage)["retries"]) == (1, 1, 0)
    views = {view.id: view for view in stage.scheduler.snapshot(4.0).instances}
    assert (views["a"].reliability, views["a"].cooldown) == (1.0, 0.0)
    assert nothing_held(stage.scheduler)


def test_one_who_never_begins_first_is_not_asked_first_for_ever() -> None:
    """An instance of which nothing is known but that it was too slow is guessed to be so, until it has answered."""
    stage, first = Stage(engine("slow"), engine("fast"), settings=hedging()), list[str]()
    for number in range(8):
        name, at = f"r{number}", 10.0 * number
        stage.do(at, stream(name, prompt_tokens=2000))
        first.append(stage.sent[-1][1])
        if first[-1] == "fast":
            stage.do(at + 0.8, begun(name))
        else:
            stage.wait(at + 2.0)
            stage.do(at + 2.8, begun(name, 2))
        stage.do(at + 3.0, done(name))
    assert first.count("slow") == 1


def test_the_first_one_may_still_win() -> None:
    """Then the second is broken off."""
    stage = raced()
    assert stage.do(3.0, begun("r", 1)) == ["abort r #2"]
    stage.do(3.5, more("r", 40))
    assert stage.do(4.0, done("r")) == ["settle r answered"]
    assert (stage.settled["r"].instance, totals(stage)["hedges_won"]) == ("a", 0)
    assert nothing_held(stage.scheduler)


def test_one_who_has_begun_is_not_hedged() -> None:
    """What comes slowly after that is no reason."""
    stage = Stage(engine("a"), engine("b"), settings=hedging())
    stage.do(0.0, stream("r"))
    stage.do(1.9, begun("r"))
    assert stage.wait(1000.0) == []


@pytest.mark.parametrize("attempt", [1, 2])
def test_when_one_of_two_fails_the_other_goes_on_alone(attempt: int) -> None:
    """No third attempt is made for it; the failure counts against its instance only."""
    stage = raced()
    assert stage.do(3.0, failed("r", attempt=attempt)) == []
    assert sum(held(stage).values()) == 1
    assert stage.do(4.0, begun("r", 3 - attempt)) == []
    assert stage.do(5.0, done("r")) == ["settle r answered"]
    views = {view.id: view for view in stage.scheduler.snapshot(5.0).instances}
    assert [views[name].reliability < 1.0 for name in "ab"] == [attempt == 1, attempt == 2]
    assert nothing_held(stage.scheduler)


def test_when_both_fail_the_third_attempt_is_a_retry_elsewhere() -> None:
    """Both failures count as attempts made."""
    stage = raced()
    stage.do(3.0, failed("r", attempt=1))
    assert stage.do(4.0, failed("r")) == ["dispatch r #3 c"]
    assert stage.do(5.0, failed("r", detail="third")) == ["settle r inference_failure", "bury r inference_failure"]
    attempts = stage.buried["r"].letter.attempts
    assert [(record.number, record.instance) for record in attempts] == [(1, "a"), (2, "b"), (3, "c")]


def test_what_is_wrong_with_the_request_ends_both() -> None:
    """The other engine would say the same."""
    stage = raced()
    assert stage.do(3.0, failed("r", Cause.REJECTED, attempt=2)) == ["abort r #1", "settle r rejected"]
    assert nothing_held(stage.scheduler)


def test_a_whole_answer_of_one_ends_the_other() -> None:
    """Also when its beginning was never told."""
    stage = raced()
    assert stage.do(3.0, done("r", attempt=2)) == ["abort r #1", "settle r answered"]
    assert stage.settled["r"].instance == "b"
    assert nothing_held(stage.scheduler)


@pytest.mark.parametrize("fact", [leave("r"), Draining(until=2.5)], ids=["the caller leaves", "the house closes"])
def test_both_end_with_the_call(fact: Fact) -> None:
    """Whatever ends it, both connections are closed and both places given back."""
    stage = raced()
    orders = stage.do(2.5, fact) + stage.wait(3.0)
    assert orders[:2] == ["abort r #2", "abort r #1"]
    assert stage.ending("r") is not None
    assert nothing_held(stage.scheduler)


def test_the_deadline_ends_both() -> None:
    """It is one deadline over all attempts."""
    stage = Stage(engine("a"), engine("b"), settings=hedging())
    stage.do(0.0, stream("r", deadline=5.0))
    assert stage.wait(10.0)[:4] == ["hedge r #2 b", "abort r #2", "abort r #1", "settle r deadline_expired"]
    assert stage.ending("r") is Ending.DEADLINE_EXPIRED
    assert nothing_held(stage.scheduler)


def test_late_facts_of_the_loser_change_nothing() -> None:
    """Its tokens, its beginning, its end."""
    stage = raced()
    stage.do(3.0, begun("r", 2))
    call = stage.calls["r"]
    late: list[Fact] = [begun("r", 1), done("r", attempt=1), failed("r", attempt=1)]
    for fact in late:
        event = fact(stage) if callable(fact) else fact
        assert stage.scheduler.handle(event, 3.5) == []
    assert stage.scheduler._book.calls[call].number == 2


def test_nothing_else_open_no_hedge() -> None:
    """Full, down or resting instances are not asked, and none is waited for."""
    stage = Stage(engine("a"), engine("b"), engine("c"), settings=hedging())
    stage.do(0.0, arrive("x"))
    stage.do(0.0, stream("r"))
    for _ in range(3):
        stage.do(0.0, Probed("c", healthy=False))
    assert stage.wait(100.0) == []


def test_while_anybody_waits_nobody_gets_two_places() -> None:
    """A place that is free but does not fit the one who waits is not taken for a hedge."""
    stage = Stage(engine("a", 1), engine("b", 2, "m"), engine("c", 1), settings=hedging())
    stage.do(0.0, stream("r"))
    stage.scheduler._fleet.states["b"].gate.window = 50
    stage.do(0.0, arrive("x", prompt_tokens=1000))
    stage.do(0.0, arrive("y", prompt_tokens=1000))
    stage.do(0.0, arrive("z", prompt_tokens=1000))
    assert stage.scheduler.snapshot(0.0).queued >= 1
    assert [text for text in stage.wait(3.0) if text.startswith("hedge")] == []


def test_a_local_request_is_not_hedged_at_a_remote_instance() -> None:
    """Remote costs money and helps where local failed; a remote one is hedged at another remote one."""
    stage = Stage(engine("near"), engine("far", tier=Tier.REMOTE), engine("away", tier=Tier.REMOTE), settings=hedging())
    stage.do(0.0, stream("r"))
    assert stage.wait(3.0) == []
    for _ in range(3):
        stage.do(3.0, Probed("near", healthy=False))
    stage.do(3.0, stream("s"))
    assert stage.wait(5.0) == ["hedge s #2 away"]


@pytest.mark.parametrize(
    "asked",
    [
        {"form": AnswerForm.WHOLE},
        {"service_class": ServiceClass.BATCH},
        {"only": "a"},
        {"max_attempts": 1},
    ],
    ids=["a whole answer", "batch", "bound to an instance", "one attempt"],
)
def test_who_is_never_hedged(asked: dict[str, Any]) -> None:
    """A whole answer shows no first token; batch has time; the others said that they want one attempt at one place."""
    stage = Stage(engine("a"), engine("b"), settings=hedging())
    stage.do(0.0, stream("r", **asked))
    assert stage.wait(100.0) == []


def test_the_budget_is_a_share_of_what_was_sent() -> None:
    """A tenth: of twenty late ones two are hedged."""
    stage = Stage(engine("a", 9), engine("b", 9), settings=hedging(HedgeSettings(after=2.0, budget=0.1)))
    for number in range(20):
        now = 10.0 * number
        stage.do(now, stream(f"r{number}"))
        stage.wait(now + 3.0)
        stage.do(now + 3.0, begun(f"r{number}"))
        stage.do(now + 3.0, done(f"r{number}"))
    assert totals(stage)["hedges"] == 2


def test_without_a_time_the_slowest_twentieth_is_late() -> None:
    """First tokens take half a second, now and then two: who takes longer than most is hedged, once enough is known."""
    stage = Stage(engine("a", 9), engine("b", 9), settings=hedging(HedgeSettings(after=None, budget=1.0)))
    for number in range(64):
        now = 10.0 * number
        first = 2.0 if number % 40 == 0 else 0.5
        stage.do(now, stream(f"r{number}"))
        assert [text for text in stage.wait(now + first) if number < 32] == []
        stage.do(now + first, begun(f"r{number}"))
        stage.do(now + first, done(f"r{number}"))
    stage.do(1000.0, stream("late"))
    assert stage.wait(1000.6)[0].startswith("hedge late #2")


def test_the_percentile_follows_what_was_seen_of_late() -> None:
    """None before enough is known; then the 95th of the last 256."""
    tokens = FirstTokens()
    for _ in range(31):
        tokens.note(1.0)
    assert tokens.late is None
    for number in range(1, 98):
        tokens.note(float(number))
    assert tokens.late == pytest.approx(91.0, abs=2.0)
    for _ in range(512):
        tokens.note(0.1)
    assert tokens.late == pytest.approx(0.1)


def test_a_hedge_charges_nobody() -> None:
    """The user pays for one answer."""
    stage, plain = raced(), Stage(engine("a"), settings=Settings())
    stage.do(3.0, begun("r", 2))
    stage.do(3.0, done("r", 100, 10))
    play(plain, [(0.0, stream("r"), ["join r", "dispatch r #1 a"]), (3.0, done("r", 100, 10), ["settle r answered"])])
    assert stage.scheduler.snapshot(3.0).service == pytest.approx(plain.scheduler.snapshot(3.0).service)
