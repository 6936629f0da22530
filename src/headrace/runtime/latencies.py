"""How long answers of late took, by instance and overall: an observer that keeps the latest of them.

Of each instance, and of all requests together, the last `KEPT` durations and first tokens are kept, none older than
`WINDOW` seconds counts. Percentiles are by the nearest rank, so each is a time that occurred. What counts is what was
answered: a failed attempt has no latency, it has a cause (`headrace_attempts_total`).

Bounds: two rings of `KEPT` pairs of numbers per instance (16 KiB), one entry per attempt and per request under way.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

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
        self._at = array("d", [-inf]) * KEPT
        self._values = array("d", [0.0]) * KEPT
        self._next = 0

    def note(self, value: float, now: float) -> None:
        """Keep one more; the oldest goes."""
        place = self._next
        self._at[place] = now
        self._values[place] = value
        self._next = (place + 1) % KEPT

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


class _Attempt:
    """An attempt that has not ended.

    `streamed_to` is the request that it was sent for; None: its answer comes whole, and the first token with the last.
    """

    __slots__ = ("since", "streamed_to", "times")

    def __init__(self, since: float, times: _Times, streamed_to: str | None) -> None:
        self.since = since
        self.times = times
        self.streamed_to = streamed_to


class Latencies:
    """See above. Given to `Gateway.observe`."""

    def __init__(self) -> None:
        self._overall = _Times()
        self._instances: dict[str, _Times] = {}
        self._attempts: dict[tuple[str, int], _Attempt] = {}
        self._requests: dict[str, float] = {}
        """When each request came that has not ended."""

    @property
    def open(self) -> int:
        """Attempts and requests that something is remembered of."""
        return len(self._attempts) + len(self._requests)

    def overall(self, now: float) -> Summary:
        """From a request's arrival."""
        return self._overall.summary(now)

    def of(self, instance: str, now: float) -> Summary:
        """From the moment an attempt was sent to `instance`."""
        return self._instances.get(instance, _Times()).summary(now)

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """Note one step."""
        if type(event) is Arrived:
            self._requests[event.request.id] = now
        elif type(event) is Finished:
            attempt = self._attempts.pop((event.call, event.attempt), None)
            if attempt is not None and event.outcome.cause is Cause.OK:
                attempt.times.latency.note(now - attempt.since, now)
        elif type(event) is Started:
            self._started(event, now)
        elif type(event) is Reconfigured:
            self._keep(instance.id for instance in event.instances)
        for decision in decisions:
            if type(decision) is Settle:
                arrived = self._requests.pop(decision.ticket, None)
                if arrived is not None and decision.ending is Ending.ANSWERED:
                    self._overall.latency.note(now - arrived, now)
            elif type(decision) is Dispatch:
                request, times = decision.request, self._times(decision.instance.id)
                streamed_to = request.id if request.form is AnswerForm.STREAM else None
                self._attempts[decision.call, decision.attempt] = _Attempt(now, times, streamed_to)
            elif type(decision) is Abort:
                self._attempts.pop((decision.call, decision.attempt), None)

    def _started(self, event: Started, now: float) -> None:
        attempt = self._attempts.get((event.call, event.attempt))
        if attempt is None or attempt.streamed_to is None:
            return
        attempt.times.first_token.note(now - attempt.since, now)
        arrived = self._requests.get(attempt.streamed_to)
        if arrived is not None:
            self._overall.first_token.note(now - arrived, now)

    def _times(self, instance: str) -> _Times:
        times = self._instances.get(instance)
        if times is None:
            times = self._instances[instance] = _Times()
        return times

    def _keep(self, instances: Iterable[str]) -> None:
        """Forget the instances that are gone."""
        names = set(instances)
        self._instances = {name: times for name, times in self._instances.items() if name in names}
