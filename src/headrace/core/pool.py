"""A pool: the instances that can serve a model, and the one fair queue before them.

Models served by exactly the same instances share a pool, so that their users compete for the same machines. A pool
also knows how fast it empties: the mean time between dispatches and the charged units per second, both measured
while something waited.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from headrace.core.fairness import ShareTree
from headrace.core.ticket import Call
from headrace.model import Request

if TYPE_CHECKING:
    from headrace.core.hedging import FirstTokens
    from headrace.core.instance_state import InstanceState

_RATE_WINDOW = 2.0
"""Seconds over which a pool's capacity is measured."""


_KEPT = frozenset({"in_flight", "pending", "engine_queue"})
"""Reasons that leave places for guests."""


class Room(Enum):
    """For whom there is room."""

    NONE = 0
    GUESTS = 1
    ANYBODY = 2


class Pool:
    """The instances that can serve a model, and the one fair queue before them.

    Models served by exactly the same instances share a pool: their users compete for the same machines.
    """

    __slots__ = (
        "_charged",
        "_charged_since",
        "between",
        "first_tokens",
        "last_dispatch",
        "least",
        "members",
        "rate",
        "tree",
        "turned_at",
        "waited",
    )

    def __init__(self, members: tuple[InstanceState, ...], tree: ShareTree[Call]) -> None:
        self.members = members
        self.tree = tree
        self.last_dispatch: float | None = None
        self.waited = False
        """Something was queued after the last pump."""
        self.between = 1.0
        """Mean seconds between dispatches while there was a queue, learned."""
        self.rate = 0.0
        """Charged units per second while there was a queue: the pool's capacity, learned."""
        self.first_tokens: FirstTokens | None = None
        """How long first tokens take, where that is asked for."""
        self.turned_at = -inf
        """When those who wait here were last sent to other models."""
        self.least = 1
        """None of the queued requests has fewer prompt tokens to read than this."""
        self._charged = 0.0
        self._charged_since = 0.0

    def serves(self, request: Request) -> bool:
        """Whether the instance that `request` is bound to, if it is, is a member."""
        return request.only is None or any(member.instance.id == request.only for member in self.members)

    def queued(self, request: Request) -> None:
        """`request` was queued just now. Who may have been read in part before counts as the smallest there is."""
        tokens = 1 if request.prefix else max(1, request.prompt_tokens)
        self.least = tokens if self.tree.root.queued == 1 else min(tokens, self.least)

    def holds_back(self, state: InstanceState, now: float) -> bool:
        """Whether `state`, which has just come back, gets nothing more now because others can take it (`core.ramp`)."""
        ramp = state.ramp
        if ramp is None or now >= ramp.ends or state.gate.in_flight < ramp.limit(state.gate.limit, now):
            return False
        tier = state.instance.tier
        return any(
            member is not state and member.instance.tier is tier and not member.ramping(now) and not member.shut(now)
            for member in self.members
        )

    def room(self, now: float) -> Room:
        """For whom some instance has room for the smallest of the queued requests."""
        found = Room.NONE
        for member in self.members:
            if member.ramp is not None and self.holds_back(member, now):
                continue
            if not (reason := member.closed(self.least, now)):
                return Room.ANYBODY
            if reason not in _KEPT or (reason == "in_flight" and member.gate.in_flight >= member.gate.limiter.ample):
                continue
            if not member.closed(self.least, now, guest=True):
                found = Room.GUESTS
        return found

    def dispatched(self, cost: float, now: float) -> bool:
        """Count a dispatch of `cost` for the measured drain rate and capacity; True when the capacity was renewed."""
        if self.last_dispatch is not None and len(self.tree):
            self.between += 0.1 * (now - self.last_dispatch - self.between)
        self.last_dispatch = now
        self._charged += cost
        passed = now - self._charged_since
        if passed < _RATE_WINDOW:
            return False
        if passed < 4 * _RATE_WINDOW:
            self.rate += (0.3 if self.rate else 1.0) * (self._charged / passed - self.rate)
        self._charged, self._charged_since = 0.0, now
        return True

    def drains_in(self, ahead: int) -> float:
        """Seconds until `ahead` queued requests are dispatched at the measured rate; at least 1, at most 60."""
        return min(60.0, max(1.0, ahead * self.between))
