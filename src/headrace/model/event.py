"""Facts in: what the scheduler is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from msgspec import Struct

from headrace.model.outcome import Outcome
from headrace.model.request import Instance, Request


@final
class Arrived(Struct, frozen=True, gc=False):
    """A request stands at the door."""

    request: Request


@final
class Looked(Struct, frozen=True, gc=False):
    """The cache answered a `LookUp`. A store that failed is a miss."""

    call: str
    hit: bool


@final
class Started(Struct, frozen=True, gc=False):
    """The first content byte of an attempt is here."""

    call: str
    attempt: int


@final
class Progressed(Struct, frozen=True, gc=False):
    """An attempt has produced `tokens` more tokens; sent every 32 tokens or 250 ms, not for each."""

    call: str
    attempt: int
    tokens: int


@final
class Sealed(Struct, frozen=True, gc=False):
    """A call's answer grew past what is kept for late joiners: nobody can join it any more."""

    call: str


@final
class Finished(Struct, frozen=True, gc=False):
    """An attempt ended. One with a stale attempt number changes nothing."""

    call: str
    attempt: int
    outcome: Outcome


@final
class Cancelled(Struct, frozen=True, gc=False):
    """The caller of a ticket has gone."""

    ticket: str


@final
class Probed(Struct, frozen=True, gc=False):
    """A health check of an instance ended."""

    instance: str
    healthy: bool
    busy: bool = False
    """It did not answer, but bytes still flow from it: says nothing."""
    definite: bool = False
    """The engine itself said that it is not ready: no further check is waited for."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine's own metrics said at one poll. None: not reported or not to be trusted, never 0 instead."""

    running: float | None = None
    """Requests in its batch."""
    waiting: float | None = None
    """Requests in its own queue."""
    kv: float | None = None
    """Share of its KV cache in use, 0 to 1."""
    tpot: float | None = None
    """Seconds per output token, the mean since the poll before."""
    preemptions: float | None = None
    """Requests thrown out of its batch since the poll before."""
    kv_tokens: int | None = None
    """Size of its KV cache in tokens."""


@final
class Reported(Struct, frozen=True, gc=False):
    """An engine's metrics were polled. None: absent, garbled or unanswered; nothing is known then."""

    instance: str
    report: EngineReport | None


@final
class Woke(Struct, frozen=True, gc=False):
    """The time asked for by `WakeAt` has come."""


@final
class Reconfigured(Struct, frozen=True, gc=False):
    """The set of instances changed; those with the same id keep what was learned of them."""

    instances: tuple[Instance, ...]


@final
class Draining(Struct, frozen=True, gc=False):
    """No new work from now on; the running may go on until `until`."""

    until: float


@final
class Drained(Struct, frozen=True, gc=False):
    """An instance is to get no new work, or may have it again; what runs there runs on."""

    instance: str
    draining: bool = True


@final
class Tripped(Struct, frozen=True, gc=False):
    """An instance's breaker was opened by hand."""

    instance: str


@final
class Mended(Struct, frozen=True, gc=False):
    """An instance's breaker was closed by hand: its failures and its cooldown are forgotten."""

    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What took time to find out about an instance, so that the next process need not find it out again."""

    instance: str
    speed: float = 0.0
    """Output tokens per second; 0 while unknown."""
    reliability: float = 1.0
    prefill_seconds: float | None = None
    """Seconds per prompt token; None while unknown."""
    token_seconds: float | None = None
    """Seconds per output token with little load; None while unknown."""
    limit: float | None = None
    """The in-flight limit that was found; None where it is fixed."""
    opens_in: float | None = None
    """Seconds until its open breaker lets a probe through; None: it is closed."""
    wait: float = 0.0
    """What the breaker waits after the next failed probe is twice this; 0: it is closed."""
    cooldown: float = 0.0
    """Seconds for which it is left alone."""


@final
class Recalled(Struct, frozen=True, gc=False):
    """What the process before had learned."""

    learned: tuple[Learned, ...]


Event = (
    Arrived
    | Looked
    | Started
    | Progressed
    | Sealed
    | Finished
    | Cancelled
    | Probed
    | Reported
    | Woke
    | Reconfigured
    | Draining
    | Drained
    | Tripped
    | Mended
    | Recalled
)
