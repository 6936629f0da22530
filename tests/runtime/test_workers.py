"""Workers as engines: what they say, what they raise, and how they are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from headrace.errors import CircuitOpen, InvalidRequest, circuit_open, invalid_request
from headrace.model import AnswerForm, Cause
from headrace.runtime import workers
from headrace.runtime.backend import Timeouts
from headrace.runtime.prompts import PromptRequest
from headrace.runtime.worker_errors import WorkerError
from headrace.runtime.workers import EchoWorker, Speech, WorkerBackend, WorkerLike
from headrace.testing import on_virtual_time
from tests.runtime.gatherer import Gatherer, asked, begin
from tests.runtime.virtual import later

PROMPT = PromptRequest("one two three")


async def run(worker: WorkerLike, form: AnswerForm = AnswerForm.STREAM, prompt: PromptRequest = PROMPT) -> Gatherer:
    """One attempt from its beginning to its end."""
    backend, port = begin(worker)
    backend.start(asked(prompt, form), port)
    await port.ended()
    return port


async def says(prompt: PromptRequest) -> str:
    """A coroutine function as a worker."""
    return f"you said {prompt.input}"


async def spells(prompt: PromptRequest) -> AsyncIterator[str]:
    """An async generator function as a worker."""
    for word in prompt.input.split():
        yield word


class Method:
    """A worker with `infer` as an async generator method."""

    async def infer(self, prompt: PromptRequest, /) -> AsyncIterator[str]:
        yield prompt.input


@pytest.mark.parametrize(
    ("worker", "text", "frames"),
    [
        (EchoWorker(), "one two three", 3),
        (EchoWorker(delay=1.0, prefix="> "), "> one two three", 4),
        (says, "you said one two three", 5),
        (spells, "onetwothree", 3),
        (Method(), "one two three", 1),
    ],
)
def test_every_kind_of_worker_is_heard(worker: WorkerLike, text: str, frames: int) -> None:
    """Text at once, later, and piece by piece, from objects and from functions: all arrive, streamed and whole."""

    @on_virtual_time
    async def check() -> None:
        port = await run(worker)
        assert (port.text, len(port.frames)) == (text, frames)
        assert port.outcome.cause is Cause.OK
        assert port.outcome.committed
        assert port.outcome.usage is not None
        assert (port.outcome.usage.prompt, port.outcome.usage.completion) == (3, -(-len(text) // 4))
        assert (await run(worker, AnswerForm.WHOLE)).text == text

    check()


@on_virtual_time
async def test_an_empty_answer_is_an_answer() -> None:
    """A worker that says nothing succeeds, and its reader learns that the answer began."""
    port = await run(EchoWorker(), prompt=PromptRequest(""))
    assert (port.begun, port.text, port.outcome.cause) == (1, "", Cause.OK)


@on_virtual_time
async def test_nothing_happens_while_the_order_is_carried_out() -> None:
    """`start` returns before the worker is asked: whoever dispatches is not called back in the middle."""
    backend, port = begin(EchoWorker())
    backend.start(asked(PROMPT), port)
    assert not port.outcomes
    await port.ended()


@on_virtual_time
async def test_progress_is_told() -> None:
    """Long answers report the tokens they have made, so that they can be charged while they run."""

    async def talks(prompt: PromptRequest) -> AsyncIterator[str]:
        for _ in range(100):
            yield "word "

    port = await run(talks)
    assert 96 <= port.tokens <= 125


@on_virtual_time
async def test_progress_of_a_slow_worker_is_told_while_it_is_slow() -> None:
    """A token each 100 ms: what came is told within a quarter of a second, long before there are 32."""

    async def talks(prompt: PromptRequest) -> AsyncIterator[str]:
        for _ in range(11):
            yield "four"
            await later(0.1)

    assert (await run(talks)).tokens == 10


@pytest.mark.parametrize(
    ("error", "cause", "status"),
    [
        (WorkerError(status=503), Cause.SERVER_ERROR, 503),
        (WorkerError(status=503, retry_after=7.0), Cause.RATE_LIMITED, 503),
        (WorkerError(status=429, retry_after=7.0), Cause.RATE_LIMITED, 429),
        (WorkerError(status=529), Cause.RATE_LIMITED, 529),
        (WorkerError("Too long.", status=413), Cause.REJECTED, 413),
        (WorkerError(status=401), Cause.UPSTREAM_AUTH, 401),
        (WorkerError(status=408), Cause.TIMEOUT, 408),
        (InvalidRequest(invalid_request("No.")), Cause.REJECTED, 400),
        (CircuitOpen(circuit_open(3.0)), Cause.RATE_LIMITED, 503),
        (TimeoutError(), Cause.TIMEOUT, None),
        (ConnectionRefusedError(), Cause.CONNECT, None),
        (KeyError("secret prompt"), Cause.SERVER_ERROR, None),
        (asyncio.CancelledError(), Cause.SERVER_ERROR, None),
    ],
)
def test_what_a_worker_raises_is_judged_like_a_status(
    error: BaseException, cause: Cause, status: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is the caller's, the moment's or the worker's; an unexpected one is logged without its words."""

    async def fails(prompt: PromptRequest) -> str:
        raise error

    @on_virtual_time
    async def check() -> None:
        outcome = (await run(fails)).outcome
        assert (outcome.cause, outcome.status, outcome.committed) == (cause, status, False)
        assert "secret" not in outcome.detail

    with caplog.at_level(logging.ERROR):
        check()
    unexpected = isinstance(error, KeyError | asyncio.CancelledError)
    assert len(caplog.records) == unexpected
    assert "secret" not in caplog.text


