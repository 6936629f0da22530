"""What Prometheus is told of the dead letters beside their number: whether they are safe, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.runtime.letter_keeping import LetterKeeping
from headrace.runtime.replays import Replays, Standing, Status
from headrace.runtime.stores import DeadLetters

_ENDS = (Standing.ANSWERED, Standing.FAILED, Standing.SKIPPED)


class LetterMetrics(Collector):
    """Collected at the moment of a scrape."""

    def __init__(self, letters: DeadLetters, keeping: LetterKeeping, replays: Replays) -> None:
        self._letters = letters
        self._keeping = keeping
        self._replays = replays

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: what is collected depends on the moment."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The numbers now."""
        letters, replays = self._letters, self._replays
        yield GaugeMetricFamily(
            "headrace_dead_letters_degraded",
            "1: they cannot be written; those since then are in memory only.",
            value=int(letters.degraded),
        )
        yield CounterMetricFamily(
            "headrace_dead_letters_aged_out", "Dead letters removed for their age.", value=letters.aged_out
        )
        yield GaugeMetricFamily(
            "headrace_dead_letter_listeners", "Who is told of new ones, the webhook included.", value=len(letters.feed)
        )
        yield CounterMetricFamily(
            "headrace_dead_letters_untold",
            "New dead letters of which the webhook could not be told.",
            value=self._keeping.untold,
        )
        running = sum(replay.status is Status.RUNNING for replay in replays.all)
        yield GaugeMetricFamily("headrace_replays_running", "Replays of dead letters that run.", value=running)
        family = CounterMetricFamily(
            "headrace_replayed_letters", "Dead letters at the end of a replay, by how it went.", labels=("result",)
        )
        for standing in _ENDS:
            family.add_metric((standing.value,), replays.totals[standing])
        yield family
