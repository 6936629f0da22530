"""What the server needs of the gateway behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.model import Flow, Request, Snapshot
from headrace.runtime.relay import Reader
from headrace.runtime.stores import DeadLetters

if TYPE_CHECKING:
    from headrace.server.admin.ports import AdminPort


class Reply(Protocol):
    """A request that was handed to the gateway."""

    @property
    def went_on(self) -> tuple[str, int] | None:
        """The instance and the attempt that took up an answer which had broken off; None: it did not."""
        ...

    def cancel(self) -> None:
        """The caller has gone. Harmless after the end."""
        ...

    def resume(self) -> None:
        """The caller can take more. Harmless when nothing waits."""
        ...

    def own_seconds(self, queued: bool) -> float | None:
        """What the gateway itself took after `open`; None: nothing can be said, as no engine's end is told just now."""
        ...


class GatewayPort(Protocol):
    """The gateway, as far as the server uses it."""

    @property
    def dead_letters(self) -> DeadLetters:
        """The requests that were not answered."""
        ...

    @property
    def administration(self) -> AdminPort | None:
        """What the admin API works with; None: this gateway has none."""
        ...

    def open(self, request: Request, reader: Reader) -> Reply:
        """Take a request. A refusal is told to the reader before this returns."""
        ...

    def snapshot(self) -> Snapshot:
        """What is going on now."""
        ...

    def positions(self, flow: Flow) -> Sequence[tuple[str, int, float]]:
        """The waiting requests of the flow's user: request id, position from 1, seconds until the expected start."""
        ...

    def places(self) -> Mapping[str, tuple[int, float]]:
        """Everything that waits, by request id: position from 1, seconds until the expected start."""
        ...

    def weighs_prefix(self, model: str) -> bool:
        """Whether `Request.prefix` can matter for a request to `model`; else the server saves the work."""
        ...

    def cancel(self, request_id: str, flow: Flow) -> bool:
        """End a request of the flow's user and tell its reader. False: the user has none of that id."""
        ...

    async def drain(self, grace: float) -> None:
        """Take no new work; give the running `grace` seconds; answer everybody else."""
        ...

    async def close(self) -> None:
        """End whatever is left and let go of connections and files."""
        ...
