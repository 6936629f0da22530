"""How the balancer reasons can be looked at without changing what it does."""

from __future__ import annotations

import pytest

from headrace.core.settings import RoutingSettings, Settings, Strategy
from headrace.core.weighing import Candidate, Weighing
from headrace.model import Cause, Flow, Probed, Request, Tier
from tests.core.script import Stage, arrive, done, engine, failed


def weighed(stage: Stage, now: float, model: str = "m") -> Weighing:
    """The balancer's reasoning for a request of 500 prompt tokens."""
    found = stage.scheduler.weigh_up(Request(id="", flow=Flow(), model=model, prompt_tokens=500), now)
    assert found is not None
    return found


def named(weighing: Weighing) -> dict[str, Candidate]:
    """The candidates by their instances."""
    return {candidate.view.id: candidate for candidate in weighing.candidates}


@pytest.mark.parametrize("strategy", [Strategy.FAIR_LOAD, Strategy.WEIGHTED, Strategy.LEAST_IN_FLIGHT])
def test_the_candidate_with_the_least_score_is_the_one_that_gets_the_next_request(strategy: Strategy) -> None:
    """What is shown is what happens: the marked instance has the least score of the strategy in force and is used."""
    stage = Stage(engine("a", 8), engine("b", 8), settings=Settings(routing=RoutingSettings(strategy=strategy)))
    for number in range(3):
        stage.do(0.0, arrive(f"r{number}"))
        where = stage.sent[-1][1]
        weighing = weighed(stage, 0.0)
        chosen = next(candidate for candidate in weighing.candidates if candidate.chosen)
        assert weighing.strategy == strategy.value
        assert chosen.view.id != where
        assert chosen.scores[strategy.value] == min(c.scores[strategy.value] for c in weighing.candidates)
        assert set(chosen.scores) == {name.value for name in Strategy}


def test_why_an_instance_is_not_used_is_said() -> None:
    """Down, cooling down by itself or because it was asked to, full, remote: each has its own word."""
    stage = Stage(
        engine("down"), engine("failed"), engine("asked"), engine("full"), engine("cloud", 1, tier=Tier.REMOTE)
    )
    for number, name in enumerate(("down", "failed", "asked", "full")):
        stage.do(0.0, arrive(f"r{number}"))
        assert stage.sent[-1][1] == name
    stage.do(1.0, done("r0"))
    for _ in range(3):
        stage.do(1.0, Probed("down", healthy=False))
    stage.do(1.0, failed("r1", Cause.SERVER_ERROR))
    stage.do(1.0, failed("r2", Cause.RATE_LIMITED, retry_after=20.0))
    found = named(weighed(stage, 1.0))
    assert {name: candidate.shut for name, candidate in found.items()} == {
        "down": "down",
        "failed": "cooldown",
        "asked": "cooldown",
        "full": "",
        "cloud": "",
    }
    assert found["full"].gate == "in_flight"
    assert (found["failed"].asked, found["asked"].asked) == (0.0, 20.0)


def test_looking_changes_nothing() -> None:
    """The turn among equals, the draw of two and the queue are as they were."""
    for strategy in (Strategy.ROUND_ROBIN, Strategy.TWO_CHOICES):
        settings = Settings(routing=RoutingSettings(strategy=strategy))
        plain, watched = (Stage(*(engine(name, 4) for name in "abc"), settings=settings) for _ in range(2))
        for number in range(9):
            weighed(watched, float(number))
            for stage in (plain, watched):
                stage.do(float(number), arrive(f"r{number}"))
        assert watched.sent == plain.sent
        assert watched.scheduler.snapshot(9.0) == plain.scheduler.snapshot(9.0)


def test_the_line_before_them_is_counted_and_an_unknown_model_has_none() -> None:
    """Requests that wait are told; a model that nobody serves has no candidates."""
    stage = Stage(engine("a", 1, "m"))
    for number in range(4):
        stage.do(0.0, arrive(f"r{number}"))
    weighing = weighed(stage, 0.0)
    assert (weighing.queued, weighing.prompt_tokens) == (3, 500)
    assert weighing.expected > 0
    assert stage.scheduler.weigh_up(Request(id="", flow=Flow(), model="other"), 0.0) is None
    assert stage.scheduler.load() == (3, 1)
