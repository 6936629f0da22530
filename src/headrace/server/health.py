"""What supervisors, load balancers and Prometheus ask. None of it touches an engine or tells a user's name.

* `/live`: the process answers. Always 200.
* `/ready`: it would take work now: 503 while draining and while no instance is healthy. Decide by this one.
* `/health`: what is going on, for people and dashboards. Always 200; `status` is that of `condition`.
* `/metrics`: Prometheus text, or OpenMetrics to those who ask for it; of all workers where there are several.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from headrace import __version__
from headrace.model import Snapshot
from headrace.server.exchange import Exchange, header
from headrace.server.ports import GatewayPort
from headrace.server.refusals import answer_json
from headrace.server.siblings import Siblings

_log = structlog.get_logger("headrace.server")


class Health:
    """Handlers for the paths above."""

    def __init__(self, gateway: GatewayPort, registry: CollectorRegistry, siblings: Siblings | None = None) -> None:
        self._gateway = gateway
        self._registry = registry
        self._siblings = siblings
        self._asking: set[asyncio.Task[None]] = set()
        self.stopping = False
        """The process was told to stop; `/ready` says so before anything else happens."""

    def live(self, exchange: Exchange) -> None:
        """`GET /live`."""
        answer_json(exchange, 200, b'{"status":"ok"}')

    def ready(self, exchange: Exchange) -> None:
        """`GET /ready`."""
        status = self._status(self._gateway.snapshot())
        body = msgspec.json.encode({"status": status})
        answer_json(exchange, 503 if status in ("draining", "down") else 200, body, _FRESH)

    def health(self, exchange: Exchange) -> None:
        """`GET /health`."""
        snapshot = self._gateway.snapshot()
        letters = self._gateway.dead_letters
        kept = {"kept": letters.count, "evicted": letters.evicted, "degraded": letters.degraded}
        view = {"status": self._status(snapshot), "version": __version__, **_view(snapshot), "dead_letters": kept}
        body = msgspec.json.encode(view)
        answer_json(exchange, 200, body, _FRESH)

    def version(self, exchange: Exchange) -> None:
        """`GET /version`."""
        answer_json(exchange, 200, msgspec.json.encode({"version": __version__}))

    def metrics(self, exchange: Exchange) -> None:
        """`GET /metrics`."""
        accept = header(exchange, "accept") or ""
        if self._siblings is None:
            _answer_page(exchange, accept, self.page(accept))
            return
        task = asyncio.get_running_loop().create_task(self._answer_for_all(exchange, accept, self._siblings))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def page(self, accept: str) -> bytes:
        """This process's metrics in the form that an Accept header asks for."""
        encode, _ = choose_encoder(accept)
        return encode(self._registry)

    async def _answer_for_all(self, exchange: Exchange, accept: str, siblings: Siblings) -> None:
        try:
            _answer_page(exchange, accept, await siblings.page(accept))
        except Exception:  # noqa: BLE001 - the task's outer edge
            _log.exception("metrics failed")
            exchange.abort()

    def _status(self, snapshot: Snapshot) -> str:
        return "draining" if self.stopping else condition(snapshot)


_FRESH = (("cache-control", "no-store"),)


def condition(snapshot: Snapshot) -> str:
    """How the gateway is, in a word: draining, down (no instance may be asked), degraded (not all may), or ok."""
    if snapshot.draining:
        return "draining"
    usable = [instance.healthy and not instance.draining for instance in snapshot.instances]
    if not any(usable):
        return "down"
    return "ok" if all(usable) else "degraded"


def _answer_page(exchange: Exchange, accept: str, body: bytes) -> None:
    _, content_type = choose_encoder(accept)
    exchange.answer(200, (("content-type", content_type),), body)


def _view(snapshot: Snapshot) -> dict[str, object]:
    """The snapshot without users."""
    return {
        "queue": {
            "waiting": snapshot.queued,
            "size": snapshot.queue_size,
            "by_class": {service_class.value: count for service_class, count in snapshot.queued_by_class.items()},
        },
        "running": snapshot.running,
        "waiting_for_retry": snapshot.waiting_retry,
        "sharing": snapshot.following,
        "totals": dict(snapshot.totals),
        "fairness": {
            "jain": _rounded(snapshot.jain),
            "spread_tokens": round(snapshot.spread, 1),
            "spread_seconds": round(snapshot.spread_seconds, 3),
            "refunded_tokens": round(snapshot.refunded, 1),
            "output_estimate_error": _rounded(snapshot.estimate_error),
        },
        "instances": [
            {
                "id": instance.id,
                "engine": instance.engine.value,
                "tier": instance.tier.value,
                "models": list(instance.models),
                "healthy": instance.healthy,
                "draining": instance.draining,
                "breaker": instance.breaker.value,
                "cooldown_seconds": round(instance.cooldown, 3),
                "in_flight": instance.in_flight,
                "max_concurrent": instance.max_concurrent,
                "speed_tokens_per_second": round(instance.speed, 1),
                "reliability": round(instance.reliability, 3),
                "gate": instance.closed_because or "open",
                "gate_closed_seconds": {name: round(spent, 3) for name, spent in instance.closed_seconds.items()},
            }
            for instance in snapshot.instances
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
