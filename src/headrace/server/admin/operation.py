"""What goes on (`/admin/status`, `/admin/balancer/debug`, `/admin/metrics/summary`, `/admin/scaling/evaluate`), and the
breakers, which can be worked by hand."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query

from headrace import __version__
from headrace.errors import error_for, model_not_found
from headrace.model import AnswerForm, Flow, Mended, Request, ServiceClass, Tripped
from headrace.server.admin.instances import find, kept
from headrace.server.admin.ports import AdminPort
from headrace.server.admin.shapes import (
    BalancerOut,
    BreakerOut,
    DeadLettersOut,
    InstanceSummary,
    MetricsSummary,
    ScalingOut,
    StageOut,
    Status,
)
from headrace.server.admin.showing import candidate_out, instance_out, rounded, scaling_out, summary_out
from headrace.server.health import condition

_Model = Annotated[
    str | None, Query(min_length=1, max_length=256, description="The model that is asked for; else the first by name.")
]
_Tokens = Annotated[int, Query(ge=1, le=10_000_000, description="Length of its prompt.")]


def operation_routes(port: AdminPort) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/admin", tags=["operation"])
    began = time.monotonic()

    @router.get("/status", summary="Queues, stages, totals, instances, dead letters")
    async def status() -> Status:
        return _status(port, time.monotonic() - began)

    @router.get("/balancer/debug", summary="How a typical request would be placed now, and why")
    async def balancer_debug(
        model: _Model = None,
        prompt_tokens: _Tokens = 500,
        service_class: Annotated[ServiceClass, Query(alias="class")] = ServiceClass.NORMAL,
    ) -> BalancerOut:
        return _balancer(port, model or _first_model(port), prompt_tokens, service_class)

    @router.get("/metrics/summary", summary="p50, p95 and p99 of the last ten minutes, by instance and overall")
    async def metrics_summary() -> MetricsSummary:
        return _summary(port)

    @router.get("/scaling/evaluate", summary="Whether more or fewer instances are needed")
    async def scaling_evaluate() -> ScalingOut:
        return scaling_out(*port.scaling())

    @router.post("/circuit-breakers/{id}/reset", summary="Close a breaker and end the cooldown")
    async def reset_breaker(id: str) -> BreakerOut:  # noqa: A002 - its name in the path
        port.step(Mended(find(port.registry, id).instance.id))
        return await _breaker(port, id)

    @router.post("/circuit-breakers/{id}/trip", summary="Open a breaker: nothing is sent there until it is probed")
    async def trip_breaker(id: str) -> BreakerOut:  # noqa: A002
        port.step(Tripped(find(port.registry, id).instance.id))
        return await _breaker(port, id)

    return router


def _status(port: AdminPort, uptime: float) -> Status:
    snapshot, letters = port.snapshot(), port.dead_letters
    views = {view.id: view for view in snapshot.instances}
    return Status(
        status=condition(snapshot),
        version=__version__,
        uptime_seconds=round(uptime, 1),
        stages=[StageOut(name=name, depth=depth, capacity=capacity) for name, depth, capacity in port.stages()],
        queued_by_class={name.value: count for name, count in snapshot.queued_by_class.items()},
        queued_by_user=dict(snapshot.queued_by_user),
        running=snapshot.running,
        waiting_for_retry=snapshot.waiting_retry,
        sharing=snapshot.following,
        totals=dict(snapshot.totals),
        service_by_user={user: round(service, 1) for user, service in snapshot.service.items()},
        jain=rounded(snapshot.jain),
        dead_letters=DeadLettersOut(
            kept=letters.count, evicted=letters.evicted, aged_out=letters.aged_out, degraded=letters.degraded
        ),
        metrics_stale=[view.id for view in snapshot.instances if view.metrics_stale],
        instances=[instance_out(entry, views.get(entry.instance.id)) for entry in port.registry.instances],
    )


def _balancer(port: AdminPort, model: str, prompt_tokens: int, service_class: ServiceClass) -> BalancerOut:
    request = Request(
        id="",
        flow=Flow(service_class),
        model=model,
        prompt_tokens=prompt_tokens,
        form=AnswerForm.STREAM,
    )
    weighing = port.weigh_up(request)
    if weighing is None:
        raise error_for(model_not_found(model))
    return BalancerOut(
        model=model,
        strategy=weighing.strategy,
        prompt_tokens=weighing.prompt_tokens,
        expected_output_tokens=weighing.expected,
        service_class=service_class.value,
        queued=weighing.queued,
        candidates=[candidate_out(candidate) for candidate in weighing.candidates],
    )


def _first_model(port: AdminPort) -> str:
    """A name that some instance serves: one without a pattern, else any."""
    names = [name for view in port.snapshot().instances for name in view.models]
    return next((name for name in names if "*" not in name), names[0].replace("*", "any") if names else "any")


def _summary(port: AdminPort) -> MetricsSummary:
    now, seen = port.now, port.latencies
    return MetricsSummary(
        overall=summary_out(seen.overall(now)),
        instances=[
            InstanceSummary(instance=name, **dict(summary_out(seen.of(name, now))))
            for name in (view.id for view in port.snapshot().instances)
        ],
    )


async def _breaker(port: AdminPort, name: str) -> BreakerOut:
    """How a breaker is after it was worked, once that is written."""
    view = next(view for view in port.snapshot().instances if view.id == name)
    return BreakerOut(
        instance=name,
        breaker=view.breaker.value,
        breaker_opens_in_seconds=round(view.breaker_opens_in, 3),
        warnings=list(await kept(port)),
    )
