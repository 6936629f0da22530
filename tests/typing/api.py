"""The library as a program with strict types uses it: checked by mypy and pyright, never run.

What is written here must stay valid; a type that gets worse, or a name that goes, fails `make lint`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import assert_type

from headrace import (
    CallerError,
    CapacityError,
    CircuitBreaker,
    CircuitOpen,
    DeadlineExpired,
    Deduplicator,
    EchoWorker,
    HeadraceError,
    LimitExceeded,
    LimitRule,
    LimitSettings,
    LoadBalancedWorker,
    OpenAIWorker,
    Pipeline,
    PromptAnswer,
    PromptRequest,
    QueueFull,
    RateLimiter,
    RetryPolicy,
    ServiceClass,
    Submission,
    Timeouts,
    UpstreamError,
    Worker,
    WorkerError,
)


class Whole:
    """A worker that answers later, as a whole."""

    async def infer(self, prompt: PromptRequest, /) -> str:
        if not prompt.input:
            raise WorkerError("Ask something.", status=400)
        return prompt.input


class Pieces:
    """A worker that answers piece by piece."""

    async def infer(self, prompt: PromptRequest, /) -> AsyncIterator[str]:
        for word in prompt.input.split():
            yield word


async def function(prompt: PromptRequest) -> str:
    """A worker that is a function."""
    return prompt.input


async def retrieve(prompt: PromptRequest) -> str | None:
    """A hook that finds context."""
    return prompt.metadata.get("topic")


async def assemble(prompt: PromptRequest, context: str | None) -> PromptRequest:
    """A hook that makes the prompt."""
    return prompt if context is None else PromptRequest(f"{context} {prompt.input}")


async def post(answer: PromptAnswer) -> PromptAnswer:
    """A hook that works on answers."""
    return answer


def pipelines() -> Sequence[Pipeline]:
    """One worker, several, several by name; all kinds of them; every option that takes more than a number."""
    whole: Worker = Whole()
    pieces: Worker = Pieces()
    return (
        Pipeline(EchoWorker(delay=0.1)),
        Pipeline([whole, pieces, function], policy="round_robin", strategy="two_choices"),
        Pipeline({"gpu-1": OpenAIWorker("http://gpu-1:8000", model="m"), "spare": function}, dedup="full"),
        Pipeline(
            LoadBalancedWorker([whole, function]),
            retrieve=retrieve,
            assemble=assemble,
            post=post,
            weights={"alice": 2.0},
            limits=LimitSettings(per_user=LimitRule(requests_per_minute=60, concurrency=4)),
            timeouts=Timeouts(attempt=30.0),
        ),
    )


async def asking(pipe: Pipeline) -> None:
    """Waiting, streaming, and not waiting."""
    request = PromptRequest("q", user="alice", service_class=ServiceClass.INTERACTIVE, deadline_secs=5.0)
    async with pipe:
        assert_type(await pipe.submit(request), PromptAnswer)
        assert_type(pipe.stream(request), AsyncGenerator[str, None])
        submission = pipe.try_submit(request)
        assert_type(submission, Submission)
        assert_type(await submission, PromptAnswer)
        assert_type([letter.reason for letter in pipe.dlq.drain()], list[str])


async def failing(pipe: Pipeline) -> int:
    """Whose fault it was, from the narrow to the wide."""
    try:
        await pipe.submit(PromptRequest("q"))
    except (LimitExceeded, QueueFull, CircuitOpen) as error:
        return error.fault.retry_after_seconds or 0
    except (CallerError, CapacityError, UpstreamError, DeadlineExpired) as error:
        return error.fault.status
    except HeadraceError as error:
        assert_type(error.fault.code, str | None)
    return 0


async def measure(text: str, times: int = 1) -> list[int]:
    """Something to wrap that has nothing to do with prompts."""
    return [len(text)] * times


async def wrapping() -> None:
    """Wrappers keep the arguments and the result of what they wrap, also when put into each other."""
    guarded = RetryPolicy(CircuitBreaker(RateLimiter(Deduplicator(measure), concurrency=2)))
    assert_type(await guarded("abc", times=2), list[int])
    async with LoadBalancedWorker([function]) as several:
        assert_type(await several(PromptRequest("q")), str)
