"""What headrace itself takes for a request: all the time it is in the process, less its wait in the queue and less the
time that its engine has it.

That is the work on its way in, from its complete body to the engine's connection, and on its way out, from the
engine's end to the caller's connection. Only requests are measured that the engine answered at the first try and whose
caller kept up: another try, a look into somebody else's answer or a slow reader are no work of headrace. What a stream
passes on in between passes at once. Five looks at a clock per request; none per chunk.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry

from headrace.model import CacheResult
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.tallies import Times
from headrace.server.ports import Reply

_MISS: Final = CacheResult.MISS
_SECONDS = (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


def own_times(registry: CollectorRegistry) -> Times:
    """The histogram."""
    return Times(registry, _SECONDS, "overhead_seconds", "What headrace itself takes for a request, waits apart.")


def note_overhead(times: Times, taken: float, reply: Reply, head: AnswerHead) -> None:
    """An answer is being told its end: `taken` are the seconds until the gateway had its request."""
    if head.attempts == 1 and head.cache is _MISS:
        own = reply.own_seconds(queued=head.waited > 0.0)
        if own is not None:
            times.note(taken + own)
