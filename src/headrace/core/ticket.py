"""One request's life, and the model call it shares.

A `Ticket` is one caller's request; it ends exactly once. A `Call` is one model call with 1..n tickets: the first
is its leader, the others follow. A call of its own makes promotion free: when the leader leaves, the next ticket
leads and nothing at the engine or in the queue moves.

    call:    NEW -> LOOKING -> QUEUED -> RUNNING -> DONE     (NEW -> RUNNING where nothing waits)
                        |        ^          |
                        |        +- WAITING <   (back-off before the next attempt)
                        +-> DONE (answered from the cache)

    ticket:  the call's state while it leads, FOLLOWING while it does not, DONE once settled
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.core.limits import Lease
from headrace.core.share import Charge, Entry, Node
from headrace.core.timers import Timer
from headrace.errors import IllegalMove
from headrace.model import AttemptRecord, CacheResult, FallbackCause, Request, ServiceClass

if TYPE_CHECKING:
    from headrace.core.catalogue import Route, Step
    from headrace.core.instance_state import InstanceState
    from headrace.core.place import Place
    from headrace.core.pool import Pool


class State(StrEnum):
    """Where a call stands."""

    NEW = "new"
    LOOKING = "looking"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"


_NEW: Final = State.NEW
_RUNNING: Final = State.RUNNING
_MOVES: dict[State, frozenset[State]] = {
    State.NEW: frozenset({State.LOOKING, State.QUEUED, State.RUNNING, State.DONE}),
    State.LOOKING: frozenset({State.QUEUED, State.DONE}),
    State.QUEUED: frozenset({State.RUNNING, State.DONE}),
    State.RUNNING: frozenset({State.QUEUED, State.WAITING, State.DONE}),
    State.WAITING: frozenset({State.QUEUED, State.DONE}),
    State.DONE: frozenset(),
}


_CLASSES = sorted(ServiceClass, key=lambda c: c.rank)
"""The most urgent first."""


class Second(NamedTuple):
    """An attempt beside the first one of a call."""

    number: int
    place: Place


class Ticket:
    """One caller's request."""

    __slots__ = ("arrived", "cache", "call", "lease", "request", "timer")

    def __init__(
        self, request: Request, call: Call, arrived: float, lease: Lease | None, cache: CacheResult = CacheResult.MISS
    ) -> None:
        self.request = request
        self.call = call
        self.arrived = arrived
        self.lease = lease
        self.cache = cache
        self.timer: Timer | None = None
        """When waiting ends, then when the deadline passes."""


