"""The instances and what is known of each: breaker, cooldown, health, speed, reliability, gate.

Every attempt feeds its own instance, streams included. Outcomes are judged three ways:

* success closes the breaker's count and ends the cooldown, unless the engine itself asked for it;
* failure (connect, timeout, 5xx, broken stream) counts for the breaker and starts a cooldown;
* neutral says nothing about the instance, but always gives its place and its probe lease back. 429 and overload
  are neutral for the breaker and start a cooldown as long as the engine asked for (bounded).

Speed (output tokens per second of an attempt) and reliability are exponentially weighted means, alpha 0.3.
Reliability moves toward 1 on success and toward 1 - p on a penalty p; an unknown speed reads as the average of its
peers, so that a cold instance is not starved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from headrace.core.breaker import Breaker, Permit
from headrace.core.fairness import ShareTree
from headrace.core.gate import Gate, Pass
from headrace.core.settings import FairnessSettings, RecoverySettings, Settings
from headrace.core.ticket import Call
from headrace.model import (
    Cause,
    EngineReport,
    Instance,
    InstanceView,
    Outcome,
    OutcomeKind,
    Probed,
    Request,
    ServedModel,
    ServiceClass,
)

_ALPHA = 0.3
_PENALTY = {
    Cause.TIMEOUT: 0.5,
    Cause.CONNECT: 0.5,
    Cause.SERVER_ERROR: 1.0,
    Cause.PROTOCOL: 1.0,
    Cause.RATE_LIMITED: 0.7,
    Cause.BROKEN_STREAM: 0.5,
}
_MAX_NAMES = 4096
"""Model names remembered with their pool; names come from callers, so the memory of them is bounded."""


class Place:
    """One attempt's stay at an instance. `InstanceState.acquire` gives it, `release` takes it back exactly once."""

    __slots__ = ("first", "load", "open", "permit", "since", "slot", "state")

    def __init__(self, state: InstanceState, slot: Pass, load: float, permit: Permit, since: float) -> None:
        self.state = state
        self.slot = slot
        self.load = load
        self.permit = permit
        self.since = since
        self.first: float | None = None
        self.open = True


