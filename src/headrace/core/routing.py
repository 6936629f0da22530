"""Which instance: filter, score, pick.

Filter, in this order: draining, healthy, breaker, cooldown, gate; then tiers: while any local instance can still
serve the request, now or after its gate opens, remote ones are not candidates, unless the request has waited for as
long as its class is to wait for a local one and none is open (`spill_after`). An instance that this call has
tried already is a candidate only when no other is open. Then the strategy scores the candidates, least wins, and
equals take turns (least recently picked first), so that an idle fleet is used evenly and no counter is shared
between pools. What is scored by what was learned of it is also learned anew: an idle instance that was passed over
again and again gets the next request, or one bad measurement, or a breaker that only waits for its probe, would keep
it out for as long as the others suffice.

Strategies:

* fair_load: (un-started + own prompt tokens) x b x (in flight + 1) x b / the most that may be, b being the learned
  prefill seconds of a token: LMetric (arXiv 2603.15202) made aware of capacity. Both the wait for prefill and the
  crowding of decode count, and a machine that reads twice as fast is taken to bear twice as many. Own prompt tokens
  are those the instance has not read before, so a conversation stays where its beginning is cached. The limit that
  an instance has found for itself is no measure here: it grows only where it is used.
* weighted: (load x w_load + weight) / (capacity x (1 + w_speed max(speed - 1, 0)) / (1 + w_rel (1 -
  reliability))), speed relative to the mean of the candidates, weight = max(1, prompt) + 2 x expected output.
* least_in_flight; round_robin; two_choices (the less loaded of two drawn, which does not herd).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from headrace.core.instance_state import InstanceState
from headrace.core.settings import GateSettings, RoutingSettings, Strategy
from headrace.core.ticket import Call
from headrace.model import Cause, ServiceClass, Tier

if TYPE_CHECKING:
    from random import Random


_LOCAL: Final = Tier.LOCAL
_FAIR_LOAD: Final = Strategy.FAIR_LOAD
_WEIGHTED: Final = Strategy.WEIGHTED
_LEARNED = frozenset({_FAIR_LOAD, _WEIGHTED})
"""Strategies that go by what was learned of an instance."""
_OVERLOOKED = 16
"""So many times the number of candidates an idle one is passed over at most: one request in so many tries it."""
_PASSING = frozenset({"window", "pending", "engine_queue", "in_flight"})
"""Reasons that pass by themselves within moments."""


class Router:
    """Chooses instances; remembers only whose turn it is among equals."""

    def __init__(self, settings: RoutingSettings, gate: GateSettings, random: Random) -> None:
        self._settings = settings
        self._gate = gate
        self._random = random
        usual = gate.tpot.get(ServiceClass.NORMAL, gate.tpot_most)
        self._usual_bears_most = all(bears <= usual for bears in gate.tpot.values())
        """An instance that has no room for a request of class normal has none for another one, either."""
        self._picks = 0
        self.asks_again: float | None = None
        """When the first of the calls that were passed over since this was cleared may go elsewhere: it is kept for its
        home no longer, or has waited so long that remote instances may take it."""

    def choose(self, call: Call, now: float, guest: bool = False) -> InstanceState | None:
        """The instance of its pool to send `call` to now; None when it has to wait. A `guest` finds more places."""
        request, pool = call.request, call.pool
        members = pool.members if request.only is None and not call.resumes else call.choices
        if len(members) == 1:
            state = members[0]
            unread = _unread(state, call) if request.prefix else request.prompt_tokens + call.carried
            if state.shut(now) or state.gate.shut(unread, now, call.flow.service_class, guest):
                return None
            return state
        if members is pool.members and pool.room is not None and self._usual_bears_most:
            able, roomy = pool.able(), pool.roomy
        else:
            able, roomy = [state for state in members if not state.shut(now)], None
        find = _open_again if call.tried else open_for
        open_now = find(able, call, now, guest, roomy)
        if not open_now and self._settings.spill_after and self._spills(call, able, now):
            able = [state for state in able if state.instance.tier is Tier.REMOTE]
            open_now = find(able, call, now, guest, roomy)
        if request.prefix and len(able) > 1 and self._waits_for_home(call, able, open_now, now):
            return None
        return self._best(open_now, call)

    def second(self, call: Call, now: float) -> InstanceState | None:
        """An instance for a second attempt of `call` beside the running one: of the same tier, and open this moment."""
        able = [state for state in call.choices if not state.shut(now)]
        return self._best([s for s in open_for(able, call, now, False) if s.instance.id not in call.tried], call)

    def _best(self, candidates: list[InstanceState], call: Call) -> InstanceState | None:
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        settings = self._settings
        strategy = settings.strategy
        if strategy is Strategy.TWO_CHOICES and len(candidates) > 2:
            candidates = self._random.sample(candidates, 2)
        speed = mean_speed(candidates) if strategy is _WEIGHTED else 0.0
        best, least = candidates[0], inf
        for state in candidates:
            scored = score(settings, state, call, speed)
            if scored < least or (scored == least and state.last_pick < best.last_pick):
                best, least = state, scored
        return (_overlooked(candidates, call) or best) if strategy in _LEARNED else best

    def picked(self, state: InstanceState) -> None:
        """Note that `state` was really used: its equals go before it next time."""
        self._picks += 1
        state.last_pick = self._picks
        state.passed_over = 0

    def _spills(self, call: Call, able: Sequence[InstanceState], now: float) -> bool:
        """Whether `call`, for which no local instance is open, has waited long enough for a remote one.

        What counts is the time it has spent in the queue, not what it may still have to wait.
        """
        after = self._settings.spill_after.get(call.flow.service_class)
        if after is None or all(state.instance.tier is _LOCAL for state in able):
            return False
        due = call.entered + after - call.waited
        if now < due:
            self._ask_again(due)
        return now >= due

    def _waits_for_home(
        self, call: Call, able: Sequence[InstanceState], open_now: Sequence[InstanceState], now: float
    ) -> bool:
        """Whether `call` had better wait a moment for the instance that knows its prompt (delay scheduling).

        It does while that instance is merely full, and both what is to be read there first and the time it has been
        held so far are at most `patience` times what the known part saves. Others go meanwhile: the call is passed
        over, not in the way.
        """
        request = call.request
        home = min(able, key=lambda state: state.uncached(request))
        saved = request.prompt_tokens - home.uncached(request)
        if saved <= 0 or home in open_now or home.gate.shut(request.prompt_tokens - saved, now) not in _PASSING:
            return False
        if call.held is None:
            call.held = now
        before = home.gate.unstarted * home.gate.prefill_seconds
        worth = min(self._gate.patience * saved * home.gate.prefill_seconds, self._gate.patience_most)
        ends = call.held + worth
        if before > worth or now >= ends:
            return False
        self._ask_again(ends)
        return True

    def _ask_again(self, when: float) -> None:
        self.asks_again = when if self.asks_again is None else min(when, self.asks_again)


def score(settings: RoutingSettings, state: InstanceState, call: Call, speed: float) -> float:
    """How well `state` suits `call`, the least being the best; `speed` is the candidates' mean (see `mean_speed`)."""
    gate, strategy = state.gate, settings.strategy
    if strategy is _FAIR_LOAD:
        request = call.request
        unread = state.uncached(request) if request.prefix else request.prompt_tokens
        prefill = (gate.unstarted + unread) * gate.prefill_seconds
        crowd = (gate.in_flight + 1) * gate.prefill_seconds / gate.limiter.most
        return prefill * crowd / state.instance.capacity
    match strategy:
        case Strategy.WEIGHTED:
            relative = state.speed / speed if state.speed and speed else 1.0
            strength = state.instance.capacity * (1.0 + settings.speed * max(relative - 1.0, 0.0))
            strength /= 1.0 + settings.reliability * (1.0 - state.reliability)
            return (state.load * settings.load + weight(state, call)) / strength
        case Strategy.LEAST_IN_FLIGHT:
            return float(gate.in_flight)
        case Strategy.TWO_CHOICES:
            return gate.in_flight / (gate.limiter.most * state.instance.capacity)
        case Strategy.ROUND_ROBIN:
            return 0.0


