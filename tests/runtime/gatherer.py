"""A port and a dispatch for tests of backends."""

from __future__ import annotations

from headrace.model import AnswerForm, Dispatch, Engine, Flow, Instance, Outcome, Request
from headrace.runtime.backend import Timeouts
from headrace.runtime.prompts import PromptRequest
from headrace.runtime.workers import WorkerBackend, WorkerLike
from headrace.testing import Changes
from headrace.wire.frames import Frame
from headrace.wire.openai import OpenAICall

WORKER = Instance(id="w", engine=Engine.WORKER)


class Gatherer:
    """A port that writes down what it is told."""

    def __init__(self) -> None:
        self.begun = 0
        self.frames: list[Frame] = []
        self.tokens = 0
        self.outcomes: list[Outcome] = []
        self.changes = Changes()

    def started(self) -> None:
        assert not self.frames, "the beginning comes first"
        self.begun += 1

    def feed(self, frame: Frame) -> None:
        assert self.begun == 1, "nothing comes before the beginning"
        assert not self.outcomes, "nothing comes after the end"
        self.frames.append(frame)
        self.changes.notify()

    def progressed(self, tokens: int) -> None:
        self.tokens += tokens

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.changes.notify()

    @property
    def text(self) -> str:
        return b"".join(frame.data for frame in self.frames).decode()

    @property
    def outcome(self) -> Outcome:
        (outcome,) = self.outcomes
        return outcome

    async def ended(self) -> Outcome:
        """The outcome, as soon as there is one."""
        await self.changes.until(lambda: bool(self.outcomes), None, "an outcome")
        return self.outcome

    async def pieces(self, count: int) -> None:
        """Returns when that many frames are here."""
        await self.changes.until(lambda: len(self.frames) >= count, None, f"{count} frames")


def asked(payload: PromptRequest | OpenAICall, form: AnswerForm = AnswerForm.STREAM) -> Dispatch:
    """An order to ask worker `w`."""
    request = Request(id="r1", flow=Flow(), model="m", prompt_tokens=3, form=form, payload=payload)
    return Dispatch("call-1", 1, WORKER, "m", request, 0.0)


def begin(worker: WorkerLike, timeouts: Timeouts | None = None) -> tuple[WorkerBackend, Gatherer]:
    """A backend and a port for one attempt."""
    return WorkerBackend(worker, timeouts, wall=lambda: 1_700_000_000.5), Gatherer()
