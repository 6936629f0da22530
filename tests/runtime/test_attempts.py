"""One attempt at an engine over HTTP: what its port hears, in which order, and that it hears nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from headrace.errors import InvalidRequest
from headrace.model import AnswerForm, Cause, Dispatch, Engine, Flow, Instance, Outcome, OutcomeKind, Request
from headrace.runtime.attempts import HttpBackend
from headrace.runtime.backend import Running, Timeouts
from headrace.runtime.upstream import Upstream
from headrace.testing import Changes, Script, ScriptedEngine, steps
from headrace.wire.frames import Frame
from headrace.wire.openai import parse
from tests.runtime.shortage import none_left
from tests.runtime.virtual import later, virtually

CHAT: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
KEY = "Zk7Qx9Wv2Lp4Tn8R"


@dataclass
class Notes:
    """A port that writes down what it hears."""

    heard: list[str] = field(default_factory=list)
    body: bytes = b""
    tokens: int = 0
    outcome: Outcome | None = None
    on_feed: Callable[[], None] | None = None
    changes: Changes = field(default_factory=Changes)

    def started(self) -> None:
        self._note("started")

    def feed(self, frame: Frame) -> None:
        self.body += frame.data
        self._note("feed")
        if self.on_feed is not None:
            self.on_feed()

    def progressed(self, tokens: int) -> None:
        self.tokens += tokens
        self._note("progressed")

    def finished(self, outcome: Outcome) -> None:
        assert self.outcome is None, "an attempt ends once"
        self.outcome = outcome
        self._note("finished")

    def _note(self, what: str) -> None:
        self.heard.append(what)
        self.changes.notify()

    async def end(self) -> Outcome:
        """Wait for the outcome."""
        await self.changes.until(lambda: self.outcome is not None, 10_000.0, "the attempt ends")
        assert self.outcome is not None
        return self.outcome


@dataclass
class Place:
    """An engine, and the backend that asks it."""

    engine: ScriptedEngine
    upstream: Upstream
    backend: HttpBackend

    def start(
        self, notes: Notes, stream: bool = True, kind: Engine = Engine.OPENAI, payload: object = None, **fields: object
    ) -> Running:
        """One attempt."""
        call = payload or parse("chat", json.dumps({**CHAT, "stream": stream, **fields}).encode())
        form = AnswerForm.STREAM if stream else AnswerForm.WHOLE
        request = Request(id="r", flow=Flow(), model="m", form=form, payload=call)
        instance = Instance(id="a", address=self.engine.url, engine=kind)
        return self.backend.start(Dispatch("call-1", 1, instance, "m", request, 0.0), notes)


@asynccontextmanager
async def asking(script: Script, **limits: float) -> AsyncIterator[Place]:
    """An engine that plays `script`, and a backend with its key and these timeouts."""
    upstream = Upstream()
    async with ScriptedEngine(script, guard=10_000.0) as engine:
        try:
            yield Place(engine, upstream, HttpBackend(upstream, {"a": KEY}, Timeouts(**limits), lambda: 1_000_000.0))
        finally:
            await upstream.close()
    assert upstream.running == 0


@virtually
async def test_a_stream_is_told_in_order() -> None:
    """Started once, before the first frame; the outcome once, after the last."""
    async with asking(steps.answer("a b c", tokens=(3, 3))) as place:
        notes = Notes()
        place.start(notes)
        outcome = await notes.end()
    told = [what for what in notes.heard if what != "progressed"]
    assert (told[0], told[-1]) == ("started", "finished")
    assert set(told[1:-1]) == {"feed"}
    assert notes.body.endswith(b"data: [DONE]\n\n")
    assert (outcome.cause, outcome.committed) == (Cause.OK, True)
    assert outcome.usage is not None
    assert (outcome.usage.prompt, outcome.usage.completion) == (3, 3)


@virtually
async def test_a_whole_answer_is_one_frame() -> None:
    """The body as it came, in one piece."""
    async with asking(steps.answer("all of it")) as place:
        notes = Notes()
        place.start(notes, stream=False)
        assert (await notes.end()).cause is Cause.OK
        assert place.engine.requests[0].header("authorization") == f"Bearer {KEY}"
    assert notes.heard == ["started", "feed", "finished"]
    assert json.loads(notes.body)["choices"][0]["message"]["content"] == "all of it"


@virtually
async def test_progress_is_told_now_and_then() -> None:
    """Every 32 tokens, not for each; together never more than there were."""
    async with asking([*(steps.chunk("x") for _ in range(100)), steps.finish(), steps.done(), steps.end()]) as place:
        notes = Notes()
        place.start(notes)
        await notes.end()
    assert notes.heard.count("progressed") == 3
    assert notes.tokens == 96


@virtually
async def test_progress_of_a_slow_stream_is_told_while_it_is_slow() -> None:
    """A token each 100 ms is told four times a second: a limit on how slow tokens may be has to hear of them."""
    pause = steps.wait(lambda: later(0.1))
    async with asking([step for _ in range(11) for step in (steps.chunk("x"), pause)] + [steps.hang()]) as place:
        notes = Notes()
        running = place.start(notes)
        await notes.changes.until(lambda: notes.tokens == 10, 1.05, "ten of them are told")
        running.abort()
    assert notes.heard.count("progressed") == 3


@virtually
async def test_progress_is_told_of_a_stream_that_stops() -> None:
    """The tokens before a silence are told at the latest when silence is looked for."""
    async with asking([steps.chunk("x"), steps.chunk("y"), steps.hang()], idle=60.0) as place:
        notes = Notes()
        running = place.start(notes)
        await notes.changes.until(lambda: notes.tokens == 2, 8.0, "both are told")
        running.abort()


@pytest.mark.parametrize(
    ("script", "stream", "cause", "status"),
    [
        (steps.json(429, {}, (("retry-after", "7"),)), True, Cause.RATE_LIMITED, 429),
        (steps.json(400, {"error": {"message": "no"}}), True, Cause.REJECTED, 400),
        (steps.json(500, {}), False, Cause.SERVER_ERROR, 500),
        ([steps.head(429, (("retry-after", "7"),)), steps.send(b"{"), steps.cut()], True, Cause.RATE_LIMITED, 429),
        ([steps.head(500), steps.send(b"x"), steps.reset()], False, Cause.SERVER_ERROR, 500),
        ([steps.head(200), steps.send(b'{"a"'), steps.cut()], False, Cause.BROKEN_STREAM, 200),
        ([steps.role(), steps.cut()], True, Cause.BROKEN_STREAM, 200),
        (steps.cut(), True, Cause.BROKEN_STREAM, None),
        (steps.whole(200, b"<html>"), True, Cause.BROKEN_STREAM, 200),
        (steps.whole(200, b"<html>"), False, Cause.PROTOCOL, 200),
        (steps.whole(204, b""), False, Cause.PROTOCOL, 204),
        (steps.whole(302, b"", (("location", "/"),)), True, Cause.PROTOCOL, 302),
        ([steps.error("boom"), steps.end()], True, Cause.SERVER_ERROR, 200),
    ],
    ids=lambda value: str(value) if isinstance(value, Cause | bool | int) else "",
)
@virtually
async def test_a_failure_before_content_is_not_committed(
    script: Script, stream: bool, cause: Cause, status: int | None
) -> None:
    """Its cause and status are told, nothing is fed, and so the caller may be served by another instance."""
    async with asking(script) as place:
        notes = Notes()
        place.start(notes, stream)
        outcome = await notes.end()
    assert notes.heard == ["finished"]
    assert (outcome.cause, outcome.status, outcome.committed) == (cause, status, False)
    assert outcome.retry_after == (7.0 if cause is Cause.RATE_LIMITED else None)


@virtually
async def test_nobody_listens() -> None:
    """A refused connection is CONNECT, with nothing of the address in its detail."""
    async with asking(steps.cut()) as place:
        await place.engine.stop_listening()
        notes = Notes()
        place.start(notes)
        outcome = await notes.end()
    assert outcome.cause is Cause.CONNECT
    assert "127.0.0.1" not in outcome.detail


@virtually
async def test_what_an_engine_cannot_do_is_refused_at_once() -> None:
    """Raised by `start`, without a connection: the caller learns which field it is."""
    async with asking(steps.cut()) as place:
        notes = Notes()
        with pytest.raises(InvalidRequest) as caught:
            place.start(notes, kind=Engine.OLLAMA, logprobs=True)
        assert caught.value.fault.param == "logprobs"
        assert notes.heard == []
        assert place.engine.connections == 0


@virtually
async def test_a_payload_of_another_kind_is_a_mistake() -> None:
    """An HTTP engine takes OpenAI calls; anything else is refused loudly, not sent."""
    async with asking(steps.cut()) as place:
        with pytest.raises(TypeError):
            place.start(Notes(), payload=b"bytes")


@pytest.mark.parametrize("moment", ["at once", "before the head", "in mid-stream", "in a feed", "after the end"])
@virtually
async def test_nothing_is_heard_after_an_abort(moment: str) -> None:
    """Broken off at any moment, twice, from within a feed: the port hears nothing more, and the engine is left."""
    script = steps.hang() if moment in {"at once", "before the head"} else [steps.chunk("a"), steps.chunk("b")]
    async with asking([*([script] if callable(script) else script), steps.hang()]) as place:
        notes = Notes()
        running = place.start(notes)
        if moment == "in a feed":
            notes.on_feed = running.abort
        if moment == "before the head":
            await place.engine.got(1)
        if moment in {"in mid-stream", "after the end"}:
            await notes.changes.until(lambda: b'"b"' in notes.body, 10.0, "both words")
        elif moment == "in a feed":
            await notes.changes.until(lambda: bool(notes.body), 10.0, "a word")
        if moment == "after the end":
            place.engine.close_connections()
            await notes.end()
        heard = list(notes.heard)
        running.abort()
        running.abort()
        running.pause()
        running.resume()
        await later(1000.0)
        assert notes.heard == heard
        assert place.engine.open_connections == 0
        assert place.upstream.running == 0
    if moment == "in a feed":
        assert notes.heard == ["started", "feed"]


@virtually
async def test_a_finished_stream_is_not_waited_for() -> None:
    """The end is told at `[DONE]`; an engine that keeps the body open is closed a second later, unheard."""
    async with asking([steps.chunk("a"), steps.done(), steps.hang()]) as place:
        notes = Notes()
        place.start(notes)
        assert (await notes.end()).cause is Cause.OK
        assert asyncio.get_running_loop().time() == 0.0
        await place.engine.until(lambda: place.engine.closed_by_peer == 1, within=1.1)


@virtually
async def test_a_paused_end_frees_its_connection() -> None:
    """A reader that cannot take more does not keep a finished stream's connection from being used again."""
    async with asking([steps.chunk("a"), steps.done(), steps.end()]) as place:
        notes = Notes()
        running = place.start(notes)
        notes.on_feed = running.pause
        await notes.end()
        await place.engine.until(lambda: place.engine.answering == 0)
        again = Notes()
        place.start(again)
        await again.end()
        assert place.engine.connections == 1


