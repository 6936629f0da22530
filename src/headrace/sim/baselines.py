"""Gateways to compare with: what people run today, or build first. None knows fairness or backpressure.

* pass_through: everything goes to an engine at once; least connections chooses which. `pass_through_rr`: round robin
  over the engines. `pass_through_affinity`: the engine that has most of the prompt cached, weighed against its load.
* rpm: sixty requests a minute and user, the rest is refused; what passes is passed through.
* poll_gate: round robin over users behind a gate that is open while the engine's metrics, read once a second, showed
  fewer than three waiting requests. Nothing corrects the reading between two polls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from headrace.core.limits import SlidingWindow
from headrace.errors import rate_limited, upstream_error
from headrace.model import (
    Arrived,
    Cause,
    Decision,
    Dispatch,
    Ending,
    Event,
    Finished,
    Instance,
    Join,
    Reported,
    Request,
    Settle,
    Started,
)
from headrace.sim.callers import Ask
from headrace.sim.prefix import PrefixCache

RPM = 60
POLL_SECONDS = 1.0
WAITING_MOST = 3
_INDEX_TOKENS = 10_000_000

Chooser = Callable[[Request, Sequence["Load"]], "Load"]


class Load:
    """One engine as a simple gateway sees it."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.in_flight = 0
        self.unstarted = 0
        self.waiting = 0.0
        """What its metrics said last."""
        self.picked = 0


def least_in_flight(request: Request, loads: Sequence[Load]) -> Load:
    """Least connections; equals take turns."""
    del request
    return min(loads, key=lambda load: (load.in_flight, load.picked))


def in_turns(request: Request, loads: Sequence[Load]) -> Load:
    """Round robin over engines."""
    del request
    return min(loads, key=lambda load: load.picked)


class Affinity:
    """The least of (tokens to compute that wait there + own) x (in flight + 1): cache and load in one number."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._known: dict[str, PrefixCache] = {}

    def __call__(self, request: Request, loads: Sequence[Load]) -> Load:
        """Choose, and remember what will be cached there."""
        ask = request.payload
        chain = ask.chain if isinstance(ask, Ask) else request.prefix
        hits = {load.instance.id: self._cache(load).match(chain, request.prompt_tokens) for load in loads}

        def score(load: Load) -> tuple[float, int]:
            extend = load.unstarted + request.prompt_tokens - hits[load.instance.id]
            return extend * (load.in_flight + 1), load.picked

        best = min(loads, key=score)
        self._cache(best).add(chain, len(chain) * self._block)
        return best

    def _cache(self, load: Load) -> PrefixCache:
        return self._known.setdefault(load.instance.id, PrefixCache(_INDEX_TOKENS, self._block))


class _Desk:
    """Calls under way, and the engines they are at."""

    def __init__(self, instances: Sequence[Instance], choose: Chooser) -> None:
        self.loads = [Load(instance) for instance in instances]
        self._choose = choose
        self._open: dict[str, tuple[Request, Load, bool]] = {}
        self._picks = 0

    def send(self, request: Request, waited: float, among: Sequence[Load] | None = None) -> Dispatch:
        """Send a request to an engine."""
        load = self._choose(request, among or self.loads)
        self._picks += 1
        load.picked = self._picks
        load.in_flight += 1
        load.unstarted += request.prompt_tokens
        self._open[request.id] = (request, load, False)
        return Dispatch(request.id, 1, load.instance, request.model, request, waited)

    def progress(self, event: Event) -> list[Decision]:
        """An attempt began to answer, or ended: with it ends the request, whatever came of it."""
        match event:
            case Started(call):
                request, load, _ = self._open[call]
                load.unstarted -= request.prompt_tokens
                self._open[call] = (request, load, True)
            case Finished(call, _, outcome):
                request, load, started = self._open.pop(call)
                load.in_flight -= 1
                load.unstarted -= 0 if started else request.prompt_tokens
                if outcome.cause is Cause.OK:
                    return [
                        Settle(call, call, Ending.ANSWERED, usage=outcome.usage, instance=load.instance.id, attempts=1)
                    ]
                fault = outcome.fault or upstream_error()
                return [Settle(call, call, Ending.INFERENCE_FAILURE, fault, attempts=1)]
            case _:
                pass
        return []


class PassThrough:
    """No queue, no gate."""

    poll: float | None = None

    def __init__(self, instances: Sequence[Instance], choose: Chooser = least_in_flight) -> None:
        self._desk = _Desk(instances, choose)

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Send on what arrives."""
        del now
        if isinstance(event, Arrived):
            request = event.request
            return [Join(request.id, request.id), self._desk.send(request, 0.0)]
        return self._desk.progress(event)

    def limits(self, now: float) -> dict[str, int]:
        """None."""
        del now
        return {}


class RequestsPerMinute:
    """A limit on each user in front of a pass-through."""

    poll: float | None = None

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._inner = PassThrough(instances)
        self._windows: dict[str, SlidingWindow] = {}

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Refuse what is beyond the limit."""
        if isinstance(event, Arrived):
            request = event.request
            window = self._windows.setdefault(request.flow.user, SlidingWindow(RPM))
            wait = window.peek(now)
            if wait > 0.0:
                return [Settle(request.id, "", Ending.RATE_LIMITED, rate_limited("Too many requests.", wait))]
            window.take(now)
        return self._inner.handle(event, now)

    def limits(self, now: float) -> dict[str, int]:
        """None in flight."""
        return self._inner.limits(now)


class PollGate:
    """Users take turns; a gate looks at each engine's own queue once a second."""

    poll: float | None = POLL_SECONDS

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._desk = _Desk(instances, least_in_flight)
        self._queues: dict[str, deque[tuple[Request, float]]] = {}

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Queue what arrives; forward all that the last reading allows."""
        out: list[Decision] = []
        if isinstance(event, Arrived):
            request = event.request
            self._queues.setdefault(request.flow.user, deque()).append((request, now))
            out.append(Join(request.id, request.id))
        elif isinstance(event, Reported):
            for load in self._desk.loads:
                if load.instance.id == event.instance and event.report is not None:
                    load.waiting = event.report.waiting or 0.0
        else:
            out = self._desk.progress(event)
        out.extend(self._forward(now))
        return out

    def limits(self, now: float) -> dict[str, int]:
        """None in flight."""
        del now
        return {}

    def _forward(self, now: float) -> list[Decision]:
        sent: list[Decision] = []
        loads = [load for load in self._desk.loads if load.waiting < WAITING_MOST]
        while loads and self._queues:
            user = next(iter(self._queues))
            queue = self._queues.pop(user)
            request, since = queue.popleft()
            if queue:
                self._queues[user] = queue
            sent.append(self._desk.send(request, now - since, loads))
        return sent
