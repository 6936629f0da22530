"""What can be seen of the scheduler at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.kinds import BreakerState, Engine, ServiceClass, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """An instance's moving state at one moment."""

    id: str
    engine: Engine
    tier: Tier
    models: tuple[str, ...]
    healthy: bool
    draining: bool
    breaker: BreakerState
    breaker_opens_in: float
    cooldown: float
    in_flight: int
    max_concurrent: int
    unstarted_tokens: int
    speed: float
    """Output tokens per second, learned; 0 while unknown."""
    reliability: float
    closed_because: str
    """Why the gate is shut, or ""."""
    metrics_age: float | None = None
    """Seconds since its own metrics last said something usable; None: they never did."""
    metrics_stale: bool = False
    """They are asked for, and what they said is too old to be used or nothing at all."""
    engine_waiting: float | None = None
    """Requests in its own queue, as last reported; None: unknown."""
    engine_kv: float | None = None
    """Share of its KV cache in use, as last reported; None: unknown."""
    closed_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds that something waited while it was shut, by reason; "other": it was open, but not to what waited."""
    load: float = 0.0
    """Sum of the weights of the requests it is working on."""
    breaker_changes: Mapping[BreakerState, int] = field(default_factory=dict[BreakerState, int])
    """How often the breaker went into each state."""
    breaker_for: float = 0.0
    """Seconds since it opened; 0 while it is closed."""
    cooldown_because: str = ""
    """The cause of the attempt that began the cooldown; "" while there is none."""
    cooldown_for: float = 0.0
    """Seconds since the cooldown began."""
    ramp: int | None = None
    """Requests it may have for now, because it has just come back; None: as many as else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the scheduler holds at one moment."""

    now: float
    draining: bool
    queued: int
    queue_size: int
    running: int
    waiting_retry: int
    looking: int
    following: int
    queued_by_class: Mapping[ServiceClass, int]
    queued_by_user: Mapping[str, int]
    """The users with most in the queue (bounded), as `tenant/user`."""
    instances: tuple[InstanceView, ...]
    names: tuple[str, ...] = ()
    """The operator's own names for models."""
    totals: Mapping[str, int]
    """Counts since the start: accepted, refused, answered, failed, cancelled, model_calls, joined, hits, retries, the
    resumes among these, attempts at models that took over (fallbacks), hedges and those that won (hedges_won)."""
    service: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the 20 users served most were charged in about the last minute, in charged tokens, as `tenant/user`."""
    jain: float | None = None
    """Jain's index of the last minute's service of the users who have something queued; None: fewer than two."""
    spread: float = 0.0
    """Largest difference of virtual time between two flows that wait side by side, in charged tokens per weight."""
    spread_seconds: float = 0.0
    """The same in seconds of the pool's capacity; 0 while that is unknown."""
    refunded: float = 0.0
    """Charged in advance and given back since the start, in charged tokens."""
    estimate_error: float | None = None
    """How far the expected length of answers is off of late, as a part of the real one; None: no answer yet."""
