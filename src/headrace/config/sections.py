"""The sections of the configuration file: every key, its default, its bounds and what it means.

The descriptions here are the documentation: `headrace check --example` writes them into `examples/headrace.yaml` and
`headrace check --schema` into the JSON schema. Times are seconds, sizes are bytes, lengths are tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from headrace.config.wording import PLACE, URL
from headrace.core.settings import CostName, HedgeSettings, PolicyName, Strategy
from headrace.model import ServiceClass

Seconds = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)]
Wait = Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Place = Annotated[str, Field(pattern=PLACE, max_length=2048)]
"""A path, or a URL without user and password."""


class Section(BaseModel):
    """A part of the file: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSection(Section):
    """Where headrace listens and what it accepts."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: int = Field(
        1, ge=1, le=256, description="Processes that share the port, each with its part of every instance. Linux only."
    )
    insecure: bool = Field(
        default=False,
        description="Listen on other than loopback although there are no keys: whoever reaches it may use it.",
    )
    tls_certificate: str | None = Field(
        None, min_length=1, description="PEM file with the certificate callers are shown, and its chain; null: no TLS."
    )
    tls_key: str | None = Field(None, min_length=1, description="PEM file with its key, if that is in one of its own.")
    body_limit_bytes: Count = Field(10 * 1024 * 1024, description="Largest request body; a larger one gets 413.")
    bodies_limit_bytes: Count = Field(200 * 1024 * 1024, description="Bodies of all unanswered requests; more get 503.")
    answer_limit_bytes: Count = Field(64 * 1024 * 1024, description="Largest answer to a request that wants no stream.")
    body_timeout_seconds: Seconds = Field(30.0, description="A body must have arrived within this time.")
    stall_timeout_seconds: Seconds = Field(120.0, description="A caller that reads nothing this long is cut off.")
    queue_comment_after_seconds: Wait = Field(
        5.0, description="A stream that waits longer begins and is told its place in the queue by comments; 0: never."
    )
    queue_comment_every_seconds: Seconds = Field(5.0, description="Time between two such comments.")
    drain_seconds: Seconds = Field(
        30.0, description="Time the running requests get to finish when headrace is stopped."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error. Prompts, answers and keys are never logged."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="console, json, or auto: console on a terminal, else json."
    )


class ClassWeights(Section):
    """Shares of the classes while all of them have work waiting."""

    interactive: Weight = Field(6.0, description="Someone waits for each word.")
    normal: Weight = Field(3.0, description="The default.")
    batch: Weight = Field(1.0, description="Work that may take hours.")


class Weights(Section):
    """Shares; 2.0 gets twice as much as 1.0 while both have work waiting. Absent names have 1.0."""

    classes: ClassWeights = Field(default_factory=ClassWeights, description="By class.")
    tenants: dict[str, Weight] = Field(default_factory=dict, description="By tenant.")
    users: dict[str, Weight] = Field(default_factory=dict, description="By `user` or `tenant/user`; the longer wins.")


class Price(Section):
    """Money for a million tokens."""

    prompt: Factor = Field(0.0, description="A million prompt tokens.")
    output: Factor = Field(0.0, description="A million output tokens.")


class SchedulingSection(Section):
    """Who goes next, and how many may wait."""

    policy: PolicyName = Field(
        PolicyName.FAIR, description="fair: by tokens; round_robin: users take turns; fifo: by arrival."
    )
    queue_size: Count = Field(512, description="Requests that may wait in all; more are refused with 503.")
    per_user_queue: Count = Field(256, description="Requests of one user that may wait; more are refused with 429.")
    per_user_in_flight: Count | None = Field(
        default=None, description="Requests of one user at the engines at the same time; null: no such limit."
    )
    cost: CostName = Field(
        CostName.TOKENS, description="What counts: tokens; gpu: seconds of the machine; money: by the price list."
    )
    prompt_price: Factor = Field(1.0, description="What one prompt token costs a user's share.")
    output_price: Factor = Field(2.0, description="What one output token costs a user's share.")
    calibrate: bool = Field(
        default=True, description="Use the ratio of the two that an instance shows, as soon as it is known."
    )
    prices: dict[str, Price] = Field(
        default_factory=dict,
        description="With the cost `money`: by model, as {gpt-4o: {prompt: 2.5, output: 10}}; others cost as above.",
    )
    head_start_seconds: float = Field(
        1.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Interactive goes first by this much of the capacity: it waits less and gets no more.",
    )
    promote_after_seconds: Seconds = Field(600.0, description="Batch that waited this long is treated as normal.")
    slack_tokens: Factor = Field(
        2048.0,
        description="What deadlines, short jobs, caches and full instances may cost others; 0: strict turns.",
    )
    weights: Weights = Field(default_factory=Weights, description="Shares.")


class PaceSection(Section):
    """Seconds per output token that a class bears; while tokens come slower, nothing more of it is sent."""

    interactive: Seconds = Field(0.05, description="Batch also keeps well below it while anybody else is there.")
    normal: Seconds = Field(0.15, description="The default class.")
    batch: Seconds = Field(0.15, description="Also what found limits aim at while only batch is there.")


class GatesSection(Section):
    """How full an instance may be, beyond its own max_concurrent and window_tokens."""

    waiting_below: Weight = Field(3.0, description="Requests in the engine's own queue at which nothing more is sent.")
    kv_below: float = Field(0.9, gt=0, le=1, description="Share of its KV cache at which nothing more is sent.")
    tpot: PaceSection = Field(default_factory=PaceSection, description="Seconds per output token, by class.")
    pace: Seconds = Field(0.05, description="Seconds per output token that found limits (adaptive: true) aim at.")
    tpot_most: Seconds = Field(
        0.15, description="A machine that is slow by itself is allowed four times its own pace, up to this."
    )
    batch_floor: float = Field(0.1, ge=0, le=1, description="Share of an instance's limit that batch may always use.")
    patience: Factor = Field(
        3.0, description="A request waits for the instance that knows its prompt up to so many times what that saves."
    )
    patience_seconds: float = Field(
        1.0, ge=0, le=3600, allow_inf_nan=False, description="But not longer than this; 0: never."
    )


class SpillSection(Section):
    """When remote instances help, by class; null: only when no local one is left."""

    interactive: Wait | None = Field(default=None, description="Someone waits for each word.")
    normal: Wait | None = Field(default=None, description="The default class.")
    batch: Wait | None = Field(default=None, description="Work that may take hours.")


class HedgeSection(Section):
    """When a second instance is asked because the first content of a stream is late."""

    after: Seconds | Literal["p95"] = Field(
        "p95", description="Seconds without a first token; p95: longer than 95 % took of late."
    )
    budget: float = Field(
        0.05, gt=0, le=1, description="Prompt tokens of second attempts, as a share of those of first attempts."
    )


class RoutingSection(Section):
    """What happens when an attempt fails, and when remote instances help."""

    max_retries: int = Field(2, ge=0, le=20, description="Further attempts after the first, each at another instance.")
    resume: bool = Field(
        default=True,
        description="A stream that breaks off goes on at another instance, where both have `resume`; see there.",
    )
    max_resumes: int = Field(2, ge=1, le=20, description="How many times one stream may; each is one of the retries.")
    retry_on_timeout: bool = Field(default=True, description="Try again after a timeout.")
    retry_on_5xx: bool = Field(default=True, description="Try again after a server error or a broken answer.")
    retry_on_connection: bool = Field(default=True, description="Try again when no connection could be made.")
    retry_budget: Factor = Field(0.2, description="Retries per request, over the long run.")
    retry_reserve: Factor = Field(10.0, description="Retries allowed before there was any traffic.")
    backoff_seconds: Seconds = Field(0.5, description="First wait when only the same instance is left; it doubles.")
    backoff_cap_seconds: Seconds = Field(8.0, description="Longest such wait.")
    longest_wait_seconds: Seconds = Field(
        10.0, description="Longest wait of a request for an instance that cools down."
    )
    spill_after_seconds: Wait | SpillSection | None = Field(
        default=None,
        description="Wait after which a remote instance helps full local ones: seconds, {normal: 5}, or null: never.",
    )
    hedge: HedgeSection | None = Field(
        default=None, description="Ask a second instance when a first token is late, as {after: p95, budget: 0.05}."
    )

    def hedging(self) -> HedgeSettings | None:
        """When a second attempt is made; None: never."""
        if self.hedge is None:
            return None
        after = self.hedge.after
        return HedgeSettings(after=None if after == "p95" else after, budget=self.hedge.budget)

    def spill_after(self) -> dict[ServiceClass, float]:
        """The wait of each class for which there is one."""
        after = self.spill_after_seconds
        if after is None:
            return {}
        if not isinstance(after, SpillSection):
            return dict.fromkeys(ServiceClass, after)
        waits = {
            ServiceClass.INTERACTIVE: after.interactive,
            ServiceClass.NORMAL: after.normal,
            ServiceClass.BATCH: after.batch,
        }
        return {service_class: wait for service_class, wait in waits.items() if wait is not None}


class ScoreWeights(Section):
    """How much each term counts in the choice of an instance; 0 ignores it."""

    speed: Factor = Field(1.0, description="Learned tokens per second.")
    reliability: Factor = Field(1.0, description="Learned share of successes.")
    load: Factor = Field(1.0, description="Work in flight.")


class LoadBalancerSection(Section):
    """Which of the open instances gets the request."""

    strategy: Strategy = Field(
        Strategy.FAIR_LOAD, description="fair_load, weighted, least_in_flight, round_robin or two_choices."
    )
    weights: ScoreWeights = Field(default_factory=ScoreWeights, description="Terms of the score.")
    cooldown_seconds: Seconds = Field(5.0, description="An instance is left alone this long after a failure.")
    cooldown_cap_seconds: Seconds = Field(60.0, description="Longest Retry-After of an engine that is obeyed.")
    slow_start_seconds: float = Field(
        5.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="An instance that comes back gets one request, then ever more until this time is over; 0: at once.",
    )


class CircuitBreakerSection(Section):
    """When an instance is no longer asked at all."""

    failure_threshold: Count = Field(5, description="Failures in a row that open it.")
    recovery_timeout: Seconds = Field(60.0, description="Seconds until one request may probe whether it works again.")
    max_backoff: float = Field(
        64.0,
        ge=1,
        allow_inf_nan=False,
        description="A failed probe doubles the wait, up to this many recovery_timeouts.",
    )


class HealthCheckSection(Section):
    """How instances are watched."""

    interval_seconds: Seconds = Field(10.0, description="Time between light checks (no tokens).")
    timeout_seconds: Seconds = Field(5.0, description="A check that takes longer has failed.")
    unhealthy_threshold: Count = Field(3, description="Failed checks in a row that take an instance out.")
    grace_seconds: float = Field(
        10.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Who waits while every instance of a model is down is told after so long.",
    )
    deep_check_interval: int = Field(
        30, ge=0, description="Every so many light checks one completion of one token; 0: never."
    )


class MetricsSection(Section):
    """The engines' own metrics: their queues and KV caches, as far as they tell. And what /metrics tells of users."""

    enabled: bool = Field(
        default=True, description="Read those of local engines that have some: vllm, sglang, tgi, tensorrt, llamacpp."
    )
    poll_seconds: float = Field(
        0.25, ge=0.05, le=60, allow_inf_nan=False, description="Time between two polls; three unanswered count as none."
    )
    path: Place | None = Field(
        default=None, description="Where they are, as /metrics; null: at the engine's usual place."
    )
    users: int = Field(
        0, ge=0, le=20, description="So many users, those served most, are named in /metrics; the rest are `other`."
    )


