"""How a typical request would be placed now, and why: the balancer's reasoning, for people to look at.

Nothing is taken and nothing drawn: what a real request would do to the turn among equals, to its patience or to the
random choice of two is left out, so looking changes no decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.core.routing import mean_speed, open_for, score, weight
from headrace.core.settings import RoutingSettings, Strategy
from headrace.core.ticket import Call
from headrace.model import InstanceView

if TYPE_CHECKING:
    from headrace.core.instance_state import InstanceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One instance that serves the model."""

    view: InstanceView
    chosen: bool
    shut: str
    """Why nothing at all may be sent to it (see `InstanceState.shut`), or ""."""
    gate: str
    """Why this request does not fit although the instance is there (see `Gate.shut`), or ""."""
    asked: float
    """Seconds for which the engine itself asked to be left alone."""
    load: float
    scores: Mapping[str, float]
    """By strategy, the least being the best."""
    terms: Mapping[str, float]
    """What the scores are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """All candidates for a typical request to one model."""

    strategy: str
    prompt_tokens: int
    expected: int
    queued: int
    """Requests in the line before these instances."""
    candidates: tuple[Candidate, ...]


def weigh_up(call: Call, settings: RoutingSettings, now: float) -> Weighing:
    """What speaks for each instance that may answer `call`, which is never sent."""
    members = call.choices
    able = [state for state in members if not state.shut(now)]
    candidates = open_for(able, call, now, guest=False)
    speed = mean_speed(candidates or members)
    best = min(candidates, key=lambda state: (score(settings, state, call, speed), state.last_pick), default=None)
    return Weighing(
        strategy=settings.strategy.value,
        prompt_tokens=call.request.prompt_tokens,
        expected=call.expected,
        queued=len(call.pool.tree),
        candidates=tuple(_candidate(state, call, settings, speed, state is best, now) for state in members),
    )


def _candidate(
    state: InstanceState, call: Call, settings: RoutingSettings, speed: float, chosen: bool, now: float
) -> Candidate:
    unread = state.uncached(call.request)
    return Candidate(
        view=state.view(now),
        chosen=chosen,
        shut=state.shut(now),
        gate=state.gate.shut(unread, now, call.flow.service_class)
        or ("slow_start" if call.pool.holds_back(state, now) else ""),
        asked=max(0.0, state.asked_until - now),
        load=state.load,
        scores={name.value: score(replace(settings, strategy=name), state, call, speed) for name in Strategy},
        terms={
            "unread_prompt_tokens": float(unread),
            "unstarted_tokens": float(state.gate.unstarted),
            "prefill_seconds_per_token": state.gate.prefill_seconds,
            "in_flight": float(state.gate.in_flight),
            "most_in_flight": float(state.gate.limiter.most),
            "capacity": state.instance.capacity,
            "load": state.load,
            "request_weight": weight(state, call),
            "speed_to_mean": state.speed / speed if state.speed and speed else 1.0,
            "reliability": state.reliability,
            "speed_weight": settings.speed,
            "reliability_weight": settings.reliability,
            "load_weight": settings.load,
            "picks_ago_order": float(state.last_pick),
        },
    )
