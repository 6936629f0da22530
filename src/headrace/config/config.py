"""The configuration as a whole, and what the other rooms take from it."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Self

from pydantic import Field, PrivateAttr, model_validator

from headrace.config.administration import AdminSection, ScalingSection
from headrace.config.instances import InstanceSection
from headrace.config.keys import key_in, secret_in
from headrace.config.models import (
    Behind,
    FallbackEntry,
    ModelName,
    model_settings,
    refuse_impossible,
)
from headrace.config.sections import (
    CircuitBreakerSection,
    DeadLettersSection,
    DedupSection,
    GatesSection,
    HealthCheckSection,
    LimitSection,
    LimitsSection,
    LoadBalancerSection,
    MetricsSection,
    RoutingSection,
    SchedulingSection,
    Section,
    ServerSection,
    TimeoutsSection,
)
from headrace.core.limits import LimitRule
from headrace.core.naming import beside_a_star
from headrace.core.settings import (
    BreakerSettings,
    FairnessSettings,
    GateSettings,
    HealthSettings,
    LimitSettings,
    MetricsSettings,
    QueueSettings,
    RecoverySettings,
    RoutingSettings,
    Settings,
)
from headrace.model import Instance, ServiceClass
from headrace.runtime.proxies import Proxies, proxies_in
from headrace.runtime.stores.keeping import Keeping
from headrace.runtime.webhooks import Hook

_SLOW = 0.8
"""An answer that took more than this share of a timeout speaks against its instance a little."""


class Config(Section):
    """Everything headrace can be told. Made by `load`; frozen; equal inputs give equal configurations."""

    server: ServerSection = Field(default_factory=ServerSection, description="Where headrace listens, what it accepts.")
    scheduling: SchedulingSection = Field(
        default_factory=SchedulingSection, description="Who goes next, and how many may wait."
    )
    gates: GatesSection = Field(default_factory=GatesSection, description="How full an instance may be.")
    instances: tuple[InstanceSection, ...] = Field(
        (), max_length=1000, description="The engines; none: those named by the environment, else the built-in echo."
    )
    models: dict[ModelName, Behind] = Field(
        default_factory=dict,
        max_length=1000,
        description="Names of your own: {gpt-4o: qwen3-32b, smart: [qwen3-32b, gpt-5], mixed: {small: 3, large: 1}}.",
    )
    fallbacks: dict[ModelName, FallbackEntry] = Field(
        default_factory=dict,
        max_length=1000,
        description="Who takes over: {qwen3-32b: [gpt-5]}, or {qwen3-32b: {to: [gpt-5], on: [exhausted]}}.",
    )
    routing: RoutingSection = Field(default_factory=RoutingSection, description="Retries, and help from remote.")
    load_balancer: LoadBalancerSection = Field(
        default_factory=LoadBalancerSection, description="Which of the open instances gets the request."
    )
    circuit_breaker: CircuitBreakerSection = Field(
        default_factory=CircuitBreakerSection, description="When an instance is no longer asked."
    )
    health_check: HealthCheckSection = Field(
        default_factory=HealthCheckSection, description="How instances are watched."
    )
    metrics: MetricsSection = Field(default_factory=MetricsSection, description="The engines' own metrics.")
    timeouts: TimeoutsSection = Field(default_factory=TimeoutsSection, description="How long each part may take.")
    dedup: DedupSection = Field(default_factory=DedupSection, description="One model call for identical requests.")
    dead_letters: DeadLettersSection = Field(
        default_factory=DeadLettersSection, description="Requests that could not be answered."
    )
    limits: LimitsSection = Field(default_factory=LimitsSection, description="Limits on callers.")
    admin: AdminSection = Field(default_factory=AdminSection, description="The admin API, under /admin and /docs.")
    scaling: ScalingSection = Field(
        default_factory=ScalingSection, description="When more or fewer local instances are called for."
    )

    _keys: dict[str, str] = PrivateAttr(default_factory=dict)
    _hook_secret: str | None = PrivateAttr(default=None)
    _admin_key: str | None = PrivateAttr(default=None)
    _variables: dict[str, str] = PrivateAttr(default_factory=dict)
    _proxies: Proxies = PrivateAttr(default_factory=Proxies)

    @model_validator(mode="after")
    def _instances_differ(self) -> Self:
        instances = self.model_instances()
        _refuse_twice("the instance id '{}' is used twice", (instance.id for instance in instances))
        _refuse_twice("{} is listed twice at the same address; one of them is enough", self._places())
        refuse_impossible(model_settings(self.models, self.fallbacks), instances)
        return self

    def _places(self) -> Iterator[str]:
        for instance in self.model_instances():
            for served in instance.models:
                if instance.address:
                    yield f"the model '{served.name}' at {instance.address}"

    def model_instances(self) -> tuple[Instance, ...]:
        """The configured engines in the file's order; one without an id is called `ENGINE-N`, N counting from 1."""
        seen: Counter[str] = Counter()
        found: list[Instance] = []
        for section in self.instances:
            seen[section.engine] += 1
            found.append(section.as_instance(f"{section.engine}-{seen[section.engine]}"))
        return tuple(found)

    def with_keys(self, env: Mapping[str, str]) -> Config:
        """The same configuration knowing its engines' keys.

        Raises ConfigError when a variable named by `api_key_env` is not set; values never appear in messages.
        """
        keys = {
            instance.id: key_in(env, instance.api_key_env, f"instances[{number}].api_key_env")
            for number, instance in enumerate(self.model_instances())
            if instance.api_key_env is not None
        }
        known = self.model_copy()
        known._keys = keys
        known._hook_secret = self._secret_of_hook(env)
        known._admin_key = self.admin.key(env)
        known._variables = self.admin.variables(env)
        known._proxies = proxies_in(env)
        return known

    def _secret_of_hook(self, env: Mapping[str, str]) -> str | None:
        hook = self.dead_letters.webhook
        if hook is None or hook.secret_env is None:
            return None
        return secret_in(env, hook.secret_env, "dead_letters.webhook.secret_env")

    def proxies(self) -> Proxies:
        """The HTTP proxies that the environment names for engines elsewhere. Never log this: passwords may be in it."""
        return self._proxies

    def secrets(self) -> dict[str, str]:
        """Each instance's key by its id; instances without one are absent. Never log this."""
        return dict(self._keys)

    def admin_key(self) -> str | None:
        """What callers of the admin API must present; None: only this machine is let in. Never log this."""
        return self._admin_key

    def key_in(self, variable: str) -> str | None:
        """The key in a variable that an instance given by API may name; None: it is not set. Never log this."""
        return self._variables.get(variable)

    def letter_hook(self) -> Hook | None:
        """Where new dead letters are told; None: nowhere. Its secret signs the webhooks of replays, too."""
        hook = self.dead_letters.webhook
        return None if hook is None else Hook(hook.url, self._hook_secret)

    def letters_kept(self) -> Keeping:
        """How much of a request its dead letter holds."""
        letters = self.dead_letters
        if not letters.keep_bodies:
            return Keeping.NOTHING
        return Keeping.REDACTED if letters.redact else Keeping.WHOLE

    def warnings(self) -> tuple[str, ...]:
        """What can be used but is probably not meant, one sentence each."""
        return (*beside_a_star(self.model_instances()), *self.admin.warnings(self._admin_key))

    def scheduler_settings(self) -> Settings:
        """What the scheduler is told."""
        return Settings(
            fairness=self._fairness(),
            queue=self._queue(),
            gate=self._gate(),
            breaker=BreakerSettings(
                threshold=self.circuit_breaker.failure_threshold,
                recovery=self.circuit_breaker.recovery_timeout,
                max_backoff=self.circuit_breaker.max_backoff,
            ),
            recovery=self._recovery(),
            health=HealthSettings(
                unhealthy_after=self.health_check.unhealthy_threshold, grace=self.health_check.grace_seconds
            ),
            metrics=MetricsSettings(stale_after=3 * self.metrics.poll_seconds),
            routing=RoutingSettings(
                strategy=self.load_balancer.strategy,
                slow_start=self.load_balancer.slow_start_seconds,
                speed=self.load_balancer.weights.speed,
                reliability=self.load_balancer.weights.reliability,
                load=self.load_balancer.weights.load,
                spill_after=self.routing.spill_after(),
                hedge=self.routing.hedging(),
            ),
            models=model_settings(self.models, self.fallbacks),
            limits=LimitSettings(per_user=_rule(self.limits.per_user), per_tenant=_rule(self.limits.per_tenant)),
        )

    def _fairness(self) -> FairnessSettings:
        scheduling, classes = self.scheduling, self.scheduling.weights.classes
        return FairnessSettings(
            policy=scheduling.policy,
            prompt_price=scheduling.prompt_price,
            output_price=scheduling.output_price,
            cost=scheduling.cost,
            calibrate=scheduling.calibrate,
            money={model: (price.prompt, price.output) for model, price in scheduling.prices.items()},
            head_start=scheduling.head_start_seconds,
            promote_after=scheduling.promote_after_seconds,
            slack=scheduling.slack_tokens,
            class_weights={
                ServiceClass.INTERACTIVE: classes.interactive,
                ServiceClass.NORMAL: classes.normal,
                ServiceClass.BATCH: classes.batch,
            },
            tenant_weights=scheduling.weights.tenants,
            user_weights=scheduling.weights.users,
            user_in_flight=scheduling.per_user_in_flight,
        )

    def _queue(self) -> QueueSettings:
        return QueueSettings(
            size=self.scheduling.queue_size,
            per_user=self.scheduling.per_user_queue,
            timeouts={
                ServiceClass.INTERACTIVE: self.timeouts.queue_interactive,
                ServiceClass.NORMAL: self.timeouts.queue,
                ServiceClass.BATCH: self.timeouts.queue_batch,
            },
        )

    def _gate(self) -> GateSettings:
        gates = self.gates
        return GateSettings(
            waiting_below=gates.waiting_below,
            kv_below=gates.kv_below,
            tpot={
                ServiceClass.INTERACTIVE: gates.tpot.interactive,
                ServiceClass.NORMAL: gates.tpot.normal,
                ServiceClass.BATCH: gates.tpot.batch,
            },
            pace=gates.pace,
            tpot_most=gates.tpot_most,
            batch_floor=gates.batch_floor,
            patience=gates.patience,
            patience_most=gates.patience_seconds,
        )

    def _recovery(self) -> RecoverySettings:
        routing = self.routing
        return RecoverySettings(
            max_attempts=routing.max_retries + 1,
            on_timeout=routing.retry_on_timeout,
            on_server_error=routing.retry_on_5xx,
            on_connect=routing.retry_on_connection,
            budget_ratio=routing.retry_budget,
            budget_reserve=routing.retry_reserve,
            backoff=routing.backoff_seconds,
            backoff_cap=routing.backoff_cap_seconds,
            cooldown=self.load_balancer.cooldown_seconds,
            cooldown_cap=self.load_balancer.cooldown_cap_seconds,
            slow_answer=_SLOW * self.timeouts.attempt,
            slow_first_token=_SLOW * self.timeouts.first_token,
            longest_wait=routing.longest_wait_seconds,
            resume=routing.resume,
            max_resumes=routing.max_resumes,
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _rule(section: LimitSection | None) -> LimitRule | None:
    if section is None:
        return None
    rule = LimitRule(
        requests_per_minute=section.requests_per_minute,
        tokens_per_minute=section.tokens_per_minute,
        burst=section.burst,
        concurrency=section.concurrency,
    )
    return None if rule == LimitRule(burst=section.burst) else rule


def _refuse_twice(message: str, names: Iterator[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(message.format(name))
