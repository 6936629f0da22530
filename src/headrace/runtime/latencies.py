"""How long answers of late took, by instance and overall: an observer that keeps the latest of them.

Of each instance, and of all requests together, the last `KEPT` durations and first tokens are kept, none older than
`WINDOW` seconds counts. Percentiles are by the nearest rank, so each is a time that occurred. What counts is what was
answered: a failed attempt has no latency, it has a cause (`headrace_attempts_total`).

Bounds: two rings of `KEPT` pairs of numbers per instance (16 KiB), one entry per attempt and request under way.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.model import (
    Abort,
    AnswerForm,
    Arrived,
    Cause,
    Decision,
    Dispatch,
    Ending,
    Event,
    Finished,
    Join,
    Reconfigured,
    Settle,
    Started,
)
from headrace.yardsticks import percentile

WINDOW = 600.0
KEPT = 512


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of `count` values from the last `seconds`: the median, and what 95 and 99 of a hundred did not exceed."""

    count: int
    seconds: float
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Whole answers, and first tokens of streams."""

    latency: Quantiles
    first_token: Quantiles


class Ring:
    """The last `KEPT` values with the times at which they were noted."""

    __slots__ = ("_at", "_next", "_values")

    def __init__(self) -> None:
        self._at = array("d")
        self._values = array("d")
        self._next = 0

    def note(self, value: float, now: float) -> None:
        """Keep one more; the oldest goes."""
        if len(self._at) < KEPT:
            self._at.append(now)
            self._values.append(value)
            return
        self._at[self._next], self._values[self._next] = now, value
        self._next = (self._next + 1) % KEPT

    def quantiles(self, now: float, window: float = WINDOW) -> Quantiles:
        """Of those of the last `window` seconds. `seconds` reaches back to the oldest of them."""
        since = now - window
        kept = [(at, value) for at, value in zip(self._at, self._values, strict=True) if at >= since]
        if not kept:
            return Quantiles(0, 0.0)
        ordered = sorted(value for _, value in kept)
        p50, p95, p99 = (percentile(ordered, part) for part in (0.5, 0.95, 0.99))
        return Quantiles(len(ordered), now - min(at for at, _ in kept), p50, p95, p99)


class _Times:
    """The rings of one instance, or of all requests."""

    __slots__ = ("first_token", "latency")

    def __init__(self) -> None:
        self.latency = Ring()
        self.first_token = Ring()

    def summary(self, now: float) -> Summary:
        return Summary(self.latency.quantiles(now), self.first_token.quantiles(now))


@dataclass(slots=True)
class _Open:
    """An attempt or a request that has not ended."""

    since: float
    streams: bool
    instance: str = ""


class Latencies:
    """See above. Given to `Gateway.observe`."""

    def __init__(self) -> None:
        self._overall = _Times()
        self._instances: dict[str, _Times] = {}
        self._attempts: dict[tuple[str, int], _Open] = {}
        self._requests: dict[str, _Open] = {}
        self._leaders: dict[str, str] = {}

    @property
    def open(self) -> int:
        """Attempts, requests and calls that something is remembered of."""
        return len(self._attempts) + len(self._requests) + len(self._leaders)

    def overall(self, now: float) -> Summary:
        """From a request's arrival."""
        return self._overall.summary(now)

    def of(self, instance: str, now: float) -> Summary:
        """From the moment an attempt was sent to `instance`."""
        return self._instances.get(instance, _Times()).summary(now)

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """Note one step."""
        if isinstance(event, Arrived):
            request = event.request
            self._requests[request.id] = _Open(now, request.form is AnswerForm.STREAM)
        elif isinstance(event, Started):
            self._started(event, now)
        elif isinstance(event, Finished):
            self._finished(event, now)
        elif isinstance(event, Reconfigured):
            self._keep(instance.id for instance in event.instances)
        for decision in decisions:
            if isinstance(decision, Dispatch):
                streams = decision.request.form is AnswerForm.STREAM
                self._attempts[decision.call, decision.attempt] = _Open(now, streams, decision.instance.id)
            elif isinstance(decision, Settle):
                self._settled(decision, now)
            elif isinstance(decision, Join):
                self._leaders.setdefault(decision.call, decision.ticket)
            elif isinstance(decision, Abort):
                self._attempts.pop((decision.call, decision.attempt), None)

    def _started(self, event: Started, now: float) -> None:
        attempt = self._attempts.get((event.call, event.attempt))
        if attempt is not None and attempt.streams:
            self._times(attempt.instance).first_token.note(now - attempt.since, now)
        leader = self._requests.get(self._leaders.get(event.call, ""))
        if attempt is not None and leader is not None and leader.streams:
            self._overall.first_token.note(now - leader.since, now)

    def _finished(self, event: Finished, now: float) -> None:
        attempt = self._attempts.pop((event.call, event.attempt), None)
        if attempt is not None and event.outcome.cause is Cause.OK:
            self._times(attempt.instance).latency.note(now - attempt.since, now)

    def _settled(self, decision: Settle, now: float) -> None:
        known = self._requests.pop(decision.ticket, None)
        if self._leaders.get(decision.call) == decision.ticket:
            del self._leaders[decision.call]
        if known is not None and decision.ending is Ending.ANSWERED:
            self._overall.latency.note(now - known.since, now)

    def _times(self, instance: str) -> _Times:
        times = self._instances.get(instance)
        if times is None:
            times = self._instances[instance] = _Times()
        return times

    def _keep(self, instances: Iterable[str]) -> None:
        """Forget the instances that are gone."""
        names = set(instances)
        self._instances = {name: times for name, times in self._instances.items() if name in names}
