"""Admission to one instance: how much may be at the engine at a time.

Two gates that need nothing from the engine:

* In flight: at most `max_concurrent` requests.
* Un-started window: prompt tokens sent and not yet begun to be answered are at most `window` (one prefill budget
  of the engine, 2,048 by default). It is what `num_requests_waiting` would say, with no delay: a burst cannot slip
  in between two polls. One request always fits into an empty window, however long it is.

A whole (not streamed) answer shows no first token, so its reservation lapses after the time its prefill should
take; the speed of prefill is learned from streams that were alone in the window.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

_FIRST_GUESS = 2e-4
"""Seconds per prompt token before anything was learned: 5,000 tokens/s."""
_FASTEST, _SLOWEST = 1e-5, 5e-2
_ALPHA = 0.3


class Pass:
    """One request's place at an instance; given back exactly once with `Gate.leave`."""

    __slots__ = ("alone", "entered", "lapses", "present", "tokens", "unstarted")

    def __init__(self, tokens: int, entered: float, lapses: float | None, alone: bool) -> None:
        self.tokens = tokens
        self.entered = entered
        self.lapses = lapses
        self.alone = alone
        self.unstarted = True
        self.present = True


class Gate:
    """The two gates of one instance.

    Args:
        limit: most requests in flight.
        window: most un-started prompt tokens; None: no such bound.
    """

    __slots__ = ("_lapsing", "_seq", "in_flight", "limit", "prefill_seconds", "unstarted", "window")

    def __init__(self, limit: int, window: int | None) -> None:
        self.limit = limit
        self.window = window
        self.in_flight = 0
        self.unstarted = 0
        self.prefill_seconds = _FIRST_GUESS
        """Seconds of prefill per prompt token, learned."""
        self._lapsing: list[tuple[float, int, Pass]] = []
        self._seq = 0

    def shut(self, tokens: int, now: float) -> str:
        """Why a request of `tokens` prompt tokens may not enter now: "in_flight", "window", or "" when it may."""
        if self.in_flight >= self.limit:
            return "in_flight"
        if self.window is not None:
            self._lapse(now)
            if self.unstarted and self.unstarted + tokens > self.window:
                return "window"
        return ""

    def opens_at(self, now: float) -> float | None:
        """When the window opens further without any event, or None."""
        self._lapse(now)
        return self._lapsing[0][0] if self._lapsing else None

    def enter(self, tokens: int, streamed: bool, now: float) -> Pass:
        """Take a place; the caller has asked `shut` before."""
        lapses = None if streamed or self.window is None else now + tokens * self.prefill_seconds
        taken = Pass(tokens, now, lapses, alone=self.unstarted == 0)
        self.in_flight += 1
        self.unstarted += tokens
        if lapses is not None:
            self._seq += 1
            heappush(self._lapsing, (lapses, self._seq, taken))
            if len(self._lapsing) > 2 * self.in_flight + 16:
                self._lapsing = [entry for entry in self._lapsing if entry[2].unstarted]
                heapify(self._lapsing)
        return taken

    def started(self, place: Pass, now: float) -> None:
        """The first content is here: the prompt has been read."""
        if place.lapses is None and place.alone and place.tokens >= 32:
            seen = (now - place.entered) / place.tokens
            self.prefill_seconds += _ALPHA * (min(max(seen, _FASTEST), _SLOWEST) - self.prefill_seconds)
        self._start(place)

    def leave(self, place: Pass) -> None:
        """Give the place back, on whatever way the attempt ended; a second call changes nothing."""
        if place.present:
            place.present = False
            self.in_flight -= 1
            self._start(place)

    def _start(self, place: Pass) -> None:
        if place.unstarted:
            place.unstarted = False
            self.unstarted -= place.tokens

    def _lapse(self, now: float) -> None:
        while self._lapsing and (self._lapsing[0][0] <= now or not self._lapsing[0][2].unstarted):
            self._start(heappop(self._lapsing)[2])
