"""A scrape of one worker shows all of them."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text

from headrace.server.siblings import Siblings, merged

TEXT, OPEN = "text/plain", "application/openmetrics-text; version=1.0.0"


def _page(accept: str, requests: int) -> bytes:
    registry = CollectorRegistry()
    Counter("headrace_requests", "Requests.", ("model",), registry=registry).labels('a "b"{} c').inc(requests)
    Gauge("headrace_up", "No label.", registry=registry).set(requests)
    Histogram("headrace_seconds", "Times.", registry=registry, buckets=(0.1, 1.0)).observe(0.5)
    return choose_encoder(accept)[0](registry)


def test_samples_are_told_apart_and_described_once() -> None:
    """Both forms of the page are still valid, each sample has its worker, and labels of any content survive."""
    for accept, parse in ((TEXT, text), (OPEN, open_metrics)):
        page = merged({0: _page(accept, 3), 1: _page(accept, 4), 2: None}).decode()
        families = {family.name: family for family in parse(page)}
        counted = {
            sample.labels["worker"]: sample.value
            for sample in families["headrace_requests"].samples
            if sample.name.endswith("_total") and sample.labels["model"] == 'a "b"{} c'
        }
        assert counted == {"0": 3.0, "1": 4.0}
        assert [sample.value for sample in families["headrace_up"].samples] == [3.0, 4.0]
        assert len(families["headrace_seconds"].samples) >= 2 * 5
        answered = {sample.labels["worker"]: sample.value for sample in families["headrace_worker_up"].samples}
        assert answered == {"0": 1.0, "1": 1.0, "2": 0.0}
        assert page.count("# TYPE headrace_up ") == 1


async def test_any_worker_shows_all_and_misses_the_dead(tmp_path: Path) -> None:
    """Whichever is asked, the page is the same; a worker that is gone is missing and said to be."""
    first, second = Siblings(tmp_path, 0, 3), Siblings(tmp_path, 1, 3)
    one, two = _page(TEXT, 1), _page(TEXT, 2)
    await first.open(lambda _: one)
    await second.open(lambda _: two)
    pages = [await each.page(TEXT) for each in (first, second)]
    assert pages[0] == pages[1]
    assert b'headrace_worker_up{worker="2"} 0' in pages[0]
    await second.close()
    alone = await first.page(TEXT)
    assert b'headrace_worker_up{worker="1"} 0' in alone
    assert b'headrace_up{worker="0"} 1.0' in alone
    await first.close()
