"""Prometheus metrics: an observer of (event, decisions, now), and gauges read from the snapshot when scraped.

Labels are bounded: a model that no instance names exactly is `other`, and no label is made by a caller (no user,
key or request id). What belongs to one request is remembered between its arrival and its end only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.model import (
    Arrived,
    BreakerState,
    Bury,
    Decision,
    Dispatch,
    Event,
    Finished,
    Join,
    Reconfigured,
    Settle,
    Snapshot,
    Started,
)
from headrace.runtime.stores import DeadLetters

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_BREAKER = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


@dataclass(slots=True)
class _Open:
    """What is remembered of a request until it ends."""

    arrived: float
    model: str
    service_class: str


class Metrics:
    """Counts what the scheduler sees and decides.

    Args:
        registry: where the metrics live; one of its own per gateway.
        models: the exact model names of the configuration; anything else is `other`.
    """

    def __init__(self, registry: CollectorRegistry, models: Iterable[str]) -> None:
        self.registry = registry
        self._models = frozenset(models)
        self._open: dict[str, _Open] = {}
        self._leaders: dict[str, str] = {}
        labels = ("model", "class")
        self._requests = Counter(
            "headrace_requests_total", "Requests by how they ended.", (*labels, "ending"), registry=registry
        )
        self._duration = Histogram(
            "headrace_request_duration_seconds", "Arrival to end.", labels, registry=registry, buckets=_SECONDS
        )
        self._first_token = Histogram(
            "headrace_time_to_first_token_seconds",
            "Arrival of a call's first request to its first content.",
            labels,
            registry=registry,
            buckets=_SECONDS,
        )
        self._wait = Histogram(
            "headrace_queue_wait_seconds", "Time in the queue.", ("class",), registry=registry, buckets=_SECONDS
        )
        self._calls = Counter(
            "headrace_model_calls_total", "Attempts sent to instances.", ("instance",), registry=registry
        )
        self._outcomes = Counter(
            "headrace_attempts_total", "Attempts by how they ended.", ("cause", "kind"), registry=registry
        )
        self._retries = Counter("headrace_retries_total", "Attempts after the first.", registry=registry)
        self._dedup = Counter(
            "headrace_dedup_total", "Accepted requests by where the answer came from.", ("result",), registry=registry
        )
        self._tokens = Counter("headrace_tokens_total", "Tokens of finished calls.", ("kind",), registry=registry)
        self._dead = Counter("headrace_dead_letters_total", "Dead letters written.", ("reason",), registry=registry)

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """Count one step."""
        if isinstance(event, Arrived):
            request = event.request
            model = request.model if request.model in self._models else "other"
            self._open[request.id] = _Open(now, model, request.flow.service_class.value)
        elif isinstance(event, Started):
            leader = self._open.get(self._leaders.get(event.call, ""))
            if leader is not None:
                self._first_token.labels(leader.model, leader.service_class).observe(now - leader.arrived)
        elif isinstance(event, Finished):
            self._outcomes.labels(event.outcome.cause.value, event.outcome.kind.value).inc()
        elif isinstance(event, Reconfigured):
            self._models = frozenset(
                served.name for instance in event.instances for served in instance.models if "*" not in served.name
            )
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self._dispatched(decision)
            elif isinstance(decision, Settle):
                self._settled(decision, now)
            elif isinstance(decision, Join):
                self._leaders.setdefault(decision.call, decision.ticket)
            elif isinstance(decision, Bury):
                self._dead.labels(decision.letter.reason).inc()

    def _dispatched(self, decision: Dispatch) -> None:
        self._calls.labels(decision.instance.id).inc()
        if decision.attempt == 1:
            self._wait.labels(decision.request.flow.service_class.value).observe(decision.waited)
        else:
            self._retries.inc()

    def _settled(self, decision: Settle, now: float) -> None:
        known = self._open.pop(decision.ticket, None)
        if known is None:
            return
        self._requests.labels(known.model, known.service_class, decision.ending.value).inc()
        self._duration.labels(known.model, known.service_class).observe(now - known.arrived)
        if not decision.call:
            return
        self._dedup.labels(decision.cache.value).inc()
        if self._leaders.get(decision.call) == decision.ticket:
            del self._leaders[decision.call]
            usage = decision.usage
            if usage is not None:
                self._tokens.labels("prompt").inc(usage.prompt)
                self._tokens.labels("cached").inc(usage.cached)
                self._tokens.labels("completion").inc(usage.completion)


class Gauges(Collector):
    """What is held at the moment of a scrape.

    Args:
        snapshot: the gateway's.
        dead_letters: for their number.
        stages: depth and capacity of each stage, by name.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        dead_letters: DeadLetters,
        stages: Callable[[], Iterable[tuple[str, int, int]]],
    ) -> None:
        self._snapshot = snapshot
        self._dead_letters = dead_letters
        self._stages = stages

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: what is collected depends on the moment."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The gauges now."""
        snapshot = self._snapshot()
        yield _gauge("queue_depth", "Requests in each stage.", "stage", ((n, d) for n, d, _ in self._stages()))
        yield _gauge("stage_capacity", "Bound of each stage.", "stage", ((n, c) for n, _, c in self._stages()))
        yield _gauge(
            "queued", "Queued calls by class.", "class", ((k.value, v) for k, v in snapshot.queued_by_class.items())
        )
        views = snapshot.instances
        yield _gauge("inflight", "Requests at each instance.", "instance", ((v.id, v.in_flight) for v in views))
        yield _gauge("instance_up", "1 while healthy.", "instance", ((v.id, int(v.healthy)) for v in views))
        yield _gauge("instance_speed_tokens_per_second", "Learned speed.", "instance", ((v.id, v.speed) for v in views))
        yield _gauge("instance_reliability", "Learned, 0 to 1.", "instance", ((v.id, v.reliability) for v in views))
        yield _gauge(
            "breaker_state", "0 closed, 1 half-open, 2 open.", "instance", ((v.id, _BREAKER[v.breaker]) for v in views)
        )
        yield GaugeMetricFamily("headrace_dead_letter_depth", "Dead letters kept.", value=self._dead_letters.count)
        yield GaugeMetricFamily(
            "headrace_dead_letters_evicted", "Dead letters that had to go for others.", value=self._dead_letters.evicted
        )


def _gauge(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"headrace_{name}", text, labels=(label,))
    for key, value in values:
        family.add_metric((key,), value)
    return family
