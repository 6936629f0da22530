"""One model call under way: the relay that carries its answer, and the attempt that is making it.

The gateway says when an attempt is sent and when it is broken off; the attempt says the rest through its port.

What goes out of an answer that another engine could go on with is kept until the answer is complete (`Transcript`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headrace.errors import InvalidRequest, internal_error
from headrace.model import (
    AnswerForm,
    CacheResult,
    Cause,
    Dispatch,
    Event,
    Finished,
    Outcome,
    Progressed,
    Request,
    Sealed,
    Started,
    Usage,
)
from headrace.runtime.backend import Backend, Running
from headrace.runtime.relay import AnswerHead, Relay
from headrace.runtime.stores import Answer
from headrace.wire.continuation import Continuation, Transcript
from headrace.wire.frames import Frame
from headrace.wire.openai_call import OpenAICall

_log = logging.getLogger(__name__)


class Flight:
    """One call: its relay, its running attempt, and how many tickets ride on it.

    `step` takes the facts that come up.
    """

    __slots__ = (
        "_part",
        "_port",
        "_request",
        "_running",
        "_step",
        "call",
        "instance",
        "members",
        "relay",
        "transcript",
        "usage",
    )

    def __init__(self, call: str, step: Callable[[Event], None], request: Request) -> None:
        self.call = call
        self._step = step
        self._request = request
        self._port: _Port | None = None
        self._part: Continuation | None = None
        self.transcript: Transcript | None = None
        """Of an answer that could be taken up again; None: of this one nothing is kept for that."""
        self._running: Running | None = None
        self.members = 0
        self.instance = ""
        self.usage: Usage | None = None
        self.relay = Relay(keep=request.fingerprint is not None, on_sealed=partial(step, Sealed(call)))

    def send(self, dispatch: Dispatch, backend: Backend) -> None:
        """Start an attempt. It may be over before this returns."""
        self.instance = dispatch.instance.id
        payload = dispatch.request.payload
        if self.transcript is None and dispatch.instance.resume and dispatch.request.form is AnswerForm.STREAM:
            self.transcript = Transcript()
        if dispatch.resumes and isinstance(payload, OpenAICall):
            payload = replace(payload, continuation=self._part)
            dispatch = replace(dispatch, request=replace(dispatch.request, payload=payload))
        port = self._port = _Port(self._step, self, dispatch)
        try:
            running = backend.start(dispatch, port)
        except InvalidRequest as error:
            port.finished(Outcome(Cause.REJECTED, detail="the engine cannot do what is asked", fault=error.fault))
            return
        except Exception:  # noqa: BLE001 - an attempt's outer edge: a backend's mistake ends this attempt only
            _log.exception("attempt not started at %s", dispatch.instance.id)
            port.finished(Outcome(Cause.PROTOCOL, detail="internal error", fault=internal_error()))
            return
        if not port.over:
            self._running = running
            self.relay.source = running

    def abort(self) -> None:
        """Close the running attempt."""
        running = self._running
        self.land()
        if running is not None:
            running.abort()

    def land(self) -> None:
        """The running attempt is over: nothing of it counts any more."""
        if self._port is not None:
            self._port.over = True
        self._port = self._running = self.relay.source = None

    def judged(self, outcome: Outcome) -> Outcome:
        """The outcome of an attempt that failed, saying whether its answer can be taken up again."""
        call = self._request.payload
        if self.transcript is None or not isinstance(call, OpenAICall):
            return outcome
        if outcome.committed:
            times = 1 if self._part is None else self._part.times + 1
            usage = outcome.usage
            self._part = None if usage is None else self.transcript.continuation(call, usage, times)
        return outcome if self._part is None else replace(outcome, resumable=True)

    def replay(self, answer: Answer) -> None:
        """Give a stored answer to those on board."""
        head = AnswerHead(answer.instance, answer.model, 0, 0.0, answer.form, CacheResult.HIT)
        self.relay.open(head)
        for frame in answer.frames:
            self.relay.feed(frame)

    def answer(self) -> Answer | None:
        """The finished answer, if all of it was kept."""
        frames, request = self.relay.kept, self._request
        if not frames:
            return None
        if self._part is not None:
            frames = tuple(frame for frame in frames if not frame.data.startswith(b":"))
        return Answer(form=request.form, frames=frames, usage=self.usage, model=request.model, instance=self.instance)


class _Port:
    """Where one attempt delivers. Once the attempt is over, whatever it still says changes nothing."""

    __slots__ = ("_dispatch", "_flight", "_step", "_transcript", "over")

    def __init__(self, step: Callable[[Event], None], flight: Flight, dispatch: Dispatch) -> None:
        self._step = step
        self._flight = flight
        self._dispatch = dispatch
        self._transcript = flight.transcript
        self.over = False

    def started(self) -> None:
        """The first content is here: the attempt is the one that answers."""
        if self.over:
            return
        dispatch = self._dispatch
        if dispatch.resumes:
            # The readers have long begun; who joins them is told what they were.
            self._step(Started(dispatch.call, dispatch.attempt))
            return
        head = AnswerHead(
            dispatch.instance.id,
            dispatch.upstream_model,
            dispatch.attempt,
            dispatch.waited,
            dispatch.request.form,
            CacheResult.MISS,
        )
        self._flight.relay.open(head)
        if dispatch.request.form is AnswerForm.STREAM:  # a whole answer's end follows at once and says as much
            self._step(Started(dispatch.call, dispatch.attempt))

    def feed(self, frame: Frame) -> None:
        """Bytes for the callers."""
        if not self.over:
            if self._transcript is not None:
                self._transcript.add(frame.data)
            self._flight.relay.feed(frame)

    def progressed(self, tokens: int) -> None:
        """So many more tokens."""
        if not self.over:
            self._step(Progressed(self._dispatch.call, self._dispatch.attempt, tokens))

    def finished(self, outcome: Outcome) -> None:
        """The attempt's end."""
        if self.over:
            return
        if outcome.cause is not Cause.OK:
            outcome = self._flight.judged(outcome)
        self._flight.usage = outcome.usage
        self._flight.land()
        self._step(Finished(self._dispatch.call, self._dispatch.attempt, outcome))
