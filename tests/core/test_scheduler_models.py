"""Aliases, lists of models and fallbacks, as the scheduler carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.core.settings import (
    BreakerSettings,
    CostName,
    FairnessSettings,
    Fallback,
    ModelSettings,
    RecoverySettings,
    Settings,
    VirtualModel,
)
from headrace.errors import invalid_request
from headrace.model import Cause, Ending, FallbackCause, Probed, Reconfigured
from tests.core.inventory import nothing_held
from tests.core.script import Fact, Stage, arrive, begun, done, engine, failed, leave, looked, play, totals

TOO_LONG = invalid_request("The prompt is too long.", code="context_length_exceeded")
FILTERED = invalid_request("The filter says no.", code="content_filter")
ALL_CAUSES = frozenset(FallbackCause)


def models(
    names: Mapping[str, list[str]] | None = None, on: frozenset[FallbackCause] | None = None, **fallbacks: list[str]
) -> ModelSettings:
    """Names with the models behind them; fallbacks by model, all for the same causes."""
    causes = {} if on is None else {"on": on}
    return ModelSettings(
        names={name: VirtualModel(models=tuple(behind)) for name, behind in (names or {}).items()},
        fallbacks={name: Fallback(models=tuple(to), **causes) for name, to in fallbacks.items()},
    )


def near_and_far(**more: object) -> Stage:
    """Instance `a` serves `m`, instance `b` serves `n`, which takes over from `m`."""
    given = {"models": models(m=["n"]), **more}
    return Stage(engine("a", 1, "m"), engine("b", 1, "n"), settings=Settings(**given))  # type: ignore[arg-type]


def refused(name: str, fault: object = TOO_LONG) -> Fact:
    """The engine refuses the prompt."""
    return failed(name, Cause.REJECTED, fault=fault, status=400)


def test_an_alias_is_asked_under_its_model_s_name() -> None:
    """The request keeps its own name; the order says what to ask for."""
    stage = Stage(engine("a", 1, "qwen"), settings=Settings(models=models({"gpt-4o": ["qwen"]})))
    stage.do(0.0, arrive("r", model="gpt-4o"))
    order = stage.running["r"]
    assert (order.request.model, order.model, order.upstream_model) == ("gpt-4o", "qwen", "qwen")
    assert order.fallback is None
    assert stage.do(1.0, arrive("s", model="gpt-5")) == ["settle s model_not_found"]


def test_users_of_an_alias_and_of_its_model_share_one_queue() -> None:
    """A name gets nobody more: all wait before the same instances."""
    stage = Stage(engine("a", 1, "qwen"), settings=Settings(models=models({"gpt-4o": ["qwen"]})))
    for number in range(3):
        stage.do(0.0, arrive(f"x{number}", "heavy", model="gpt-4o"))
    stage.do(0.0, arrive("y", "light", model="qwen"))
    assert stage.do(1.0, done("x0")) == ["settle x0 answered", "dispatch y #1 a"]


@pytest.mark.parametrize("cause", [Cause.CONNECT, Cause.TIMEOUT, Cause.SERVER_ERROR, Cause.RATE_LIMITED])
def test_when_no_instance_is_left_the_next_model_answers(cause: Cause) -> None:
    """At once, without waiting for the cooldown; the record says who failed at what."""
    stage = near_and_far()
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (1.0, failed("r", cause), ["dispatch r #2 b"]),
        ],
    )
    order = stage.running["r"]
    assert (order.model, order.upstream_model, order.fallback) == ("n", "n", FallbackCause.EXHAUSTED)
    assert stage.do(2.0, done("r")) == ["settle r answered"]
    assert (stage.settled["r"].attempts, totals(stage)["fallbacks"]) == (2, 1)
    assert nothing_held(stage.scheduler)


def test_all_instances_of_a_model_are_tried_before_another_model_is() -> None:
    """Two attempts at `m`, then one at `n`."""
    settings = Settings(models=models(m=["n"]))
    stage = Stage(engine("a", 1, "m"), engine("b", 1, "n"), engine("c", 1, "m"), settings=settings)
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (1.0, failed("r"), ["dispatch r #2 c"]),
            (2.0, failed("r"), ["dispatch r #3 b"]),
            (3.0, done("r"), ["settle r answered"]),
        ],
    )


def test_a_letter_tells_every_attempt_of_the_chain() -> None:
    """Each with its instance, and with its model where that is another than was asked for."""
    stage = near_and_far(recovery=RecoverySettings(max_attempts=1))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, failed("r", detail="one"))
    stage.do(2.0, failed("r", Cause.TIMEOUT, detail="two"))
    letter = stage.buried["r"].letter
    assert [(record.instance, record.model, record.detail) for record in letter.attempts] == [
        ("a", "", "one"),
        ("b", "n", "two"),
    ]
    assert letter.ending is Ending.INFERENCE_TIMEOUT


def test_one_who_comes_while_a_model_rests_goes_to_the_next_at_once() -> None:
    """Cooling down, down or open: no attempt is made at it, and nothing is taken from the retry budget."""
    stage = near_and_far(recovery=RecoverySettings(budget_reserve=1.0, budget_ratio=0.0))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (1.0, failed("r"), ["dispatch r #2 b"]),
            (1.5, done("r"), ["settle r answered"]),
            (2.0, arrive("s"), ["join s", "dispatch s #1 b"]),
            (2.5, done("s"), ["settle s answered"]),
            (6.0, arrive("t"), ["join t", "dispatch t #1 a"]),
        ],
    )


def test_those_who_wait_for_a_model_that_goes_down_go_to_the_next() -> None:
    """They need not wait until it is back, and keep their order."""
    stage = near_and_far()
    stage.do(0.0, arrive("x"))
    stage.do(0.0, arrive("r1", "ann"))
    stage.do(0.0, arrive("r2", "bob"))
    for _ in range(2):
        assert stage.do(1.0, Probed("a", healthy=False)) == []
    assert stage.do(1.0, Probed("a", healthy=False)) == ["dispatch r1 #1 b"]
    assert stage.do(2.0, done("r1")) == ["settle r1 answered", "dispatch r2 #1 b"]
    stage.do(3.0, done("r2"))
    stage.do(3.0, done("x"))
    assert nothing_held(stage.scheduler)


def test_without_another_model_to_ask_the_wait_is_as_usual() -> None:
    """Both rest: the request waits for its own model's instance and is tried there again."""
    stage = near_and_far()
    for _ in range(3):
        stage.do(0.0, Probed("b", healthy=False))
    stage.do(0.0, arrive("r"))
    assert stage.do(1.0, failed("r")) == []
    assert stage.wait(7.0) == ["dispatch r #2 a"]


