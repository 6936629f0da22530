"""What is held at the moment of a scrape: gauges, and the counts that others keep, read from the snapshot.

Labels are bounded as in `observe`: instances, and users only where the operator wants to see the largest few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.model import BreakerState, InstanceView, Snapshot
from headrace.runtime.stores import DeadLetters

_BREAKER = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class Gauges(Collector):
    """What is held at the moment of a scrape.

    Args:
        snapshot: the gateway's.
        dead_letters: for their number.
        stages: depth and capacity of each stage, by name.
        replays: calls sent once more because their idle connection had been closed.
        users: so many users are shown by name with their service, the others as one; 0: none.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        dead_letters: DeadLetters,
        stages: Callable[[], Iterable[tuple[str, int, int]]],
        replays: Callable[[], int],
        users: int = 0,
    ) -> None:
        self._snapshot = snapshot
        self._dead_letters = dead_letters
        self._stages = stages
        self._replays = replays
        self._users = users

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
        yield _breakers(views)
        yield from _engine_metrics(views)
        yield from _gates(views)
        yield from _fairness(snapshot)
        yield _hedges(snapshot)
        if self._users:
            yield _services(snapshot, self._users)
        yield CounterMetricFamily(
            "headrace_stale_connections",
            "Calls sent once more because the engine had closed their idle connection.",
            value=self._replays(),
        )
        yield GaugeMetricFamily("headrace_dead_letter_depth", "Dead letters kept.", value=self._dead_letters.count)
        yield CounterMetricFamily(
            "headrace_dead_letters_evicted", "Dead letters that had to go for others.", value=self._dead_letters.evicted
        )


def _breakers(views: Sequence[InstanceView]) -> Metric:
    text = "How often each breaker went into each state."
    family = CounterMetricFamily("headrace_breaker_transitions", text, labels=("instance", "to"))
    for view in views:
        for state, count in view.breaker_changes.items():
            family.add_metric((view.id, state.value), count)
    return family


def _engine_metrics(views: Sequence[InstanceView]) -> Iterable[Metric]:
    """What the engines' own metrics say, and how far that can be trusted; no sample where nothing is known."""
    ages = ((view.id, view.metrics_age) for view in views)
    stale = ((view.id, int(view.metrics_stale)) for view in views)
    waiting = ((view.id, view.engine_waiting) for view in views)
    kv = ((view.id, view.engine_kv) for view in views)
    yield _known("engine_metrics_age_seconds", "Since the engine's own metrics last said something.", ages)
    yield _known("engine_metrics_stale", "1: they are read, and say nothing or nothing new.", stale)
    yield _known("engine_waiting", "Requests in the engine's own queue, as it last said.", waiting)
    yield _known("engine_kv_usage", "Share of the engine's KV cache in use, as it last said.", kv)


def _gates(views: Sequence[InstanceView]) -> Iterable[Metric]:
    text = "Time that something waited while the instance's gate was shut, by reason."
    family = CounterMetricFamily("headrace_gate_closed_seconds", text, labels=("instance", "reason"))
    for view in views:
        for reason, seconds in view.closed_seconds.items():
            family.add_metric((view.id, reason), seconds)
    yield family


def _hedges(snapshot: Snapshot) -> Metric:
    """Second attempts beside late first ones: those that were the first to begin, and the others."""
    family = CounterMetricFamily("headrace_hedges", "Second attempts beside late first ones.", labels=("result",))
    won = snapshot.totals["hedges_won"]
    family.add_metric(("won",), won)
    family.add_metric(("other",), snapshot.totals["hedges"] - won)
    return family


def _fairness(snapshot: Snapshot) -> Iterable[Metric]:
    """How equal the service is; no sample where nothing can be said, which is not the same as perfect."""
    jain = GaugeMetricFamily(
        "headrace_fairness_jain", "Jain's index of the last minute's service of the users who wait, 1 being equal."
    )
    if snapshot.jain is not None:
        jain.add_metric((), snapshot.jain)
    yield jain
    yield GaugeMetricFamily(
        "headrace_fairness_spread_tokens",
        "Largest difference of service between two flows that wait side by side, in charged tokens per weight.",
        value=snapshot.spread,
    )
    yield GaugeMetricFamily(
        "headrace_fairness_spread_seconds",
        "The same as time of the machines they wait for; 0 while their capacity is unknown.",
        value=snapshot.spread_seconds,
    )
    yield CounterMetricFamily(
        "headrace_refunded_tokens", "Charged in advance and given back, in charged tokens.", value=snapshot.refunded
    )
    error = GaugeMetricFamily(
        "headrace_output_estimate_error", "How far expected lengths of answers are off, as a part of the real ones."
    )
    if snapshot.estimate_error is not None:
        error.add_metric((), snapshot.estimate_error)
    yield error


def _services(snapshot: Snapshot, users: int) -> Metric:
    """The users served most, and the rest of those that the scheduler knows as one."""
    ranked = sorted(snapshot.service.items(), key=lambda item: -item[1])
    shown = [*ranked[:users], ("other", sum(service for _, service in ranked[users:]))]
    return _gauge("user_service_tokens", "Charged tokens of the last minute.", "user", shown)


def _known(name: str, text: str, values: Iterable[tuple[str, float | None]]) -> Metric:
    return _gauge(name, text, "instance", ((key, value) for key, value in values if value is not None))


def _gauge(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"headrace_{name}", text, labels=(label,))
    for key, value in values:
        family.add_metric((key,), value)
    return family
