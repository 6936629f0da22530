"""Prometheus metrics: an observer of (event, decisions, now), and gauges read from the snapshot when scraped.

Labels are bounded: a model that no instance names exactly is `other`, and no label is made by a caller: no key, no
request id, and users only where the operator wants to see the largest few. What belongs to one request is remembered
between its arrival and its end only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.model import (
    Abort,
    AnswerForm,
    Arrived,
    BreakerState,
    Bury,
    Cause,
    Decision,
    Dispatch,
    Event,
    Finished,
    Instance,
    InstanceView,
    Join,
    Reconfigured,
    Settle,
    Snapshot,
    Started,
)
from headrace.runtime.stores import DeadLetters
from headrace.runtime.tallies import Counts, Row, Times

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_PACES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
_BREAKER = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


_PROMPT, _CACHED, _COMPLETION = ("prompt",), ("cached",), ("completion",)
_JUDGED = {cause: (cause.value, cause.kind.value) for cause in Cause}
"""The labels of an attempt."""


class _Kind:
    """Requests of one model and class, and where their times are noted."""

    __slots__ = ("duration", "first_token", "model", "pace", "service_class")

    def __init__(self, model: str, service_class: str, duration: Row, first_token: Row, pace: Row) -> None:
        self.model = model
        self.service_class = service_class
        self.duration = duration
        self.first_token = first_token
        self.pace = pace


class _Open:
    """What is remembered of a request until it ends.

    `streams`: its first content tells when its first token was made; that of a whole answer comes with the last.
    """

    __slots__ = ("arrived", "first", "kind", "streams")

    def __init__(self, arrived: float, kind: _Kind, streams: bool) -> None:
        self.arrived = arrived
        self.kind = kind
        self.streams = streams
        self.first: float | None = None
        """When the first content of the call came that this request leads."""


class Metrics:
    """Counts what the scheduler sees and decides.

    Args:
        registry: where the metrics live; one of its own per gateway.
        models: the exact model names of the instances; anything else is `other`.
        names: the operator's own names for models, which stay when the instances change.
    """

    def __init__(self, registry: CollectorRegistry, models: Iterable[str], names: Iterable[str] = ()) -> None:
        self.registry = registry
        self._names = frozenset(names)
        self._models = self._names.union(models)
        self._kinds: dict[tuple[str, str], _Kind] = {}
        """By exact model and class."""
        self._open: dict[str, _Open] = {}
        self._leaders: dict[str, _Open] = {}
        """The first request of each call."""
        per_model = ("model", "class")
        self._requests = Counts(registry, "requests_total", "Requests by how they ended.", *per_model, "ending")
        self._duration = Times(registry, _SECONDS, "request_duration_seconds", "Arrival to end.", *per_model)
        self._first_token = Times(
            registry,
            _SECONDS,
            "time_to_first_token_seconds",
            "Arrival of a call's first request to its first content.",
            *per_model,
        )
        self._pace = Times(
            registry,
            _PACES,
            "time_per_output_token_seconds",
            "First content of a complete stream to its end, by its other tokens.",
            *per_model,
        )
        self._wait = Times(registry, _SECONDS, "queue_wait_seconds", "Time in the queue.", "class")
        self._calls = Counts(registry, "model_calls_total", "Attempts sent to instances.", "instance")
        self._outcomes = Counts(registry, "attempts_total", "Attempts by how they ended.", "cause", "kind")
        self._retries = Counts(registry, "retries_total", "Attempts after one that failed, by why it did.", "cause")
        self._fallbacks = Counts(
            registry,
            "fallbacks_total",
            "Attempts at a model that took over, by the name asked for, that model, and why.",
            *("model", "to", "cause"),
        )
        self._resumed = Counts(
            registry, "resumed_requests_total", "Requests whose answer broke off and went on elsewhere.", "ending"
        )
        self._dedup = Counts(registry, "dedup_total", "Accepted requests by where their answer came from.", "result")
        self._tokens = Counts(registry, "tokens_total", "Tokens of finished calls.", "kind")
        self._dead = Counts(registry, "dead_letters_total", "Dead letters written.", "reason")

    @property
    def open(self) -> int:
        """Requests and calls that something is remembered of."""
        return len(self._open) + len(self._leaders)

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """Count one step."""
        if type(event) is Arrived:
            request = event.request
            model, service_class = request.model, request.flow.service_class
            kind = self._kinds.get((model, service_class)) or self._kind(model, service_class)
            self._open[request.id] = _Open(now, kind, request.form is AnswerForm.STREAM)
        elif type(event) is Finished:
            self._finished(event, decisions, now)
        elif type(event) is Started:
            leader = self._leaders.get(event.call)
            if leader is not None:
                self._begun(leader, now)
        elif type(event) is Reconfigured:
            self._reconfigured(event.instances)
        for decision in decisions:
            if type(decision) is Settle:
                self._settled(decision, now)
            elif type(decision) is Dispatch:
                self._dispatched(decision)
            elif type(decision) is Join:
                known = self._open.get(decision.ticket)
                if known is not None:
                    self._leaders.setdefault(decision.call, known)
            elif type(decision) is Abort:
                self._outcomes.values[_JUDGED[Cause.ABORTED]] += 1  # nothing more is heard of it
            elif type(decision) is Bury and decision.letter.request.letter is None:
                self._dead.add(decision.letter.reason)

    def _kind(self, model: str, service_class: str) -> _Kind:
        """That of a model and class which was not asked for until now; names that callers invent are one."""
        if model not in self._models:
            model = "other"
        kind = self._kinds.get((model, service_class))
        if kind is None:
            labels = model, service_class
            rows = (times.row(*labels) for times in (self._duration, self._first_token, self._pace))
            kind = self._kinds[labels] = _Kind(*labels, *rows)
        return kind

    def _reconfigured(self, instances: Sequence[Instance]) -> None:
        """Instances and models come and go: those that are gone would pile up."""
        self._calls.keep("instance", {instance.id for instance in instances})
        self._models = self._names.union(
            served.name for instance in instances for served in instance.models if "*" not in served.name
        )
        kept = {*self._models, "other"}
        for by_model in (self._requests, self._duration, self._first_token, self._pace, self._fallbacks):
            by_model.keep("model", kept)
        self._fallbacks.keep("to", kept)
        self._kinds.clear()
        for known in self._open.values():
            known.kind = self._kind(known.kind.model, known.kind.service_class)

    def _begun(self, leader: _Open, now: float) -> None:
        if leader.first is None:
            leader.first = now
            leader.kind.first_token.note(now - leader.arrived)

    def _finished(self, event: Finished, decisions: Sequence[Decision], now: float) -> None:
        outcome = event.outcome
        cause, usage = outcome.cause, outcome.usage
        self._outcomes.values[_JUDGED[cause]] += 1
        if cause is Cause.OK:
            leader = self._leaders.get(event.call)
            if leader is not None and not leader.streams:
                self._begun(leader, now)
            elif leader is not None and leader.first is not None and usage is not None and usage.completion > 1:
                leader.kind.pace.note((now - leader.first) / (usage.completion - 1))
        elif outcome.resumable:
            # If it goes on elsewhere, the end's counts hold these; if it does not, its callers are told what they got.
            usage = next((d.usage for d in decisions if type(d) is Settle and d.call == event.call), None)
        if usage is not None:
            tokens = self._tokens.values
            tokens[_PROMPT] += usage.prompt
            tokens[_CACHED] += usage.cached
            tokens[_COMPLETION] += usage.completion

    def _dispatched(self, decision: Dispatch) -> None:
        self._calls.values[(decision.instance.id,)] += 1
        if decision.hedge:
            return
        if decision.cause is None:
            self._wait.note(decision.waited, decision.request.flow.service_class)
        else:
            self._retries.add(decision.cause)
        if decision.fallback is not None:
            asked = decision.request.model if decision.request.model in self._models else "other"
            self._fallbacks.add(asked, decision.model, decision.fallback)

    def _settled(self, decision: Settle, now: float) -> None:
        known = self._open.pop(decision.ticket, None)
        if known is None:
            return
        kind = known.kind
        self._requests.values[kind.model, kind.service_class, decision.ending] += 1
        kind.duration.note(now - known.arrived)
        if decision.resumes:
            self._resumed.add(decision.ending)
        call = decision.call
        if call:
            self._dedup.values[(decision.cache,)] += 1
            if self._leaders.get(call) is known:
                del self._leaders[call]


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
