"""Calls, instances and pools as the parts of the core know them, for tests of one part alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.fleet import Fleet
from headrace.core.instance_state import InstanceState
from headrace.core.planting import PlantTree
from headrace.core.pool import Pool
from headrace.core.settings import Settings
from headrace.core.ticket import Call, Ticket
from headrace.model import Cause, Instance, Outcome, Usage
from tests.core.script import request


def fleet(*instances: Instance, settings: Settings | None = None) -> Fleet:
    """A fleet of these instances."""
    settings = settings or Settings()
    made = Fleet(settings, PlantTree(settings.fairness))
    made.configure(instances)
    return made


def pool(*instances: Instance, settings: Settings | None = None) -> Pool:
    """The pool of the model `m`."""
    found = fleet(*instances, settings=settings).pool("m")
    assert found is not None
    return found


def call(of: Pool, name: str = "r", user: str = "ann", **more: Any) -> Call:
    """A call with one ticket."""
    asked = request(name, user, **more)
    made = Call(f"call-{name}", asked, of, 0.0)
    made.add(Ticket(asked, made, 0.0, None))
    return made


def join(made: Call, name: str, user: str = "bob", **more: Any) -> Ticket:
    """One more ticket of a call."""
    ticket = Ticket(request(name, user, **more), made, 0.0, None)
    made.add(ticket)
    return ticket


def attempt(state: InstanceState, causes: Sequence[Cause], settings: Settings, now: float = 0.0) -> None:
    """Attempts at an instance, one after the other, that end like this; a success makes 100 tokens in 2 s."""
    for cause in causes:
        place = state.acquire(request("x"), 1.0, False, now)
        usage = Usage(1, 100) if cause is Cause.OK else None
        state.release(place, Outcome(cause, usage), settings.recovery, now + 2.0)
