"""Waiting in the open: over real sockets, a stream that waits long is told its place until its first word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import openai

from headrace.cli.talk import Gateway, Message
from headrace.testing import Changes, ScriptedConnection, ScriptedEngine, guarded, steps
from headrace.testing.connection import Step
from headrace.wire.queue_notes import read_queued_note
from tests.e2e.client import chat, next_event
from tests.e2e.front import Front, front
from tests.patience import GUARD
from tests.runtime.virtual import later, virtually

LONG = 10_000.0
"""Virtual seconds; more than all timeouts together."""
ONE_AT_A_TIME = {"max_concurrent": 1}
HELLO: list[Message] = [{"role": "user", "content": "hello"}]


def held(gate: asyncio.Event, *answer: Step) -> list[Step]:
    """An engine that says nothing before the gate opens."""

    async def wait(_conn: ScriptedConnection) -> None:
        await guarded(gate.wait(), LONG, "the gate opens")

    return [wait, *(answer or (steps.role(), steps.chunk("done"), steps.finish(), steps.done(), steps.end()))]


async def queued(gate: Front, count: int) -> None:
    """So many wait in the queue."""
    await gate.until(lambda: gate.headrace.snapshot().queued == count, f"{count} wait")


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of a body without their ends; blank ones are left out."""
    async for line in response.content:
        if line := line.rstrip(b"\n"):
            yield line


async def cancel(gate: Front, request_id: str, user: str) -> int:
    """The status of an attempt to cancel a request by its id."""
    url, headers = f"{gate.client.url}/v1/queue/{request_id}", {"x-headrace-user": user}
    async with aiohttp.ClientSession() as session, session.delete(url, headers=headers) as response:
        await response.read()
        return response.status


@virtually
async def test_places_are_told_until_the_first_word() -> None:
    """Every five seconds from the fifth on; the place goes down as others are served; then headers, then the answer."""
    release = asyncio.Event()
    async with ScriptedEngine(guard=LONG) as engine, front(engine, instances=ONE_AT_A_TIME) as gate:
        engine.once(held(release))
        engine.default = held(release)
        clock = asyncio.get_running_loop()
        ahead = [asyncio.create_task(gate.client.ask(chat(f"a{number}", stream=True))) for number in range(2)]
        await queued(gate, 1)
        began = clock.time()
        async with gate.client.open(chat(stream=True), {"x-headrace-user": "ann"}) as response:
            assert 5.0 <= clock.time() - began < 5.5
            assert (response.status, response.headers["x-headrace-queue-position"]) == (200, "2")
            told = lines(response)
            for number in range(3):
                note = read_queued_note((await anext(told)).removeprefix(b":"))
                assert note is not None
                assert note[0] == 2
                assert number * 5.0 + 5.0 <= clock.time() - began < number * 5.0 + 5.5
            release.set()
            rest = [line async for line in told]
        assert b": x-headrace-instance: a" in rest
        assert int(next(line for line in rest if b"queue-ms" in line).rpartition(b" ")[2]) >= 15_000
        assert rest[-1] == b"data: [DONE]"
        await asyncio.gather(*ahead)
        await gate.idle()


@virtually
async def test_a_stream_that_ran_out_of_time_says_so_in_its_body() -> None:
    """One error event, no `[DONE]`; who did not want to be told gets the status instead; both are dead letters."""
    never = asyncio.Event()
    async with (
        ScriptedEngine(held(never), guard=LONG) as engine,
        front(engine, instances=ONE_AT_A_TIME, timeouts={"queue": 30, "first_token": 600}) as gate,
    ):
        blocker = asyncio.create_task(gate.client.ask(chat("first", stream=True)))
        await gate.until(lambda: gate.instance().in_flight == 1, "the engine works")
        told = asyncio.create_task(gate.client.ask(chat("told", stream=True)))
        off = {"x-headrace-keepalive": "off"}
        silent = asyncio.create_task(gate.client.ask(chat("silent", stream=True), off))
        heard, refused = await told, await silent
        assert (heard.status, heard.error["code"], heard.done) == (200, "queue_timeout", False)
        assert heard.body.count(b": queued position=1 expected_start=") in (5, 6)  # one may be due as its time ends
        assert (refused.status, refused.error["code"]) == (503, "queue_timeout")
        assert refused.headers["x-headrace-drop-reason"] == "queue_timeout"
        assert int(refused.headers["retry-after"]) >= 1
        assert gate.headrace.dead_letters.count == 2
        never.set()
        await blocker
        await gate.idle()


