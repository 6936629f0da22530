"""From one model to another when the first cannot answer (`catalogue` says which).

A model is exhausted when none of its instances may be asked at the moment (down, open breaker, cooling down,
drained), or when an attempt failed and no untried one is left. Then the next model of the chain whose instances may
be asked takes over at once: waiting for a cooldown makes sense only where nobody else can answer. A prompt that is
too long for a model, or that its provider's filter refuses, goes on likewise where that was chosen. Nothing goes on
after the first content, past the deadline, or past the number of attempts that the caller allows; every model of a
chain has the configured attempts, and each attempt after a failed one is paid from the retry budget, whatever model
it is at. A refusal costs the engine nothing and so takes nothing from the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.core.catalogue import Catalogue, Route, Step
from headrace.core.fleet import Fleet
from headrace.core.instance_state import InstanceState
from headrace.core.pool import Pool
from headrace.core.ticket import Call
from headrace.model import Cause, FallbackCause, Outcome, Request

if TYPE_CHECKING:
    from random import Random

_TOO_LONG = frozenset({"context_length_exceeded"})
_FILTERED = frozenset({"content_filter", "content_policy_violation"})
"""Codes of providers; Azure says the first, OpenAI the second."""


class Turn(NamedTuple):
    """A model that takes over."""

    model: str
    pool: Pool
    rest: tuple[Step, ...]
    cause: FallbackCause


class Fallbacks:
    """Knows where a request may go, and where to when it cannot stay."""

    def __init__(self, catalogue: Catalogue, fleet: Fleet, random: Random) -> None:
        self.catalogue = catalogue
        self._fleet = fleet
        self._random = random
        self.any = catalogue.falls_back
        """Whether any request may go from one model to another."""

    def begin(self, request: Request) -> tuple[Route | None, Pool] | None:
        """What a new request asks for (None: what it names), and where; None when nobody serves any of it.

        A first model that no instance serves at present is passed over as an exhausted one. A request that is bound to
        an instance has nobody to take over.
        """
        if request.model not in self.catalogue.routes:
            pool = self._fleet.pool(request.model)
            return None if pool is None else (None, pool)
        route = self.catalogue.resolve(request.model, request.flow, self._random)
        if request.only is not None and route.rest:
            route = Route(route.model)
        pool = self._fleet.pool(route.model)
        while pool is None:
            left = [at for at, step in enumerate(route.rest) if FallbackCause.EXHAUSTED in step.on]
            if not left:
                return None
            route = Route(route.rest[left[0]].model, route.rest[left[0] + 1 :])
            pool = self._fleet.pool(route.model)
        return route, pool

    def next(self, call: Call, cause: FallbackCause, now: float) -> Turn | None:
        """The model that takes over from the present one of `call` now; None when there is none that could be asked."""
        for position, (model, on) in enumerate(() if call.resumes else call.rest):
            if cause not in on:
                continue
            pool = self._fleet.pool(model)
            if pool is not None and not exhausted(pool.members, now):
                return Turn(model, pool, call.rest[position + 1 :], cause)
        return None

    def elsewhere(self, call: Call, now: float) -> Turn | None:
        """Who takes over from a model none of whose instances may be asked now; None while one may, or nobody can."""
        if not call.rest or not exhausted(call.pool.members, now):
            return None
        return self.next(call, FallbackCause.EXHAUSTED, now)


def exhausted(members: Sequence[InstanceState], now: float) -> bool:
    """Nothing may be sent to any of the instances now."""
    return all(state.shut(now) for state in members)


def refused_for(outcome: Outcome) -> FallbackCause | None:
    """Why another model might take what an engine refused as its caller's fault; None: it would refuse it, too."""
    code = outcome.fault.code if outcome.cause is Cause.REJECTED and outcome.fault is not None else None
    if code in _TOO_LONG:
        return FallbackCause.CONTEXT_LENGTH
    return FallbackCause.CONTENT_FILTER if code in _FILTERED else None