class TimeoutsSection(Section):
    """How long each part of a request may take."""

    connect: Seconds = Field(5.0, description="Making the connection to an engine.")
    first_token: Seconds = Field(120.0, description="From sending to the first content of the answer.")
    idle: Seconds = Field(60.0, description="Between two pieces of an answer.")
    attempt: Seconds = Field(600.0, description="One attempt as a whole.")
    queue: Seconds = Field(60.0, description="Waiting in the queue, class normal.")
    queue_interactive: Seconds = Field(30.0, description="Waiting in the queue, class interactive.")
    queue_batch: Seconds = Field(86_400.0, description="Waiting in the queue, class batch.")


def switch(value: object) -> object:
    """`on` and `off` as words: YAML reads the bare ones as true and false."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


class DedupSection(Section):
    """One model call for identical requests."""

    mode: Annotated[Literal["off", "in_flight", "full"], BeforeValidator(switch)] = Field(
        "in_flight",
        description="off; in_flight: share a call while it runs; full: also keep answers (temperature 0 only).",
    )
    ttl_seconds: float = Field(
        300.0,
        ge=0,
        le=31_536_000,
        allow_inf_nan=False,
        description="How long a finished answer is kept; 0: not at all.",
    )
    max_entries: Count = Field(10_000, description="Finished answers kept; the least recently used goes first.")
    max_bytes: Count = Field(256 * 1024 * 1024, description="Memory for finished answers.")
    scope: Literal["tenant", "global", "user", "session"] = Field(
        "tenant", description="Who may share an answer with whom: tenant, global, user or session."
    )


class WebhookSection(Section):
    """Where new dead letters are told, without the requests themselves."""

    url: str = Field(pattern=URL, max_length=2048, description="Gets a POST with JSON, no redirects.")
    secret_env: str | None = Field(
        default=None,
        min_length=1,
        description="Variable that holds the secret which signs it, and the webhooks of replays.",
    )


class DeadLettersSection(Section):
    """Requests that were accepted and could not be answered."""

    capacity: Count = Field(1000, description="Letters kept; the oldest goes first and is counted.")
    path: str | None = Field(
        "headrace.db",
        min_length=1,
        description="SQLite file, also for registered instances and what is learned of all; null: in memory only.",
    )
    keep_bodies: bool = Field(default=True, description="Keep the request itself, without which it cannot be replayed.")
    redact: bool = Field(
        default=False, description="Keep it with each text replaced by its length; it cannot be replayed then either."
    )
    keep_days: float | None = Field(
        30.0, gt=0, le=36_500, allow_inf_nan=False, description="Older letters are removed; null: none for its age."
    )
    webhook: WebhookSection | None = Field(
        default=None,
        description="Told of new letters, as {url: https://ops.example.com/dlq, secret_env: SECRET}; null: nobody.",
    )


class LimitSection(Section):
    """Limits on one caller; null: none."""

    requests_per_minute: Count | None = Field(default=None, description="Sliding window of 60 s.")
    tokens_per_minute: Count | None = Field(
        default=None, description="Token bucket; reserved by estimate, settled by usage."
    )
    burst: float = Field(1.0, gt=0, allow_inf_nan=False, description="Size of the token bucket, in minutes' worth.")
    concurrency: Count | None = Field(default=None, description="Requests that are waiting or running at one time.")


class LimitsSection(Section):
    """Limits on callers; over them is 429 with the time to wait."""

    per_user: LimitSection | None = Field(
        default=None,
        description="Each user, as {requests_per_minute: 60, tokens_per_minute: 90000, burst: 2, concurrency: 8}.",
    )
    per_tenant: LimitSection | None = Field(default=None, description="Each tenant, in the same form.")
