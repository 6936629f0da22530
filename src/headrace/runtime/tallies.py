"""Counters and histograms that cost an addition each; the metrics library sees them only when it is scraped.

The library's own take a lock and several calls per count, which is a twentieth of a request. Here one loop counts, and
the numbers are put into the library's form at the scrape. Bounds: one number, or one row, per set of labels; who counts
keeps labels few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Counts(Collector):
    """Numbers that only grow, one per set of labels."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, *labels: str) -> None:
        self._name = f"headrace_{name}"
        self._text = text
        self._labels = labels
        self.values: defaultdict[tuple[str, ...], float] = defaultdict(float)
        """By the labels in their order; who counts at every request adds to them here."""
        registry.register(self)

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Count `amount` under these labels."""
        self.values[labels] += amount

    def keep(self, label: str, values: Collection[str]) -> None:
        """Forget the numbers whose `label` has none of these values: what it names is gone for good."""
        at = self._labels.index(label)
        for labels in [labels for labels in self.values if labels[at] not in values]:
            del self.values[labels]

    def describe(self) -> Iterable[Metric]:
        """The name, without numbers."""
        yield CounterMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterable[Metric]:
        """The numbers now."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        yield family


class Times(Collector):
    """Histograms of seconds, one per set of labels. `bounds` are the ends of all buckets but the last, ascending."""

    def __init__(
        self, registry: CollectorRegistry, bounds: Sequence[float], name: str, text: str, *labels: str
    ) -> None:
        self._name = f"headrace_{name}"
        self._text = text
        self._labels = labels
        self._bounds = bounds
        self._rows: dict[tuple[str, ...], Row] = {}
        registry.register(self)

    def row(self, *labels: str) -> Row:
        """The histogram of these labels, for who notes in it again and again. It is shown once something is in it."""
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = Row(self._bounds)
        return row

    def note(self, seconds: float, *labels: str) -> None:
        """Note one duration under these labels."""
        self.row(*labels).note(seconds)

    def keep(self, label: str, values: Collection[str]) -> None:
        """Forget the rows whose `label` has none of these values: what it names is gone for good."""
        at = self._labels.index(label)
        self._rows = {labels: row for labels, row in self._rows.items() if labels[at] in values}

    def describe(self) -> Iterable[Metric]:
        """The name, without numbers."""
        yield HistogramMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterable[Metric]:
        """The numbers now; buckets hold what is at most their bound, as Prometheus wants it."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for labels, row in self._rows.items():
            buckets, total = [], 0
            for name, count in zip(names, row.counts, strict=True):
                total += count
                buckets.append((name, float(total)))
            if total:
                family.add_metric(labels, buckets, row.sum)
        yield family


class Row:
    """One histogram: how many fell into each bucket, and the sum of all."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def note(self, seconds: float) -> None:
        """Note one duration."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds
