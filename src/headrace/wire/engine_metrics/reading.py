"""From a page of metrics to an `EngineReport`.

How several series of one signal become one number:

* ranks (`tp_rank`, `pp_rank` and their like) show the same queue several times: the largest of them counts;
* engines, data-parallel ranks (`dp_rank`), versions and reasons are queues of their own: running and waiting are sums;
* the share of the KV cache in use is the largest of all: a mean would hide a full engine;
* SGLang's series without a priority is the sum of those with one and stands for them;
* with several models on a page only those that the instance serves count. A page with one model speaks for the
  instance whatever it calls it: engines report under one name and answer to others as well.

One series that cannot be read makes its signal unknown: what the rest adds up to would be too little.

A rate needs two polls. A counter that fell was reset, and nothing is known until the poll after.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model import Engine, EngineReport, ServedModel
from headrace.wire.engine_metrics.exposition import Labels, Page, Series
from headrace.wire.engine_metrics.iteration_stats import read_iterations
from headrace.wire.engine_metrics.vocabulary import VOCABULARIES, Signal, Vocabulary

_MODEL_LABELS = ("model_name", "model")
_LARGEST_CACHE = 2**53
_Growth = dict[Labels, float]


@dataclass(frozen=True, slots=True)
class Previous:
    """What the next poll needs of this one: the counters."""

    counters: Mapping[tuple[str, Labels], float] = field(default_factory=dict[tuple[str, Labels], float])


def read_metrics(
    engine: Engine, body: bytes, models: Sequence[ServedModel], previous: Previous
) -> tuple[EngineReport | None, Previous]:
    """What `body` says about the load of an engine that serves `models`, and what to hand in at the next poll.

    None when neither running nor waiting requests nor the KV cache is known from it. Never raises for a body.

    Raises:
        ValueError: engines of this kind have no metrics.
    """
    vocabulary = VOCABULARIES.get(engine)
    if vocabulary is None:
        raise ValueError(f"engine {engine} has no metrics that can be read")
    if engine is Engine.TENSORRT and body[:64].lstrip().startswith(b"["):
        return read_iterations(body), previous
    return _Reading(vocabulary, Page(body), models, previous).report()


class _Reading:
    """One page, read with one engine's names. A name is looked up at most once."""

    def __init__(self, names: Vocabulary, page: Page, models: Sequence[ServedModel], previous: Previous) -> None:
        self._names = names
        self._page = page
        self._previous = previous.counters
        self._counters: dict[tuple[str, Labels], float] = {}
        gauges = {signal.name for signal in (*names.running, *names.waiting, *names.kv)}
        self._found = {name: page.series(name) for name in gauges}
        self._others = _other_models((one for many in self._found.values() for one in many), models)

    def report(self) -> tuple[EngineReport | None, Previous]:
        names = self._names
        running, waiting = self._first(names.running, _total), self._first(names.waiting, _total)
        kv = self._first(names.kv, _highest)
        tpot, preemptions = self._tpot(), self._preemptions()
        seen = Previous(self._counters) if self._counters else Previous(self._previous)
        if running is None and waiting is None and kv is None:
            return None, seen
        return EngineReport(running, waiting, kv, tpot, preemptions, self._capacity()), seen

    def _series(self, signal: Signal) -> list[Series]:
        """The series of `signal` that speak for the instance's models."""
        if signal.name not in self._found:
            self._found[signal.name] = self._page.series(signal.name)
        kept: list[Series] = []
        for one in self._found[signal.name]:
            labels = dict(one.labels)
            garbled = one.value is None and not labels
            wanted = garbled or not signal.label or labels.get(signal.label) == signal.value
            if wanted and _model(labels) not in self._others:
                kept.append(one)
        whole = [one for one in kept if not dict(one.labels).get("priority")]
        return whole or kept

    def _first(self, signals: Sequence[Signal], combine: Callable[[list[Series]], float | None]) -> float | None:
        return next((value for signal in signals if (value := combine(self._series(signal))) is not None), None)

    def _tpot(self) -> float | None:
        for seconds_name, tokens_name in self._names.token_times:
            seconds, tokens = self._growth(seconds_name), self._growth(tokens_name)
            if seconds is None or tokens is None:
                continue
            both = seconds.keys() & tokens.keys()
            count = sum(tokens[labels] for labels in both)
            if count > 0:
                return sum(seconds[labels] for labels in both) / count
        return None

    def _preemptions(self) -> float | None:
        for name in self._names.preemptions:
            grown = self._growth(name)
            if grown:
                return _total([Series(labels, value) for labels, value in grown.items()])
        return None

    def _growth(self, name: str) -> _Growth | None:
        """How much each series that was there before grew; None when one of them is unknown or was reset."""
        grown: _Growth = {}
        sound = True
        for labels, value in self._series(Signal(name)):
            if value is None or value < 0:
                sound = False
                continue
            self._counters[name, labels] = value
            before = self._previous.get((name, labels))
            if before is not None:
                grown[labels] = value - before
                sound = sound and value >= before
        return grown if sound else None

    def _capacity(self) -> int | None:
        if self._names.capacity_labels is not None:
            name, *labels = self._names.capacity_labels
            sizes = [_label_product(one.labels, labels) for one in self._series(Signal(name))]
            tokens = float(sum(sizes)) if all(sizes) else 0.0
        else:
            factors = [_total(self._series(signal)) or 0.0 for signal in self._names.capacity]
            tokens = math.prod(factors) if factors else 0.0
        return int(tokens) if 1 <= tokens < _LARGEST_CACHE else None


def _total(series: Sequence[Series]) -> float | None:
    """Summed over what has a queue of its own."""
    queues: dict[Labels, float] = {}
    for labels, value in series:
        if value is None or value < 0:
            return None
        queue = tuple(label for label in labels if not label[0].endswith("_rank") or label[0] == "dp_rank")
        queues[queue] = max(queues.get(queue, 0.0), value)
    return sum(queues.values()) if queues else None


def _highest(series: Sequence[Series]) -> float | None:
    """The largest share."""
    shares = [value for _, value in series if value is not None and 0 <= value <= 1]
    return max(shares) if shares and len(shares) == len(series) else None


def _other_models(series: Iterable[Series], served: Sequence[ServedModel]) -> frozenset[str]:
    """The models of a page that are not the instance's; none where the page has one only."""
    models = {model for one in series if (model := _model(dict(one.labels)))}
    if len(models) < 2:
        return frozenset()
    patterns = [re.compile(".*".join(map(re.escape, (one.upstream or one.name).split("*")))) for one in served]
    return frozenset(model for model in models if not any(pattern.fullmatch(model) for pattern in patterns))


def _model(labels: Mapping[str, str]) -> str:
    return next((labels[name] for name in _MODEL_LABELS if name in labels), "")


def _label_product(labels: Labels, names: Sequence[str]) -> int:
    """0 where a label is no number: engines write "None" into them before they know."""
    values = dict(labels)
    product = 1
    for name in names:
        text = values.get(name, "")
        if not (text.isascii() and text.isdecimal() and len(text) <= 15):
            return 0
        product *= int(text)
    return product
