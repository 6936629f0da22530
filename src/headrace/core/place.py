"""What an attempt holds at an instance: the gate counts by it, and by it the instance is judged at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model import Request, ServiceClass

if TYPE_CHECKING:
    from headrace.core.breaker import Permit
    from headrace.core.instance_state import InstanceState


class Place:
    """One attempt's stay at an instance. `Gate.enter` gives it, `Gate.leave` takes it back exactly once.

    Whose attempt it is, and where, is written on it by `InstanceState.acquire`.
    """

    __slots__ = (
        "alone",
        "carried",
        "entered",
        "first",
        "lapses",
        "load",
        "lone",
        "moved",
        "permit",
        "present",
        "read_before",
        "request",
        "service_class",
        "state",
        "tokens",
        "told",
        "unseen",
        "unstarted",
        "window",
    )

    state: InstanceState
    request: Request
    permit: Permit
    load: float
    carried: int
    """Tokens of an answer that is taken up again."""
    window: int
    """The window of the engine's turnover in which it came."""

    def __init__(
        self, tokens: int, service_class: ServiceClass, entered: float, lapses: float | None, alone: bool, lone: bool
    ) -> None:
        self.tokens = tokens
        self.service_class = service_class
        self.entered = entered
        self.lapses = lapses
        self.alone = alone
        """Nothing else was un-started when it came, and all of its prompt has to be read."""
        self.lone = lone
        """Nothing else was there at all."""
        self.read_before = 0
        """Prompt tokens the engine had read when it came."""
        self.moved = entered
        """When it last made tokens."""
        self.told = 0
        """Tokens it has reported."""
        self.first: float | None = None
        """When its first content came."""
        self.unstarted = self.unseen = self.present = True
        """Its prompt is taken to be unread; its beginning was not seen; it was not given back."""
