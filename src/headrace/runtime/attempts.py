"""One attempt at one instance over HTTP: from the order to dispatch to the outcome. `backend` describes the seam.

Timeouts, each finite: connect (in the upstream client); first token, from the start to the first content, streams only;
idle, between reads once the answer flows or is a refusal, which pings reset; attempt, over all. A reader that cannot
keep up is no silence of the engine. Silence is measured by a count of reads looked at a few times per
idle time, so that no clock is read per chunk; it is noticed at most an eighth later than it should.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.model import AnswerForm, Cause, Dispatch, Outcome, OutcomeKind
from headrace.runtime.backend import Port, Running, Timeouts
from headrace.runtime.client import Client, Connection
from headrace.runtime.failures import Failure
from headrace.wire.adapters import Adapter, Decoder, adapter_for
from headrace.wire.frames import Frame
from headrace.wire.openai import OpenAICall

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
        self._upstream = upstream
        self._secrets = secrets
        self._timeouts = timeouts
        self._wall = wall
        self.pulses: defaultdict[str, Pulse] = defaultdict(Pulse)
        """Signs of life of each instance, by id."""

    def forget_all_but(self, instances: Iterable[str]) -> None:
        """These are left; of the others no signs of life are kept."""
        for gone in self.pulses.keys() - set(instances):
            del self.pulses[gone]

    def start(self, dispatch: Dispatch, port: Port) -> Running:
        """Send the request to `dispatch.instance`. Raises InvalidRequest for what its engine cannot do."""
        call = dispatch.request.payload
        if not isinstance(call, OpenAICall):
            raise TypeError("an HTTP engine takes OpenAI calls")
        instance = dispatch.instance
        key = self._secrets.get(instance.id)
        exchange = _Exchange(adapter_for(instance.engine), call, dispatch, port, self.pulses[instance.id])
        exchange.begin(self._upstream, key, self._timeouts, self._wall)
        return exchange


class Pulse:
    """Signs of life of one instance, and of the contrary.

    Reads are counted: a busy engine that does not answer its health check is not dead. `alarm` is called when an
    attempt ends as a failure, so that its health is looked at soon.
    """

    __slots__ = ("alarm", "reads")

    def __init__(self) -> None:
        self.reads = 0
        self.alarm: Callable[[], None] | None = None


class _Exchange:
    """One HTTP attempt: sink of the upstream client, source of the relay."""

    __slots__ = (
        "_adapter",
        "_body",
        "_call",
        "_class",
        "_clock",
        "_connection",
        "_decoder",
        "_done",
        "_good",
        "_instance",
        "_key",
        "_last_beat",
        "_limit",
        "_model",
        "_paused",
        "_port",
        "_pulse",
        "_reads",
        "_reported",
        "_reported_at",
        "_seen_reads",
        "_since",
        "_started",
        "_status",
        "_status_headers",
        "_timeouts",
        "_timer",
        "_wall",
        "_whole",
    )

    def __init__(self, adapter: Adapter, call: OpenAICall, dispatch: Dispatch, port: Port, pulse: Pulse) -> None:
        self._adapter = adapter
        self._call = call
        self._model = dispatch.upstream_model
        self._class = dispatch.request.flow.service_class
        self._whole = dispatch.request.form is AnswerForm.WHOLE
        self._port = port
        self._pulse = pulse
        self._decoder: Decoder | None = None
        self._body = bytearray()
        self._limit = _WHOLE_LIMIT
        self._status = 0
        self._status_headers: Mapping[str, str] = {}
        self._reads = self._seen_reads = 0
        self._reported = 0
        self._started = self._paused = self._done = self._good = False
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._key: str | None = None
        self._instance = dispatch.instance

    def begin(self, upstream: Client, key: str | None, timeouts: Timeouts, wall: Callable[[], float]) -> None:
        """Send the request."""
        loop = asyncio.get_running_loop()
        self._key, self._timeouts, self._wall = key, timeouts, wall
        self._clock = loop.time
        self._since = self._last_beat = self._reported_at = loop.time()
        request = self._adapter.encode(self._call, self._instance, self._model, key, self._class)
        self._connection = upstream.open(self._instance.address, request, self, timeouts.connect)
        self._watch(loop)

    # ------------------------------------------------------------------ the relay's side

    def pause(self) -> None:
        """The readers cannot take more."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """They can again."""
        self._paused = False
        self._seen_reads = -1
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
        self._beat()
        self._status, self._status_headers = status, headers
        if status != 200:
            self._limit = _REFUSAL_LIMIT
        elif not self._whole:
            self._decoder = self._adapter.decoder(self._call)

    def data(self, data: bytes) -> None:
        """A piece of the body."""
        if self._done:
            return
        self._reads += 1
        self._pulse.reads += 1
        decoder = self._decoder
        if decoder is None:
            self._collect(data)
            return
        if not self._pass(decoder.feed(data)):
            return
        made = decoder.tokens - self._reported
        if made and (made >= _PROGRESS_TOKENS or self._clock() - self._reported_at >= _PROGRESS_SECONDS):
            self._report(decoder.tokens)
        if decoder.ended:
            self._complete(clean=True)
            self._part()

    def end(self, failure: Failure | None, detail: str) -> None:
        """The body ended, properly or not."""
        if self._done:
            self._end()
            return
        if failure is None:
            self._complete(clean=True)
        elif failure is Failure.CUT and self._decoder is not None:
            self._complete(clean=False)
        else:
            self._break_off(_CAUSES[failure], detail)

    # ------------------------------------------------------------------ inside

    def _collect(self, data: bytes) -> None:
        self._body += data
        if len(self._body) <= self._limit:
            return
        if self._limit == _REFUSAL_LIMIT:
            del self._body[_REFUSAL_LIMIT:]
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
        elif self._status == 200:
            body, outcome = self._adapter.whole(self._call, bytes(self._body))
            if outcome.cause is Cause.OK:
                self._pass((Frame(body),))
            self._finish(outcome)
        else:
            secrets = (self._key,) if self._key else ()
            headers = self._status_headers
            self._finish(self._adapter.refused(self._status, headers, bytes(self._body), self._wall(), secrets))

    def _break_off(self, cause: Cause, detail: str) -> None:
        """No more will come. It does not matter to a refusal, nor to an answer that only lacks its last mark."""
        if self._refused:
            self._complete(clean=True)
            return
        usage = None
        if self._decoder is not None:
            frames, outcome = self._decoder.finish(clean=False)
            if outcome.cause is Cause.OK:
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
        if frames and not self._started:
            self._started = True
            self._reported_at = self._clock()
            self._port.started()
        for frame in frames:
            self._port.feed(frame)
        return not self._done

    def _report(self, tokens: int) -> None:
        self._port.progressed(tokens - self._reported)
        self._reported, self._reported_at = tokens, self._clock()

    def _finish(self, outcome: Outcome) -> None:
        if not self._done:
            self._end()
            self._good = outcome.cause is Cause.OK
            if self._pulse.alarm is not None and outcome.kind is OutcomeKind.FAILURE:
                self._pulse.alarm()
            self._port.finished(outcome)

    def _end(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._reads += 1
        self._pulse.reads += 1

    # ------------------------------------------------------------------ time

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look again when the soonest limit could be reached, and often enough to notice silence."""
        due = min(self._since + self._timeouts.attempt, loop.time() + self._timeouts.idle / _LOOKS_PER_IDLE)
        if self._awaits_token:
            due = min(due, self._since + self._timeouts.first_token)
        self._timer = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now, limits = loop.time(), self._timeouts
        if self._paused or self._reads != self._seen_reads:
            self._last_beat, self._seen_reads = now, self._reads
        if self._decoder is not None and self._decoder.tokens > self._reported:
            self._report(self._decoder.tokens)
        if now >= self._since + limits.attempt:
            self._time_out("no complete answer in time")
        elif self._awaits_token and now >= self._since + limits.first_token:
            self._time_out("no first token in time")
        elif (self._started or self._body or self._refused) and now >= self._last_beat + limits.idle:
            self._time_out("silence in the middle of the answer")
        else:
            self._watch(loop)

    @property
    def _awaits_token(self) -> bool:
        return not self._whole and not self._started

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
            self._timer = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._connection.abort)
        else:
            self._connection.abort()


_CAUSES = {
    Failure.CONNECT: Cause.CONNECT,
    Failure.TIMEOUT: Cause.TIMEOUT,
    Failure.CUT: Cause.BROKEN_STREAM,
    Failure.PROTOCOL: Cause.PROTOCOL,
}
