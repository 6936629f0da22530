"""Scripts for the scheduler: lists of (time, fact, orders that must follow).

Facts name calls by the ticket that led them first; orders are short texts, so that a script reads like a protocol:

    play(stage, [
        (0.0, arrive("r1"), ["join r1", "dispatch r1 #1 a"]),
        (1.0, done("r1"), ["settle r1 answered"]),
    ])

`WakeAt` orders are obeyed by `Stage.wait` and left out of the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, assert_never

from headrace.core.scheduler import Scheduler
from headrace.core.settings import Settings
from headrace.model import (
    Abort,
    Arrived,
    Bury,
    CacheResult,
    Cancelled,
    Cause,
    Decision,
    Dispatch,
    Ending,
    Event,
    Finished,
    Flow,
    Instance,
    Join,
    Looked,
    LookUp,
    Outcome,
    Progressed,
    Remember,
    Request,
    Sealed,
    ServedModel,
    ServiceClass,
    Settle,
    Started,
    Usage,
    WakeAt,
    Woke,
)

Fact = Event | Callable[["Stage"], Event]
Step = tuple[float, Fact, Sequence[str]]


def engine(name: str, limit: int = 1, *models: str, **more: Any) -> Instance:
    """An instance with room for `limit` requests; it serves everything unless models are named."""
    served = tuple(ServedModel(name=model) for model in models or ("*",))
    return Instance(id=name, max_concurrent=limit, models=served, **more)


class Stage:
    """A scheduler, the world's memory of what it ordered, and a clock that only moves on request."""

    def __init__(self, *instances: Instance, settings: Settings | None = None) -> None:
        self.scheduler = Scheduler(settings or Settings(), instances, Random(1))
        self.now = 0.0
        self.calls: dict[str, str] = {}
        """Call ids by the name of the ticket that led them first."""
        self.running: dict[str, Dispatch] = {}
        """The running attempt of each call, by the call's name."""
        self.hedges: dict[str, Dispatch] = {}
        """The second one, where there is one."""
        self.sent: list[tuple[str, str]] = []
        """Every dispatch so far as (call's name, instance)."""
        self.settled: dict[str, Settle] = {}
        self.buried: dict[str, Bury] = {}
        self.wake: float | None = None

    # ------------------------------------------------------------------ what the world does

    def do(self, now: float, fact: Fact) -> list[str]:
        """Hand in one fact and return the orders as texts."""
        assert now >= self.now, "a script's time does not go back"
        self.now = now
        event = fact(self) if callable(fact) else fact
        if isinstance(event, Finished):
            for name, attempt in [*self.running.items(), *self.hedges.items()]:
                if (attempt.call, attempt.attempt) == _attempt(event):
                    self._over(name, attempt.attempt)
        orders = self.scheduler.handle(event, now)
        return [text for order in orders if (text := self._obey(order))]

    def wait(self, until: float) -> list[str]:
        """Let time pass: wake the scheduler whenever it asked for it, and no more often."""
        texts: list[str] = []
        while self.wake is not None and self.wake <= until:
            now, self.wake = max(self.wake, self.now), None
            texts += self.do(now, Woke())
        self.now = max(self.now, until)
        return texts

    def _obey(self, order: Decision) -> str:
        match order:
            case Join(ticket, call, cache):
                if cache is CacheResult.MISS:
                    self.calls[ticket] = call
                    return f"join {ticket}"
                return f"join {ticket} to {self.name(call)}"
            case LookUp(call, _):
                return f"look up {self.name(call)}"
            case Dispatch(call, attempt, instance):
                name = self.name(call)
                runs = self.hedges if order.hedge else self.running
                assert name not in runs, f"{name} already runs"
                runs[name] = order
                self.sent.append((name, instance.id))
                return f"{'hedge' if order.hedge else 'dispatch'} {name} #{attempt} {instance.id}"
            case Abort(call, attempt):
                name = self.name(call)
                self._over(name, attempt)
                return f"abort {name} #{attempt}"
            case Settle(ticket, _, ending):
                assert ticket not in self.settled, f"{ticket} settled twice"
                self.settled[ticket] = order
                return f"settle {ticket} {ending}"
            case Remember(call, _):
                return f"remember {self.name(call)}"
            case Bury(letter):
                assert letter.request.id not in self.buried, f"{letter.request.id} buried twice"
                self.buried[letter.request.id] = order
                return f"bury {letter.request.id} {letter.reason}"
            case WakeAt(when):
                self.wake = when
                return ""
            case _:
                assert_never(order)

    def _over(self, name: str, attempt: int) -> None:
        """An attempt of a call is over; a second one that goes on is the running one from now on."""
        if name in self.hedges and self.hedges[name].attempt == attempt:
            del self.hedges[name]
            return
        assert self.running.pop(name).attempt == attempt
        if name in self.hedges:
            self.running[name] = self.hedges.pop(name)

    # ------------------------------------------------------------------ what can be asked

    def name(self, call: str) -> str:
        """The name of a call in scripts."""
        return next(name for name, known in self.calls.items() if known == call)

    def ending(self, ticket: str) -> Ending | None:
        """How a ticket ended, None while it lives."""
        settle = self.settled.get(ticket)
        return None if settle is None else settle.ending

    def status(self, ticket: str) -> int | None:
        """The HTTP status of the fault a ticket was told."""
        fault = self.settled[ticket].fault
        return None if fault is None else fault.status

    def retry_after(self, ticket: str) -> int | None:
        """The `Retry-After` a ticket was told."""
        fault = self.settled[ticket].fault
        return None if fault is None else fault.retry_after_seconds


