"""What goes in and out of the admin API, as its OpenAPI document shows it. Times are seconds, lengths tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from headrace.config.instances import EngineName, InstanceSection, ModelEntry, model_entry
from headrace.config.sections import Count, Place, Section, Weight, switch
from headrace.config.wording import REGISTRANT
from headrace.model import Tier


class ErrorFields(BaseModel):
    """What went wrong and what to do, in the form of OpenAI's API."""

    message: str
    type: str
    param: str | None = Field(description="The field that is wrong, as `models[0].name`.")
    code: str | None


class ErrorBody(BaseModel):
    """Every error of this API."""

    error: ErrorFields


class InstanceIn(InstanceSection):
    """An instance to register; the same keys as in the configuration file."""

    source: str = Field(
        "admin",
        pattern=REGISTRANT,
        description="Who registers it: `admin`, or `discovered:` and the root URL where it was found.",
    )


class InstancePatch(Section):
    """What is to be changed of an instance; keys that are left out stay as they are."""

    address: Annotated[str, Field(max_length=2048)] | None = Field(default=None, description="Base URL.")
    engine: EngineName | None = None
    models: (
        tuple[Annotated[ModelEntry, BeforeValidator(model_entry, json_schema_input_type=str | ModelEntry)], ...] | None
    ) = Field(default=None, min_length=1, description="Names served: `name`, `*`, `pre-*`, `alias=upstream`.")
    tier: Tier | None = None
    capacity: Weight | None = None
    weight: Weight | None = None
    max_concurrent: Count | Literal["auto"] | None = None
    adaptive: bool | None = None
    window_tokens: Count | Literal["auto"] | None = Field(default=None, description="null: no bound.")
    api_key_env: str | None = Field(default=None, description="null: it has no key any more.")
    metrics: Place | None = Field(default=None, description="null: the usual place.")
    forward_priority: bool | None = None
    resume: Annotated[Literal["auto", "on", "off"], BeforeValidator(switch)] | None = None
    metadata: dict[str, str] | None = None


class InstanceShape(BaseModel):
    """What is configured of an instance. Keys are never shown, only their variables."""

    id: str
    source: str = Field(description="config, admin, or discovered:URL.")
    address: str
    engine: str
    models: list[str] = Field(description="As they are configured.")
    tier: str
    capacity: float
    weight: float
    max_concurrent: int
    adaptive: bool
    window_tokens: int | None
    api_key_env: str | None
    metrics: str | None
    forward_priority: bool
    resume: bool
    metadata: dict[str, str]


class InstanceState(BaseModel):
    """How an instance is doing."""

    healthy: bool
    draining: bool
    breaker: str = Field(description="closed, open or half_open.")
    breaker_opens_in_seconds: float = Field(description="Until it may be probed; 0 while closed.")
    breaker_open_seconds: float = Field(description="Since it opened; 0 while closed.")
    breaker_changes: dict[str, int] = Field(description="How often it went into each state.")
    cooldown_seconds: float = Field(description="It is left alone so much longer.")
    cooldown_reason: str = Field(description='How the attempt ended that began it, as rate_limited; "": none.')
    slow_start: int | None = Field(description="Requests it may have for now, having just come back; null: all.")
    load: float = Field(description="Sum of the weights of what it is working on.")
    gate: str = Field(description="open, or why nothing more is sent to it now.")
    in_flight: int
    limit: int = Field(description="Requests it may have now; below max_concurrent while that is being found.")
    unstarted_tokens: int = Field(description="Prompt tokens sent whose answers have not begun.")
    speed_tokens_per_second: float | None = Field(description="Learned; null while unknown.")
    reliability: float = Field(description="Learned, 0 to 1.")
    metrics_age_seconds: float | None = Field(description="Since its own metrics last said something; null: never.")
    metrics_stale: bool
    engine_waiting: float | None = Field(description="Requests in the engine's own queue, as it last said.")
    engine_kv: float | None = Field(description="Share of its KV cache in use, as it last said.")


class InstanceOut(InstanceState, InstanceShape):
    """A registered instance: what is configured, then how it is doing."""


class Instances(BaseModel):
    """All registered instances, those of the configuration file first."""

    instances: list[InstanceOut]


class InstanceAnswer(BaseModel):
    """An instance, and what is probably not meant."""

    instance: InstanceOut
    warnings: list[str] = Field(default_factory=list)