@virtually
async def test_a_timeout_says_what_was_used() -> None:
    """Cut off by the idle time, the tokens so far are still accounted, marked as an estimate."""
    async with asking([steps.chunk("a"), steps.chunk("b"), steps.hang()], idle=10.0) as place:
        notes = Notes()
        place.start(notes)
        outcome = await notes.end()
    assert (outcome.cause, outcome.committed) == (Cause.TIMEOUT, True)
    assert outcome.usage is not None
    assert (outcome.usage.completion, outcome.usage.estimated) == (2, True)


@virtually
async def test_each_attempt_has_limits_of_its_own() -> None:
    """One watch looks at all of them; each is given up exactly when its own time is over, streams and whole answers."""
    async with asking(steps.hang(), first_token=5.0, attempt=7.0, idle=60.0) as place:
        early, late, whole = Notes(), Notes(), Notes()
        place.start(early)
        await later(3.0)
        place.start(late)
        place.start(whole, stream=False)
        for notes, due in ((early, 5.0), (late, 8.0), (whole, 10.0)):
            assert (await notes.end()).cause is Cause.TIMEOUT
            assert asyncio.get_running_loop().time() == pytest.approx(due, abs=0.01)
        assert not place.backend.running


@virtually
async def test_every_read_is_a_sign_of_life() -> None:
    """Heads and pieces of answers are counted for the instance, so that a busy one is not taken for dead."""
    async with asking(steps.answer("a b")) as place:
        notes = Notes()
        place.start(notes)
        await notes.end()
        assert place.backend.pulses["a"].reads >= 2


async def test_without_a_socket_for_it_an_attempt_says_nothing_of_the_instance() -> None:
    """A gateway that has run out of descriptors blames no engine and tries no other: the caller hears 503, and when."""
    async with asking(steps.answer("x")) as place:
        notes = Notes()
        with none_left():
            place.start(notes)
            outcome = await notes.end()
    assert (outcome.cause, outcome.kind) == (Cause.ABORTED, OutcomeKind.NEUTRAL)
    assert outcome.detail == "no socket to connect with (EMFILE)"
    assert outcome.fault is not None
    assert (outcome.fault.status, outcome.fault.retry_after) == (503, 1.0)
    assert notes.heard == ["finished"]
