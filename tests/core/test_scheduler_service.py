"""Flows that stay backlogged get equal service per weight, whatever their answers, failures and neighbours are like."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.settings import (
    BreakerSettings,
    FairnessSettings,
    PolicyName,
    QueueSettings,
    RecoverySettings,
    Settings,
)
from headrace.model import Cause, ServiceClass
from tests.core.script import Stage, arrive, begun, done, engine, failed, leave, more

_WEIGHTS = {"u0": 1.0, "u1": 1.0, "u2": 2.0}
_LONGEST = {"u0": 20, "u1": 300, "u2": 100}
"""Output tokens of their longest answers: estimates are wrong for each in its own way."""
_PROMPT = 50


def _settings(policy: PolicyName, slack: float) -> Settings:
    return Settings(
        fairness=FairnessSettings(policy=policy, user_weights=_WEIGHTS, slack=slack, calibrate=False, head_start=0.0),
        queue=QueueSettings(size=10**6, per_user=10**6, timeouts=dict.fromkeys(ServiceClass, 1e9)),
        breaker=BreakerSettings(threshold=10**6),
        recovery=RecoverySettings(cooldown=0.0, budget_reserve=1e6),
    )


class Crowd:
    """Three users who always have something queued, guests who come and go, engines that fail now and then."""

    def __init__(self, stage: Stage, chance: Random) -> None:
        self.stage = stage
        self.chance = chance
        self.asked = 0
        self.answered: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()

    def refill(self) -> None:
        """Every user has at least three requests queued; sometimes one of them is given up, sometimes a guest comes."""
        queued = self.stage.scheduler.snapshot(self.stage.now).queued_by_user
        for user in _WEIGHTS:
            for _ in range(3 - queued.get(f"acme/{user}", 0)):
                self.ask(user)
        if self.chance.random() < 0.1:
            self.ask(f"guest{self.chance.randrange(4)}")
        if self.chance.random() < 0.05:
            name = self.ask(self.chance.choice(list(_WEIGHTS)))
            self.stage.do(self.stage.now, leave(name))

    def ask(self, user: str) -> str:
        """One more request."""
        self.asked += 1
        name = f"{user}.{self.asked}"
        self.stage.do(self.stage.now, arrive(name, user, prompt_tokens=_PROMPT))
        return name

    def end_one(self) -> None:
        """Any running attempt ends: it fails unseen, its caller goes, or it is answered."""
        name = self.chance.choice(list(self.stage.running))
        user, now, luck = name.split(".")[0], self.stage.now + 0.1, self.chance.random()
        if luck < 0.1:
            self.stage.do(now, failed(name, Cause.SERVER_ERROR))
            return
        tokens = self.chance.randint(1, _LONGEST.get(user, 50))
        self.stage.do(now, begun(name))
        self.stage.do(now, more(name, tokens))
        self.stage.do(now, leave(name) if luck < 0.15 else done(name, _PROMPT, tokens))
        self.answered[user] += 1
        self.tokens[user] += _PROMPT + 2 * tokens


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), slots=st.integers(1, 4), slack=st.sampled_from([0.0, 200.0]))
def test_service_per_weight_differs_by_a_few_requests_only(seed: int, slots: int, slack: float) -> None:
    """The bound: twice the slack, one largest charge each, and what is in flight; it does not grow with time."""
    stage = Stage(engine("a", slots), engine("b", slots), settings=_settings(PolicyName.FAIR, slack))
    crowd = Crowd(stage, Random(seed))
    largest = max(_PROMPT + 2 * max(longest, 256) for longest in _LONGEST.values())
    bound = 2 * slack + 2 * largest * (1 + 2 * slots)
    for step in range(400):
        crowd.refill()
        crowd.end_one()
        if step > 20:
            shares = [crowd.tokens[user] / weight for user, weight in _WEIGHTS.items()]
            assert max(shares) - min(shares) <= bound


@pytest.mark.parametrize("seed", range(4))
def test_turns_are_shared_by_weight_whatever_they_cost(seed: int) -> None:
    """Under `round_robin` the number of answers counts, not their length."""
    stage = Stage(engine("a", 2), settings=_settings(PolicyName.ROUND_ROBIN, 0.0))
    crowd = Crowd(stage, Random(seed))
    for _ in range(300):
        crowd.refill()
        crowd.end_one()
    shares = [crowd.answered[user] / weight for user, weight in _WEIGHTS.items()]
    assert max(shares) - min(shares) <= 8


def test_estimates_of_any_quality_change_nothing_in_the_long_run() -> None:
    """After a thousand answers the shares agree within two percent."""
    stage = Stage(engine("a", 4), settings=_settings(PolicyName.FAIR, 0.0))
    crowd = Crowd(stage, Random(11))
    for _ in range(1000):
        crowd.refill()
        crowd.end_one()
    shares = [crowd.tokens[user] / weight for user, weight in _WEIGHTS.items()]
    assert max(shares) / min(shares) <= 1.02 + 2 * 656 * 5 / max(shares)
