"""A request that the gateway has taken, as its caller sees it."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.errors import Fault, internal_error
from headrace.model import Cancelled, Ending, Event, Request
from headrace.runtime.flight import Flight
from headrace.runtime.relay import Reader, Seat


class Reply(Seat):
    """A request that was handed to the gateway; the caller's handle on it, and its seat once it has a flight."""

    __slots__ = ("_ended", "_step", "again", "broken", "flight", "request")

    def __init__(self, step: Callable[[Event], None], request: Request, reader: Reader) -> None:
        super().__init__(reader)
        self._step = step
        self._ended = False
        self.again = self.broken = False
        """It is to arrive once more when it is out of its call; it fell victim to a mistake of ours."""
        self.request = request
        self.flight: Flight | None = None
        """What it rides on, once it was accepted: whoever attaches it there says so here."""

    @property
    def id(self) -> str:
        """The request's id, which is new among the living."""
        return self.request.id

    @property
    def went_on(self) -> tuple[str, int] | None:
        """Who answers at last where an answer broke off and was taken up again: the instance, the attempt's number."""
        return None if self.flight is None else self.flight.went_on

    def cancel(self) -> None:
        """The caller has gone. Harmless after the end."""
        if self.flight is not None:
            self.leave()
        if not self._ended:  # by now another request may bear the same id
            self._step(Cancelled(self.request.id))

    def own_seconds(self, queued: bool) -> float | None:
        """What the gateway itself took after it was opened: since the engine had said all, and if it was `queued` to
        send it. None: no engine's end is being told just now."""
        flight = self.flight
        if flight is None or flight.ending_since is None:
            return None
        return time.perf_counter() - flight.ending_since + (flight.sending if queued else 0.0)

    def settle(self, ending: Ending, fault: Fault | None) -> None:
        """The request's end. A caller who has left his seat is told nothing."""
        self._ended = True
        if self.broken:
            ending, fault = Ending.INFERENCE_FAILURE, internal_error()
        if self.flight is None:
            self.reader.end(ending, fault)
        else:
            self.end(ending, fault)
