"""A second attempt for a request whose first content is late (hedging: Dean and Barroso, "The Tail at Scale", 2013).

Off unless it is asked for. When no first content came within a fixed time, or within the 95th percentile of what the
pool has shown of late, the request goes to a second instance as well. Whoever begins first answers; the other one is
broken off, which is no failure of it and costs the user nothing; but an instance that has not answered anything yet is
guessed to be fast no longer. The tokens are the price: hedges may send at most a share of the prompt tokens that first
attempts sent, so that they cannot make an overload worse; and none is sent while anything waits for a place, to a tier
that the request would not be sent to, or for class batch, which has time. A whole answer shows no first token, so only
streams are hedged.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.core.pool import Pool
from headrace.core.routing import Router
from headrace.core.settings import HedgeSettings
from headrace.core.ticket import Call, State, Ticket
from headrace.core.timers import Timers
from headrace.model import AnswerForm, ServiceClass

if TYPE_CHECKING:
    from headrace.core.instance_state import InstanceState
    from headrace.core.place import Place

_SHARE = 0.95
_KEPT = 256
"""First tokens from which the percentile is taken."""
_ENOUGH = 32
"""As many must be known before it means something."""
_EVERY = 16
"""It is worked out anew after so many."""
_SOONEST = 0.01
"""Seconds before which nothing is late, however quick a pool was or little was asked for."""
_MOST_SAVED = 100_000.0
"""Prompt tokens that a quiet time can save up for hedges at most."""


class FirstTokens:
    """How long a pool's first tokens took of late, in seconds."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self._seen = 0
        self.late: float | None = None
        """The 95th percentile; None while too little is known."""

    def note(self, seconds: float) -> None:
        """One more first token."""
        self._seconds.append(seconds)
        self._seen += 1
        if self._seen >= _ENOUGH and self._seen % _EVERY == 0:
            self.late = sorted(self._seconds)[int(_SHARE * len(self._seconds))]


class Hedger:
    """Says when and where a second attempt is made.

    Args:
        settings: None: never.
        timers: `Scheduler` wakes for the calls in them.
    """

    def __init__(self, settings: HedgeSettings | None, router: Router, timers: Timers[Ticket | Call | Pool]) -> None:
        self._settings = settings
        self.enabled = settings is not None
        """Whether there are second attempts at all."""
        self._router = router
        self._timers = timers
        self._saved = 0.0
        """Prompt tokens that hedges may still send."""

    def watch(self, call: Call, now: float) -> None:
        """An attempt of `call` was sent: look again when its first content is late."""
        settings, request = self._settings, call.request
        if settings is None:
            return
        self._saved = min(_MOST_SAVED, self._saved + settings.budget * request.prompt_tokens)
        if request.form is not AnswerForm.STREAM or request.only is not None or call.resumes:
            return
        if call.flow.service_class is ServiceClass.BATCH or len(call.pool.members) < 2:
            return
        after = settings.after if settings.after is not None else self._late(call.pool)
        if after is not None:
            call.hedging = self._timers.at(now + max(_SOONEST, after), call)

    def began(self, call: Call, place: Place, attempt: int, now: float) -> None:
        """The first content of `call`, whose first attempt is at `place`, is here, made by this attempt."""
        if call.hedge is not None:
            beaten = place if attempt == call.hedge.number else call.hedge.place
            beaten.state.gate.beaten(beaten, now)
        self._timers.cancel(call.hedging)
        if call.request.form is AnswerForm.STREAM:
            tokens = call.pool.first_tokens
            if tokens is None:
                tokens = call.pool.first_tokens = FirstTokens()
            tokens.note(now - place.entered)

    def over(self, call: Call) -> None:
        """The attempt ended: nothing is late any more."""
        self._timers.cancel(call.hedging)
        call.hedging = None

    def place_for(self, call: Call, now: float) -> InstanceState | None:
        """Where a second attempt of `call` goes now, paid from the budget; None: there is to be none.

        Its first one still runs, has shown nothing and was to be looked at by now; its callers allow another attempt.
        """
        if call.state is not State.RUNNING or call.first is not None or call.hedge is not None:
            return None
        if call.hedging is None or call.hedging.pending or call.pool.tree.root.queued or not _allowed(call, now):
            return None
        tokens = call.request.prompt_tokens
        state = self._router.second(call, now) if tokens <= self._saved else None
        if state is not None:
            self._saved -= tokens
        return state

    def _late(self, pool: Pool) -> float | None:
        return None if pool.first_tokens is None else pool.first_tokens.late


def _allowed(call: Call, now: float) -> bool:
    """Another attempt beside the running one is within the bounds of those who wait for it."""
    most = call.leader.request.max_attempts
    if most is not None and call.failures + call.spent + 2 > most:
        return False
    deadlines = (ticket.request.deadline for ticket in call.members.values())
    return all(deadline is None or now < deadline for deadline in deadlines)
