"""What is counted and timed of requests and attempts: the one observer of (event, decisions, now) that follows them.

Counts and histograms are Prometheus's; what the admin API tells of late goes to `latencies`; `gauges` shows what is
held at the moment.

Labels are bounded: a model that no instance names exactly is `other`, and no label is made by a caller: no key, no
user and no request id. What belongs to one request is remembered between its arrival and its end only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry

from headrace.model import (
    Abort,
    AnswerForm,
    Arrived,
    Bury,
    Cause,
    Decision,
    Dispatch,
    Ending,
    Event,
    Finished,
    Instance,
    Join,
    Reconfigured,
    ServiceClass,
    Settle,
    Started,
)
from headrace.runtime.latencies import Latencies
from headrace.runtime.latencies import Times as Latest
from headrace.runtime.tallies import Counts, Row, Times

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_PACES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)


_OK: Final = Cause.OK
_ANSWERED: Final = Ending.ANSWERED
_STREAM: Final = AnswerForm.STREAM
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


class _Attempt:
    """What is remembered of an attempt until it ends.

    `streamed_to` is the request that it was sent for; None: its answer comes whole, and the first token with the last.
    """

    __slots__ = ("latest", "since", "streamed_to")

    def __init__(self, since: float, latest: Latest, streamed_to: str | None) -> None:
        self.since = since
        self.latest = latest
        self.streamed_to = streamed_to


class Metrics:
    """Counts and times what the scheduler sees and decides.

    Args:
        registry: where the metrics live; one of its own per gateway.
        models: the exact model names of the instances; anything else is `other`.
        names: the operator's own names for models, which stay when the instances change.
        latencies: where the latest times are kept.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        models: Iterable[str],
        names: Iterable[str] = (),
        latencies: Latencies | None = None,
    ) -> None:
        self.registry = registry
        self._latencies = latencies or Latencies()
        self._latest = self._latencies.requests
        self._names = frozenset(names)
        self._models = self._names.union(models)
        self._kinds: dict[tuple[str, str], _Kind] = {}
        """By exact model and class."""
        self._open: dict[str, _Open] = {}
        self._leaders: dict[str, _Open] = {}
        """The first request of each call."""
        self._attempts: dict[tuple[str, int], _Attempt] = {}
        """By call and number. One that ends while its end is being ordered is told of twice."""
        per_model = ("model", "class")
        self._requests = Counts(registry, "requests_total", "Requests by how they ended.", *per_model, "ending")
        self._duration = Times(registry, _SECONDS, "request_duration_seconds", "Arrival to end.", *per_model)
        text = "Arrival of a call's first request to its first content."
        self._first_token = Times(registry, _SECONDS, "time_to_first_token_seconds", text, *per_model)
        text = "First content of a complete stream to its end, by its other tokens."
        self._pace = Times(registry, _PACES, "time_per_output_token_seconds", text, *per_model)
        wait = Times(registry, _SECONDS, "queue_wait_seconds", "Time in the queue.", "class")
        self._waits = {service_class: wait.row(service_class.value) for service_class in ServiceClass}
        self._calls = Counts(registry, "model_calls_total", "Attempts sent to instances.", "instance")
        self._outcomes = Counts(registry, "attempts_total", "Attempts by how they ended.", "cause", "kind")
        self._retries = Counts(registry, "retries_total", "Attempts after one that failed, by why it did.", "cause")
        text = "Attempts at a model that took over, by the name asked for, that model, and why."
        self._fallbacks = Counts(registry, "fallbacks_total", text, "model", "to", "cause")
        text = "Requests whose answer broke off and went on elsewhere."
        self._resumed = Counts(registry, "resumed_requests_total", text, "ending")
        self._dedup = Counts(registry, "dedup_total", "Accepted requests by where their answer came from.", "result")
        self._tokens = Counts(registry, "tokens_total", "Tokens of finished calls.", "kind")
        self._dead = Counts(registry, "dead_letters_total", "Dead letters written.", "reason")

    @property
    def open(self) -> int:
        """Requests, calls and attempts that something is remembered of."""
        return len(self._open) + len(self._leaders) + len(self._attempts)

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """Count one step."""
        if type(event) is Arrived:
            request = event.request
            model, service_class = request.model, request.flow.service_class
            kind = self._kinds.get((model, service_class)) or self._kind(model, service_class)
            self._open[request.id] = _Open(now, kind, request.form is _STREAM)
        elif type(event) is Finished:
            self._finished(event, decisions, now)
        elif type(event) is Started:
            self._started(event, now)
        elif type(event) is Reconfigured:
            self._reconfigured(event.instances)
        for decision in decisions:
            if type(decision) is Settle:
                self._settled(decision, now)
            elif type(decision) is Dispatch:
                self._dispatched(decision, now)
            elif type(decision) is Join:
                known = self._open.get(decision.ticket)
                if known is not None:
                    self._leaders.setdefault(decision.call, known)
            elif type(decision) is Abort:
                self._ended(decision.call, decision.attempt, Cause.ABORTED, now)
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
        ids = {instance.id for instance in instances}
        self._latencies.keep(ids)
        self._calls.keep("instance", ids)
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

    def _started(self, event: Started, now: float) -> None:
        leader, attempt = self._leaders.get(event.call), self._attempts.get((event.call, event.attempt))
        if leader is not None:
            self._begun(leader, now)
        if attempt is not None and attempt.streamed_to is not None:
            attempt.latest.first_token.note(now - attempt.since, now)
            known = self._open.get(attempt.streamed_to)
            if known is not None:
                self._latest.first_token.note(now - known.arrived, now)

    def _begun(self, leader: _Open, now: float) -> None:
        if leader.first is None:
            leader.first = now
            leader.kind.first_token.note(now - leader.arrived)

    def _finished(self, event: Finished, decisions: Sequence[Decision], now: float) -> None:
        outcome = event.outcome
        cause, usage = outcome.cause, outcome.usage
        self._ended(event.call, event.attempt, cause, now)
        if cause is _OK:
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

    def _ended(self, call: str, number: int, cause: Cause, now: float) -> None:
        attempt = self._attempts.pop((call, number), None)
        if attempt is not None:
            self._outcomes.values[_JUDGED[cause]] += 1
            if cause is _OK:
                attempt.latest.latency.note(now - attempt.since, now)

    def _dispatched(self, decision: Dispatch, now: float) -> None:
        request, latest = decision.request, self._latencies.at(decision.instance.id)
        streamed_to = request.id if request.form is _STREAM else None
        self._attempts[decision.call, decision.attempt] = _Attempt(now, latest, streamed_to)
        self._calls.values[(decision.instance.id,)] += 1
        if decision.hedge:
            return
        if decision.cause is None:
            self._waits[request.flow.service_class].note(decision.waited)
        else:
            self._retries.add(decision.cause)
        if decision.fallback is not None:
            asked = request.model if request.model in self._models else "other"
            self._fallbacks.add(asked, decision.model, decision.fallback)

    def _settled(self, decision: Settle, now: float) -> None:
        known = self._open.pop(decision.ticket, None)
        if known is None:
            return
        kind, took = known.kind, now - known.arrived
        self._requests.values[kind.model, kind.service_class, decision.ending] += 1
        kind.duration.note(took)
        if decision.ending is _ANSWERED:
            self._latest.latency.note(took, now)
        if decision.resumes:
            self._resumed.add(decision.ending)
        call = decision.call
        if call:
            self._dedup.values[(decision.cache,)] += 1
            if self._leaders.get(call) is known:
                del self._leaders[call]