class InstanceState:
    """The moving state of one instance."""

    __slots__ = (
        "_unhealthy_after",
        "breaker",
        "cooldown_limited",
        "cooldown_until",
        "draining",
        "gate",
        "healthy",
        "instance",
        "last_pick",
        "load",
        "reliability",
        "report",
        "reported_at",
        "speed",
        "strikes",
    )

    def __init__(self, instance: Instance, settings: Settings) -> None:
        self.instance = instance
        self.gate = Gate(instance.max_concurrent, instance.window_tokens)
        self.breaker = Breaker(
            settings.breaker.threshold, settings.breaker.recovery, max_backoff=settings.breaker.max_backoff
        )
        self.healthy = True
        self.draining = False
        self._unhealthy_after = settings.health.unhealthy_after
        self.strikes = 0
        self.cooldown_until = 0.0
        self.cooldown_limited = False
        """The cooldown was asked for by the engine (429, overload)."""
        self.speed = 0.0
        self.reliability = 1.0
        self.load = 0.0
        """Sum of the weights of the requests it is working on."""
        self.last_pick = 0
        self.report: EngineReport | None = None
        self.reported_at = 0.0

    def reshape(self, instance: Instance) -> None:
        """Take new settings of the same instance; what was learned stays."""
        self.instance = instance
        self.gate.limit = instance.max_concurrent
        self.gate.window = instance.window_tokens

    def shut(self, now: float) -> str:
        """Why nothing at all may be sent to it now, or ""."""
        if self.draining:
            return "draining"
        if not self.healthy:
            return "down"
        if not self.breaker.allows(now):
            return "breaker"
        return "cooldown" if self.cooldown_until > now else ""

    def closed(self, tokens: int, now: float) -> str:
        """Why a request of `tokens` prompt tokens may not be sent now, or ""."""
        return self.shut(now) or self.gate.shut(tokens, now)

    def returns_in(self, now: float) -> float | None:
        """Seconds until a shut instance may be tried again; None when only an event can bring it back."""
        if self.draining or not self.healthy:
            return None
        wait = max(0.0, self.cooldown_until - now)
        return wait if self.breaker.allows(now) else max(wait, self.breaker.opens_in(now))

    def opens_at(self, now: float) -> float | None:
        """When it may take more without any event: its way back, or its window's next lapse. None: only an event helps."""
        if not self.shut(now):
            return self.gate.opens_at(now)
        wait = self.returns_in(now)
        return None if wait is None else now + wait

    def acquire(self, request: Request, load: float, streamed: bool, now: float) -> Place:
        """Take a place for one attempt; `closed` was "" just before."""
        permit = self.breaker.acquire(now)
        slot = self.gate.enter(request.prompt_tokens, streamed, now)
        self.load += load
        return Place(self, slot, load, permit, now)

    def started(self, place: Place, now: float) -> None:
        """The attempt's first content is here."""
        if place.open and place.first is None:
            place.first = now
            self.gate.started(place.slot, now)

    def release(self, place: Place, outcome: Outcome, settings: RecoverySettings, now: float) -> None:
        """The attempt ended: give everything back and judge. A second call changes nothing."""
        if not place.open:
            return
        place.open = False
        self.gate.leave(place.slot)
        self.load = max(0.0, self.load - place.load) if self.gate.in_flight else 0.0
        kind = outcome.kind
        if kind is OutcomeKind.SUCCESS:
            self.breaker.success(place.permit)
            if not self.cooldown_limited:
                self.cooldown_until = 0.0
        elif kind is OutcomeKind.FAILURE:
            self.breaker.failure(now, place.permit)
            self._cool(outcome.retry_after, settings, now)
        else:
            self.breaker.neutral(place.permit)
            if outcome.cause is Cause.RATE_LIMITED:
                self._cool(outcome.retry_after, settings, now)
                self.cooldown_limited = True
        self._learn(place, outcome, now)

    def probed(self, event: Probed) -> bool:
        """Count a health check; True when the instance came up or went down by it."""
        before = self.healthy
        if event.healthy:
            self.strikes = 0
            self.healthy = True
        elif not event.busy:
            self.strikes += self._unhealthy_after if event.definite else 1
            self.healthy = self.healthy and self.strikes < self._unhealthy_after
        return before != self.healthy

    def reported(self, report: EngineReport | None, now: float) -> None:
        """Take what the engine's metrics say; None: unknown from now on."""
        self.report = report
        self.reported_at = now

    def view(self, now: float) -> InstanceView:
        """What can be seen of it."""
        return InstanceView(
            id=self.instance.id,
            engine=self.instance.engine,
            tier=self.instance.tier,
            models=tuple(model.name for model in self.instance.models),
            healthy=self.healthy,
            draining=self.draining,
            breaker=self.breaker.state(now),
            breaker_opens_in=self.breaker.opens_in(now),
            cooldown=max(0.0, self.cooldown_until - now),
            in_flight=self.gate.in_flight,
            max_concurrent=self.gate.limit,
            unstarted_tokens=self.gate.unstarted,
            speed=self.speed,
            reliability=self.reliability,
            closed_because=self.closed(1, now),
        )

    def _cool(self, asked: float | None, settings: RecoverySettings, now: float) -> None:
        wait = max(settings.cooldown, min(asked or 0.0, settings.cooldown_cap))
        if now + wait > self.cooldown_until:
            self.cooldown_until = now + wait
            self.cooldown_limited = False

    def _learn(self, place: Place, outcome: Outcome, now: float) -> None:
        if outcome.cause is Cause.OK:
            self.reliability += _ALPHA * (1.0 - self.reliability)
            took = now - place.since
            if outcome.usage is not None and outcome.usage.completion > 0 and took > 0:
                seen = outcome.usage.completion / took
                self.speed = seen if self.speed == 0.0 else self.speed + _ALPHA * (seen - self.speed)
        elif (penalty := _PENALTY.get(outcome.cause)) is not None:
            self.reliability += _ALPHA * ((1.0 - penalty) - self.reliability)


class Pool:
    """The instances that can serve a model, and the one fair queue before them.

    Models served by exactly the same instances share a pool: their users compete for the same machines.
    """

    __slots__ = ("between", "last_dispatch", "members", "tree")

    def __init__(self, members: tuple[InstanceState, ...], tree: ShareTree[Call]) -> None:
        self.members = members
        self.tree = tree
        self.last_dispatch: float | None = None
        self.between = 1.0
        """Mean seconds between dispatches while there was a queue, learned."""

    def has_room(self, now: float) -> bool:
        """Some instance could take a small request."""
        return any(not member.closed(1, now) for member in self.members)

    def dispatched(self, now: float) -> None:
        """Count a dispatch for the measured drain rate."""
        if self.last_dispatch is not None and len(self.tree):
            self.between += 0.1 * (now - self.last_dispatch - self.between)
        self.last_dispatch = now

    def drains_in(self, ahead: int) -> float:
        """Seconds until `ahead` queued requests are dispatched at the measured rate; at least 1, at most 60."""
        return min(60.0, max(1.0, ahead * self.between))


