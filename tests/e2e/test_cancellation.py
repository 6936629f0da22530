"""Callers that leave, and the matrix: whatever way a request ends, nothing of it is left anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from headrace.model import BreakerState
from headrace.testing import Script, ScriptedConnection, ScriptedEngine, steps
from tests.e2e.client import chat
from tests.e2e.front import Front, front
from tests.e2e.raw import Headers, RawCaller, raw_caller
from tests.runtime.virtual import later, virtually

PATIENCE = 10_000.0
"""Virtual seconds; more than all timeouts together."""
SOON = 1.0
"""Seconds after which an engine must have been told that nobody listens any more."""
MANY = 4

STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
LEAVING = pytest.mark.parametrize("leave", [RawCaller.close, RawCaller.reset], ids=["FIN", "RST"])


def question(number: int, stream: bool) -> dict[str, object]:
    """Requests that differ, so that none shares a call with another."""
    return {**chat(f"question {number}"), "stream": stream}


@asynccontextmanager
async def callers(gate: Front, count: int) -> AsyncIterator[list[RawCaller]]:
    """So many connections to the gateway."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(raw_caller(gate.client.url)) for _ in range(count)]


async def nothing_is_left(gate: Front, *engines: ScriptedEngine) -> None:
    """Every count is zero, no exchange is open, and no engine works for nobody."""
    await gate.idle()
    assert gate.headrace.gateway.flights == 0
    for engine in engines:
        await _rests(engine)
    await later(SOON)
    assert gate.headrace.exchanges == 0


async def _rests(engine: ScriptedEngine) -> None:
    await engine.until(lambda: engine.answering == 0, SOON)


# ------------------------------------------------------------------------------------------------ callers that leave

SILENCES: dict[str, Script] = {
    "before the head": [steps.hang()],
    "after the head": [steps.head(200, (("content-type", "text/event-stream"),)), steps.hang()],
    "after the role": [steps.role(), steps.hang()],
}


@pytest.mark.parametrize("silence", SILENCES)
@STREAMED
@LEAVING
@virtually
async def test_a_caller_that_leaves_frees_its_engine(
    silence: str, stream: bool, leave: Callable[[RawCaller], None]
) -> None:
    """However long the engine thinks, it sees the close soon after the caller's; nobody else is asked or blamed."""
    first, second = (ScriptedEngine(SILENCES[silence], guard=PATIENCE) for _ in range(2))
    async with first, second, front(first, second) as gate, raw_caller(gate.client.url) as caller:
        caller.ask(question(1, stream))
        await first.got(1)
        await later(1.0)
        leave(caller)
        await first.until(lambda: first.closed_by_peer == 1, within=SOON)
        await nothing_is_left(gate, first, second)
        assert (len(first.requests), len(second.requests)) == (1, 0)
        view = gate.instance("a")
        assert (view.breaker, view.healthy, view.cooldown, view.reliability) == (BreakerState.CLOSED, True, 0.0, 1.0)
        assert gate.headrace.dead_letters.count == 0
        assert gate.totals["cancelled"] == 1
        assert not caller.pieces


@LEAVING
@virtually
async def test_a_caller_that_leaves_in_mid_stream(leave: Callable[[RawCaller], None]) -> None:
    """The engine is told soon, also when it sends nothing more that could fail to be written."""
    async with ScriptedEngine([steps.chunk("a"), steps.hang()], guard=PATIENCE) as engine, front(engine) as gate:
        async with raw_caller(gate.client.url) as caller:
            caller.ask(question(1, stream=True))
            await caller.sees(b'"a"')
            leave(caller)
            await engine.until(lambda: engine.closed_by_peer == 1, within=SOON)
        await nothing_is_left(gate, engine)
        assert gate.instance().reliability == 1.0


@STREAMED
@virtually
async def test_a_caller_that_leaves_between_two_attempts(stream: bool) -> None:
    """While it waits for the next try the caller leaves: there is no next try."""
    async with ScriptedEngine(steps.json(500, {})) as engine, front(engine) as gate:
        async with raw_caller(gate.client.url) as caller:
            caller.ask(question(1, stream))
            await gate.until(lambda: gate.headrace.snapshot().waiting_retry == 1, "it waits for another try")
            await later(1.0)
            caller.close()
            await nothing_is_left(gate, engine)
        await later(60.0)
        assert len(engine.requests) == 1
        assert gate.headrace.dead_letters.count == 0


