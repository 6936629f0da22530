"""headrace as a library: four users share three model calls, a fifth meets an outage, and nothing is lost.

    python examples/llm_pipeline.py

No server, no key, no network: the model is the coroutine below. Put your own in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headrace import HeadraceError, Pipeline, PromptAnswer, PromptRequest, WorkerError

QUESTIONS = {
    "What is backpressure?": "A full receiver slows its senders down.",
    "What is fair queueing?": "An equal share for all, whoever asks most.",
    "What is a dead letter?": "An unanswered request, with its reason.",
}


class Model:
    """A worker is anything with an `infer` that gives text: a coroutine, or an async generator to stream."""

    def __init__(self) -> None:
        self.calls = 0
        self.down = False

    async def infer(self, prompt: PromptRequest) -> str:
        """Think for 300 ms, unless the provider is down."""
        if self.down:
            # The status means what it means in HTTP: 5xx counts against this worker, 4xx does not.
            raise WorkerError(status=503)
        self.calls += 1
        await asyncio.sleep(0.3)
        return QUESTIONS[prompt.input]


async def ask(pipe: Pipeline, number: int, user: str, question: str) -> str:
    """One request, and one line about what became of it."""
    request = PromptRequest(question, request_id=f"req-{number:02}", user=user, session=user)
    try:
        answer = await pipe.submit(request)
    except HeadraceError as error:
        # The class says whose fault it was; `fault` has the status and when to come back.
        return f"  {request.request_id}  {user:6} {error.fault.status} {error.fault.code}"
    return f"  {answer.request_id}  {user:6} {how(answer):11} {answer.text}"


def how(answer: PromptAnswer) -> str:
    """Whether the model was called for this answer."""
    return {"miss": "model call", "joined": "shared", "hit": "from cache"}[answer.shared]


async def four_friends(pipe: Pipeline) -> None:
    """Twelve requests at once, but only three different ones: three model calls."""
    print("Four users ask the same three questions, all at once:")
    asked = [(user, question) for user in ("alice", "bob", "carol", "dave") for question in QUESTIONS]
    requests = (ask(pipe, number, user, question) for number, (user, question) in enumerate(asked, 1))
    print("\n".join(await asyncio.gather(*requests)))


async def outage(pipe: Pipeline, model: Model) -> None:
    """Eight requests to a model that is down: five fail, the breaker opens, three are refused at once."""
    print("\nThe provider goes down; erin asks eight times, 15 ms apart:")
    model.down = True
    tasks: list[asyncio.Task[str]] = []
    for number in range(13, 21):
        tasks.append(asyncio.create_task(ask(pipe, number, "erin", f"Are you there? ({number})")))
        await asyncio.sleep(0.015)
    print("\n".join(await asyncio.gather(*tasks)))


def totals(pipe: Pipeline, model: Model) -> str:
    """What the pipeline counted."""
    snapshot = pipe.snapshot()
    counted = snapshot.totals
    shared = counted["joined"] + counted.get("hits", 0)
    return (
        f"{counted['accepted'] + counted['refused']} requests, {model.calls} model calls, {shared} shared, "
        f"{counted['answered']} answered, {counted['failed']} failed, {counted['refused']} refused; "
        f"breaker {snapshot.instances[0].breaker}"
    )


async def streaming() -> None:
    """The same with an async generator: the text comes as it is made, and leaving the loop stops the model."""

    async def slow_poet(prompt: PromptRequest) -> AsyncIterator[str]:
        for word in f"You said: {prompt.input}".split():
            yield f"{word} "
            await asyncio.sleep(0.02)

    async with Pipeline(slow_poet) as pipe:
        print("\nStreamed: ", end="")
        async for piece in pipe.stream(PromptRequest("roses are red")):
            print(piece, end="", flush=True)
        print()


async def main() -> None:
    """The whole story."""
    model = Model()
    async with Pipeline(
        model,
        dedup="in_flight",  # identical requests share a call that is under way; "full" also remembers answers
        retries=0,  # with several workers the default of 2 tries the others
        breaker_threshold=5,
        cooldown_seconds=0,  # do not leave the model alone after a single failure
    ) as pipe:
        await four_friends(pipe)
        await outage(pipe, model)
        print(f"\nTotals: {totals(pipe, model)}")
        print("\nDead letters, each with its request, ready to be sent again:")
        for letter in pipe.dlq.drain():
            question = PromptRequest.read(letter.body).input if letter.body else ""
            print(f"  {letter.request_id}  {letter.user:6} {letter.reason:18} {question}")
    await streaming()


if __name__ == "__main__":
    asyncio.run(main())
