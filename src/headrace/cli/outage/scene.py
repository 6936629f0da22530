"""What happens in the demo: twelve requests that need three model calls, then eight in an outage.

Nothing here is told in advance: the pipeline decides, and every number is counted from what it did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace import HeadraceError, Pipeline, PromptAnswer, PromptRequest
from headrace.cli.outage.switch import Outage
from headrace.cli.outage.trace import Trace
from headrace.model import BreakerState
from headrace.runtime.stores import StoredLetter
from headrace.runtime.worker_set import AnyWorker

MODEL_SECONDS = 0.3
"""How long the mock model thinks."""
APART_SECONDS = 0.015
"""Between two requests of the one who does not give up."""
RECOVERY_SECONDS = 60.0

ANSWERS = {
    "In one sentence, what is backpressure?": "A full receiver slows its senders down.",
    "In one sentence, what is fair queueing?": "An equal share for all, whoever asks most.",
    "In one sentence, what is a dead letter?": "An unanswered request, with its reason.",
}
QUESTIONS = tuple(ANSWERS)
FRIENDS = ("alice", "bob", "carol", "dave")
PERSISTENT = "erin"


class MockModel:
    """Answers after 300 ms, like a model would."""

    async def infer(self, prompt: PromptRequest, /) -> str:
        """A short text."""
        await asyncio.sleep(MODEL_SECONDS)
        return ANSWERS.get(prompt.input, prompt.input)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and what came of it."""

    id: str
    user: str
    question: str
    took: float
    """Seconds from asking to the end."""
    answer: PromptAnswer | None = None
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """All that happened."""

    answered: tuple[Turn, ...]
    """The first twelve."""
    outage: tuple[Turn, ...]
    """The last eight."""
    letters: tuple[StoredLetter, ...]
    breaker: BreakerState
    opens_in: float
    """Seconds until the breaker lets one through."""
    totals: dict[str, int | str]
    """The figures of the last line; see `_totals`."""
    seconds: dict[str, float]
    trace: Trace = field(repr=False)


async def play(
    model: AnyWorker, apart: float = APART_SECONDS, on_answers: Callable[[tuple[Turn, ...]], None] | None = None
) -> Story:
    """Play both acts on a pipeline of its own; `on_answers` is shown the first when it is over."""
    provider = Outage(model)
    pipe = Pipeline(
        {"provider": provider},
        retries=0,
        dedup="in_flight",
        breaker_threshold=5,
        recovery_timeout=RECOVERY_SECONDS,
        cooldown_seconds=0.0,
    )
    async with pipe:
        trace = Trace(_now, pipe)
        pipe.on(trace)
        provider.watch(trace)
        begun = _now()
        answered = await _first_act(pipe)
        between = _now()
        if on_answers is not None:
            on_answers(answered)
        provider.down = True
        outage = await _second_act(pipe, apart)
        ended = _now()
        view = pipe.snapshot().instances[0]
        totals = _totals(pipe, provider, view.breaker)
        seconds = {"answers": between - begun, "outage": ended - between, "total": ended - begun}
        return Story(answered, outage, pipe.dlq.drain(), view.breaker, view.breaker_opens_in, totals, seconds, trace)


async def _first_act(pipe: Pipeline) -> tuple[Turn, ...]:
    """Everybody asks everything at once: req-01 to req-12."""
    asked = [(user, question) for user in FRIENDS for question in QUESTIONS]
    turns = (_ask(pipe, f"req-{number:02}", user, question) for number, (user, question) in enumerate(asked, 1))
    return tuple(await asyncio.gather(*turns))


async def _second_act(pipe: Pipeline, apart: float) -> tuple[Turn, ...]:
    """One asks eight times, whatever the answers are: req-13 to req-20."""
    pending: list[asyncio.Task[Turn]] = []
    for number in range(13, 21):
        if pending:
            await asyncio.sleep(apart)
        question = f"Are you there? (attempt {number - 12})"
        pending.append(asyncio.create_task(_ask(pipe, f"req-{number}", PERSISTENT, question)))
    return tuple(await asyncio.gather(*pending))


def _totals(pipe: Pipeline, provider: Outage, breaker: BreakerState) -> dict[str, int | str]:
    counted = pipe.snapshot().totals
    return {
        "requests": counted.get("accepted", 0) + counted.get("refused", 0),
        "model_calls": provider.passed,
        "shared": counted.get("joined", 0) + counted.get("hits", 0),
        "answered": counted.get("answered", 0),
        "failed": counted.get("failed", 0),
        "refused": counted.get("refused", 0),
        "dead_letters": len(pipe.dlq),
        "breaker": breaker.value,
    }


async def _ask(pipe: Pipeline, name: str, user: str, question: str) -> Turn:
    begun = _now()
    try:
        answer = await pipe.submit(PromptRequest(question, request_id=name, user=user, session=user))
    except HeadraceError as error:
        return Turn(name, user, question, _now() - begun, error=error)
    return Turn(name, user, question, _now() - begun, answer=answer)


def _now() -> float:
    return asyncio.get_running_loop().time()