@on_virtual_time
async def test_an_error_says_when_to_come_back_and_what_is_wrong() -> None:
    """`retry_after` and the message for the caller are kept."""

    async def limited(prompt: PromptRequest) -> str:
        raise WorkerError(status=429, retry_after=7.25)

    async def picky(prompt: PromptRequest) -> str:
        raise WorkerError("That is too long.", status=413)

    assert (await run(limited)).outcome.retry_after == 7.25
    fault = (await run(picky)).outcome.fault
    assert fault is not None
    assert (fault.status, fault.message) == (413, "That is too long.")


@on_virtual_time
async def test_an_error_after_the_first_piece_breaks_the_answer() -> None:
    """Once text went out the outcome says so: nothing can be tried again; a lost connection is a broken stream then."""

    async def stumbles(prompt: PromptRequest) -> AsyncIterator[str]:
        yield "well"
        raise ConnectionResetError

    port = await run(stumbles)
    assert port.text == "well"
    assert (port.outcome.cause, port.outcome.committed) == (Cause.BROKEN_STREAM, True)


@on_virtual_time
async def test_what_is_no_text_is_a_failure() -> None:
    """A worker that gives something else than text has failed, as has one that raises before it begins."""

    def numbers(prompt: PromptRequest) -> Speech:
        async def later() -> object:
            return 42

        return later()  # type: ignore[return-value]

    def rude(prompt: PromptRequest) -> Speech:
        raise RuntimeError

    assert (await run(numbers)).outcome.detail == "TypeError"
    assert (await run(rude)).outcome.detail == "RuntimeError"
    with pytest.raises(TypeError, match="int is neither"):
        WorkerBackend(42)  # type: ignore[arg-type]