class Removed(BaseModel):
    """It is gone: what runs there ends there, what waits goes elsewhere."""

    id: str
    removed: bool = True
    warnings: list[str] = Field(default_factory=list)


class StageOut(BaseModel):
    """A bounded part of a request's way."""

    name: str
    depth: int
    capacity: int


class DeadLettersOut(BaseModel):
    """How many dead letters are kept, and had to go for others or for their age."""

    kept: int
    evicted: int
    aged_out: int
    degraded: bool = Field(description="They cannot be written; those since then are in memory only.")


class Status(BaseModel):
    """What goes on."""

    status: str = Field(description="ok, degraded (an instance cannot be used), down (none can), draining.")
    version: str
    uptime_seconds: float
    stages: list[StageOut]
    queued_by_class: dict[str, int]
    queued_by_user: dict[str, int] = Field(description="Those with most in the queue, as `tenant/user`; at most 50.")
    running: int
    waiting_for_retry: int
    sharing: int = Field(description="Requests that ride on another one's call.")
    totals: dict[str, int] = Field(description="Counts since the start.")
    service_by_user: dict[str, float] = Field(description="Charged tokens of the last minute; at most 20 users.")
    jain: float | None = Field(description="Jain's index of the users who wait: 1 is equal.")
    dead_letters: DeadLettersOut
    metrics_stale: list[str] = Field(description="Instances whose own metrics are asked for and say nothing (new).")
    instances: list[InstanceOut]


class CandidateOut(BaseModel):
    """An instance that serves the model, as the balancer sees it."""

    instance: str
    tier: str
    chosen: bool = Field(description="A typical request would be sent here now.")
    shut: str = Field(description='Why nothing may be sent at all: draining, down, breaker, cooldown; "": it may.')
    gate: str = Field(description='Why this request may not be sent now although the instance is there; "": it may.')
    cooldown_seconds: float
    cooldown_reason: str = Field(description='How the attempt ended that began it, as rate_limited; "": none.')
    cooldown_asked: bool = Field(description="The engine itself said how long.")
    breaker: str
    healthy: bool
    draining: bool
    speed_tokens_per_second: float | None
    reliability: float
    load: float = Field(description="Sum of the weights of what it is working on.")
    in_flight: int
    limit: int
    unstarted_tokens: int
    prefill_seconds_per_token: float = Field(description="Learned from first tokens.")
    scores: dict[str, float] = Field(description="By strategy; the least wins.")
    terms: dict[str, float] = Field(description="What the scores are made of.")


class BalancerOut(BaseModel):
    """How a typical request to a model would be placed now."""

    model: str
    strategy: str
    prompt_tokens: int
    expected_output_tokens: int
    service_class: str
    queued: int = Field(description="Requests waiting in the line of these instances.")
    candidates: list[CandidateOut]


class QuantilesOut(BaseModel):
    """Seconds; null where nothing was seen."""

    count: int
    window_seconds: float = Field(description="So far back reaches the oldest of them; at most 600.")
    p50: float | None
    p95: float | None
    p99: float | None


class SummaryOut(BaseModel):
    """Whole answers, and first tokens of streams."""

    latency: QuantilesOut
    time_to_first_token: QuantilesOut


class InstanceSummary(SummaryOut):
    """The same, counted from the moment a request was sent to the instance."""

    instance: str


class MetricsSummary(BaseModel):
    """Latencies of the last ten minutes, of at most the last 512 answers each."""

    overall: SummaryOut = Field(description="From a request's arrival.")
    instances: list[InstanceSummary]


class DemandOut(BaseModel):
    """What an advice rests on."""

    window_seconds: float
    instances: int
    usable: int
    places_per_instance: float
    running: float
    queued: float
    queued_now: int
    utilisation: float
    wait_p95_seconds: float
    refused: int


class ScalingOut(BaseModel):
    """Whether more or fewer local instances are needed. Asking changes nothing."""

    action: Literal["scale_up", "scale_down", "none"]
    count: int = Field(description="By how many.")
    desired: int = Field(description="Local instances after it.")
    reason: str
    demand: DemandOut


class BreakerOut(BaseModel):
    """A breaker after it was worked by hand."""

    instance: str
    breaker: str
    breaker_opens_in_seconds: float
    warnings: list[str] = Field(default_factory=list)
