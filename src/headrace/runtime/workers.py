"""Python callables as engines: what a worker is, the built-in echo, and the backend that runs workers.

A worker is one small protocol: `infer(prompt)` gives the answer's text at once, as an awaitable, or as an async
iterator of its pieces. A plain async function or async generator function will do as well.

Every call runs in a task of its own and ends with exactly one outcome; what the worker raises is judged like an
engine's HTTP status. Timeouts of an attempt: over all; to the first piece and between pieces for iterators, unless it
is the readers who cannot take more. An abort cancels the task; a pause keeps the iterator from being asked for more.

Bound: an answer is at most `ANSWER_LIMIT` characters.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

from headrace.errors import InvalidRequest, invalid_request
from headrace.model import AnswerForm, Cause, Dispatch, Outcome, Usage
from headrace.runtime.backend import Port, Running, Timeouts
from headrace.runtime.prompts import CHARACTERS_PER_TOKEN, Prepared, PromptRequest
from headrace.runtime.rendering import OpenAIText, PlainText, Rendering, question, words
from headrace.runtime.worker_errors import WorkerError, outcome_of
from headrace.wire.frames import Frame
from headrace.wire.openai import OpenAICall

ANSWER_LIMIT = 32 * 1024 * 1024
"""Longest answer, in characters."""
_PROGRESS_TOKENS, _PROGRESS_SECONDS = 32, 0.25
"""Progress is told when so many tokens have come, or some after so long."""
_BREATH = 64
"""Pieces after which an iterator that never waits lets others have a turn."""
_OK: Final = Cause.OK
_STREAM: Final = AnswerForm.STREAM
_PLAIN = PlainText()
_EMPTY = (Frame(b""),)

Speech: TypeAlias = "str | Awaitable[str] | AsyncIterator[str]"
"""An answer as a worker gives it: whole, later, or piece by piece."""


class Worker(Protocol):
    """Something in this process that answers prompts."""

    def infer(self, prompt: PromptRequest, /) -> Speech:
        """Begin to answer. May be an async method or an async generator method. Must not block."""
        ...


WorkerLike: TypeAlias = "Worker | Callable[[PromptRequest], Speech]"
"""A worker, or its `infer` alone."""


class EchoWorker:
    """Answers with the question.

    Args:
        delay: seconds until the answer.
        prefix: what stands before it.
    """

    def __init__(self, delay: float = 0.0, prefix: str = "") -> None:
        self._delay = delay
        self._prefix = prefix

    def infer(self, prompt: PromptRequest, /) -> Speech:
        """The prompt's own text."""
        text = self._prefix + prompt.input
        return self._later(text) if self._delay > 0 else text

    async def _later(self, text: str) -> str:
        await asyncio.sleep(self._delay)
        return text


def infer_of(worker: WorkerLike) -> Callable[[PromptRequest], Speech]:
    """The one function that makes a worker.

    Raises:
        TypeError: it is no worker.
    """
    infer: object = getattr(worker, "infer", worker)
    if not callable(infer):
        raise TypeError(f"a worker has an `infer` method or is callable, {type(worker).__name__} is neither")
    return infer


