"""Counting without the library gives the numbers the library would give."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from headrace.runtime.tallies import Counts, Times

BOUNDS = (0.005, 0.5, 1, 30)
DURATIONS = (0.0, 0.005, 0.0051, 0.5, 0.7, 1.0, 29.9, 30.0, 31.0, 1e9)


def lines(registry: CollectorRegistry) -> list[str]:
    """What is exposed, without the times of creation that the library adds."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_counts_and_times_are_exposed_as_the_library_exposes_its_own() -> None:
    """Names, help, types, label order, bucket bounds, sums: scraping sees no difference."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts = Counts(ours, "things_total", "Things.", "kind", "size")
    times = Times(ours, BOUNDS, "wait_seconds", "Waits.", "class")
    counter = Counter("headrace_things_total", "Things.", ("kind", "size"), registry=theirs)
    histogram = Histogram("headrace_wait_seconds", "Waits.", ("class",), registry=theirs, buckets=BOUNDS)
    for kind, size, amount in (("a", "1", 1.0), ("b", '"2"\n', 2.5), ("a", "1", 3.0)):
        counts.add(kind, size, amount=amount)
        counter.labels(kind, size).inc(amount)
    for seconds in DURATIONS:
        for name in ("x", "y"):
            times.note(seconds, name)
            histogram.labels(name).observe(seconds)
    assert lines(ours) == lines(theirs)


def test_nothing_counted_is_exposed_as_nothing() -> None:
    """A family without numbers still has its help and type."""
    registry = CollectorRegistry()
    Counts(registry, "things_total", "Things.", "kind")
    assert lines(registry) == ["# HELP headrace_things_total Things.", "# TYPE headrace_things_total counter"]


def test_what_is_gone_for_good_is_forgotten() -> None:
    """Only the numbers whose label names it; coming back it begins at zero."""
    registry = CollectorRegistry()
    counts = Counts(registry, "things_total", "Things.", "kind", "size")
    counts.add("a", "1")
    counts.add("b", "1")
    counts.keep("kind", {"b", "c"})
    assert lines(registry)[2:] == ['headrace_things_total{kind="b",size="1"} 1.0']
    counts.add("a", "1")
    assert 'headrace_things_total{kind="a",size="1"} 1.0' in lines(registry)