def test_the_first_model_s_own_obstacle_is_told_when_nobody_can_answer() -> None:
    """Everything is down: refused as without fallbacks."""
    stage = near_and_far()
    for name in "ab":
        for _ in range(3):
            stage.do(0.0, Probed(name, healthy=False))
    stage.do(0.0, arrive("r"))
    stage.wait(600.0)
    assert (stage.status("r"), stage.sent) == (503, [])


def test_a_prompt_too_long_for_a_model_goes_to_the_next() -> None:
    """The refusal blames nobody and costs nothing of the retry budget; so often that it would be empty."""
    stage = near_and_far(recovery=RecoverySettings(budget_reserve=1.0, budget_ratio=0.0))
    for number in range(5):
        stage.do(float(number), arrive(f"r{number}"))
        assert stage.do(float(number), refused(f"r{number}")) == [f"dispatch r{number} #2 b"]
        assert stage.running[f"r{number}"].fallback is FallbackCause.CONTEXT_LENGTH
        stage.do(float(number), done(f"r{number}"))
    assert {stage.ending(f"r{number}") for number in range(5)} == {Ending.ANSWERED}


def test_the_last_refusal_is_the_caller_s() -> None:
    """Too long for all of them: 400 with the engine's words, and no dead letter."""
    stage = near_and_far()
    stage.do(0.0, arrive("r"))
    stage.do(1.0, refused("r"))
    assert stage.do(2.0, refused("r")) == ["settle r rejected"]
    assert stage.settled["r"].fault is TOO_LONG or stage.status("r") == 400


@pytest.mark.parametrize("chosen", [False, True])
def test_a_filter_s_refusal_goes_on_only_where_that_was_chosen(chosen: bool) -> None:
    """By default it is the caller's to know."""
    stage = near_and_far(models=models(m=["n"], on=ALL_CAUSES if chosen else None))
    stage.do(0.0, arrive("r"))
    orders = stage.do(1.0, refused("r", FILTERED))
    assert orders == (["dispatch r #2 b"] if chosen else ["settle r rejected"])


def test_other_refusals_and_unchosen_causes_are_final() -> None:
    """A wrong field is wrong everywhere; who chose only long prompts gets nothing for an outage."""
    stage = near_and_far(models=models(m=["n"], on=frozenset({FallbackCause.CONTEXT_LENGTH})))
    stage.do(0.0, arrive("r"))
    assert stage.do(1.0, refused("r", invalid_request("No such field."))) == ["settle r rejected"]
    stage.do(2.0, arrive("s", max_attempts=1))
    assert stage.do(3.0, failed("s")) == ["settle s inference_failure", "bury s inference_failure"]


def test_nothing_goes_on_after_the_first_content() -> None:
    """A broken stream ends with its error, whatever could take over."""
    stage = near_and_far()
    stage.do(0.0, arrive("r"))
    stage.do(1.0, begun("r"))
    assert stage.do(2.0, failed("r", Cause.BROKEN_STREAM, committed=True))[0] == "settle r stream_broken"


def test_the_caller_s_bound_on_attempts_holds_over_the_chain() -> None:
    """Two attempts: one at each model, and no third."""
    settings = Settings(models=models(m=["n", "o"]))
    stage = Stage(engine("a", 1, "m"), engine("b", 1, "n"), engine("c", 1, "o"), settings=settings)
    stage.do(0.0, arrive("r", max_attempts=2))
    assert stage.do(1.0, failed("r")) == ["dispatch r #2 b"]
    assert stage.do(2.0, failed("r"))[0] == "settle r inference_failure"


def test_the_retry_budget_holds_over_the_chain() -> None:
    """Empty after one: the second failure in a row is final although a third model is there."""
    settings = Settings(models=models(m=["n", "o"]), recovery=RecoverySettings(budget_reserve=1.0, budget_ratio=0.0))
    stage = Stage(engine("a", 1, "m"), engine("b", 1, "n"), engine("c", 1, "o"), settings=settings)
    stage.do(0.0, arrive("r"))
    assert stage.do(0.0, failed("r")) == ["dispatch r #2 b"]
    assert stage.do(0.0, failed("r"))[0] == "settle r inference_failure"


def test_one_deadline_holds_over_the_chain() -> None:
    """It passes while the second model thinks: told as expired."""
    stage = near_and_far()
    stage.do(0.0, arrive("r", deadline=5.0))
    stage.do(4.0, failed("r"))
    assert stage.wait(5.0) == ["abort r #2", "settle r deadline_expired", "bury r deadline_expired"]
    assert nothing_held(stage.scheduler)


def test_a_request_bound_to_an_instance_goes_to_no_other_model() -> None:
    """It was meant for that one."""
    stage = near_and_far()
    stage.do(0.0, arrive("r", only="a", max_attempts=1))
    assert stage.do(1.0, failed("r"))[0] == "settle r inference_failure"


def test_the_fair_place_is_kept_at_the_next_model() -> None:
    """One who used much of `m` has used it at `n` as well: the other one's request goes first there."""
    settings = Settings(models=models(m=["n"]))
    stage = Stage(engine("a", 2, "m"), engine("b", 1, "n"), settings=settings)
    stage.do(0.0, arrive("busy", "zed", model="n"))
    stage.do(0.0, arrive("big", "ann", prompt_tokens=3000))
    stage.do(0.0, arrive("r2", "ann", prompt_tokens=10))
    assert stage.do(1.0, failed("big")) == []
    assert stage.do(1.0, failed("r2")) == []
    stage.do(1.5, arrive("small", "bob", model="n"))
    assert stage.do(2.0, done("busy"))[-1] == "dispatch small #1 b"
    assert len(stage.running) == 1


def test_an_answer_of_another_model_is_not_kept_for_the_first() -> None:
    """Once `m` is back it answers itself."""
    stage = near_and_far()
    asked: dict[str, Any] = {"key": "k", "look_up": True, "remember": True}
    stage.do(0.0, arrive("r", **asked))
    stage.do(0.0, looked("r", hit=False))
    stage.do(1.0, failed("r"))
    assert stage.do(2.0, done("r")) == ["settle r answered"]


def test_a_name_that_leads_elsewhere_shares_no_answers() -> None:
    """The same words to two names behind which other models stand are two calls; under one name they are one."""
    names = models({"x": ["m"], "y": ["n"]})
    stage = Stage(engine("a", 9, "m"), engine("b", 9, "n"), settings=Settings(models=names))
    stage.do(0.0, arrive("r", key="k", model="x"))
    assert stage.do(0.0, arrive("s", key="k", model="y")) == ["join s", "dispatch s #1 b"]
    assert stage.do(0.0, arrive("t", key="k", model="x")) == ["join t to r"]


def test_in_money_a_call_costs_what_the_model_costs_that_answers() -> None:
    """Charged for the cheap one, answered by the dear one: the account shows the dear one's price."""
    prices = {"m": (0.0, 0.0), "n": (10.0, 10.0)}
    stage = near_and_far(fairness=FairnessSettings(cost=CostName.MONEY, money=prices))
    stage.do(0.0, arrive("r", "ann", prompt_tokens=100))
    stage.do(0.0, failed("r"))
    stage.do(0.0, done("r", 100, 10))
    assert stage.scheduler.snapshot(0.0).service["acme/ann"] == pytest.approx(1100.0)


def test_when_the_last_instance_of_a_model_is_removed_its_queue_goes_on() -> None:
    """Those who wait go to the next model; those who run stay."""
    stage = near_and_far()
    stage.do(0.0, arrive("x"))
    stage.do(0.0, arrive("r"))
    assert stage.do(1.0, Reconfigured((engine("b", 1, "n"),))) == ["dispatch r #1 b"]
    assert stage.do(1.0, arrive("s")) == ["join s"]
    assert stage.do(2.0, done("x")) == ["settle x answered"]
    stage.do(3.0, leave("s"))
    stage.do(3.0, done("r"))
    assert nothing_held(stage.scheduler)


def test_breakers_and_chains_work_together() -> None:
    """While the breaker of the first is open nobody asks it; its probe goes to it again."""
    stage = near_and_far(breaker=BreakerSettings(threshold=1, recovery=30.0))
    stage.do(0.0, arrive("r"))
    stage.do(0.0, failed("r"))
    stage.do(1.0, done("r"))
    stage.do(20.0, arrive("s"))
    stage.do(21.0, done("s"))
    stage.do(31.0, arrive("t"))
    assert stage.sent == [("r", "a"), ("r", "b"), ("s", "b"), ("t", "a")]
