"""Which queued calls could be sent this very moment: written down a second time, straight from the rules.

A queued call is eligible when on every level of the share tree its account is under its cap and within the slack of
the poorest account under its cap (head starts counted), no more than seven calls go before it in its own queue, none of
them waits for all the instances that it is bound to, and some instance may take it: up, breaker and cooldown
permitting, its gate open to it (batch has limits of its own); one it was not sent to before, if one such is up; a local
one, if one such is up, unless it has waited so long that a remote one may take it and no local one has room; one that
has just come back only as far as its slow start goes, while another of its tier could take it. One that is kept for the
instance that knows its prompt is not eligible, for as long as it may be.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.instance_state import InstanceState
from headrace.core.scheduler import Scheduler
from headrace.core.share import Node
from headrace.core.ticket import Call
from headrace.model import Cause, ServiceClass, Tier


def overdue_picks(scheduler: Scheduler, now: float) -> list[str]:
    """Calls that are eligible and yet are queued."""
    patience, spill = scheduler._settings.gate.patience_most, scheduler._settings.routing.spill_after
    return [
        call.request.id
        for pool in scheduler._fleet.pools()
        for call in _in_turn(pool.tree.root, pool.tree._overtaking._slack)
        if (call.held is None or now >= call.held + patience)
        and any(_may_take(state, call, spill, now) for state in call.choices)
    ]


def outdated_answers(scheduler: Scheduler, now: float) -> list[str]:
    """Instances that would say something else now than what a pool remembers of them while something waits.

    Those that are to be asked in the next look may.
    """
    return [
        f"{state.instance.id}: {reason!r} is remembered, {fresh!r} is so"
        for pool in scheduler._fleet.pools()
        if pool.room is not None
        for at, (state, reason) in enumerate(zip(pool.members, pool.reasons, strict=True))
        if at not in pool._touched
        and reason != (fresh := state.closed(pool.least, now) or ("slow_start" if pool.holds_back(state, now) else ""))
    ]


def _in_turn(node: Node[Call], slack: float) -> list[Call]:
    if not node.children:
        waiting = sorted((order, entry.item.id, entry) for order, entry in node.queue if entry.queued)
        return _not_behind([entry.item for _, _, entry in waiting[:8]])
    usable = [child for child in node.children.values() if _usable(child)]
    if not usable:
        return []
    poorest = min(child.vt - child.lead for child in usable)
    return [call for child in usable if child.vt - child.lead <= poorest + slack for call in _in_turn(child, slack)]


def _not_behind(calls: list[Call]) -> list[Call]:
    """Those of one user that are bound to the same instances, as replays and the rests of answers are, go in order."""
    free: list[Call] = []
    waited_for: list[InstanceState] = []
    anywhere = False
    for call in calls:
        bound = call.request.only is not None or call.resumes > 0
        if anywhere or not bound or any(state not in waited_for for state in call.choices):
            free.append(call)
            anywhere = anywhere or not bound
            waited_for += call.choices
    return free


def _usable(node: Node[Call]) -> bool:
    if node.cap is not None and node.in_flight >= node.cap:
        return False
    return node.queued > 0 and (not node.children or any(_usable(child) for child in node.children.values()))


def _may_take(state: InstanceState, call: Call, spill: Mapping[ServiceClass, float], now: float) -> bool:
    up = [other for other in call.choices if not other.shut(now)]
    if state not in up or not _has_room(state, call, now):
        return False
    after = spill.get(call.flow.service_class)
    if after is not None and now >= call.entered + after - call.waited:
        local = [other for other in up if other.instance.tier is Tier.LOCAL]
        up = up if any(_has_room(other, call, now) for other in local) else [o for o in up if o not in local] or up
    refused = {record.instance for record in call.records if record.cause is Cause.UPSTREAM_AUTH}
    fresh = [other for other in up if other.instance.id not in call.tried]
    if state in fresh:
        return state in _near(fresh)
    if any(_has_room(other, call, now) for other in _near(fresh)):
        return False
    return state in _near([other for other in up if other.instance.id not in refused] or up)


def _near(states: list[InstanceState]) -> list[InstanceState]:
    return [state for state in states if state.instance.tier is Tier.LOCAL] or states


def _has_room(state: InstanceState, call: Call, now: float) -> bool:
    if state.gate.shut(state.uncached(call.request) + call.carried, now, call.flow.service_class):
        return False
    if state.ramp is None or not state.ramping(now) or len(call.choices) == 1:
        return True
    others = [other for other in call.pool.members if other.instance.tier is state.instance.tier]
    taken_elsewhere = any(not other.shut(now) and not other.ramping(now) for other in others if other is not state)
    return not taken_elsewhere or state.gate.in_flight < state.ramp.limit(state.gate.limit, now)