def weight(state: InstanceState, call: Call) -> float:
    """How much work `call` is at an instance, where a request may be said to weigh more than elsewhere."""
    return (max(1, call.request.prompt_tokens) + 2.0 * call.expected) * state.instance.weight


def _overlooked(candidates: Sequence[InstanceState], call: Call) -> InstanceState | None:
    """An idle candidate that others were preferred to so often that what is known of it is old; counts this time.

    Nobody's conversation is taken from where its beginning is cached for that.
    """
    most = _OVERLOOKED * len(candidates)
    for state in candidates:
        state.passed_over += 1
        if state.passed_over > most and not state.gate.in_flight:
            request = call.request
            if not request.prefix or state.uncached(request) <= min(other.uncached(request) for other in candidates):
                return state
    return None


def open_for(
    able: Sequence[InstanceState], call: Call, now: float, guest: bool, roomy: Container[InstanceState] | None = None
) -> list[InstanceState]:
    """Those of the instances to which `call` may be sent now, remote ones only where none is local.

    `roomy`: those that have room for anything at all; None: it is not known.
    """
    request, service_class, tier = call.request, call.flow.service_class, _tier(able)
    prefix, most = request.prefix, request.prompt_tokens + call.carried
    return [
        state
        for state in (tier if roomy is None else [state for state in tier if state in roomy])
        if not state.gate.shut(_unread(state, call) if prefix else most, now, service_class, guest)
        and (state.ramp is None or not call.pool.holds_back(state, now))
    ]


def _unread(state: InstanceState, call: Call) -> int:
    """Tokens that `state` would have to read: the prompt, and the part of the answer that there is already."""
    request = call.request
    return (state.uncached(request) if request.prefix else request.prompt_tokens) + call.carried


def _open_again(
    able: Sequence[InstanceState], call: Call, now: float, guest: bool, roomy: Container[InstanceState] | None
) -> list[InstanceState]:
    """For another attempt: one that was not tried; while those are full, one that is back from its cooldown.

    Without the second choice a place would stay empty, and everybody behind this call would wait for it.
    """
    fresh = [state for state in able if state.instance.id not in call.tried]
    found = open_for(fresh, call, now, guest, roomy)
    if found:
        return found
    refused = {record.instance for record in call.records if record.cause is Cause.UPSTREAM_AUTH}
    again = [state for state in able if state.instance.id not in refused] or able
    return [state for state in open_for(again, call, now, guest, roomy) if state not in fresh]


def _tier(states: Sequence[InstanceState]) -> Sequence[InstanceState]:
    local = [state for state in states if state.instance.tier is _LOCAL]
    return local or states


def mean_speed(states: Sequence[InstanceState]) -> float:
    """Of those whose speed is known, in tokens per second; 0 while none is."""
    known = [state.speed for state in states if state.speed]
    return sum(known) / len(known) if known else 0.0
