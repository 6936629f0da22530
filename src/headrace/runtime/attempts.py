"""One attempt at one instance over HTTP: from the order to dispatch to the outcome. `backend` describes the seam.

Timeouts, each finite: connect (in the upstream client); first token, from the start to the first content, streams only;
idle, between reads once the answer flows or is a refusal, which pings reset; attempt, over all. A reader that cannot
keep up is no silence of the engine. One timer watches all attempts: it looks at each of them a few times per idle time,
and when the next limit is reached; silence is noticed at most an eighth later than it should.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from headrace.errors import sockets_gone
from headrace.model import AnswerForm, Cause, Dispatch, Outcome, OutcomeKind
from headrace.runtime.backend import Port, Running, Timeouts
from headrace.runtime.client import Client, Connection
from headrace.runtime.failures import Failure
from headrace.wire.adapters import Decoder, adapter_for
from headrace.wire.frames import Frame
from headrace.wire.openai import OpenAICall

_WHOLE: Final = AnswerForm.WHOLE
_OK: Final = Cause.OK
_WHOLE_LIMIT = 32 * 1024 * 1024
"""Longest answer that is not streamed, in bytes."""
_REFUSAL_LIMIT = 64 * 1024
"""As much of an error body is read."""
_LOOKS_PER_IDLE = 16
_PROGRESS_TOKENS, _PROGRESS_SECONDS = 32, 0.25
"""Progress is told when so many tokens have come, or some after so long: who is to protect others from slow tokens must
hear of them while they are slow."""
_LINGER_SECONDS = 1.0
"""After its terminal event a stream has this long to end, so that its connection can be used again."""
_SHORTAGE_RETRY = 1.0
"""Seconds after which a caller may try again for whom there was no socket: others end all the time."""


class HttpBackend:
    """Attempts over HTTP.

    Args:
        upstream: the client.
        secrets: the key of each instance that has one, by instance id.
        timeouts: for every attempt.
        wall: the wall clock, for dates in `Retry-After`.
    """

    def __init__(
        self,
        upstream: Client,
        secrets: Mapping[str, str],
        timeouts: Timeouts,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.upstream = upstream
        self.secrets = secrets
        self.timeouts = timeouts
        self.wall = wall
        self.pulses: defaultdict[str, Pulse] = defaultdict(Pulse)
        """Signs of life of each instance, by id."""
        self.running: set[_Attempt] = set()
        """Attempts that have not ended."""
        self._apart = min(timeouts.idle / _LOOKS_PER_IDLE, timeouts.first_token, timeouts.attempt)
        """Seconds between two looks, at most: no limit of an attempt can be reached before the look after its start."""
        self._watch: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def forget_all_but(self, instances: Iterable[str]) -> None:
        """These are left; of the others no signs of life are kept."""
        for gone in self.pulses.keys() - set(instances):
            del self.pulses[gone]

    def start(self, dispatch: Dispatch, port: Port) -> Running:
        """Send the request to `dispatch.instance`. Raises InvalidRequest for what its engine cannot do."""
        call = dispatch.request.payload
        if not isinstance(call, OpenAICall):
            raise TypeError("an HTTP engine takes OpenAI calls")
        loop = self._loop
        if loop is None:  # it is asked for once: that is a system call
            loop = self._loop = asyncio.get_running_loop()
        attempt = _Attempt(self, dispatch, call, port, loop.time)
        attempt.begin()
        if self._watch is None:
            self._watch = loop.call_later(self._apart, self._look, loop)
        return attempt

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at every attempt, and again when the soonest limit could be reached."""
        now = loop.time()
        due = now + self._apart
        try:
            for attempt in tuple(self.running):
                due = min(due, attempt.look(now))
        finally:
            self._watch = loop.call_at(due, self._look, loop) if self.running else None


