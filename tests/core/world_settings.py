"""The fleets and settings that the misbehaving world begins with."""

from __future__ import annotations

from headrace.core.limits import LimitRule
from headrace.core.settings import (
    BreakerSettings,
    FairnessSettings,
    Fallback,
    HedgeSettings,
    LimitSettings,
    ModelSettings,
    PolicyName,
    QueueSettings,
    RecoverySettings,
    RoutingSettings,
    Settings,
    Strategy,
    VirtualModel,
)
from headrace.model import FallbackCause, Instance, ServedModel, ServiceClass, Tier

_ANY = ServedModel(name="*")
ENGINES = (
    Instance(id="a", max_concurrent=2, models=(_ANY,), resume=True),
    Instance(id="b", max_concurrent=1, models=(ServedModel(name="m*", upstream="x-*"),), window_tokens=64),
    Instance(
        id="c", max_concurrent=2, models=(ServedModel(name="m1"),), window_tokens=32, tier=Tier.REMOTE, resume=True
    ),
    Instance(id="b", max_concurrent=3, models=(ServedModel(name="m2"),), window_tokens=64),
    Instance(id="a", max_concurrent=1, models=(_ANY,), address="http://elsewhere"),
    Instance(id="d", max_concurrent=1, models=(ServedModel(name="m2"), ServedModel(name="m1")), tier=Tier.REMOTE),
    Instance(id="e", max_concurrent=12, models=(_ANY,), window_tokens=100, adaptive=True, resume=True),
    Instance(id="f", max_concurrent=9, models=(_ANY,), adaptive=True),
)
_HEDGE = HedgeSettings(after=0.0, budget=1.0)
_SPILL = {ServiceClass.INTERACTIVE: 0.0, ServiceClass.NORMAL: 3.0}
_MODELS = ModelSettings(
    names={"else": VirtualModel(models=("m1", "m2"), weights=(1.0, 2.0)), "one": VirtualModel(models=("m1",))},
    fallbacks={"m1": Fallback(models=("m2", "far"), on=frozenset(FallbackCause))},
)


def world_settings(
    policy: PolicyName, strategy: Strategy, cap: int | None, limited: bool, led: bool = False
) -> Settings:
    """Small bounds, so that every one of them is met; `led`: with spill, names and fallbacks."""
    limits = LimitSettings(per_user=LimitRule(requests_per_minute=6, concurrency=4)) if limited else LimitSettings()
    return Settings(
        fairness=FairnessSettings(policy=policy, user_in_flight=cap, slack=100.0, promote_after=10.0),
        queue=QueueSettings(size=6, per_user=4, timeouts=dict.fromkeys(ServiceClass, 30.0)),
        breaker=BreakerSettings(threshold=2, recovery=10.0, max_backoff=4.0),
        recovery=RecoverySettings(max_attempts=3, budget_reserve=4.0, cooldown=2.0, backoff=0.5, backoff_cap=2.0),
        routing=RoutingSettings(strategy=strategy, spill_after=_SPILL if led else {}, hedge=_HEDGE if led else None),
        models=_MODELS if led else ModelSettings(),
        limits=limits,
    )
