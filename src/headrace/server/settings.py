"""The numbers the front door works with. `config` fills them from file and environment."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from headrace.runtime.addresses import Allowed
from headrace.runtime.sharing import DedupMode, DedupScope


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """Who may use the admin API, and what may be registered through it."""

    key: str | None = field(default=None, repr=False)
    """What callers must present; None: only this machine is let in."""
    listed: Allowed = field(default_factory=Allowed)
    """Where instances may be."""
    key_variables: tuple[str, ...] = ("*_API_KEY",)
    """Patterns of the variables that may hold their keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Bounds of the front door; sizes in bytes, times in seconds."""

    body_limit: int = 10 * 1024 * 1024
    """Largest request body; a larger one gets 413."""
    bodies_limit: int = 200 * 1024 * 1024
    """All bodies of requests that have not been answered yet; beyond it callers get 503 with Retry-After."""
    body_timeout: float = 30.0
    """A body must be complete within this time; a slower one gets 408."""
    stall_timeout: float = 120.0
    """A caller that takes no byte of what is ready for this long is cut off."""
    answer_limit: int = 64 * 1024 * 1024
    """Largest answer that is collected for a caller who did not ask for a stream; a larger one gets 502."""
    dedup: DedupMode = "in_flight"
    """off: nothing is shared; in_flight: identical running requests are one call; full: answers are kept as well."""
    dedup_scope: DedupScope = "tenant"
    """Who may share an answer with whom."""
    queue_note_after: float = 5.0
    """A stream that waits longer than this begins, and is told its place; 0: never."""
    queue_note_every: float = 5.0
    """Seconds between two such words."""
    drain_grace: float = 30.0
    """What the running requests get when the process is told to stop."""
    workers: int = 1
    """Processes like this one behind the same port."""
    tls: ssl.SSLContext | None = None
    """What callers are spoken to with over TLS; None: plain HTTP."""
    admin: AdminSettings = field(default_factory=AdminSettings)
    """The admin API."""