@on_virtual_time
async def test_an_endless_answer_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator that never stops is cut at the limit, and lets others have their turn meanwhile."""
    monkeypatch.setattr(workers, "ANSWER_LIMIT", 10_000)
    turns = 0

    async def babbles(prompt: PromptRequest) -> AsyncIterator[str]:
        while True:
            yield "ba"

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    port = await run(babbles)
    other.cancel()
    assert port.outcome.cause is Cause.SERVER_ERROR
    assert len(port.text) == 10_000
    assert turns > 50


@on_virtual_time
async def test_a_whole_answer_has_its_time() -> None:
    """A coroutine is cancelled when the attempt's time is over, or the prompt's own."""
    cancelled = 0

    async def sleepy(prompt: PromptRequest) -> str:
        nonlocal cancelled
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled += 1
            raise
        return ""

    loop = asyncio.get_running_loop()
    backend, port = begin(sleepy, Timeouts(attempt=600.0))
    backend.start(asked(PROMPT), port)
    assert (await port.ended()).cause is Cause.TIMEOUT
    assert loop.time() == pytest.approx(600.0)
    hasty = Gatherer()
    backend.start(asked(PromptRequest("x", timeout_seconds=5.0)), hasty)
    assert (await hasty.ended()).cause is Cause.TIMEOUT
    assert loop.time() == pytest.approx(605.0)
    await backend.close()
    assert cancelled == 2
    assert not backend.tasks


@on_virtual_time
async def test_silence_of_an_iterator_is_noticed() -> None:
    """No first piece in time, and no further piece in time: both end the attempt exactly at their limits."""
    loop = asyncio.get_running_loop()
    limits = Timeouts(first_token=30.0, idle=10.0, attempt=600.0)

    async def mute(prompt: PromptRequest) -> AsyncIterator[str]:
        await asyncio.sleep(1000)
        yield ""

    async def hesitant(prompt: PromptRequest) -> AsyncIterator[str]:
        for _ in range(4):
            await asyncio.sleep(9)
            yield "er "
        await asyncio.sleep(1000)

    backend, port = begin(mute, limits)
    backend.start(asked(PROMPT), port)
    outcome = await port.ended()
    assert (outcome.cause, outcome.committed) == (Cause.TIMEOUT, False)
    assert loop.time() == pytest.approx(30.0)
    begun = loop.time()
    backend, port = begin(hesitant, limits)
    backend.start(asked(PROMPT), port)
    outcome = await port.ended()
    assert (outcome.cause, outcome.committed) == (Cause.TIMEOUT, True)
    assert loop.time() - begun == pytest.approx(4 * 9 + 10)


@on_virtual_time
async def test_a_pause_really_pauses() -> None:
    """While readers cannot take more the iterator is not asked for more, and that is no silence of the worker."""
    asked_for = 0

    async def counts(prompt: PromptRequest) -> AsyncIterator[str]:
        nonlocal asked_for
        while asked_for < 5:
            asked_for += 1
            yield str(asked_for)

    backend, port = begin(counts, Timeouts(idle=10.0))
    running = backend.start(asked(PROMPT), port)
    running.pause()
    await port.pieces(1)
    await asyncio.sleep(100)
    assert (asked_for, port.outcomes) == (1, [])
    running.resume()
    assert (await port.ended()).cause is Cause.OK
    assert port.text == "12345"


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_abort_stops_the_worker_wherever_it_is(after: int) -> None:
    """Before it is asked, before its task begins, while it works and while it is paused: the port hears nothing more,
    the iterator is closed and no task is left."""
    closed = 0

    async def works(prompt: PromptRequest) -> AsyncIterator[str]:
        nonlocal closed
        try:
            while True:
                yield "x"
        finally:
            closed += 1

    @on_virtual_time
    async def check() -> None:
        backend, port = begin(works)
        running = backend.start(asked(PROMPT), port)
        if after == 3:
            running.pause()
        for _ in range(after):
            await asyncio.sleep(0)
        running.abort()
        heard = len(port.frames)
        await asyncio.sleep(1)
        assert not port.outcomes
        assert len(port.frames) == heard
        assert not backend.tasks
        assert closed == (1 if heard else 0)

    check()


@on_virtual_time
async def test_a_coroutine_that_never_began_is_closed() -> None:
    """An abort just before the task begins leaves no coroutine that was never awaited."""
    backend, port = begin(says)
    running = backend.start(asked(PROMPT), port)
    await asyncio.sleep(0)
    running.abort()
    await asyncio.sleep(1)
    assert not backend.tasks


@on_virtual_time
async def test_a_worker_that_ignores_its_cancellation_is_not_heard() -> None:
    """After an abort nothing of a stubborn worker reaches anybody."""

    async def stubborn(prompt: PromptRequest) -> AsyncIterator[str]:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)
            yield "still here"

    backend, port = begin(stubborn)
    running = backend.start(asked(PROMPT), port)
    await asyncio.sleep(0.5)
    running.abort()
    await asyncio.sleep(10)
    assert (port.frames, port.outcomes) == ([], [])
    assert not backend.tasks
