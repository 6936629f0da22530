"""Orders out: what the scheduler wants done."""

from __future__ import annotations

from typing import final

from msgspec import Struct

from headrace.errors import Fault
from headrace.model.kinds import CacheResult, Cause, Ending, FallbackCause
from headrace.model.outcome import DeadLetter
from headrace.model.request import Instance, Request, Usage


@final
class LookUp(Struct, frozen=True, gc=False):
    """Ask the cache for `fingerprint` and report with `Looked`."""

    call: str
    fingerprint: bytes


@final
class Join(Struct, frozen=True, gc=False):
    """The ticket was accepted and gets the answer of `call`: what was produced so far, then live."""

    ticket: str
    call: str
    cache: CacheResult = CacheResult.MISS
    """MISS for the ticket that leads, JOINED for one that follows."""


@final
class Dispatch(Struct, frozen=True, gc=False):
    """Send the call to an instance now. `waited` is the time in the queue in seconds."""

    call: str
    attempt: int
    instance: Instance
    upstream_model: str
    request: Request
    waited: float
    cause: Cause | None = None
    """Why the attempt before this one failed; None for a first attempt."""
    resumes: int = 0
    """How many times the answer has been taken up again, this time included: the engine is to go on from where it broke
    off. 0: from its beginning."""
    model: str = ""
    """The model it is asked of, which may stand behind the name in the request or have taken over; "": that name."""
    fallback: FallbackCause | None = None
    """Why the model before could not answer; None at the first."""
    hedge: bool = False
    """It runs beside an attempt whose first content is late: of the two, the one that begins first counts."""


@final
class Abort(Struct, frozen=True, gc=False):
    """Close the attempt's connection; its slot is already free."""

    call: str
    attempt: int


@final
class Settle(Struct, frozen=True, gc=False):
    """The ticket's end: tell its caller. `fault` is None exactly when the ending is ANSWERED or CANCELLED."""

    ticket: str
    call: str
    ending: Ending
    fault: Fault | None = None
    cache: CacheResult = CacheResult.MISS
    usage: Usage | None = None
    instance: str = ""
    attempts: int = 0
    resumes: int = 0
    """How many times its answer broke off and was taken up again."""


@final
class Remember(Struct, frozen=True, gc=False):
    """Store the call's finished answer under `fingerprint`."""

    call: str
    fingerprint: bytes


@final
class Bury(Struct, frozen=True, gc=False):
    """Keep the request in the dead letter queue."""

    letter: DeadLetter


@final
class WakeAt(Struct, frozen=True, gc=False):
    """Report `Woke` at `when`; replaces an earlier `WakeAt`. None: nothing to wait for."""

    when: float | None


Decision = LookUp | Join | Dispatch | Abort | Settle | Remember | Bury | WakeAt
