"""A pool: the instances that can serve a model, and the one fair queue before them.

Models served by exactly the same instances share a pool, so that their users compete for the same machines. A pool
also knows how fast it empties: the mean time between dispatches and the charged units per second, both measured
while something waited.

While something waits it remembers what each instance answered when it was asked for room. The answer changes only by
what happens at the instance, or at a time that it names itself (`InstanceState.opens_at`), for which there is a timer.
So a look asks those at which something happened since the last one, and all of them when such a time has come, when
the smallest of the queued requests is another one, and while an instance comes back, which gets what others leave it.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final

from headrace.core.fairness import ShareTree
from headrace.core.ticket import Call
from headrace.model import Request

if TYPE_CHECKING:
    from headrace.core.hedging import FirstTokens
    from headrace.core.instance_state import InstanceState
    from headrace.core.share import Entry

_RATE_WINDOW = 2.0
"""Seconds over which a pool's capacity is measured."""


_KEPT = frozenset({"in_flight", "pending", "engine_queue"})
"""Reasons that leave places for guests."""
_AWAY = frozenset({"draining", "down", "breaker", "cooldown"})
"""Reasons for which nothing at all may be sent to an instance."""


class Room(IntEnum):
    """For whom there is room."""

    NONE = 0
    GUESTS = 1
    ANYBODY = 2


_NONE: Final = Room.NONE
_GUESTS: Final = Room.GUESTS
_ANYBODY: Final = Room.ANYBODY


class Pool:
    """The instances that can serve a model, and the one fair queue before them.

    Models served by exactly the same instances share a pool: their users compete for the same machines.
    """

    __slots__ = (
        "_asked",
        "_at",
        "_charged",
        "_charged_since",
        "_opens",
        "_returning",
        "_touched",
        "between",
        "first_tokens",
        "last_dispatch",
        "least",
        "members",
        "rate",
        "reasons",
        "room",
        "roomy",
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
        self.room: Room | None = None
        """For whom there was room when the last dispatch was over; None: nothing waited then, or it is not known."""
        self.reasons = [""] * len(members)
        """Why each instance had no room for the smallest of the queued requests, or ""; as of the last `look`."""
        self.roomy: dict[InstanceState, Room] = {}
        """The instances that had room, and for whom; as of the last `look`."""
        self._opens = [inf] * len(members)
        """When each may take more without any event."""
        self._returning = False
        """Some instance comes back."""
        self._at = {state: at for at, state in enumerate(members)}
        self._touched: set[int] = set()
        """Instances at which something happened since they were asked."""
        self._asked: set[int] = set()
        """Those that were asked since it was last reckoned up why something waits."""

    def serves(self, request: Request) -> bool:
        """Whether the instance that `request` is bound to, if it is, is a member."""
        return request.only is None or any(member.instance.id == request.only for member in self.members)

    def queued(self, request: Request, entry: Entry[Call]) -> bool:
        """`request` was queued just now as `entry`; whether something may go by it that could not go before.

        Who may have been read in part before counts as the smallest there is. Where there is room for guests only, just
        the one whose turn it is may go, and whoever stands behind another one of his user does not change who that is.
        """
        tokens = 1 if request.prefix or request.prompt_tokens < 1 else request.prompt_tokens
        if tokens < self.least or self.tree.root.queued == 1:
            self.least = tokens
            self.room = None
        room = self.room
        if room is not _GUESTS or self._returning:
            return room is not _NONE
        leaf = entry.leaf
        return leaf.queued == 1 or leaf.queue[0][1] is entry

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

    def down_since(self) -> float:
        """Since when all instances have been down; infinite: one is up."""
        latest = -inf
        for member in self.members:
            if member.healthy:
                return inf
            latest = max(latest, member.down_since)
        return latest if self.members else inf

    def touch(self, state: InstanceState) -> None:
        """Something happened at an instance: it is asked again."""
        self._touched.add(self._at[state])

    def look(self, now: float) -> Room:
        """For whom some instance has room for the smallest of the queued requests."""
        touched, roomy = self._touched, self.roomy
        if self.room is None or self._returning:
            self._returning = False
            touched.update(range(len(self.members)))
        for at in touched:
            state = self.members[at]
            if state.ramp is not None:
                self._returning = True
            room = self._ask(at, state, now)
            if room is not _NONE:
                roomy[state] = room
            elif state in roomy:
                del roomy[state]
        self._asked |= touched
        touched.clear()
        room = _NONE
        if roomy:
            room = _ANYBODY if _ANYBODY in roomy.values() else _GUESTS
        self.room = room
        return room

    def able(self) -> list[InstanceState]:
        """The instances to which something may be sent at all; as of the last `look`."""
        return [state for state, reason in zip(self.members, self.reasons, strict=True) if reason not in _AWAY]

    def _ask(self, at: int, state: InstanceState, now: float) -> Room:
        """For whom one instance has room; why it has none for others is noted.

        One that is held back has room for those who are bound to it.
        """
        held = state.ramp is not None and self.holds_back(state, now)
        reason = state.shut(now) or state.gate.shut(self.least, now)
        self.reasons[at] = reason or ("slow_start" if held else "")
        if not reason:
            return _ANYBODY
        if held or reason not in _KEPT or (reason == "in_flight" and state.gate.in_flight >= state.gate.limiter.ample):
            return _NONE
        return _NONE if state.gate.shut(self.least, now, guest=True) else _GUESTS

    def reckon(self, passed: Call | None, now: float) -> float:
        """Keep account of why something waits before each instance; when the first may take more without any event.

        `passed` fits nowhere, though some instance may have room for others.
        """
        asked, self._asked = self._asked, set()
        for at in range(len(self.members)) if self.room is _ANYBODY else asked:
            state, reason = self.members[at], self.reasons[at]
            if not reason and passed is not None:
                reason = state.closed(state.uncached(passed.request), now, passed.flow.service_class)
            state.gate.shut_times.note(reason or "other", now)
            opens = state.opens_at(now) if reason in _AWAY or state.ramp is not None else state.gate.opens_at(now)
            self._opens[at] = inf if opens is None or opens <= now else opens
        return min(self._opens) if self._opens else inf

    def dispatched(self, cost: float, now: float) -> bool:
        """Count a dispatch of `cost` for the measured drain rate and capacity; True when the capacity was renewed."""
        if self.last_dispatch is not None and self.tree.root.queued:
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
