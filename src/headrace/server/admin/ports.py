"""What the admin API needs of the gateway behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.core.scaling import Advice, Demand
from headrace.core.weighing import Weighing
from headrace.model import Event, Request, Snapshot
from headrace.runtime.latencies import Latencies
from headrace.runtime.registry import Registry
from headrace.server.admin.dead_letters import LettersPort


class AdminPort(LettersPort, Protocol):
    """The gateway, as far as it can be operated from outside."""

    @property
    def registry(self) -> Registry:
        """The instances."""
        ...

    @property
    def latencies(self) -> Latencies:
        """How long answers took of late."""
        ...

    @property
    def now(self) -> float:
        """The scheduler's clock."""
        ...

    def snapshot(self) -> Snapshot:
        """What is going on now."""
        ...

    def stages(self) -> Iterable[tuple[str, int, int]]:
        """Depth and capacity of each stage."""
        ...

    def weigh_up(self, request: Request) -> Weighing | None:
        """How `request` would be placed; None when no instance serves its model."""
        ...

    def scaling(self) -> tuple[Advice, Demand]:
        """Whether more or fewer instances are needed, and what that rests on."""
        ...

    async def saved(self) -> bool:
        """Have the changes of the registry written where they are kept; False: they could not be."""
        ...

    def step(self, event: Event) -> None:
        """Tell the scheduler that a breaker was worked by hand."""
        ...
