"""One model call under way: the relay that carries its answer, and the attempt that is making it.

The gateway says when an attempt is sent and when it is broken off; the attempt says the rest through its port.

What goes out of an answer that another engine could go on with is kept until the answer is complete (`Transcript`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Final

from msgspec.structs import replace

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
    Started,
    Usage,
)
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.backend import Backend, Running
from headrace.runtime.relay import Relay
from headrace.runtime.stores import Answer
from headrace.wire.continuation import Continuation, Transcript
from headrace.wire.frames import Frame
from headrace.wire.openai_call import OpenAICall

_log = logging.getLogger(__name__)

_OK: Final = Cause.OK
_STREAM: Final = AnswerForm.STREAM
_MISS: Final = CacheResult.MISS
"""Each is asked for with every request, and to find a member of an enum costs as much as a call."""


class Flight(Relay):
    """One call: the relay of its answer, its running attempts, and how many tickets ride on it.

    There is one attempt at a time, or a second one beside one whose first content is late. The first of the two that
    begins is the one whose bytes go out; the scheduler has the other one aborted.

    `step` takes the facts that come up; `sealed` is told when nobody can join the call any more.
    """

    __slots__ = (
        "_part",
        "_ports",
        "_request",
        "answering",
        "ending_since",
        "instance",
        "members",
        "sending",
        "step",
        "transcript",
        "usage",
        "went_on",
    )

    def __init__(
        self, call: str, step: Callable[[Event], None], request: Request, sealed: Callable[[str], None]
    ) -> None:
        super().__init__(call, sealed, request.fingerprint is not None)
        self.step = step
        self._request = request
        self._ports: tuple[_Port, ...] = ()
        """The running attempts."""
        self.answering: _Port | None = None
        """The attempt that has begun to answer."""
        self.went_on: tuple[str, int] | None = None
        """The instance that took up an answer which had broken off, and the number of its attempt."""
        self._part: Continuation | None = None
        self.transcript: Transcript | None = None
        """Of an answer that could be taken up again; None: of this one nothing is kept for that."""
        self.members = 0
        self.instance = ""
        self.sending = 0.0
        """Seconds that it took to hand the last attempt to its engine."""
        self.ending_since: float | None = None
        """Since when the end of an attempt is being told, on the clock of `perf_counter`; None: it is not."""
        self.usage: Usage | None = None

    def send(self, dispatch: Dispatch, backend: Backend) -> None:
        """Start an attempt. It may be over before this returns."""
        payload = dispatch.request.payload
        if self.transcript is None and dispatch.instance.resume and dispatch.request.form is _STREAM:
            self.transcript = Transcript()
        if dispatch.resumes and isinstance(payload, OpenAICall):
            payload = replace(payload, continuation=self._part)
            dispatch = replace(dispatch, request=replace(dispatch.request, payload=payload))
        port = _Port(self, dispatch)
        self._ports += (port,)
        since = perf_counter()
        try:
            running = backend.start(dispatch, port)
        except InvalidRequest as error:
            port.finished(Outcome(Cause.REJECTED, detail="the engine cannot do what is asked", fault=error.fault))
            return
        except Exception:  # noqa: BLE001 - an attempt's outer edge: a backend's mistake ends this attempt only
            _log.exception("attempt not started at %s", dispatch.instance.id)
            port.finished(Outcome(Cause.PROTOCOL, detail="internal error", fault=internal_error()))
            return
        self.sending = perf_counter() - since
        if not port.over:
            port.running = running
            if self.answering is port or len(self._ports) == 1:
                self.source = running

    def abort(self, attempt: int) -> None:
        """Close a running attempt; one that has just ended is fine."""
        for port in self._ports:
            if port.dispatch.attempt == attempt:
                running = port.running
                self.land(port)
                if running is not None:
                    running.abort()
                return

    def begin(self, port: _Port) -> None:
        """An attempt has content: it answers, unless another one does. Readers pace the one that does from now on."""
        if self.answering is not None and self.answering is not port:
            port.over = True  # its abort is on the way
            return
        dispatch = port.dispatch
        form, number = dispatch.request.form, dispatch.attempt
        self.answering, self.instance = port, dispatch.instance.id
        if len(self._ports) > 1:
            self.source = port.running
        if dispatch.resumes:  # the readers have long begun; who joins them is told what they were
            self.went_on = self.instance, number
        else:
            self.head = AnswerHead(self.instance, dispatch.upstream_model, number, dispatch.waited, form, _MISS)
        if dispatch.resumes or form is _STREAM:  # a whole answer's end follows at once and says as much
            self.step(Started(self.call, number))

    def land(self, port: _Port) -> None:
        """An attempt is over: nothing of it counts any more. One that is left alone is paced by the readers."""
        port.over = True
        port.running = None  # which leads back here, and what leads back waits for the garbage collector
        ports = self._ports
        if port in ports:
            ports = self._ports = tuple([other for other in ports if other is not port]) if len(ports) > 1 else ()
        if self.answering is None or self.answering is port:
            self.answering = None
            self.source = ports[0].running if ports else None

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
        self.open(head)
        for frame in answer.frames:
            self.feed(frame)

    def answer(self) -> Answer | None:
        """The finished answer, if all of it was kept."""
        frames, request = self.kept, self._request
        if not frames:
            return None
        if self._part is not None:
            frames = tuple(frame for frame in frames if not frame.data.startswith(b":"))
        return Answer(form=request.form, frames=frames, usage=self.usage, model=request.model, instance=self.instance)


class _Port:
    """Where one attempt delivers. Once the attempt is over, whatever it still says changes nothing."""

    __slots__ = ("_flight", "_transcript", "dispatch", "over", "running")

    def __init__(self, flight: Flight, dispatch: Dispatch) -> None:
        self._flight = flight
        self._transcript = flight.transcript if dispatch.instance.resume else None
        self.dispatch = dispatch
        self.over = False
        self.running: Running | None = None
        """What it delivers for, once that was started."""

    def started(self) -> None:
        """The first content is here."""
        if not self.over:
            self._flight.begin(self)

    def feed(self, frame: Frame) -> None:
        """Bytes for the callers."""
        if not self.over:
            if self._transcript is not None:
                self._transcript.add(frame.data)
            self._flight.feed(frame)

    def progressed(self, tokens: int) -> None:
        """So many more tokens."""
        if not self.over:
            self._flight.step(Progressed(self._flight.call, self.dispatch.attempt, tokens))

    def finished(self, outcome: Outcome) -> None:
        """The attempt's end."""
        if self.over:
            self.running = None
            return
        flight = self._flight
        flight.ending_since = perf_counter()
        if outcome.cause is not _OK:
            outcome = flight.judged(outcome)
        if flight.answering is None or flight.answering is self:
            flight.usage = outcome.usage
        flight.land(self)
        flight.step(Finished(flight.call, self.dispatch.attempt, outcome))
        flight.ending_since = None
