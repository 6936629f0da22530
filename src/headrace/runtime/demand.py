"""How much was asked of the gateway of late: what `core.scaling` judges.

An observer that adds up, exactly and at every step, how many calls ran and waited and for how long, in slices of a
twenty-fourth of the window. Between two steps nothing changes, so the means are those of the whole time.

Bounds: 25 slices of four numbers; the last `latencies.KEPT` waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from headrace.core.scaling import Demand
from headrace.model import (
    BreakerState,
    Decision,
    Dispatch,
    Ending,
    Event,
    Finished,
    InstanceView,
    Probed,
    Progressed,
    Reconfigured,
    Reported,
    Sealed,
    Settle,
    Started,
    Tier,
)
from headrace.runtime.latencies import Ring

SLICES = 24

_QUIET = frozenset({Started, Progressed, Finished, Probed, Reported, Sealed})
"""Facts that move no call into or out of the queue where no order follows."""

_NO_ROOM = frozenset({Ending.BACKPRESSURE, Ending.QUEUE_TIMEOUT, Ending.CIRCUIT_OPEN, Ending.NO_INSTANCE})


@dataclass(slots=True)
class _Slice:
    """What was seen in one slice; `queued` and `running` are calls times seconds."""

    begun: float
    seconds: float = 0.0
    queued: float = 0.0
    running: float = 0.0
    refused: int = 0


class DemandMeter:
    """See above. Given to `Gateway.observe`.

    Args:
        load: calls that wait and calls that are under way, now; must cost nothing worth mentioning.
        window: seconds that are looked at.
    """

    def __init__(self, load: Callable[[], tuple[int, int]], window: float) -> None:
        self._load = load
        self._window = window
        self._slices: deque[_Slice] = deque(maxlen=SLICES + 1)
        self._last: float | None = None
        self._ends = -inf
        """When the latest slice is full."""
        self._queued = self._running = 0
        self._waits = Ring()
        self._members: frozenset[str] | None = None
        self._changed = -inf
        self._asked_for_more = -inf

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """Add up the time until this step, and what it brought."""
        if not decisions and type(event) in _QUIET:
            return
        here = self._advance(now)
        if type(event) is Reconfigured:
            self._compare(frozenset(instance.id for instance in event.instances), now)
        for decision in decisions:
            if type(decision) is Dispatch:
                if decision.cause is None:
                    self._waits.note(decision.waited, now)
            elif type(decision) is Settle and decision.fault is not None and decision.ending in _NO_ROOM:
                here.refused += decision.fault.status != 429  # which is a bound of that user's own

    def asked_for_more(self, now: float) -> None:
        """Somebody was told that more instances are needed."""
        self._asked_for_more = now

    def demand(self, views: Sequence[InstanceView], now: float) -> Demand:
        """What was seen in the window before `now`, of a fleet that looks like this."""
        self._advance(now)
        slices = [one for one in self._slices if one.begun > now - self._window - self._window / SLICES]
        seen = sum(one.seconds for one in slices)
        counted = [view for view in views if not view.draining and view.tier is Tier.LOCAL] or [
            view for view in views if not view.draining
        ]
        usable = [view for view in counted if view.healthy and view.breaker is BreakerState.CLOSED]
        return Demand(
            seen=min(seen, self._window),
            instances=len(counted),
            usable=len(usable),
            places=sum(view.max_concurrent for view in usable) / len(usable) if usable else 0.0,
            running=sum(one.running for one in slices) / seen if seen else float(self._running),
            queued=sum(one.queued for one in slices) / seen if seen else float(self._queued),
            queued_now=self._queued,
            wait=self._waits.quantiles(now, self._window).p95 or 0.0,
            refused=sum(one.refused for one in slices),
            since_change=now - self._changed,
            since_up=now - self._asked_for_more,
        )

    def _advance(self, now: float) -> _Slice:
        """Count the load since the last step for the time that has passed; the slice of `now`."""
        if now >= self._ends or self._last is None:
            self._fill(now)
        elif now > self._last:
            here, passed = self._slices[-1], now - self._last
            here.seconds += passed
            here.queued += passed * self._queued
            here.running += passed * self._running
            self._last = now
        self._queued, self._running = self._load()
        return self._slices[-1]

    def _fill(self, now: float) -> None:
        """The same over the end of a slice."""
        since = now if self._last is None else max(self._last, now - self._window)
        length = self._window / SLICES
        while since < now or not self._slices:
            here = self._slices[-1] if self._slices else None
            if here is None or since >= here.begun + length:
                here = _Slice(since)
                self._slices.append(here)
            passed = min(now, here.begun + length) - since
            if passed <= 0.0:
                break
            here.seconds += passed
            here.queued += passed * self._queued
            here.running += passed * self._running
            since += passed
        self._last = now
        self._ends = self._slices[-1].begun + length

    def _compare(self, members: frozenset[str], now: float) -> None:
        if self._members is not None and members != self._members:
            self._changed = now
        self._members = members

    def begin(self, members: Sequence[str], now: float) -> None:
        """The instances there are at the start, which is no change."""
        self._members = frozenset(members)
        self._advance(now)
