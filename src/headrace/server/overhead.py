"""What headrace itself takes for a request: all the time it is in the process, less its wait in the queue and less the
time that its engine has it.

That is the work on its way in, from its complete body to the engine's connection, and on its way out, from the
engine's end to the caller's connection. Only requests are measured that the engine answered at the first try and whose
caller kept up: another try, a look into somebody else's answer or a slow reader are no work of headrace. What a stream
passes on in between passes at once. Five looks at a clock per request; none per chunk.
"""

from __future__ import annotations

from time import perf_counter

from prometheus_client import CollectorRegistry

from headrace.model import CacheResult, Ending
from headrace.runtime.tallies import Times
from headrace.server.answers import Closing
from headrace.server.ports import Reply

_SECONDS = (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


def own_times(registry: CollectorRegistry) -> Times:
    """The histogram."""
    return Times(registry, _SECONDS, "overhead_seconds", "What headrace itself takes for a request, waits apart.")


class Stopwatch:
    """One request's measurement; it begins when its body is complete."""

    __slots__ = ("_began", "_reply", "_taken", "_times")

    def __init__(self, times: Times | None) -> None:
        self._times = times
        self._reply: Reply | None = None
        self._taken = 0.0
        self._began = 0.0 if times is None else perf_counter()

    def opened(self, reply: Reply) -> None:
        """The gateway has it now."""
        if self._times is not None:
            self._reply, self._taken = reply, perf_counter() - self._began

    def closed(self, closing: Closing) -> None:
        """Its caller was told the end."""
        head, reply = closing.head, self._reply
        self._reply = None  # it leads back here, and what leads back waits for the garbage collector
        if self._times is None or reply is None or head is None or closing.ending is not Ending.ANSWERED:
            return
        if head.attempts == 1 and head.cache is CacheResult.MISS:
            own = reply.own_seconds(queued=head.waited > 0.0)
            if own is not None:
                self._times.note(self._taken + own)
