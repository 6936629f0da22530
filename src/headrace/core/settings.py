"""The numbers the deciding half works with, as one frozen value. `config` fills it from file and environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.core.limits import LimitRule
from headrace.model import FallbackCause, Request, ServiceClass


class PolicyName(StrEnum):
    """Who goes next: by charged tokens, by turns, or by arrival."""

    FAIR = "fair"
    ROUND_ROBIN = "round_robin"
    FIFO = "fifo"


class CostName(StrEnum):
    """What a request is charged in: calibrated tokens, machine time, or money."""

    TOKENS = "tokens"
    GPU = "gpu"
    MONEY = "money"


class Strategy(StrEnum):
    """How the best of the open instances is chosen."""

    FAIR_LOAD = "fair_load"
    WEIGHTED = "weighted"
    LEAST_IN_FLIGHT = "least_in_flight"
    ROUND_ROBIN = "round_robin"
    TWO_CHOICES = "two_choices"


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessSettings:
    """The share tree (docs/scheduling.md)."""

    policy: PolicyName = PolicyName.FAIR
    prompt_price: float = 1.0
    """Charge for one prompt token (w_p)."""
    output_price: float = 2.0
    """Charge for one output token (w_q)."""
    cost: CostName = CostName.TOKENS
    calibrate: bool = True
    """Replace the ratio of the two by the instance's own, once it is known."""
    money: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Price of a million prompt and output tokens by model; others are charged in tokens."""
    head_start: float = 1.0
    """Interactive goes first by this many seconds of capacity: less waiting, no greater share."""
    promote_after: float = 600.0
    """A batch request that waited so many seconds is treated as a normal one."""
    slack: float = 2048.0
    """How far, in charged tokens, a flow may run ahead of the poorest, and how much hints may cost others (T)."""
    class_weights: Mapping[ServiceClass, float] = field(
        default_factory=lambda: {ServiceClass.INTERACTIVE: 6.0, ServiceClass.NORMAL: 3.0, ServiceClass.BATCH: 1.0}
    )
    tenant_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    user_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """By `user` or `tenant/user`; the longer name wins."""
    user_in_flight: int | None = None
    """Most requests of one user at the engines at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Bounds of the queue. Full: refused at the door with `Retry-After`."""

    size: int = 512
    per_user: int = 256
    timeouts: Mapping[ServiceClass, float] = field(
        default_factory=lambda: {ServiceClass.INTERACTIVE: 30.0, ServiceClass.NORMAL: 60.0, ServiceClass.BATCH: 86400.0}
    )

    def longest(self, request: Request) -> float:
        """Seconds that a request may wait in the queue: its own, else its class's."""
        own = request.queue_timeout
        return self.timeouts[request.flow.service_class] if own is None else own


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """How full an engine may be (docs/scheduling.md)."""

    waiting_below: float = 3.0
    """Requests in the engine's own queue, corrected between polls, at which nothing more is sent."""
    kv_below: float = 0.9
    """Share of its KV cache at which nothing more is sent."""
    tpot: Mapping[ServiceClass, float] = field(
        default_factory=lambda: {ServiceClass.INTERACTIVE: 0.05, ServiceClass.NORMAL: 0.15, ServiceClass.BATCH: 0.15}
    )
    """Seconds per output token that a class bears; slower, and nothing more of it is sent. Batch keeps well below
    interactive's while anybody else is there."""
    pace: float = 0.05
    """Seconds per output token that adaptive limits aim at; batch's own while nobody else is there."""
    tpot_most: float = 0.15
    """No class is held back for less than this where the machine itself is slow."""
    batch_floor: float = 0.1
    """Share of an instance's limit that batch may always use."""
    patience: float = 3.0
    """A request waits for the instance that knows its prompt up to so many times what it saves."""
    patience_most: float = 1.0
    """But never longer than this, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """Closed, open after `threshold` failures in a row, after `recovery` seconds one leased probe."""

    threshold: int = 5
    recovery: float = 60.0
    max_backoff: float = 64.0
    """A failed probe doubles the wait, up to `recovery` times this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    """What happens after an attempt failed."""

    max_attempts: int = 3
    on_timeout: bool = True
    on_server_error: bool = True
    on_connect: bool = True
    budget_ratio: float = 0.2
    """Retries allowed per first attempt, over the long run."""
    budget_reserve: float = 10.0
    """Retries allowed before any traffic was seen; also what a quiet minute gives back."""
    backoff: float = 0.5
    backoff_cap: float = 8.0
    cooldown: float = 5.0
    """Seconds an instance is left alone after a failure."""
    cooldown_cap: float = 60.0
    """Longest `Retry-After` that is obeyed."""
    slow_answer: float = 480.0
    """An answer that took longer speaks against its instance a little: 80 % of what an attempt may take."""
    slow_first_token: float = 96.0
    """The same for the first content of a stream."""
    longest_wait: float = 10.0
    """A request waits for a cooling instance at most this long; beyond it the caller is told when to come back."""
    resume: bool = True
    """An answer that broke off goes on elsewhere, between instances that can do so."""
    max_resumes: int = 2
    """How many times one answer is taken up again at most; each is an attempt like any other."""
    resume_patience: float = 30.0
    """Seconds that half an answer waits for a place; clients give up a silent stream after about as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """When an instance counts as down."""

    unhealthy_after: int = 3
    """Health checks that must fail in a row; one success brings it back."""
    grace: float = 10.0
    """Who waits while every instance of a model is down is told after so many seconds: a restart may be over sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """How far the engines' own metrics are trusted."""

    stale_after: float = 0.75
    """Seconds after which a report says nothing any more: three polls. The gates that need none go on without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeSettings:
    """When a second instance is asked because the first content is late."""

    after: float | None = None
    """Seconds; None: the 95th percentile of what the pool has shown."""
    budget: float = 0.05
    """Prompt tokens of second attempts, as a share of those of first attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """How the instance is chosen among those that are open."""

    strategy: Strategy = Strategy.FAIR_LOAD
    speed: float = 1.0
    reliability: float = 1.0
    load: float = 1.0
    spill_after: Mapping[ServiceClass, float] = field(default_factory=dict[ServiceClass, float])
    """Seconds in the queue after which a request of a class may go to a remote instance while all local ones are full;
    a class that is not named waits for a local one as long as there is one."""
    hedge: HedgeSettings | None = None
    """None: no second attempt while the first one runs."""
    slow_start: float = 5.0
    """Seconds until an instance that comes back may have as many requests as else (`core.ramp`); 0: at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualModel:
    """What stands behind a name of the operator's own: one model, several in order, or several by weight."""

    models: tuple[str, ...]
    weights: tuple[float, ...] | None = None
    """How often each is asked first; 0: only where the others cannot answer. None: in order."""


USUAL_CAUSES = frozenset({FallbackCause.EXHAUSTED, FallbackCause.CONTEXT_LENGTH})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """The models that take over from another one, in order."""

    models: tuple[str, ...]
    on: frozenset[FallbackCause] = USUAL_CAUSES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Names beside those of the instances, and who takes over from whom."""

    names: Mapping[str, VirtualModel] = field(default_factory=dict[str, VirtualModel])
    fallbacks: Mapping[str, Fallback] = field(default_factory=dict[str, Fallback])
    """By the name asked for, or by model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Limits on callers; None: none."""

    per_user: LimitRule | None = None
    per_tenant: LimitRule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the scheduler can be told."""

    fairness: FairnessSettings = field(default_factory=FairnessSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    gate: GateSettings = field(default_factory=GateSettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    models: ModelSettings = field(default_factory=ModelSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
