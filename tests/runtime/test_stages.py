"""The stages around inference: what hooks do, what bounds them, and that their places are given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec.structs import replace

from headrace.errors import DeadlineExpired, Draining, InvalidRequest, QueueFull, UpstreamError, invalid_request
from headrace.model import Ending
from headrace.runtime import stages
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.prompts import PromptAnswer, PromptRequest
from headrace.runtime.stages import Stage, Unserved
from headrace.runtime.workers import EchoWorker
from headrace.testing import on_virtual_time


def depths(pipe: Pipeline) -> dict[str, int]:
    """How full each stage is that holds anything."""
    return {stage.name: stage.depth for stage in pipe.stages if stage.depth}


async def library(prompt: PromptRequest) -> str | None:
    """Retrieval that takes a second and finds something for questions about cats only."""
    await asyncio.sleep(1)
    return "Cats purr." if "cat" in prompt.input else None


async def template(prompt: PromptRequest, context: str | None) -> PromptRequest:
    """Puts the context before the question."""
    return replace(prompt, input=f"[{context}] {prompt.input}")


async def shout(answer: PromptAnswer) -> PromptAnswer:
    """Post-processing."""
    return replace(answer, text=answer.text.upper())


async def forever(_: object, __: object = None) -> object:
    """A hook that hangs."""
    await asyncio.sleep(10_000)
    raise AssertionError


@on_virtual_time
async def test_a_request_goes_through_all_stages() -> None:
    """Retrieve, assemble, inference, post: for whole answers, for streams and for what was not waited for."""
    async with Pipeline(EchoWorker(), retrieve=library, assemble=template, post=shout) as pipe:
        cat = PromptRequest("my cat?", request_id="r")
        answer = await pipe.submit(cat)
        assert (answer.text, answer.request_id) == ("[CATS PURR.] MY CAT?", "r")
        assert (await pipe.submit(PromptRequest("dog"))).text == "[NONE] DOG"
        assert [piece async for piece in pipe.stream(cat)] == ["[CATS PURR.] MY CAT?"]
        submission = pipe.try_submit(cat)
        assert submission.accepted
        assert (await submission).text == "[CATS PURR.] MY CAT?"
        assert submission.done
        assert not depths(pipe)


@on_virtual_time
async def test_context_alone_stands_before_the_prompt() -> None:
    """Without an assemble hook the context is put before the input; a stream with hooks before it still streams."""
    async with Pipeline(EchoWorker(), retrieve=library) as pipe:
        pieces = [piece async for piece in pipe.stream(PromptRequest("cat?"))]
        assert "".join(pieces) == "Cats purr.\n\ncat?"
        assert len(pieces) == 3
        assert (await pipe.submit(PromptRequest("dog?"))).text == "dog?"


@on_virtual_time
async def test_retrieval_that_fails_or_hangs_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    """No context is better than no answer: after 2 seconds or an error the prompt goes on. Its words are not logged."""

    async def fails(prompt: PromptRequest) -> str | None:
        raise LookupError(prompt.input)

    async def hangs(prompt: PromptRequest) -> str | None:
        await asyncio.sleep(100)
        return "too late"

    with caplog.at_level(logging.WARNING):
        async with Pipeline(EchoWorker(), retrieve=fails) as pipe:
            assert (await pipe.submit(PromptRequest("secret"))).text == "secret"
        async with Pipeline(EchoWorker(), retrieve=hangs) as pipe:
            assert (await pipe.submit(PromptRequest("secret"))).text == "secret"
            assert asyncio.get_running_loop().time() == pytest.approx(2.0)
            assert not depths(pipe)
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


@on_virtual_time
async def test_a_hook_that_fails_fails_its_request() -> None:
    """A broken assemble or post hook is told without its words; the request lies in the dead letter queue."""

    async def broken(_: object, __: object = None) -> PromptRequest:
        raise KeyError("secret")

    async def broken_post(_: PromptAnswer) -> PromptAnswer:
        raise KeyError("secret")

    async with Pipeline(EchoWorker(), assemble=broken) as pipe:
        with pytest.raises(UpstreamError, match="assemble hook failed") as caught:
            await pipe.submit(PromptRequest("q", request_id="r"))
        assert isinstance(caught.value.__cause__, KeyError)
        (letter,) = pipe.dlq.drain()
        assert (letter.request_id, letter.reason, letter.detail) == ("r", "inference_failure", "assemble: KeyError")
        assert letter.body is not None
        assert PromptRequest.read(letter.body).input == "q"
    async with Pipeline(EchoWorker(), post=broken_post) as pipe:
        with pytest.raises(UpstreamError, match="post hook failed"):
            await pipe.submit(PromptRequest("q"))
        assert [letter.detail for letter in pipe.dlq.drain()] == ["post: KeyError"]
        assert not depths(pipe)


@on_virtual_time
async def test_a_hook_may_refuse() -> None:
    """An error of headrace's own kind passes through as it is: a filter can say that it is the caller's fault."""

    async def strict(prompt: PromptRequest, context: str | None) -> PromptRequest:
        raise InvalidRequest(invalid_request("Not here."))

    async with Pipeline(EchoWorker(), assemble=strict) as pipe:
        with pytest.raises(InvalidRequest, match="Not here"):
            await pipe.submit(PromptRequest("q"))
        assert len(pipe.dlq) == 0


@on_virtual_time
async def test_a_full_stage_sheds_at_once() -> None:
    """Each stage holds so many; one more is a dead letter that names the stage, and its caller is told."""
    gate = asyncio.Event()

    async def waits(prompt: PromptRequest) -> str | None:
        await gate.wait()
        return None

    async with Pipeline(EchoWorker(), retrieve=waits, queue_size=2000, max_concurrent=2000) as pipe:
        taken = [pipe.try_submit(PromptRequest(f"{n}", request_id=f"r{n}")) for n in range(520)]
        assert sum(submission.accepted for submission in taken) == 512
        assert depths(pipe) == {"input": 512}
        assert {letter.reason for letter in pipe.dlq.drain()} == {"backpressure:input"}
        await asyncio.sleep(0)
        assert depths(pipe) == {"retrieve": 512}
        with pytest.raises(QueueFull) as caught:
            await pipe.submit(PromptRequest("one more", request_id="late"))
        assert caught.value.fault.retry_after == 1.0
        assert [(letter.request_id, letter.reason) for letter in pipe.dlq.drain()] == [
            ("late", "backpressure:retrieve")
        ]
        gate.set()
        assert [(await submission).text for submission in taken[:512]] == [f"{n}" for n in range(512)]
        with pytest.raises(QueueFull):
            await taken[512]
        assert not depths(pipe)


@on_virtual_time
async def test_a_full_queue_sheds_what_was_prepared() -> None:
    """A request that comes out of retrieval and finds no room before the worker is shed there."""
    async with Pipeline(EchoWorker(delay=10), retrieve=library, max_concurrent=1, queue_size=1) as pipe:
        taken = [pipe.try_submit(PromptRequest(f"{n}")) for n in range(3)]
        await asyncio.sleep(1.5)
        assert depths(pipe) == {"inference": 1}
        assert [letter.reason for letter in pipe.dlq] == ["backpressure:inference"]
        (shed,) = (submission for submission in taken if submission.done)
        with pytest.raises(QueueFull):
            await shed


@on_virtual_time
async def test_streams_are_bounded() -> None:
    """So many streams may be open; leaving one makes room for another."""

    async def open_ended(prompt: PromptRequest) -> AsyncIterator[str]:
        yield "x"
        await asyncio.sleep(1000)

    async with Pipeline(open_ended, max_concurrent=2000, queue_size=2000) as pipe:
        streams = [pipe.stream(PromptRequest(f"{n}")) for n in range(512)]
        for stream in streams:
            await anext(stream)
        assert depths(pipe) == {"stream": 512}
        with pytest.raises(QueueFull):
            await anext(pipe.stream(PromptRequest("x", request_id="late")))
        assert [(letter.request_id, letter.reason) for letter in pipe.dlq.drain()] == [("late", "backpressure:stream")]
        await streams[0].aclose()
        streams[0] = pipe.stream(PromptRequest("x"))
        await anext(streams[0])
        for stream in streams:
            await stream.aclose()
        assert not depths(pipe)


HANGING: list[tuple[str, dict[str, Callable[..., Awaitable[object]]]]] = [
    ("assemble", {"assemble": forever}),
    ("post", {"post": forever}),
]


@pytest.mark.parametrize(("stage", "hooks"), HANGING)
def test_a_hanging_hook_is_ended(stage: str, hooks: dict[str, Callable[..., Awaitable[object]]]) -> None:
    """By its own limit, by the request's deadline, by its caller who leaves: the place is free again every time."""

    @on_virtual_time
    async def check() -> None:
        async with Pipeline(EchoWorker(), **hooks) as pipe:  # type: ignore[arg-type]
            with pytest.raises(UpstreamError, match=f"{stage} hook failed"):
                await pipe.submit(PromptRequest("q"))
            assert asyncio.get_running_loop().time() == pytest.approx(stages.HOOK_SECONDS)
            with pytest.raises(DeadlineExpired):
                await pipe.submit(PromptRequest("q", deadline_secs=5))
            assert asyncio.get_running_loop().time() == pytest.approx(stages.HOOK_SECONDS + 5)
            assert [letter.reason for letter in pipe.dlq.drain()] == ["inference_failure", "deadline_expired"]
            leaving = asyncio.create_task(pipe.submit(PromptRequest("q")))
            await asyncio.sleep(1)
            assert depths(pipe) == {stage: 1}
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            assert not depths(pipe)
            assert len(pipe.dlq) == 0

    check()


