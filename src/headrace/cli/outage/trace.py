"""The demo's events as a trace that can be replayed: `{t, kind, request_id, ...}`, `t` in seconds from the beginning.

Kinds: send, model_start, model_done, joined, cached, output, provider_503, breaker, dlq.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.model import (
    Arrived,
    BreakerState,
    Bury,
    CacheResult,
    Decision,
    Dispatch,
    Ending,
    Event,
    Finished,
    Join,
    Settle,
    Snapshot,
)
from headrace.runtime.prompts import PromptRequest

TraceEvent = dict[str, object]


class Observed(Protocol):
    """What the breaker's state is read from."""

    def snapshot(self) -> Snapshot:
        """Everything that can be seen now."""
        ...


class Trace:
    """Writes down what a pipeline decides and what its model does, from now on.

    `clock` is the pipeline's: seconds on the loop's clock.
    """

    def __init__(self, clock: Callable[[], float], pipe: Observed) -> None:
        self._clock = clock
        self._begun = self._now = clock()
        self._pipe = pipe
        self._breaker = BreakerState.CLOSED
        self._events: list[TraceEvent] = []
        self.leaders: dict[str, str] = {}
        """By call: the request it was made for."""

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """One step of the pipeline."""
        self._now = now
        match event:
            case Arrived(request):
                prompt: object = request.payload
                text = prompt.input if isinstance(prompt, PromptRequest) else ""
                self._add("send", request.id, user=request.flow.user, text=text)
            case Finished(call, _, outcome) if outcome.status == 503:
                self._add("provider_503", self.leaders.get(call, ""))
            case _:
                pass
        for decision in decisions:
            self._decided(decision)
        if isinstance(event, Finished):
            self._look_at_breaker(self.leaders.get(event.call, ""))

    def model_start(self, request_id: str) -> None:
        """The model is asked on behalf of a request."""
        self._now = self._clock()
        self._add("model_start", request_id)

    def model_done(self, request_id: str) -> None:
        """The model has answered."""
        self._now = self._clock()
        self._add("model_done", request_id)

    @property
    def events(self) -> list[TraceEvent]:
        """All so far, in the order of their times: a step is told of when it is over, after the calls it began."""
        return sorted(self._events, key=_when)

    def text(self) -> str:
        """The events as a JSON array, one to a line."""
        return "[\n" + ",\n".join(json.dumps(event, ensure_ascii=False) for event in self.events) + "\n]\n"

    def _decided(self, decision: Decision) -> None:
        match decision:
            case Join(ticket, call, CacheResult.JOINED):
                self._add("joined", ticket, shared_with=self.leaders.get(call, ""))
            case Join(ticket, call):
                self.leaders[call] = ticket
            case Dispatch(call, _, _, _, request):
                self.leaders[call] = request.id
            case Settle(ticket, ending=Ending.ANSWERED, cache=cache):
                if cache is CacheResult.HIT:
                    self._add("cached", ticket)
                self._add("output", ticket, shared=cache.value)
            case Bury(letter):
                self._add("dlq", letter.request.id, reason=letter.reason)
            case _:
                pass

    def _look_at_breaker(self, request_id: str) -> None:
        state = self._pipe.snapshot().instances[0].breaker
        if state is not self._breaker:
            self._breaker = state
            self._add("breaker", request_id, state=state.value)

    def _add(self, kind: str, request_id: str, **more: str) -> None:
        self._events.append({"t": round(self._now - self._begun, 6), "kind": kind, "request_id": request_id, **more})


def _when(event: TraceEvent) -> tuple[float, bool]:
    """Its time; of what happened at the same one, what was asked comes first."""
    moment = event["t"]
    assert isinstance(moment, float)
    return moment, event["kind"] != "send"