class Pulse:
    """Signs of life of one instance, and of the contrary.

    Reads are counted: a busy engine that does not answer its health check is not dead. `alarm` is called when an
    attempt ends as a failure, so that its health is looked at soon.
    """

    __slots__ = ("alarm", "reads")

    def __init__(self) -> None:
        self.reads = 0
        self.alarm: Callable[[], None] | None = None


class _Attempt:
    """One HTTP attempt: sink of the upstream client, source of the relay."""

    __slots__ = (
        "_adapter",
        "_backend",
        "_call",
        "_clock",
        "_connection",
        "_decoder",
        "_dispatch",
        "_done",
        "_good",
        "_headers",
        "_heard_at",
        "_linger",
        "_paused",
        "_pieces",
        "_port",
        "_pulse",
        "_reported",
        "_reported_at",
        "_since",
        "_size",
        "_started",
        "_status",
        "_whole",
    )

    def __init__(
        self, backend: HttpBackend, dispatch: Dispatch, call: OpenAICall, port: Port, clock: Callable[[], float]
    ) -> None:
        self._backend = backend
        self._dispatch = dispatch
        self._call = call
        self._port = port
        self._clock = clock
        self._adapter = adapter_for(dispatch.instance.engine)
        self._whole = dispatch.request.form is _WHOLE
        self._pulse = backend.pulses[dispatch.instance.id]
        self._decoder: Decoder | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        """What was collected of a body that is no stream, and how many bytes it has."""
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._since = self._heard_at = self._reported_at = clock()
        self._reported = 0
        self._started = self._paused = self._done = self._good = False
        self._connection: Connection | None = None
        self._linger: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Send the request."""
        backend, dispatch = self._backend, self._dispatch
        instance = dispatch.instance
        key = backend.secrets.get(instance.id)
        request = self._adapter.encode(
            self._call, instance, dispatch.upstream_model, key, dispatch.request.flow.service_class
        )
        self._connection = backend.upstream.open(instance.address, request, self, backend.timeouts.connect)
        backend.running.add(self)

    # ------------------------------------------------------------------ the relay's side

    def pause(self) -> None:
        """The readers cannot take more."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """They can again."""
        self._paused = False
        self._heard_at = self._clock()
        if self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """Nobody wants the answer any more."""
        self._end()
        if self._connection is not None:
            self._connection.abort()

    # ------------------------------------------------------------------ the engine's side

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The engine answers."""
        self._heard_at = self._clock()
        self._pulse.reads += 1
        self._status = status
        if status != 200:
            self._headers = headers
        elif not self._whole:
            self._decoder = self._adapter.decoder(self._call)

    def data(self, data: bytes) -> None:
        """A piece of the body."""
        if self._done:
            return
        now = self._heard_at = self._clock()
        self._pulse.reads += 1
        decoder = self._decoder
        if decoder is None:
            self._collect(data)
            return
        if not self._pass(decoder.feed(data)):
            return
        made = decoder.tokens - self._reported
        if made >= _PROGRESS_TOKENS or (made and now - self._reported_at >= _PROGRESS_SECONDS):
            self._report(decoder.tokens, now)
        if decoder.ended:
            self._complete(clean=True)
            self._part()

    def end(self, failure: Failure | None, detail: str) -> None:
        """The body ended, properly or not."""
        if self._done:
            self._end()
        elif failure is None or (failure is Failure.CUT and self._decoder is not None):
            self._complete(clean=failure is None)
        elif failure is Failure.SHORTAGE:
            self._finish(Outcome(Cause.ABORTED, detail=detail, fault=sockets_gone(_SHORTAGE_RETRY)))
        else:
            self._break_off(_CAUSES[failure], detail)

    # ------------------------------------------------------------------ inside

    def _collect(self, data: bytes) -> None:
        refused = self._status != 200
        self._pieces.append(data)
        self._size += len(data)
        if self._size <= (_REFUSAL_LIMIT if refused else _WHOLE_LIMIT):
            return
        if refused:
            self._complete(clean=True)
        else:
            self._finish(Outcome(Cause.PROTOCOL, status=self._status, detail="the answer is longer than the limit"))
        if self._connection is not None:
            self._connection.abort()

    def _complete(self, clean: bool) -> None:
        """The answer is here as far as it will come: translate the rest of it and say how it ended."""
        if self._decoder is not None:
            frames, outcome = self._decoder.finish(clean)
            self._pass(frames)
            self._finish(outcome)
            return
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._status == 200:
            body, outcome = self._adapter.whole(self._call, body)
            if outcome.cause is _OK:
                self._pass((Frame(body),))
            self._finish(outcome)
        else:
            backend = self._backend
            key = backend.secrets.get(self._dispatch.instance.id)
            body = body[:_REFUSAL_LIMIT]
            wall, secrets = backend.wall(), (key,) if key else ()
            self._finish(self._adapter.refused(self._status, self._headers, body, wall, secrets))

    def _break_off(self, cause: Cause, detail: str) -> None:
        """No more will come. It does not matter to a refusal, nor to an answer that only lacks its last mark."""
        if self._refused:
            self._complete(clean=True)
            return
        usage = None
        if self._decoder is not None:
            frames, outcome = self._decoder.finish(clean=False)
            if outcome.cause is _OK:
                self._pass(frames)
                self._finish(outcome)
                return
            usage = outcome.usage
        self._finish(Outcome(cause, usage, self._started, status=self._status or None, detail=detail))

    @property
    def _refused(self) -> bool:
        """The engine has answered with a status that says all: its body is only an explanation."""
        return self._status not in (0, 200)

    def _pass(self, frames: Sequence[Frame]) -> bool:
        """Hand frames on; False: the last reader left while it was written to."""
        port = self._port
        if frames and not self._started:
            self._started = True
            self._reported_at = self._heard_at
            port.started()
        for frame in frames:
            port.feed(frame)
        return not self._done

    def _report(self, tokens: int, now: float) -> None:
        self._port.progressed(tokens - self._reported)
        self._reported, self._reported_at = tokens, now

    def _finish(self, outcome: Outcome) -> None:
        if not self._done:
            self._end()
            self._good = outcome.cause is _OK
            if not self._good and self._pulse.alarm is not None and outcome.kind is OutcomeKind.FAILURE:
                self._pulse.alarm()
            self._port.finished(outcome)

    def _end(self) -> None:
        self._done = True
        self._backend.running.discard(self)
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    # ------------------------------------------------------------------ time

    def look(self, now: float) -> float:
        """Give up what has taken too long. Returns when the next limit is reached, as far as that can be said."""
        if self._done:
            return math.inf
        limits = self._backend.timeouts
        if self._paused:
            self._heard_at = now
        if self._decoder is not None and self._decoder.tokens > self._reported:
            self._report(self._decoder.tokens, now)
        due = self._since + limits.attempt
        first = self._since + limits.first_token if not (self._whole or self._started) else due
        if now >= due:
            self._time_out("no complete answer in time")
        elif now >= first:
            self._time_out("no first token in time")
        elif (self._started or self._size or self._refused) and now >= self._heard_at + limits.idle:
            self._time_out("silence in the middle of the answer")
        return min(due, first)

    def _time_out(self, detail: str) -> None:
        if self._connection is not None:
            self._connection.abort()
        self._break_off(Cause.TIMEOUT, detail)

    def _part(self) -> None:
        """Let a finished stream end by itself, but not for long; break off one that went wrong."""
        if self._connection is None:
            return
        if self._good:
            self._connection.resume()
            self._linger = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._connection.abort)
        else:
            self._connection.abort()


_CAUSES = {
    Failure.CONNECT: Cause.CONNECT,
    Failure.TIMEOUT: Cause.TIMEOUT,
    Failure.CUT: Cause.BROKEN_STREAM,
    Failure.PROTOCOL: Cause.PROTOCOL,
}
