"""How long answers of late took, by instance and overall: the latest of them.

Of each instance, and of all requests together, the last `KEPT` durations and first tokens are kept, none older than
`WINDOW` seconds counts. Percentiles are by the nearest rank, so each is a time that occurred. What counts is what was
answered: a failed attempt has no latency, it has a cause (`headrace_attempts_total`).

Bounds: two rings of `KEPT` pairs of numbers per instance (16 KiB).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

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


class Times:
    """The rings of one instance, or of all requests."""

    __slots__ = ("first_token", "latency")

    def __init__(self) -> None:
        self.latency = Ring()
        self.first_token = Ring()

    def summary(self, now: float) -> Summary:
        """What they say at `now`."""
        return Summary(self.latency.quantiles(now), self.first_token.quantiles(now))


class Latencies:
    """See above. Whoever sees requests and attempts end notes their times here."""

    def __init__(self) -> None:
        self.requests = Times()
        """From a request's arrival."""
        self._instances: dict[str, Times] = {}

    def overall(self, now: float) -> Summary:
        """From a request's arrival."""
        return self.requests.summary(now)

    def of(self, instance: str, now: float) -> Summary:
        """From the moment an attempt was sent to `instance`."""
        return self._instances.get(instance, Times()).summary(now)

    def at(self, instance: str) -> Times:
        """Where the times of attempts at `instance` are noted."""
        times = self._instances.get(instance)
        if times is None:
            times = self._instances[instance] = Times()
        return times

    def keep(self, instances: Iterable[str]) -> None:
        """Forget all instances but these."""
        names = set(instances)
        self._instances = {name: times for name, times in self._instances.items() if name in names}