class Fleet:
    """All instances, and the pool of each model name.

    Args:
        plant: makes the empty fair queue of a new pool.
    """

    def __init__(self, settings: Settings, plant: PlantTree) -> None:
        self._settings = settings
        self._plant = plant
        self.states: dict[str, InstanceState] = {}
        self._pools: dict[tuple[str, ...], Pool] = {}
        self._names: OrderedDict[str, Pool | None] = OrderedDict()

    def pools(self) -> Iterable[Pool]:
        """Every pool that was needed so far."""
        return self._pools.values()

    def pools_of(self, state: InstanceState) -> list[Pool]:
        """The pools that an instance is a member of."""
        return [pool for pool in self._pools.values() if state in pool.members]

    def configure(self, instances: Iterable[Instance]) -> list[Pool]:
        """Set the instances; those known by id keep what was learned. Returns the pools that are no more."""
        fresh: dict[str, InstanceState] = {}
        for instance in instances:
            known = self.states.get(instance.id)
            if known is not None and known.instance.address == instance.address:
                known.reshape(instance)
                fresh[instance.id] = known
            else:
                fresh[instance.id] = InstanceState(instance, self._settings)
        self.states = fresh
        self._names.clear()
        gone = [
            key
            for key, pool in self._pools.items()
            if any(fresh.get(member.instance.id) is not member for member in pool.members)
        ]
        return [self._pools.pop(key) for key in gone]

    def pool(self, model: str) -> Pool | None:
        """The pool that serves `model`; None when no instance does."""
        if model in self._names:
            self._names.move_to_end(model)
            return self._names[model]
        members = tuple(state for state in self.states.values() if match(state.instance, model) is not None)
        pool: Pool | None = None
        if members:
            key = tuple(sorted(state.instance.id for state in members))
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = Pool(members, self._plant())
        self._names[model] = pool
        if len(self._names) > _MAX_NAMES:
            self._names.popitem(last=False)
        return pool


class PlantTree:
    """Makes the share tree of a pool as the policy wants it."""

    def __init__(self, settings: FairnessSettings) -> None:
        self._fairness = settings

    def __call__(self) -> ShareTree[Call]:
        """A new, empty tree."""
        slack = self._fairness.slack if self._fairness.policy == "fair" else 1.0
        return ShareTree(self._weight, self._cap, slack)

    def _weight(self, path: tuple[str, ...]) -> float:
        fairness = self._fairness
        if len(path) == 1:
            return fairness.class_weights.get(ServiceClass(path[0]), 1.0)
        if len(path) == 2:
            return fairness.tenant_weights.get(path[1], 1.0)
        if len(path) == 3:
            exact = fairness.user_weights.get(f"{path[1]}/{path[2]}")
            return exact if exact is not None else fairness.user_weights.get(path[2], 1.0)
        return 1.0

    def _cap(self, path: tuple[str, ...]) -> int | None:
        return self._fairness.user_in_flight if len(path) == 3 else None


def match(instance: Instance, model: str) -> str | None:
    """The name to send upstream when `instance` serves `model`, else None.

    An exact name wins over patterns, and of patterns the one with most literal characters; a dot is a dot.
    """
    best: tuple[bool, int] | None = None
    upstream: str | None = None
    for served in instance.models:
        caught = _caught(served, model)
        if caught is None:
            continue
        rank = ("*" not in served.name, len(served.name) - served.name.count("*"))
        if best is None or rank > best:
            best = rank
            upstream = model if served.upstream is None else served.upstream.replace("*", caught, 1)
    return upstream


def _caught(served: ServedModel, model: str) -> str | None:
    """What the first `*` of the pattern stands for ("" for an exact name), or None when it does not match."""
    head, star, tail = served.name.partition("*")
    if not star:
        return "" if served.name == model else None
    if not model.startswith(head) or len(model) < len(head) + len(tail.replace("*", "")):
        return None
    rest = model[len(head) :]
    pieces = tail.split("*")
    if not rest.endswith(pieces[-1]):
        return None
    middle, at = rest[: len(rest) - len(pieces[-1])], 0
    first: int | None = None
    for piece in pieces[:-1]:
        found = middle.find(piece, at)
        if found < 0:
            return None
        first = found if first is None else first
        at = found + len(piece)
    return middle if first is None else middle[:first]