class Call:
    """One model call."""

    __slots__ = (
        "_classes",
        "attempt",
        "carried",
        "charge",
        "counted",
        "entered",
        "entry",
        "expected",
        "failures",
        "fallback",
        "first",
        "flow",
        "hedge",
        "hedging",
        "held",
        "id",
        "joinable",
        "key",
        "leader",
        "leaf",
        "members",
        "model",
        "number",
        "place",
        "pool",
        "prices",
        "produced",
        "promoted",
        "promotion",
        "prompt",
        "records",
        "request",
        "rest",
        "resumes",
        "retry",
        "spent",
        "state",
        "taken_over",
        "tried",
        "waited",
    )

    leader: Ticket
    """The ticket the call is made for; the others ride along."""
    entry: Entry[Call] | None
    leaf: Node[Call] | None
    place: Place | None
    hedge: Second | None
    """A second attempt that runs beside the first because that one is late; whoever begins first answers."""
    charge: Charge[Call] | None
    retry: Timer | None
    promotion: Timer | None
    """When it will have waited so long as batch that it is treated as normal."""
    hedging: Timer | None
    """When the first content of the running attempt will be late."""
    first: float | None
    """When the running attempt began to answer."""
    held: float | None
    """Since when it waits for the instance that knows its prompt."""
    counted: tuple[ServiceClass, tuple[str, str]] | None
    """The class, and the (tenant, user), that it counts for while it is queued."""
    fallback: FallbackCause | None
    """Why the model before did not answer; None while it is at its first."""

    def __init__(self, call_id: str, request: Request, pool: Pool, now: float, route: Route | None = None) -> None:
        self.id = call_id
        self.request = request
        """The leader's request; its payload is what goes to the engine."""
        self.pool = pool
        self.model = request.model if route is None else route.model
        self.rest: tuple[Step, ...] = () if route is None else route.rest
        """What it is asked of at present, which may stand behind the name in the request; who takes over, in order."""
        self.key = None if request.fingerprint is None else key_of(request, self.model)
        """What requests that may share it, or its stored answer, have in common."""
        self.members: dict[str, Ticket] = {}
        """By id, in the order they came; the first leads. Changed by `add` and `drop` only."""
        self._classes: dict[ServiceClass, int] | None = None
        """Members per class; None until a second one joins."""
        self.flow = request.flow
        """Whose account it is on: the leader's, in the most urgent class of all its members."""
        self.state = _NEW
        self.entered = now
        """When it entered the queue last."""
        self.waited = 0.0
        """Seconds spent in the queue so far."""
        self.entry = self.leaf = self.place = self.hedge = self.charge = None
        self.retry = self.promotion = self.hedging = None
        self.first = self.held = self.counted = self.fallback = None
        self.expected = self.produced = 0
        """Output tokens it was charged for in advance; those its callers got, or are getting."""
        self.carried = self.resumes = 0
        """Output tokens that attempts which broke off left behind, and how many times that was taken up again."""
        self.number = 0
        """The attempt that holds `place`."""
        self.attempt = self.failures = self.spent = 0
        """Attempts in all; failed ones of the present leader at the present model, and at those before it."""
        self.tried: tuple[str, ...] = ()
        self.records: tuple[AttemptRecord, ...] = ()
        self.prices = (0.0, 0.0)
        """What a prompt and an output token cost it, fixed at its first dispatch."""
        self.prompt = request.prompt_tokens
        """Prompt tokens it was charged for: those the instance had not read before."""
        self.promoted = False
        self.joinable, self.taken_over = self.key is not None, False

    @property
    def choices(self) -> Sequence[InstanceState]:
        """The instances that may answer it: those of its pool, or of these the one it is bound to.

        Where a part of the answer is there already, those that can go on from it.
        """
        only = self.request.only
        members: Sequence[InstanceState] = self.pool.members
        if only is None and not self.resumes:
            return members
        if only is not None:
            members = [state for state in members if state.instance.id == only]
        return [state for state in members if state.instance.resume] if self.resumes else members

    def runs(self, attempt: int) -> bool:
        """Whether that attempt is under way."""
        if self.state is not _RUNNING:
            return False
        return attempt == self.number or (self.hedge is not None and attempt == self.hedge.number)

    def add(self, ticket: Ticket) -> None:
        """Take a ticket in; it leads if it is the only one."""
        members, request = self.members, ticket.request
        if not members:
            self.leader = ticket
        elif self._classes is None:
            self._classes = dict.fromkeys(_CLASSES, 0)
            for member in members.values():
                self._classes[member.request.flow.service_class] += 1
        members[request.id] = ticket
        if self._classes is not None:
            own = request.flow.service_class
            self._classes[own] += 1
            if own is not self.flow.service_class:
                self._account()

    def drop(self, ticket: Ticket) -> None:
        """Let a ticket go; the next one leads."""
        del self.members[ticket.request.id]
        if self._classes is not None:
            self._classes[ticket.request.flow.service_class] -= 1
        if self.members:
            if ticket is self.leader:
                self.leader = next(iter(self.members.values()))
            self._account()

    def promote(self) -> None:
        """It has waited so long as batch that it is normal from now on."""
        self.promoted = True
        self._account()

    def _account(self) -> None:
        """Find whose account it is on."""
        flow = self.leader.request.flow
        own = flow.service_class
        if self.promoted and own is ServiceClass.BATCH:
            own = ServiceClass.NORMAL
        if self._classes is not None and len(self.members) > 1:
            own = next((each for each in _CLASSES if self._classes[each] or each is own), own)
        self.flow = flow if own is flow.service_class else flow._replace(service_class=own)

    def turn(self, model: str, rest: tuple[Step, ...], cause: FallbackCause) -> None:
        """Another model is asked from now on, with all its instances and attempts before it."""
        self.model, self.rest, self.fallback = model, rest, cause
        self.spent += self.failures
        self.failures = 0
        self.tried = ()
        self.held = None

    def move(self, to: State) -> None:
        """Change state; raises `IllegalMove` and changes nothing where there is no such edge."""
        if to not in _MOVES[self.state]:
            raise IllegalMove(f"{self.state} -> {to}")
        self.state = to


def key_of(request: Request, model: str) -> bytes | None:
    """What requests that may share a call of `model` have in common; None: this one shares with nobody.

    The model behind a name counts: who is led to another one gets no answer of this one.
    """
    if request.fingerprint is None or request.only is not None:
        return None
    return request.fingerprint if model == request.model else request.fingerprint + model.encode()