def play(stage: Stage, steps: Sequence[Step]) -> None:
    """Run a script; the orders of each step must be exactly those written."""
    for number, (now, fact, wanted) in enumerate(steps, 1):
        texts = stage.wait(now) + stage.do(now, fact)
        assert texts == list(wanted), f"step {number} at {now}: {texts}, wanted {list(wanted)}"


# ---------------------------------------------------------------------------------------------------- facts


def request(
    ticket: str,
    user: str = "ann",
    *,
    tenant: str = "acme",
    service_class: ServiceClass = ServiceClass.NORMAL,
    model: str = "m",
    key: str = "",
    **more: Any,
) -> Request:
    """A request; those with the same `key` may share a call."""
    flow = Flow(service_class, tenant, user, "")
    return Request(id=ticket, flow=flow, model=model, fingerprint=key.encode() or None, **more)


def arrive(ticket: str, user: str = "ann", **more: Any) -> Event:
    """The fact that a request is at the door."""
    return Arrived(request(ticket, user, **more))


def leave(ticket: str) -> Event:
    """The fact that a caller has gone."""
    return Cancelled(ticket)


def begun(name: str, attempt: int | None = None) -> Fact:
    """The fact that the first content of a call is here; None: of its first running attempt."""
    return lambda stage: Started(stage.calls[name], attempt or _number(stage, name))


def more(name: str, tokens: int) -> Fact:
    """The fact that a call produced tokens."""
    return lambda stage: Progressed(stage.calls[name], _number(stage, name), tokens)


def sealed(name: str) -> Fact:
    """The fact that a call can no longer be joined."""
    return lambda stage: Sealed(stage.calls[name])


def looked(name: str, hit: bool) -> Fact:
    """The fact that the cache answered."""
    return lambda stage: Looked(stage.calls[name], hit)


def done(name: str, prompt: int = 1, completion: int = 1, attempt: int | None = None) -> Fact:
    """The fact that a call's attempt succeeded."""
    outcome = Outcome(Cause.OK, Usage(prompt, completion))
    return lambda stage: Finished(stage.calls[name], attempt or _number(stage, name), outcome)


def failed(name: str, cause: Cause = Cause.SERVER_ERROR, attempt: int | None = None, **outcome: Any) -> Fact:
    """The fact that a call's attempt did not succeed."""
    return lambda stage: Finished(stage.calls[name], attempt or _number(stage, name), Outcome(cause, **outcome))


def totals(stage: Stage) -> Mapping[str, int]:
    """The scheduler's counts."""
    return stage.scheduler.snapshot(stage.now).totals


def _number(stage: Stage, name: str) -> int:
    return stage.running[name].attempt if name in stage.running else 0


def _attempt(event: Finished) -> tuple[str, int]:
    return event.call, event.attempt