@virtually
async def test_a_retry_behind_the_scenes_stays_unseen() -> None:
    """A stream that was told its place is still answered after an attempt that failed."""
    release = asyncio.Event()
    async with ScriptedEngine(guard=LONG) as engine, front(engine, instances=ONE_AT_A_TIME) as gate:
        engine.once(held(release), [steps.role(), steps.reset()])
        blocker = asyncio.create_task(gate.client.ask(chat("first", stream=True)))
        await gate.until(lambda: gate.instance().in_flight == 1, "the engine works")
        waiting = asyncio.create_task(gate.client.ask(chat("second", stream=True)))
        await queued(gate, 1)
        await later(7.0)
        release.set()
        answer = await waiting
        assert answer.done
        assert b": x-headrace-attempts: 2\n" in answer.body
        await blocker
        await gate.idle()


@virtually
async def test_leaving_and_cancelling_free_the_place() -> None:
    """By going away, or by the request's id; whether it waits, was told so, or is being answered."""
    never = asyncio.Event()
    talking = [steps.role(), steps.chunk("half"), steps.hang()]
    async with ScriptedEngine(talking, guard=LONG) as engine, front(engine, instances=ONE_AT_A_TIME) as gate:
        async with gate.client.open(chat("1", stream=True), {"x-request-id": "runs"}) as running:
            assert b"role" in await next_event(running)
            assert b"half" in await next_event(running)
            whole = asyncio.create_task(gate.client.ask(chat("2"), {"x-request-id": "waits"}))
            told = asyncio.create_task(gate.client.ask(chat("3", stream=True), {"x-request-id": "told"}))
            leaving = asyncio.create_task(gate.client.ask(chat("4", stream=True), {"x-request-id": "leaves"}))
            await queued(gate, 3)
            await later(6.0)
            leaving.cancel()
            await queued(gate, 2)
            for name in ("waits", "told", "runs"):
                assert [await cancel(gate, name, user) for user in ("eve", "", "")] == [404, 200, 404]
            assert ((await whole).status, (await whole).error["code"]) == (499, "cancelled")
            assert ((await told).status, (await told).error["code"]) == (200, "cancelled")
            assert json.loads(await next_event(running))["error"]["code"] == "cancelled"
            assert await next_event(running) == b""
        await gate.idle()
        assert gate.totals["cancelled"] == 4
        await engine.until(lambda: engine.closed_by_peer >= 1)
        never.set()


@virtually
async def test_the_official_client_does_not_mind() -> None:
    """Comments before the first chunk are none of its business: text and end are as ever."""
    release = asyncio.Event()
    async with ScriptedEngine(guard=LONG) as engine, front(engine, instances=ONE_AT_A_TIME) as gate:
        engine.once(held(release))
        blocker = asyncio.create_task(gate.client.ask(chat("first", stream=True)))
        await gate.until(lambda: gate.instance().in_flight == 1, "the engine works")
        async with openai.AsyncOpenAI(base_url=f"{gate.client.url}/v1", api_key="-", max_retries=0) as sdk:
            stream = await sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            await later(11.0)
            release.set()
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        assert text
        await blocker
        await gate.idle()


@virtually
async def test_the_terminal_shows_what_comes_by_itself() -> None:
    """`headrace chat` reads its place from the stream; once that tells it, nobody asks for it any more."""
    release, places, changes = asyncio.Event(), list[int](), Changes()

    def note(position: int) -> None:
        places.append(position)
        changes.notify()

    async with ScriptedEngine(guard=LONG) as engine, front(engine, instances=ONE_AT_A_TIME) as gate:
        engine.once(held(release))
        blocker = asyncio.create_task(gate.client.ask(chat("first", stream=True)))
        await gate.until(lambda: gate.instance().in_flight == 1, "the engine works")

        async def talk() -> str:
            terminal = Gateway(gate.client.url, "ann", waiting=note, poll_seconds=LONG)
            return "".join([piece async for piece in terminal.answer("m", HELLO)])

        talking = asyncio.create_task(talk())
        await changes.until(lambda: len(places) == 2, GUARD + 10, "two places are shown")
        assert places == [1, 1]
        release.set()
        assert await talking
        await blocker
        await gate.idle()
