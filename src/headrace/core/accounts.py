"""What requests are expected to cost, and what they are charged.

cost = prompt tokens not in the engine's cache x w_p + output tokens x w_q, 1:2 at first, then in the ratio that the
instance shows (clamped to 1:1 to 1:8), or in its seconds (`gpu`), or by a price list (`money`). A call keeps the
prices of its first dispatch. At dispatch it is charged for its estimated output (not its cap, which would punish
honest high caps); each token beyond the estimate is charged as it comes; at the end the usage is the truth and the rest
is refunded. Tickets that share a call share its cost. Round robin and FIFO charge 1 a request.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from headrace.core.estimate import OutputEstimator
from headrace.core.instance_state import InstanceState
from headrace.core.pool import Pool
from headrace.core.received import Received
from headrace.core.settings import CostName, FairnessSettings, PolicyName
from headrace.core.share import NO_HINT, Charge, Hint
from headrace.core.ticket import Call
from headrace.model import Flow, Request, ServiceClass, Usage

_PROMPT_SECONDS = 2e-4
_OUTPUT_SECONDS = 2e-2
"""Rough seconds per token, to compare jobs of one user; only their order matters."""
_GUESSED, _TOLD = 2.0, 10.0
"""A short job may overtake a longer one of the same user that came up to so many times their difference before it: more
where the caller said how much he wants at most."""
_AGEING = 0.5
"""Part of its longest wait by which a job goes later, or earlier, for its length."""
_TOKEN_SECONDS = 2e-4
"""Machine time that is charged like one token, so that other settings keep their meaning."""

_ERROR_ALPHA = 0.05
"""Weight of the newest answer in the mean error of the estimates."""


class Accounts:
    """Prices, charges and refunds under one policy."""

    def __init__(self, settings: FairnessSettings) -> None:
        self._settings = settings
        self._by_token = settings.policy is PolicyName.FAIR
        self._in_line = settings.policy is PolicyName.FIFO
        self._by_model = settings.cost is CostName.MONEY
        self._by_time = settings.cost is CostName.GPU
        self._ratio = settings.output_price / max(settings.prompt_price, 1e-9)
        """What an output token costs in prompt tokens where no instance has shown it."""
        self._estimator = OutputEstimator()
        self.received = Received()
        self.refunded = 0.0
        """Charged in advance and given back, in charged units."""
        self.estimate_error: float | None = None
        """Mean of |expected - real| / real output tokens of late."""

    def expect(self, request: Request) -> int:
        """Output tokens to expect."""
        return self._estimator.expect(request.flow, request.model, request.endpoint, request.output_cap)

    def order(self, call: Call, now: float, longest: float) -> tuple[float, float]:
        """The place among the same user's requests: earliest deadline, then shortest expected job with ageing.

        An answer counts as longer or shorter only by what the caller said of it: what is guessed from the past is the
        same for all of his requests, and changes from one to the next because it is learned. A deadline counts if it
        comes before the `longest` seconds it may wait are over. The key never changes, so a long job is overtaken only
        by what comes soon after it: nobody waits for ever.
        """
        if self._in_line:
            return (0.0, 0.0)
        request = call.request
        deadline, length, most = request.deadline, request.prompt_tokens * _PROMPT_SECONDS, _AGEING * longest
        if request.output_cap is None:
            later = min(most, length * _GUESSED)
        else:
            usual = self._estimator.expect(request.flow, request.model, request.endpoint, None)
            length += min(0, call.expected - usual) * _OUTPUT_SECONDS
            later = max(-most, min(most, length * _TOLD))
        return (inf if deadline is None or deadline > now + longest else deadline, now + later)

    def hint(self, call: Call) -> Hint:
        """What may let a call go before its turn: its expected charge, and the latest start that keeps its deadline.

        An answer of unknown length is neither short nor long. The start is by the fastest of its instances, as fast as
        they have shown to be.
        """
        request, members, deadline = call.request, call.pool.members, call.request.deadline
        if not members or self._in_line:
            return NO_HINT
        prompt, expected = request.prompt_tokens, call.expected
        prices = self._prices(call.model, members[0])
        size = prompt * prices[0] + expected * prices[1] if self._by_token else 1.0
        known = request.output_cap == expected or self._estimator.knows(request.model, request.endpoint)
        if deadline is None:
            return Hint(size, known)
        takes = min(
            prompt * state.gate.prefill_seconds + expected * (1.0 / state.speed if state.speed else _OUTPUT_SECONDS)
            for state in members
        )
        return Hint(size, known, deadline - takes)

    def price(self, call: Call, state: InstanceState, now: float) -> float:
        """What a call is charged when it is first dispatched, to `state`; its prices are fixed by it."""
        call.prices = self._prices(call.model, state)
        call.prompt = state.uncached(call.request)
        cost = self._cost(call, call.prompt, call.expected)
        self.received.add(call.flow, cost, now)
        return cost

    def reprice(self, call: Call, state: InstanceState, now: float) -> None:
        """Another model answers than the one the call was charged for: the charge becomes what that one costs."""
        charge = call.charge
        if charge is not None:
            call.prices = self._prices(call.model, state)
            call.prompt = state.uncached(call.request)
            cost = self._cost(call, call.prompt, max(call.expected, call.produced))
            self.received.add(call.flow, cost - charge.cost, now)
            call.pool.tree.amend(charge, cost)

    def lead(self, pool: Pool) -> None:
        """Give interactive its head start, in the pool's present capacity (BVT, Duda and Cheriton 1999)."""
        settings = self._settings
        if self._by_token and settings.head_start:
            total = sum(settings.class_weights.values())
            pool.tree.lead(ServiceClass.INTERACTIVE, settings.head_start * pool.rate / total)

    def progress(self, call: Call, now: float) -> None:
        """Charge tokens beyond the estimate as they come."""
        if call.charge is not None and call.produced > call.expected:
            cost = self._cost(call, call.prompt, call.produced)
            self.received.add(call.flow, cost - call.charge.cost, now)
            call.pool.tree.amend(call.charge, cost)

    def settle(self, call: Call, usage: Usage, now: float) -> None:
        """The call succeeded: charge what it used, shared equally among its tickets."""
        if not usage.estimated or usage.completion:
            self._estimator.observe(
                call.leader.request.flow, call.request.model, call.request.endpoint, usage.completion
            )
            real, known = usage.completion, self.estimate_error
            error = abs(call.expected - real) / (real if real > 1 else 1)
            self.estimate_error = error if known is None else known + _ERROR_ALPHA * (error - known)
        uncached = usage.prompt - usage.cached
        self._close(call, self._cost(call, uncached if uncached > 0 else 0, usage.completion), now)

    def drop(self, call: Call, usage: Usage | None, now: float) -> None:
        """The call failed for good or never ran: charge what the engine reported, if anything."""
        self._close(call, self._cost(call, usage.prompt, usage.completion) if usage is not None else 0.0, now)

    def abandon(self, call: Call, entered: float, now: float, prefill_seconds: float) -> None:
        """The last caller left while the call ran: refund the tokens that were not produced.

        Before the first token, as much of the prompt is kept as the engine can have read since `entered`.
        """
        prompt = call.prompt
        if call.first is None and not call.resumes:
            prompt = min(prompt, int((now - entered) / prefill_seconds))
        self._close(call, self._cost(call, prompt, call.produced), now)

    def hand_over(self, call: Call, before: Flow, now: float) -> None:
        """Another ticket leads a running call now: the charge moves from the flow `before` to its own."""
        if call.charge is not None:
            self.received.add(before, -call.charge.cost, now)
            self.received.add(call.flow, call.charge.cost, now)
        self.move(call, call.pool)

    def move(self, call: Call, old: Pool) -> None:
        """A call went from the pool `old` to its present one: its charge goes with it."""
        if call.charge is not None:
            cost = call.charge.cost
            old.tree.close(call.charge, 0.0)
            call.charge = call.pool.tree.open(call.flow, cost)

    def _prices(self, model: str, state: InstanceState) -> tuple[float, float]:
        settings = self._settings
        if self._by_model:
            return settings.money.get(model, (settings.prompt_price, settings.output_price))
        shown = state.price_ratio() if settings.calibrate else None
        prompt = state.gate.prefill_seconds / _TOKEN_SECONDS if self._by_time else settings.prompt_price
        return prompt, prompt * (self._ratio if shown is None else shown)

    def _cost(self, call: Call, prompt: int, output: int) -> float:
        prices = call.prices
        return prompt * prices[0] + output * prices[1] if self._by_token else 1.0

    def _close(self, call: Call, cost: float, now: float) -> None:
        charge, call.charge = call.charge, None
        if charge is None:
            return
        if charge.cost > cost:
            self.refunded += charge.cost - cost
        if len(call.members) > 1:
            self._share(call, charge, cost / len(call.members), now)
        else:
            self.received.add(call.flow, cost - charge.cost, now)
            call.pool.tree.close(charge, cost)

    def _share(self, call: Call, charge: Charge[Call], share: float, now: float) -> None:
        """Close the leader's charge at its share; each of the others pays as much, those of one flow together."""
        tree = call.pool.tree
        self.received.add(call.flow, share - charge.cost, now)
        riders = Counter([ticket.request.flow for ticket in call.members.values() if ticket is not call.leader])
        # All are opened before one is closed: closing may raise the floor, and with it what the others start from.
        charges = [(tree.open(flow, 0.0), share * count) for flow, count in riders.items()]
        for flow, count in riders.items():
            self.received.add(flow, share * count, now)
        tree.close(charge, share)
        for other, cost in charges:
            tree.close(other, cost)