class WorkerBackend:
    """Runs attempts on one worker.

    Args:
        worker: answers.
        timeouts: for every attempt; a prompt may ask for another limit over all.
        wall: the wall clock, for the time an answer says it was made.
    """

    def __init__(
        self, worker: WorkerLike, timeouts: Timeouts | None = None, wall: Callable[[], float] = time.time
    ) -> None:
        self.infer = infer_of(worker)
        self.timeouts = timeouts or Timeouts()
        self.wall = wall
        self.tasks: set[asyncio.Task[None]] = set()
        """Workers at work, and cancelled ones that have not ended yet."""
        self._starting: deque[_Attempt] = deque()
        """Attempts whose worker is asked in the loop's next turn."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, dispatch: Dispatch, port: Port) -> Running:
        """Ask the worker; not at once, since whoever dispatches is in the middle of carrying out orders."""
        attempt = _Attempt(self, dispatch, port)
        self._starting.append(attempt)
        if len(self._starting) == 1:
            if self._loop is None:  # it is asked for once: that is a system call
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._begin, self._loop)
        return attempt

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask for all that were started until now; for those that are started meanwhile in the next turn."""
        starting = self._starting
        due = len(starting)
        try:
            while due:
                due -= 1
                starting.popleft().begin(loop)
        finally:
            if starting:
                loop.call_soon(self._begin, loop)

    def ended(self, task: asyncio.Task[None], speech: object) -> None:
        """A worker's task is over; one that was cancelled before it began has not begun `speech` either."""
        self.tasks.discard(task)
        if isinstance(speech, Coroutine):
            speech.close()

    async def close(self, grace: float = 1.0) -> None:
        """Cancel what is left; waits `grace` seconds for it to end."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(tuple(self.tasks), timeout=grace)


class _Attempt:
    """One attempt: source of the relay, and what the worker's text goes through."""

    __slots__ = (
        "_backend",
        "_characters",
        "_dispatch",
        "_done",
        "_pausing",
        "_pieces",
        "_port",
        "_rendering",
        "_reported",
        "_since",
        "_started",
        "_task",
        "_timer",
        "_told_at",
        "_until",
    )

    def __init__(self, backend: WorkerBackend, dispatch: Dispatch, port: Port) -> None:
        self._backend = backend
        self._dispatch = dispatch
        self._port = port
        self._rendering: Rendering = _PLAIN
        self._pieces = self._characters = self._reported = 0
        self._started = self._done = False
        self._since = self._until = self._told_at = 0.0
        self._pausing: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ the relay's side

    def pause(self) -> None:
        """The readers cannot take more: the next piece is not asked for."""
        if self._pausing is None:
            self._pausing = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """They can again."""
        pausing, self._pausing = self._pausing, None
        if pausing is not None and not pausing.done():
            self._since = pausing.get_loop().time()
            pausing.set_result(None)

    def abort(self) -> None:
        """Nobody wants the answer any more."""
        self._end()
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------------ the worker's side

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the worker, unless the attempt was aborted before."""
        if self._done:
            return
        try:
            prompt = self._translate()
            speech = self._backend.infer(prompt)
        except Exception as error:  # noqa: BLE001  # the outer edge; what nobody expected is logged there
            self._fail(error)
            return
        if isinstance(speech, str):
            self._say_all(speech)
            return
        self._listen(loop, speech, prompt.timeout_seconds)

    def _listen(
        self, loop: asyncio.AbstractEventLoop, speech: Awaitable[str] | AsyncIterator[str], limit: float | None
    ) -> None:
        """Have a task hear the answer, for `limit` seconds at most."""
        backend = self._backend
        self._since = now = loop.time()
        self._until = now + (backend.timeouts.attempt if limit is None else limit)
        self._task = task = loop.create_task(self._hear(speech))
        backend.tasks.add(task)
        task.add_done_callback(partial(backend.ended, speech=speech))
        if isinstance(speech, AsyncIterator):
            self._watch(loop)
        else:
            self._timer = loop.call_at(self._until, self._time_out, "no complete answer in time")

    def _translate(self) -> PromptRequest:
        """What the worker is asked; chooses how its text becomes frames."""
        request = self._dispatch.request
        call: object = request.payload
        if isinstance(call, PromptRequest):
            return call
        if isinstance(call, Prepared):
            return call.prompt
        if not isinstance(call, OpenAICall):
            raise TypeError("a worker takes prompts and OpenAI calls")
        if call.endpoint == "embeddings":
            raise InvalidRequest(invalid_request("This model writes text; it makes no embeddings.", param="model"))
        self._rendering = OpenAIText(call, request.form, request.id, int(self._backend.wall()))
        flow = request.flow
        return PromptRequest(
            question(call),
            session=flow.session,
            request_id=request.id,
            user=flow.user,
            tenant=flow.tenant,
            service_class=flow.service_class,
            model=self._dispatch.upstream_model,
            max_tokens=call.output_cap,
        )

    async def _hear(self, speech: Awaitable[str] | AsyncIterator[str]) -> None:
        """The task, beyond which no error of a worker goes."""
        try:
            if isinstance(speech, AsyncIterator):
                await self._iterate(speech)
            else:
                self._say_all(await speech)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._finish(Outcome(Cause.ABORTED, self._usage(), self._started, detail="the worker was cancelled"))
                raise
            self._fail(error)
        except Exception as error:  # noqa: BLE001  # the outer edge; what nobody expected is logged there
            self._fail(error)

    async def _iterate(self, speech: AsyncIterator[str]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async for piece in speech:
                if self._done:
                    return
                self._pieces += 1
                self._since = loop.time()
                self._say(piece)
                self._progress()
                if self._pausing is not None:
                    await self._pausing
                elif self._pieces % _BREATH == 0:
                    await asyncio.sleep(0)
            self._succeed()
        finally:
            if isinstance(speech, AsyncGenerator):
                await speech.aclose()

    # ------------------------------------------------------------------ what it says

    def _say_all(self, text: str) -> None:
        streamed = self._dispatch.request.form is _STREAM and isinstance(text, str)
        try:
            for piece in words(text) if streamed else (text,):
                self._say(piece)
        except (TypeError, WorkerError) as error:
            self._fail(error)
        else:
            self._succeed()

    def _say(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError("a worker says text")
        if self._done:
            return
        self._characters += len(text)
        if self._characters > ANSWER_LIMIT:
            raise WorkerError(f"An answer has at most {ANSWER_LIMIT} characters.", status=502)
        if text:
            self._feed(self._rendering.piece(text))

    def _progress(self) -> None:
        made = self._characters // CHARACTERS_PER_TOKEN - self._reported
        if made >= _PROGRESS_TOKENS or (made > 0 and self._since - self._told_at >= _PROGRESS_SECONDS):
            self._port.progressed(made)
            self._reported += made
            self._told_at = self._since

    def _succeed(self) -> None:
        if self._done:
            return
        usage = self._usage()
        closing = self._rendering.closing(usage)
        if closing or not self._started:  # an answer has at least one frame
            self._feed(closing or _EMPTY)
        self._finish(Outcome(_OK, usage, committed=True))

    def _feed(self, frames: Sequence[Frame]) -> None:
        port = self._port
        if frames and not self._started:
            self._started = True
            self._told_at = self._since
            port.started()
        for frame in frames:
            port.feed(frame)

    def _usage(self) -> Usage:
        completion = -(-self._characters // CHARACTERS_PER_TOKEN)
        return Usage(self._dispatch.request.prompt_tokens, completion, estimated=True)

    # ------------------------------------------------------------------ the end

    def _fail(self, error: BaseException) -> None:
        if not self._done:
            self._finish(outcome_of(error, self._usage() if self._started else None, self._started))

    def _finish(self, outcome: Outcome) -> None:
        if not self._done:
            self._end()
            self._port.finished(outcome)

    def _end(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        if self._pausing is not None:
            self.resume()

    # ------------------------------------------------------------------ time

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look again when the soonest limit could be reached."""
        self._timer = loop.call_at(min(self._until, self._since + self._silence()), self._look, loop)

    def _silence(self) -> float:
        timeouts = self._backend.timeouts
        return timeouts.idle if self._pieces else timeouts.first_token

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop.time() >= self._until:
            self._time_out("no complete answer in time")
            return
        if self._pausing is not None:
            self._since = loop.time()
        elif loop.time() >= self._since + self._silence():
            self._time_out("silence in the middle of the answer" if self._pieces else "no first piece in time")
            return
        self._watch(loop)

    def _time_out(self, detail: str) -> None:
        self._finish(Outcome(Cause.TIMEOUT, self._usage(), self._started, detail=detail))
        if self._task is not None:
            self._task.cancel()