@on_virtual_time
async def test_a_deadline_counts_from_the_very_beginning() -> None:
    """What retrieval took is missing later: an expired request never reaches a worker."""
    async with Pipeline(EchoWorker(), retrieve=library) as pipe:
        with pytest.raises(DeadlineExpired):
            await pipe.submit(PromptRequest("q", deadline_secs=0.5))
        assert pipe.snapshot().totals.get("model_calls", 0) == 0
        assert [letter.reason for letter in pipe.dlq] == ["deadline_expired"]


@on_virtual_time
async def test_a_submission_given_up_before_it_began_holds_nothing() -> None:
    """A place in a stage is given back even if its task never took its first step."""
    async with Pipeline(EchoWorker(), retrieve=library) as pipe:
        submission = pipe.try_submit(PromptRequest("q"))
        assert depths(pipe) == {"input": 1}
        submission.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submission
        assert not depths(pipe)


@on_virtual_time
async def test_what_is_in_a_stage_when_the_pipeline_ends_is_kept() -> None:
    """Requests between two stages are told that it is over, and lie in the dead letter queue."""

    async def hangs(prompt: PromptRequest, context: str | None) -> PromptRequest:
        await asyncio.sleep(20)
        return prompt

    async with Pipeline(EchoWorker(), assemble=hangs, grace_seconds=5) as pipe:
        waiting = pipe.try_submit(PromptRequest("q", request_id="r"))
        own = asyncio.create_task(pipe.submit(PromptRequest("q", request_id="own")))
        await asyncio.sleep(1)
    with pytest.raises(Draining):
        await waiting
    with pytest.raises(Draining):
        await own
    assert [(letter.request_id, letter.reason) for letter in pipe.dlq] == [
        ("r", "shutting_down"),
        ("own", "shutting_down"),
    ]
    assert not depths(pipe)


def test_a_place_is_given_back_once() -> None:
    """Leaving twice does not make room for two."""
    stage = Stage("retrieve", 1)
    place = stage.enter()
    with pytest.raises(Unserved) as caught:
        stage.enter()
    assert (caught.value.ending, caught.value.reason) == (Ending.BACKPRESSURE, "backpressure:retrieve")
    place.leave()
    place.leave()
    assert stage.view == ("retrieve", 0, 1)


@on_virtual_time
async def test_stages_without_hooks_do_not_exist() -> None:
    """They hold nothing while requests run, and all stages can be seen in the order of a request's way."""
    async with Pipeline(EchoWorker(delay=1), max_concurrent=1) as pipe:
        submissions = [pipe.try_submit(PromptRequest(f"{n}")) for n in range(3)]
        assert depths(pipe) == {"inference": 2}
        await asyncio.gather(*submissions)
        assert [(stage.name, stage.capacity) for stage in pipe.stages] == [
            ("input", 512),
            ("retrieve", 512),
            ("assemble", 512),
            ("inference", 512),
            ("post", 1024),
            ("stream", 512),
        ]
