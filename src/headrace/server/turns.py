"""What a connection and the requests in line on it say to each other."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace.server.intake import Intake


class Turn(Protocol):
    """A request in line, on either lane."""

    @property
    def started(self) -> bool:
        """Whether its answer has begun."""
        ...

    def take(self, data: bytes) -> None:
        """A piece of its body."""
        ...

    def arrived(self) -> None:
        """Its body is complete."""
        ...

    def proceed(self) -> None:
        """It is this request's turn: do what can be done now."""
        ...

    def crowd(self) -> None:
        """The socket takes no more for now."""
        ...

    def room(self) -> None:
        """The socket takes more."""
        ...

    def last(self) -> None:
        """The connection is closed after this answer."""
        ...

    def leave(self) -> None:
        """The caller has gone."""
        ...


class Line(Protocol):
    """The connection an exchange answers on."""

    transport: asyncio.Transport

    @property
    def peer(self) -> str:
        """The caller's network address, or ""."""
        ...

    def write(self, data: bytes) -> None:
        """Send at once, behind what waits to be sent."""
        ...

    def write_soon(self, data: bytes) -> None:
        """Send with what leaves other connections in this turn of the loop."""
        ...

    def answered(self) -> None:
        """The answer is complete: the next request's turn has come."""
        ...

    def linger(self) -> None:
        """The answer is complete, the request is not: read on for a moment, then close."""
        ...


class Shared(Protocol):
    """What all connections of a server have in common."""

    intake: Intake

    def opening(self, status: int) -> bytes:
        """The status line, and the headers every answer of this server has."""
        ...

    def flush_soon(self, exchange: Unsent) -> None:
        """Call `exchange.flush` at the end of this turn of the loop."""
        ...


class Unsent(Protocol):
    """What holds bytes that can wait for others of the same turn of the loop."""

    path: str

    def flush(self) -> None:
        """Send them."""
        ...
