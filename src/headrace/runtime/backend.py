"""The seam between the gateway and whatever carries out an attempt.

`attempts.HttpBackend` asks an engine over HTTP, `workers.WorkerBackend` runs a Python callable. Both push what comes
into a `Port` and end it with exactly one outcome, unless they were aborted. Nothing here needs a library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.model import Dispatch, Outcome
from headrace.runtime.relay import Source
from headrace.wire.frames import Frame


class Port(Protocol):
    """Where an attempt delivers. Calls of an attempt that is over change nothing."""

    def started(self) -> None:
        """The first content is about to be fed."""
        ...

    def feed(self, frame: Frame) -> None:
        """Bytes for the callers."""
        ...

    def progressed(self, tokens: int) -> None:
        """So many more tokens were produced."""
        ...

    def finished(self, outcome: Outcome) -> None:
        """The end; exactly once."""
        ...


class Running(Source, Protocol):
    """An attempt under way."""

    def abort(self) -> None:
        """Close it now; the port hears nothing more."""
        ...


class Backend(Protocol):
    """Carries out attempts."""

    def start(self, dispatch: Dispatch, port: Port) -> Running:
        """Begin; returns at once. Raises InvalidRequest for what cannot be asked of the engine at all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long an engine may take, in seconds."""

    connect: float = 5.0
    first_token: float = 120.0
    idle: float = 60.0
    attempt: float = 600.0
