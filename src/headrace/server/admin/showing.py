"""From the gateway's values to what the admin API shows of them. No key is shown, and no user of an address."""

from __future__ import annotations

import math
import sys

from headrace.core.scaling import Advice, Demand
from headrace.core.weighing import Candidate
from headrace.model import BreakerState, Instance, InstanceView
from headrace.runtime.addresses import scrubbed
from headrace.runtime.latencies import Quantiles, Summary
from headrace.runtime.registry import Registered
from headrace.server.admin.shapes import CandidateOut, DemandOut, InstanceOut, QuantilesOut, ScalingOut, SummaryOut


def models_of(instance: Instance) -> list[str]:
    """The models as the configuration writes them: `name`, or `name=upstream`."""
    return [f"{model.name}={model.upstream}" if model.upstream else model.name for model in instance.models]


def instance_out(entry: Registered, view: InstanceView | None) -> InstanceOut:
    """A registered instance; `view` None: the scheduler has not heard of it yet."""
    instance = entry.instance
    return InstanceOut(
        id=instance.id,
        source=entry.source,
        address=scrubbed(instance.address),
        engine=instance.engine.value,
        models=models_of(instance),
        tier=instance.tier.value,
        capacity=instance.capacity,
        weight=instance.weight,
        max_concurrent=instance.max_concurrent,
        adaptive=instance.adaptive,
        window_tokens=instance.window_tokens,
        api_key_env=instance.api_key_env,
        metrics=None if instance.metrics is None else scrubbed(instance.metrics),
        forward_priority=instance.forward_priority,
        resume=instance.resume,
        metadata=dict(instance.metadata),
        healthy=view is None or view.healthy,
        draining=entry.draining,
        breaker=(BreakerState.CLOSED if view is None else view.breaker).value,
        breaker_opens_in_seconds=0.0 if view is None else round(view.breaker_opens_in, 3),
        breaker_open_seconds=0.0 if view is None else round(view.breaker_for, 1),
        breaker_changes={} if view is None else {name.value: count for name, count in view.breaker_changes.items()},
        cooldown_seconds=0.0 if view is None else round(view.cooldown, 3),
        cooldown_reason="" if view is None else view.cooldown_because,
        slow_start=None if view is None else view.ramp,
        load=0.0 if view is None else _finite(view.load),
        gate="open" if view is None else view.closed_because or "open",
        in_flight=0 if view is None else view.in_flight,
        limit=instance.max_concurrent if view is None else view.max_concurrent,
        unstarted_tokens=0 if view is None else view.unstarted_tokens,
        speed_tokens_per_second=None if view is None or not view.speed else round(view.speed, 1),
        reliability=1.0 if view is None else round(view.reliability, 3),
        metrics_age_seconds=None if view is None else rounded(view.metrics_age),
        metrics_stale=view is not None and view.metrics_stale,
        engine_waiting=None if view is None else view.engine_waiting,
        engine_kv=None if view is None else view.engine_kv,
    )


def candidate_out(candidate: Candidate) -> CandidateOut:
    """A candidate of the balancer."""
    view = candidate.view
    return CandidateOut(
        instance=view.id,
        tier=view.tier.value,
        chosen=candidate.chosen,
        shut=candidate.shut,
        gate=candidate.gate,
        cooldown_seconds=round(view.cooldown, 3),
        cooldown_reason=view.cooldown_because,
        cooldown_asked=candidate.asked > 0,
        breaker=view.breaker.value,
        healthy=view.healthy,
        draining=view.draining,
        speed_tokens_per_second=round(view.speed, 1) or None,
        reliability=round(view.reliability, 3),
        load=_finite(candidate.load),
        in_flight=view.in_flight,
        limit=view.max_concurrent,
        unstarted_tokens=view.unstarted_tokens,
        prefill_seconds_per_token=candidate.terms["prefill_seconds_per_token"],
        scores={name: _finite(value) for name, value in candidate.scores.items()},
        terms={name: _finite(value) for name, value in candidate.terms.items()},
    )


def _finite(value: float) -> float:
    """JSON has no infinity, which weights of an extreme size lead to."""
    return value if math.isfinite(value) else sys.float_info.max


def summary_out(summary: Summary) -> SummaryOut:
    """Latencies of one instance, or of all requests."""
    return SummaryOut(latency=quantiles_out(summary.latency), time_to_first_token=quantiles_out(summary.first_token))


def quantiles_out(values: Quantiles) -> QuantilesOut:
    """Percentiles to the tenth of a millisecond."""
    return QuantilesOut(
        count=values.count,
        window_seconds=round(values.seconds, 1),
        p50=rounded(values.p50, 4),
        p95=rounded(values.p95, 4),
        p99=rounded(values.p99, 4),
    )


def scaling_out(advice: Advice, demand: Demand) -> ScalingOut:
    """An advice, and what it rests on."""
    return ScalingOut(
        action=advice.action.value,
        count=advice.count,
        desired=advice.desired,
        reason=advice.reason,
        demand=DemandOut(
            window_seconds=round(demand.seen, 1),
            instances=demand.instances,
            usable=demand.usable,
            places_per_instance=round(demand.places, 2),
            running=round(demand.running, 3),
            queued=round(demand.queued, 3),
            queued_now=demand.queued_now,
            utilisation=round(demand.utilisation, 4),
            wait_p95_seconds=round(demand.wait, 3),
            refused=demand.refused,
        ),
    )


def rounded(value: float | None, digits: int = 3) -> float | None:
    """The same, shorter."""
    return None if value is None else round(value, digits)