@virtually
async def test_a_caller_that_leaves_the_queue() -> None:
    """Its place is free at once for another, it is never sent to an engine, and those behind it move up."""

    async def five_seconds(conn: ScriptedConnection) -> None:
        await later(5.0)
        await conn.answer("done")

    engine = ScriptedEngine(five_seconds, guard=PATIENCE)
    async with engine, front(engine, instances={"max_concurrent": 1}, scheduling={"queue_size": 3}) as gate:
        async with callers(gate, 5) as (first, second, third, fourth, fifth):
            for number, caller in enumerate((first, second, third, fourth), start=1):
                caller.ask(question(number, stream=False))
                await later(0.1)
                assert gate.headrace.gateway.alive == number
            await later(1.0)
            third.close()
            await gate.until(lambda: gate.headrace.snapshot().queued == 2, "its place is free", within=SOON)
            fifth.ask(question(5, stream=False))
            answers = [await caller.answer(PATIENCE) for caller in (first, second, fourth, fifth)]
        await nothing_is_left(gate, engine)
    assert [answer.status for answer in answers] == [200] * 4
    asked = [str(request.json()["messages"]) for request in engine.requests]
    assert [number for text in asked for number in range(1, 6) if f"question {number}" in text] == [1, 2, 4, 5]


@virtually
async def test_a_shared_call_lives_as_long_as_anybody_wants_it() -> None:
    """Of two callers of one call the first may leave unnoticed; when the second leaves, too, the engine is told."""
    async with ScriptedEngine([steps.chunk("a"), steps.hang()], guard=PATIENCE) as engine, front(engine) as gate:
        async with callers(gate, 2) as (first, second):
            for caller in (first, second):
                caller.ask(question(1, stream=True))
                await caller.sees(b'"a"')
            first.reset()
            await gate.until(lambda: gate.headrace.gateway.alive == 1, "one has left")
            await later(5.0)
            assert engine.closed_by_peer == 0
            second.close()
            await engine.until(lambda: engine.closed_by_peer == 1, within=SOON)
        await nothing_is_left(gate, engine)
        assert len(engine.requests) == 1


@virtually
async def test_a_caller_that_leaves_while_it_sends() -> None:
    """A body that never comes to its end reaches nobody, and its share of the bound on bodies is given back."""
    async with ScriptedEngine() as engine, front(engine, server={"bodies_limit_bytes": 3000}) as gate:
        for _ in range(5):
            async with raw_caller(gate.client.url) as caller:
                caller.send(
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n"
                    b"content-length: 2000\r\n\r\n{"
                )
                await later(0.1)
                caller.close()
                await later(0.1)
        async with raw_caller(gate.client.url) as caller:
            caller.ask({**question(1, stream=False), "user": "x" * 1500})
            assert (await caller.answer()).status == 200
        assert len(engine.requests) == 1


# ------------------------------------------------------------------------------------------------ the matrix


@dataclass(frozen=True, slots=True)
class Way:
    """One way to end."""

    first: Script
    """What the first instance does."""
    second: Script | None = None
    """What the second instance does, when it is not the same."""
    statuses: Sequence[int] = ()
    """What a caller that stays is answered: streamed, whole."""
    headers: Headers = ()
    leave: str = ""
    """The callers leave once all of them are there."""
    listens: bool = True


async def _half(conn: ScriptedConnection) -> None:
    if conn.request.streams:
        await conn.chunk("half")
    else:
        await conn.head(200, (("content-type", "application/json"), ("content-length", "1000")))
        await conn.send(b'{"choices":[')
    await conn.cut()


async def _good(conn: ScriptedConnection) -> None:
    await conn.answer("good")


