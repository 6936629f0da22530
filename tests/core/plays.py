"""The plays of the matrix: a stage that knows who asks, and what every way to end begins with."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.limits import LimitRule
from headrace.core.settings import (
    BreakerSettings,
    FairnessSettings,
    HedgeSettings,
    LimitSettings,
    QueueSettings,
    RecoverySettings,
    RoutingSettings,
    Settings,
)
from headrace.model import AnswerForm
from tests.core.script import Stage, arrive, done, engine, leave

Way = Callable[["Play"], None]

_SETTINGS = Settings(
    fairness=FairnessSettings(user_in_flight=5),
    queue=QueueSettings(size=3),
    breaker=BreakerSettings(threshold=2, recovery=20.0),
    recovery=RecoverySettings(max_attempts=2, cooldown=3.0),
    routing=RoutingSettings(hedge=HedgeSettings(after=5.5, budget=1.0)),
    limits=LimitSettings(
        per_user=LimitRule(requests_per_minute=100, tokens_per_minute=100_000, concurrency=50),
        per_tenant=LimitRule(concurrency=50),
    ),
)


class Play(Stage):
    """A stage that knows how many callers there are and how the answer travels."""

    def __init__(self, shared: bool, streamed: bool) -> None:
        engines = engine("a", 1, window_tokens=500, resume=True), engine("b", 1, resume=True)
        super().__init__(*engines, settings=_SETTINGS)
        self.shared = shared
        self.streamed = streamed


def asked(stage: Play, **more_of_it: object) -> None:
    """The request r, and in half of the plays a second caller who shares its call."""
    form = AnswerForm.STREAM if stage.streamed else AnswerForm.WHOLE
    for name, user in (("r", "ann"), ("s", "bob"))[: 1 + stage.shared]:
        extra = {"key": "k", "prompt_tokens": 100, "form": form, **more_of_it}
        stage.do(stage.now, arrive(name, user, **extra))


def all_leave(stage: Play) -> None:
    """Every caller goes, the leader first."""
    for name in ("r", "s"):
        stage.do(stage.now, leave(name))


def occupied(stage: Play) -> None:
    """Both instances work on something else."""
    stage.do(0.0, arrive("x", "zed"))
    stage.do(0.0, arrive("y", "zed"))


def freed(stage: Play) -> None:
    """What else was running ends."""
    for name in ("x", "y"):
        if name in stage.running:
            stage.do(stage.now, done(name))
