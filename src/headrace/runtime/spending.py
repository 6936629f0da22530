"""What answers cost in money, by a price list: an observer of (event, decisions, now).

Each attempt counts for what its engine reported or, where its callers left, for what had been read and made until then.
The model is the one that was asked, which may stand behind the name in the request or have taken over; models without a
price cost nothing here and make no series. What is remembered of a call ends with its last request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from headrace.model import Abort, Decision, Dispatch, Event, Finished, Join, Settle, Usage
from headrace.runtime.tallies import Counts

_UNIT = 1_000_000
"""Prices are for so many tokens."""


@dataclass(slots=True)
class _Call:
    """How many requests wait for it, and whom it was sent to last."""

    members: int = 0
    model: str = ""


class Spending:
    """Counts money.

    Args:
        registry: where the metric lives.
        prices: by model, what a million prompt and a million output tokens cost, in whatever currency.
    """

    def __init__(self, registry: CollectorRegistry, prices: Mapping[str, tuple[float, float]]) -> None:
        self._prices = prices
        self._calls: dict[str, _Call] = {}
        self._cost = Counts(registry, "cost_total", "Money for tokens, in the price list's currency.", "model")

    @property
    def open(self) -> int:
        """Calls that something is remembered of."""
        return len(self._calls)

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """Count one step."""
        del now
        if type(event) is Finished:
            outcome = event.outcome
            # An answer that goes on elsewhere is counted at its end, with what was made before.
            self._pay(event.call, _told(event.call, decisions) if outcome.resumable else outcome.usage)
        for decision in decisions:
            if type(decision) is Settle:
                self._settled(decision.call)
            elif type(decision) is Dispatch:
                call = self._calls.get(decision.call)
                if call is not None:
                    call.model = decision.model or decision.request.model
            elif type(decision) is Join:
                self._joined(decision.call)
            elif type(decision) is Abort and type(event) is not Finished:
                self._pay(decision.call, _told(decision.call, decisions))

    def _pay(self, call_id: str, usage: Usage | None) -> None:
        call = self._calls.get(call_id)
        price = None if call is None else self._prices.get(call.model)
        if call is not None and price is not None and usage is not None:
            self._cost.add(call.model, amount=(usage.prompt * price[0] + usage.completion * price[1]) / _UNIT)

    def _joined(self, call_id: str) -> None:
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = _Call()
        call.members += 1

    def _settled(self, call_id: str) -> None:
        call = self._calls.get(call_id)
        if call is not None:
            call.members -= 1
            if not call.members:
                del self._calls[call_id]


def _told(call: str, decisions: Sequence[Decision]) -> Usage | None:
    """What the callers of a call that ends in this step got; None: it goes on, or they got nothing."""
    return next((order.usage for order in decisions if type(order) is Settle and order.call == call), None)
