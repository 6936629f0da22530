"""How long an answer will be, guessed before it exists.

Fair queueing charges a request at dispatch, when only its prompt is known; the charge is corrected afterwards, so a
wrong guess costs short-term fairness, never the long-term share. The best cheap predictor is the caller's own past:
lengths of answers vary far more between applications than within one. So the guess is an exponentially weighted mean
(Roberts, "Control chart tests based on geometric moving averages", Technometrics 1(3), 1959) of the output tokens of
this user's earlier answers by the same model at the same endpoint; without any, of all users' answers; without those,
`FIRST_GUESS`. It is at least `FLOOR`, so that nobody queues for free, and never more than the caller's own cap.

Each key remembers one float. **Bound:** `capacity` user keys and as many model keys; the one that was answered longest
ago is forgotten, which only means guessing from the wider mean again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from headrace.model import Flow

FIRST_GUESS = 256
"""Output tokens expected of a model that nobody has used yet."""
FLOOR = 16
"""Least output tokens expected, unless the caller's own cap is lower."""
ALPHA = 0.2
"""Weight of the newest answer."""


_Key = TypeVar("_Key", bound=Hashable)


class OutputEstimator:
    """Learns the length of answers per (tenant, user, model, endpoint) and per (model, endpoint)."""

    __slots__ = ("_by_model", "_by_user")

    def __init__(self, capacity: int = 10_000) -> None:
        self._by_user: _Means[tuple[str, str, str, str]] = _Means(capacity)
        self._by_model: _Means[tuple[str, str]] = _Means(capacity)

    def expect(self, flow: Flow, model: str, endpoint: str, cap: int | None) -> int:
        """Output tokens to expect, at most `cap` and at least 1."""
        _, tenant, user, _ = flow
        mean = self._by_user.means.get((tenant, user, model, endpoint))
        if mean is None:
            mean = self._by_model.means.get((model, endpoint))
        guess = FIRST_GUESS if mean is None else round(mean)
        if guess < FLOOR:
            guess = FLOOR
        return guess if cap is None or guess < cap else max(1, cap)

    def knows(self, model: str, endpoint: str) -> bool:
        """Whether `expect` goes by any answer that there was."""
        return (model, endpoint) in self._by_model.means

    def observe(self, flow: Flow, model: str, endpoint: str, tokens: int) -> None:
        """A complete answer had `tokens` output tokens."""
        _, tenant, user, _ = flow
        self._by_user.add((tenant, user, model, endpoint), tokens)
        self._by_model.add((model, endpoint), tokens)


class _Means(Generic[_Key]):
    """Bounded map of weighted means; the one that was learned of longest ago goes first."""

    __slots__ = ("_capacity", "means")

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self.means: OrderedDict[_Key, float] = OrderedDict()

    def add(self, key: _Key, value: float) -> None:
        means = self.means
        mean = means.get(key)
        if mean is not None:
            means[key] = mean + ALPHA * (value - mean)
            means.move_to_end(key)
            return
        if len(means) >= self._capacity:
            means.popitem(last=False)
        means[key] = value
