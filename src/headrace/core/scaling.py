"""How many local instances the present demand needs: target tracking with hysteresis.

The rule is that of Kubernetes' horizontal autoscaler: as many instances as bring the share of places in use to a
target, `demand / (places of one x busy)`. Demand is the mean number of calls that run or wait, which is what Little's
law wants. A fleet is called too small only when callers feel it (they wait long, or are refused for want of room), and
too large only when the smaller one would still be below the target. Between `idle` and `busy` nothing is said, so that
the advice does not swing; after a change of the fleet, and after more was asked for, fewer are not asked for until
`cooldown` has passed, since what was seen before says little about the fleet there is now.

Waits without load mean that something else holds requests back (a user's own bound, a breaker, an engine's own queue):
more machines would not help, and the advice says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf


class Action(StrEnum):
    """What to do."""

    UP = "scale_up"
    DOWN = "scale_down"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """Bounds and thresholds; times in seconds, shares from 0 to 1."""

    min_instances: int = 1
    max_instances: int = 10
    window: float = 120.0
    wait: float = 2.0
    busy: float = 0.7
    idle: float = 0.3
    cooldown: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What was seen in the window."""

    seen: float
    """Seconds that were looked at; at most the window."""
    instances: int
    """Local instances that are registered and not drained."""
    usable: int
    """Those of them that are healthy and whose breaker is closed."""
    places: float
    """Calls that one instance may have at a time, the mean of the usable."""
    running: float
    """Mean number of calls at engines."""
    queued: float
    """Mean number of calls that waited."""
    queued_now: int
    wait: float
    """95th percentile of the waits that ended in the window, in seconds."""
    refused: int
    """Requests that were not answered because there was no room, or nobody came to serve them in time."""
    since_change: float = inf
    """Seconds since the set of instances last changed."""
    since_up: float = inf
    """Seconds since more instances were last asked for."""

    @property
    def utilisation(self) -> float:
        """Share of the usable instances' places that was in use."""
        room = self.usable * self.places
        return min(1.0, self.running / room) if room else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, by how many instances, and why. `desired` is the number of local instances after it."""

    action: Action
    count: int
    desired: int
    reason: str


def evaluate(demand: Demand, settings: ScalingSettings) -> Advice:
    """What the demand asks for. Equal demands give equal advice: asking changes nothing."""
    have, least, most = demand.instances, settings.min_instances, settings.max_instances
    if have < least:
        return _up(least, have, f"{have} local instances are fewer than min_instances ({least})")
    if have > most:
        return _down(most, have, f"{have} local instances are more than max_instances ({most})")
    if not demand.usable and (demand.queued_now or demand.refused):
        return _more(demand, settings, have + 1, f"no local instance can be used and {demand.queued_now} requests wait")
    if reason := _strain(demand, settings):
        if demand.utilisation < settings.idle:
            why = "the instances have room: a user's bound, a gate or an engine's own queue holds requests"
            return Advice(Action.NONE, 0, have, f"{reason}, but {why}")
        return _more(demand, settings, max(have + 1, needed(demand, settings)), reason)
    return _fewer(demand, settings)


def needed(demand: Demand, settings: ScalingSettings) -> int:
    """Instances that would have the demand at the target share of their places; at most `max_instances`."""
    if not demand.places * settings.busy:
        return demand.instances
    # A mean that is off by a rounding error must not cost a machine.
    wanted = (demand.running + demand.queued) / (demand.places * settings.busy) - 1e-9
    return ceil(min(wanted, settings.max_instances))


def _strain(demand: Demand, settings: ScalingSettings) -> str:
    """How callers feel that there are too few instances, or ""."""
    if demand.refused:
        return f"{demand.refused} requests found no room within {demand.seen:.0f} s"
    if demand.queued >= 1 and demand.wait > settings.wait:
        return f"{demand.queued:.1f} requests wait on average, 95 % of them up to {demand.wait:.1f} s"
    stuck = demand.queued >= demand.usable * demand.places > 0
    return f"{demand.queued:.1f} requests wait on average, more than the instances can take at a time" if stuck else ""


def _more(demand: Demand, settings: ScalingSettings, wanted: int, reason: str) -> Advice:
    have = demand.instances
    wanted = min(wanted, settings.max_instances)
    if wanted <= have:
        return Advice(Action.NONE, 0, have, f"{reason}, but max_instances ({settings.max_instances}) is reached")
    # The newest are given half a window to take their share before still more are asked for.
    if demand.since_change < settings.window / 2:
        return Advice(Action.NONE, 0, have, f"{reason}, but the fleet changed {demand.since_change:.0f} s ago")
    return _up(wanted, have, reason)


def _fewer(demand: Demand, settings: ScalingSettings) -> Advice:
    have = demand.instances
    share = f"{demand.utilisation:.0%} of the places are in use"
    wanted = max(settings.min_instances, needed(demand, settings), 1 if demand.running + demand.queued else 0)
    if demand.utilisation >= settings.idle or wanted >= have or demand.queued_now:
        return Advice(Action.NONE, 0, have, f"{share} and nobody waits long")
    if demand.seen < settings.window:
        return Advice(Action.NONE, 0, have, f"{share}, but only {demand.seen:.0f} s were seen so far")
    rest = settings.cooldown - min(demand.since_change, demand.since_up)
    if rest > 0:
        return Advice(Action.NONE, 0, have, f"{share}, but fewer are not asked for in the next {rest:.0f} s")
    return _down(wanted, have, f"{share}, less than {settings.idle:.0%}")


def _up(wanted: int, have: int, reason: str) -> Advice:
    return Advice(Action.UP, wanted - have, wanted, reason)


def _down(wanted: int, have: int, reason: str) -> Advice:
    return Advice(Action.DOWN, have - wanted, wanted, reason)
