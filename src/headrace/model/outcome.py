"""How attempts and requests end."""

from __future__ import annotations

from msgspec import Struct

from headrace.errors import Fault
from headrace.model.kinds import Cause, Ending, OutcomeKind
from headrace.model.request import Request, Usage


class Outcome(Struct, frozen=True, gc=False):
    """How one attempt ended."""

    cause: Cause
    usage: Usage | None = None
    committed: bool = False
    """A content byte reached the caller: nothing may be retried, at most resumed."""
    retry_after: float | None = None
    """Seconds the instance asked us to stay away."""
    status: int | None = None
    """HTTP status of the engine's answer, if there was one."""
    detail: str = ""
    """For operators and dead letters: no prompt, no key, no address."""
    fault: Fault | None = None
    """What to tell the caller if no further attempt is made; None: derived from the cause."""
    cacheable: bool = True
    """False for an answer that is complete but must not be stored (cut by a length limit)."""
    resumable: bool = False
    """The answer broke off, and all of it that the caller has is known: it could go on from there."""

    @property
    def kind(self) -> OutcomeKind:
        """The verdict on the instance."""
        return self.cause.kind


class AttemptRecord(Struct, frozen=True, gc=False):
    """One try at one instance, for dead letters and the flight recorder."""

    number: int
    instance: str
    started: float
    ended: float
    cause: Cause
    status: int | None = None
    detail: str = ""
    produced: int = 0
    """Output tokens of this attempt that reached the caller before it broke off."""
    model: str = ""
    """The model that was asked, where it is another than the request names."""


class DeadLetter(Struct, frozen=True, kw_only=True, gc=False):
    """A request that was not answered, with what is needed to understand and replay it."""

    request: Request
    ending: Ending
    reason: str
    """The ending, or `backpressure:<stage>`."""
    detail: str = ""
    arrived: float
    died: float
    attempts: tuple[AttemptRecord, ...] = ()