WAYS: dict[str, Way] = {
    "answered": Way(_good, statuses=(200, 200)),
    "server error": Way(steps.json(500, {}), statuses=(502, 502)),
    "refused": Way(_good, statuses=(502, 502), listens=False),
    "no first token": Way(steps.hang(), statuses=(504, 504)),
    "silence in mid-stream": Way([steps.chunk("a"), steps.hang()], statuses=(200, 504)),
    "cut": Way(_half, statuses=(200, 502)),
    "cut before the head": Way(steps.cut(), statuses=(502, 502)),
    "reset": Way(steps.reset(), statuses=(502, 502)),
    "deadline": Way(steps.hang(), statuses=(504, 504), headers=(("x-headrace-deadline", "1"),)),
    "nonsense": Way(steps.whole(200, b"<html>"), statuses=(502, 502)),
    "error event": Way([steps.chunk("a"), steps.error(), steps.end()], statuses=(200, 502)),
    "rejected": Way(steps.json(400, {"error": {"message": "no"}}), statuses=(400, 400)),
    "key refused": Way(steps.json(401, {}), statuses=(502, 502)),
    "limited": Way(steps.json(429, {}, (("retry-after", "30"),)), statuses=(429, 429)),
    "failover": Way(steps.json(500, {}), second=_good, statuses=(200, 200)),
    "left before the head": Way(steps.hang(), leave="running"),
    "left in mid-stream": Way([steps.chunk("a"), steps.hang()], leave="running"),
    "left in the queue": Way(steps.hang(), leave="queued"),
    "left between attempts": Way(steps.json(500, {}), leave="waiting"),
}


@pytest.mark.parametrize("name", WAYS)
@STREAMED
@virtually
async def test_nothing_is_left_of_any_ending(name: str, stream: bool) -> None:
    """Twice as many requests as the caller may have at a time end in each way, and at the end every count is zero."""
    way = WAYS[name]
    first = ScriptedEngine(way.first, guard=PATIENCE)
    second = ScriptedEngine(way.second or way.first, guard=PATIENCE)
    async with first, second, front(first, second, **_sections(way)) as gate:
        for engine in (first, second):
            await _until_checked(engine)
            if not way.listens:
                await engine.stop_listening()
                engine.close_connections()
        for round_ in range(2):
            await _end(gate, way, stream, round_)
            await nothing_is_left(gate, first, second)
            await later(120.0)
        await _ids_are_free(gate, first, second)


def _sections(way: Way) -> dict[str, dict[str, object]]:
    return {
        "instances": {"max_concurrent": 1 if way.leave == "queued" else 2 * MANY, "window_tokens": None},
        "limits": {"per_user": {"concurrency": MANY}},
        "circuit_breaker": {"failure_threshold": 1000},
        "timeouts": {"first_token": 60, "attempt": 90, "idle": 60},
    }


async def _until_checked(engine: ScriptedEngine) -> None:
    await engine.until(lambda: bool(engine.probes))


async def _end(gate: Front, way: Way, stream: bool, round_: int) -> None:
    async with callers(gate, MANY) as waiting:
        for number, caller in enumerate(waiting):
            # Who waits long is told so, and with it goes the status; here the statuses are looked at.
            named = (("x-request-id", f"id-{number}"), ("x-headrace-keepalive", "off"))
            caller.ask(question(number, stream), (*way.headers, *named))
        if way.leave:
            await gate.until(lambda: _there(gate, way.leave), f"all are {way.leave}")
            for number, caller in enumerate(reversed(waiting)):
                (caller.reset if (number + round_) % 2 else caller.close)()
        else:
            answers = await asyncio.gather(*(caller.answer(PATIENCE) for caller in waiting))
            assert [answer.status for answer in answers] == [way.statuses[0 if stream else 1]] * MANY
            assert all(answer.complete for answer in answers)


def _there(gate: Front, where: str) -> bool:
    snapshot = gate.headrace.snapshot()
    if where == "running":
        return snapshot.running == MANY
    if where == "queued":
        return (snapshot.queued, snapshot.running) == (MANY - 2, 2)
    return snapshot.waiting_retry == MANY


async def _ids_are_free(gate: Front, *engines: ScriptedEngine) -> None:
    """Ids of the ended can be used again as they are, and so can all of the caller's places."""
    for engine in engines:
        engine.default = _good
        await _listening_again(engine)
    await later(600.0)
    async with callers(gate, MANY) as waiting:
        for number, caller in enumerate(waiting):
            caller.ask(question(number, stream=False), (("x-request-id", f"id-{number}"),))
        answers: Sequence[Awaitable[object]] = [caller.answer(PATIENCE) for caller in waiting]
        await asyncio.gather(*answers)
        heard = [caller.heard for caller in waiting]
    assert [answer.status for answer in heard if answer is not None] == [200] * MANY
    assert [answer.header("x-request-id") for answer in heard if answer] == [f"id-{number}" for number in range(MANY)]


async def _listening_again(engine: ScriptedEngine) -> None:
    await engine.stop_listening()
    await engine.listen()
