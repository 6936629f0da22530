"""What the gateway did, written down as it does it: who was sent where, what broke off, what the breakers did.

An observer of the gateway. Its notes are the scene's log, its trace (`{t, kind, ...}`, `t` in seconds from the
beginning) and what the totals are counted from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.model import (
    BreakerState,
    Bury,
    Cause,
    Decision,
    Dispatch,
    Ending,
    Event,
    Finished,
    InstanceView,
    Settle,
    Snapshot,
    Started,
)


class Kind(StrEnum):
    """What can happen."""

    SENT = "sent"
    """A request goes to an engine for the first time."""
    RETRIED = "retried"
    """It goes to another one, nobody has read anything yet."""
    RESUMED = "resumed"
    """Its answer goes on there from what was read."""
    PROBE = "probe"
    """The request that a half-open breaker lets through."""
    CUT = "cut"
    """Its answer breaks off."""
    FAILED = "failed"
    """An attempt fails before the answer has begun."""
    ANSWERED = "answered"
    ENDED = "ended"
    """The request ends without its whole answer; `ending` says how."""
    DEAD_LETTER = "dead_letter"
    BREAKER = "breaker"
    """`state` is the new one."""
    DOWN = "down"
    """Health checks take an engine out..."""
    UP = "up"
    """...and find it again."""
    KILLED = "killed"
    STARTED = "started"
    """The engine's process is there again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One thing that happened; texts are "" where they do not apply."""

    at: float
    """Seconds after the beginning."""
    kind: Kind
    engine: str = ""
    request: str = ""
    user: str = ""
    said: str = ""
    """The cause of a failure, the new state of a breaker, the ending of a request."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt at an engine, as far as it has come."""

    user: str
    request: str
    engine: str
    sent: float
    resumes: bool
    """It goes on with an answer that was begun elsewhere."""
    first: float | None = None
    """When its first content was there."""
    ended: float | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """An instance at one moment, as the gateway sees it."""

    at: float
    breaker: BreakerState
    healthy: bool
    in_flight: int


@dataclass(slots=True)
class Chronicle:
    """Takes notes from now on. `clock` and the observed steps have the same time."""

    clock: Callable[[], float]
    snapshot: Callable[[], Snapshot]
    notes: list[Note] = field(default_factory=list[Note])
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict[tuple[str, int], Attempt])
    """By the request's id and the attempt's number."""
    looks: dict[str, list[Look]] = field(default_factory=dict[str, list[Look]])
    """By engine: how it stood after each change."""
    answering: dict[str, str] = field(default_factory=dict[str, str])
    """By request: the engine whose words its caller reads."""
    _begun: float = field(init=False)
    _requests: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """By call: its request's id and user."""

    def __post_init__(self) -> None:
        self._begun = self.clock()
        self._look(self.snapshot().instances, 0.0)

    @property
    def now(self) -> float:
        """Seconds after the beginning."""
        return self.clock() - self._begun

    def of(self, *kinds: Kind, engine: str | None = None) -> Iterator[Note]:
        """The notes of these kinds, of one engine or of all."""
        return (note for note in self.notes if note.kind in kinds and engine in (None, note.engine))

    def note(self, kind: Kind, engine: str) -> None:
        """Write something down that happens to an engine now."""
        self._add(self.now, kind, engine)

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """One step of the gateway."""
        at = now - self._begun
        match event:
            case Started(call, number) if (attempt := self._attempt(call, number)) is not None:
                attempt.first = at
                self.answering[attempt.request] = attempt.engine
            case Finished(call, number, outcome) if (attempt := self._attempt(call, number)) is not None:
                attempt.ended, attempt.cause = at, outcome.cause
                if outcome.cause is not Cause.OK:
                    kind = Kind.CUT if outcome.committed else Kind.FAILED
                    self._add(at, kind, attempt.engine, self._requests[call], outcome.cause.value)
            case _:
                pass
        views = self.snapshot().instances
        self._look(views, at)
        half_open = {view.id for view in views if view.breaker is BreakerState.HALF_OPEN}
        for decision in decisions:
            self._decided(decision, half_open, at)

    def text(self) -> str:
        """The notes as a JSON array, one to a line."""
        return "[\n" + ",\n".join(json.dumps(entry(note)) for note in self.notes) + "\n]\n"

    def _attempt(self, call: str, number: int) -> Attempt | None:
        request, _ = self._requests.get(call, ("", ""))
        return self.attempts.get((request, number))

    def _decided(self, decision: Decision, half_open: set[str], at: float) -> None:
        match decision:
            case Dispatch(call, number, instance, _, request):
                of = self._requests[call] = request.id, request.flow.user
                again = Kind.RESUMED if decision.resumes else Kind.RETRIED if number > 1 else Kind.SENT
                self.attempts[request.id, number] = Attempt(
                    user=of[1], request=of[0], engine=instance.id, sent=at, resumes=decision.resumes > 0
                )
                self._add(at, again, instance.id, of)
                if instance.id in half_open:
                    self._add(at, Kind.PROBE, instance.id, of)
            case Settle(_, call, Ending.ANSWERED, instance=engine):
                self._add(at, Kind.ANSWERED, engine, self._requests.get(call, ("", "")))
            case Settle(ticket, call, ending):
                self._add(at, Kind.ENDED, decision.instance, self._requests.get(call, (ticket, "")), ending.value)
            case Bury(letter):
                of = letter.request.id, letter.request.flow.user
                self._add(at, Kind.DEAD_LETTER, "", of, letter.reason)
            case _:
                pass

    def _look(self, views: Sequence[InstanceView], at: float) -> None:
        for view in views:
            looks = self.looks.setdefault(view.id, [])
            before = looks[-1] if looks else Look(at, BreakerState.CLOSED, True, 0)
            if view.healthy is not before.healthy:
                self._add(at, Kind.UP if view.healthy else Kind.DOWN, view.id)
            if view.breaker is not before.breaker:
                self._add(at, Kind.BREAKER, view.id, said=view.breaker.value)
            now = Look(at, view.breaker, view.healthy, view.in_flight)
            if not looks or (now.breaker, now.healthy, now.in_flight) != (
                before.breaker,
                before.healthy,
                before.in_flight,
            ):
                looks.append(now)

    def _add(self, at: float, kind: Kind, engine: str, request: tuple[str, str] = ("", ""), said: str = "") -> None:
        self.notes.append(Note(at=at, kind=kind, engine=engine, request=request[0], user=request[1], said=said))


_SAID = {Kind.BREAKER: "state", Kind.ENDED: "ending", Kind.DEAD_LETTER: "reason"}


def entry(note: Note) -> dict[str, object]:
    """A note as it stands in the trace."""
    texts = {
        "request_id": note.request,
        "user": note.user,
        "engine": note.engine,
        _SAID.get(note.kind, "cause"): note.said,
    }
    return {"t": round(note.at, 4), "kind": note.kind.value, **{name: text for name, text in texts.items() if text}}
