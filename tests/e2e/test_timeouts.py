"""Times that mean what they say: each limit alone, the callers' deadlines, and engines that are slow but not dead.

All of it runs on virtual time, so the limits are tested at the sizes people use.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from time import time

import pytest

from headrace.testing import Script, ScriptedConnection, ScriptedEngine, steps
from tests.e2e.client import CHAT, chat
from tests.e2e.front import front
from tests.e2e.raw import RawAnswer, asked, head, raw_caller
from tests.runtime.virtual import later, virtually

PATIENCE = 200_000.0
"""Virtual seconds; longer than any limit."""
STREAM = {**chat(), "stream": True}
ONCE = {"max_retries": 0}


def clock() -> float:
    """The loop's time."""
    return asyncio.get_running_loop().time()


def engine_with(script: Script) -> ScriptedEngine:
    """An engine whose scripts may take their time."""
    return ScriptedEngine(script, guard=PATIENCE)


async def timed(url: str, body: Mapping[str, object], *headers: tuple[str, str]) -> tuple[RawAnswer, float]:
    """One answer, and how many seconds it took."""
    began = clock()
    answer = await asked(url, body, headers, within=PATIENCE)
    return answer, clock() - began


# ------------------------------------------------------------------------------------------------ healthy or not


async def _slow_but_steady(conn: ScriptedConnection) -> None:
    for number in range(18):
        await later(5.0)
        await conn.chunk(f"{number} ")
    await conn.finish()
    await conn.done()
    await conn.end()


async def _long_thought(conn: ScriptedConnection) -> None:
    await conn.head(200, (("content-type", "text/event-stream"),))
    await later(40.0)
    await conn.answer("at last")


async def _falls_silent(conn: ScriptedConnection) -> None:
    await conn.chunk("a")
    await later(15.0)
    await conn.chunk("b")


async def _only_pings(conn: ScriptedConnection) -> None:
    while True:
        await conn.comment("ping")
        await later(5.0)


async def _pings_in_mid_stream(conn: ScriptedConnection) -> None:
    await conn.chunk("a")
    for _ in range(10):
        await later(5.0)
        await conn.comment("ping")
    await conn.finish()
    await conn.done()
    await conn.end()


async def _whole_too_late(conn: ScriptedConnection) -> None:
    await later(31.0)
    await conn.json(200, {"model": "m", "choices": [{"index": 0, "message": {"content": "late"}}]})


LIMITS = {"connect": 2, "first_token": 60, "idle": 10, "attempt": 100}


@pytest.mark.parametrize("script", [_slow_but_steady, _long_thought, _pings_in_mid_stream])
@virtually
async def test_slow_is_not_dead(script: Script) -> None:
    """A token every five seconds, a long thought before the first, pings in between: all of them come to their end."""
    async with engine_with(script) as engine, front(engine, timeouts=LIMITS, routing=ONCE) as gate:
        answer, _ = await timed(gate.client.url, STREAM)
        await gate.idle()
    assert answer.done


@virtually
async def test_silence_in_mid_stream_is_found_out() -> None:
    """After the idle time, not after the time for a whole answer, the caller is told and the engine is left."""
    async with engine_with(_falls_silent) as engine, front(engine, timeouts=LIMITS, routing=ONCE) as gate:
        answer, took = await timed(gate.client.url, STREAM)
        await gate.idle()
        await engine.until(lambda: engine.closed_by_peer == 1, within=1.0)
    assert answer.broken
    assert took == pytest.approx(10.0, abs=1.0)


@pytest.mark.parametrize(
    ("script", "body", "limits", "seconds"),
    [
        (_only_pings, STREAM, LIMITS, 60.0),
        (_whole_too_late, chat(), {**LIMITS, "attempt": 30}, 30.0),
        (_whole_too_late, STREAM, {**LIMITS, "first_token": 30}, 30.0),
    ],
    ids=["only pings", "whole", "whole to one who asked for a stream"],
)
@virtually
async def test_no_answer_in_time(
    script: Script, body: Mapping[str, object], limits: Mapping[str, object], seconds: float
) -> None:
    """Signs of life are no answer: after the time for the first word, or for the whole, it is 504."""
    async with engine_with(script) as engine, front(engine, timeouts=limits, routing=ONCE) as gate:
        answer, took = await timed(gate.client.url, body)
        await gate.idle()
    assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
    assert took == pytest.approx(seconds, abs=1.0)


@virtually
async def test_a_slow_caller_is_no_silence_of_the_engine() -> None:
    """While the caller takes nothing the engine is not blamed, however long it takes; afterwards the stream goes on."""
    size = 200

    async def script(conn: ScriptedConnection) -> None:
        for _ in range(size):
            await conn.chunk("x" * 65_536)
        await conn.finish()
        await conn.done()
        await conn.end()

    async with engine_with(script) as engine, front(engine, timeouts=LIMITS, routing=ONCE) as gate:
        async with raw_caller(gate.client.url) as caller:
            caller.stop_reading()
            caller.ask(STREAM)
            await later(90.0)
            caller.read_on()
            answer = await caller.answer(PATIENCE)
        await gate.idle()
    assert answer.done
    assert len(answer.text) == size * 65_536


# ------------------------------------------------------------------------------------------------ each key alone


@asynccontextmanager
async def nobody_accepts() -> AsyncIterator[str]:
    """The address of a listener whose queue is full: connecting to it takes for ever."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, socket.socket() as filler:
        filler.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def _until_answered(sections: Mapping[str, Mapping[str, object]], script: Script, stream: bool) -> float:
    async with engine_with(script) as engine, front(engine, routing=ONCE, **sections) as gate:
        answer, took = await timed(gate.client.url, {**chat(), "stream": stream})
        assert answer.status == 504 or answer.broken
        return took


async def _until_unqueued(sections: Mapping[str, Mapping[str, object]], service_class: str) -> float:
    limits = {**sections["timeouts"], "first_token": 150_000, "attempt": 150_000}
    narrow = {"max_concurrent": 1}
    async with (
        engine_with(steps.hang()) as engine,
        front(engine, instances=narrow, timeouts=limits) as gate,
        raw_caller(gate.client.url) as first,
    ):
        first.ask(STREAM)
        await engine.got(1)
        answer, took = await timed(gate.client.url, chat("second"), ("x-headrace-class", service_class))
        assert (answer.status, answer.error["code"]) == (503, "queue_timeout")
        return took


async def _until_connected(sections: Mapping[str, Mapping[str, object]]) -> float:
    async with (
        nobody_accepts() as url,
        ScriptedEngine() as engine,
        front(engine, instances={"address": url}, routing=ONCE, **sections) as gate,
    ):
        answer, took = await timed(gate.client.url, chat())
        assert answer.status == 502
        return took


async def _until_read(sections: Mapping[str, Mapping[str, object]]) -> float:
    async with ScriptedEngine() as engine, front(engine, **sections) as gate, raw_caller(gate.client.url) as caller:
        began = clock()
        caller.send(head("POST", CHAT, [("host", "g"), ("content-length", "100")]) + b'{"model"')
        answer = await caller.answer(PATIENCE)
        assert answer.status == 408
        assert not engine.requests
        return clock() - began


async def _until_cut_off(sections: Mapping[str, Mapping[str, object]]) -> float:
    async def script(conn: ScriptedConnection) -> None:
        while True:
            await conn.chunk("x" * 65_536)

    async with engine_with(script) as engine, front(engine, **sections) as gate, raw_caller(gate.client.url) as caller:
        caller.stop_reading()
        caller.ask(STREAM)
        await engine.got(1)
        began = clock()
        await gate.until(lambda: gate.headrace.gateway.alive == 0, "it is cut off", PATIENCE)
        return clock() - began


async def _until_down(sections: Mapping[str, Mapping[str, object]]) -> float:
    health = {"interval_seconds": 10_000, "unhealthy_threshold": 1, **sections["health_check"]}
    async with engine_with(steps.hang()) as engine:
        engine.answers_probes = False
        async with front(engine, health_check=health) as gate:
            await gate.until(lambda: not gate.instance().healthy, "it is down", PATIENCE)
            return clock()


async def _between_checks(sections: Mapping[str, Mapping[str, object]]) -> float:
    async with ScriptedEngine() as engine, front(engine, **sections):
        await engine.until(lambda: len(engine.probes) == 1)
        began = clock()
        await engine.until(lambda: len(engine.probes) == 41, within=PATIENCE)
        return (clock() - began) / 40


Sections = Mapping[str, Mapping[str, object]]
KEYS: dict[str, Callable[[Sections], Awaitable[float]]] = {
    "timeouts.connect": _until_connected,
    "timeouts.first_token": lambda sections: _until_answered(sections, steps.hang(), stream=True),
    "timeouts.idle": lambda sections: _until_answered(sections, [steps.chunk("a"), steps.hang()], stream=True),
    "timeouts.attempt": lambda sections: _until_answered(sections, steps.hang(), stream=False),
    "timeouts.queue": lambda sections: _until_unqueued(sections, "normal"),
    "timeouts.queue_interactive": lambda sections: _until_unqueued(sections, "interactive"),
    "timeouts.queue_batch": lambda sections: _until_unqueued(sections, "batch"),
    "server.body_timeout_seconds": _until_read,
    "server.stall_timeout_seconds": _until_cut_off,
    "health_check.timeout_seconds": _until_down,
    "health_check.interval_seconds": _between_checks,
}


@pytest.mark.parametrize("seconds", [3.0, 20.0])
@pytest.mark.parametrize("key", KEYS)
@virtually
async def test_each_time_in_the_configuration_counts(key: str, seconds: float) -> None:
    """Set alone, with everything else at its default, it changes what happens, by as much as it says."""
    section, name = key.split(".")
    took = await KEYS[key]({section: {name: seconds}})
    assert took == pytest.approx(seconds, rel=0.13)


# ------------------------------------------------------------------------------------------------ callers' deadlines


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("script", [steps.hang(), steps.json(500, {})], ids=["silent", "failing"])
@virtually
async def test_a_deadline_is_over_all_attempts(stream: bool, script: Script) -> None:
    """At the time the caller named it is 504, whatever attempt it is at; nothing is done for it afterwards."""
    lasting = {"cooldown_seconds": 3.0}
    async with engine_with(script) as engine, front(engine, load_balancer=lasting) as gate:
        answer, took = await timed(gate.client.url, {**chat(), "stream": stream}, ("x-headrace-deadline", "4"))
        await gate.idle()
        seen = len(engine.requests)
        await later(100.0)
        assert len(engine.requests) == seen
        await engine.until(lambda: engine.answering == 0, within=1.0)
    if answer.status == 504:
        assert took == pytest.approx(4.0, abs=0.5)
        assert answer.error["code"] in {"deadline_exceeded", "upstream_error"}
        assert answer.header("x-should-retry") == "false"
    else:
        assert answer.status == 502, "no further attempt could have ended in time"
        assert took <= 4.0


@virtually
async def test_a_deadline_counts_in_the_queue() -> None:
    """Who waits for his turn when the time comes is told then, and never sent to an engine."""
    async with engine_with(steps.hang()) as engine, front(engine, instances={"max_concurrent": 1}) as gate:
        async with raw_caller(gate.client.url) as first:
            first.ask(STREAM)
            await engine.got(1)
            answer, took = await timed(gate.client.url, chat("second"), ("x-headrace-deadline", "7"))
        await gate.idle()
        assert len(engine.requests) == 1
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    assert answer.header("x-headrace-drop-reason") == "deadline_expired"
    assert took == pytest.approx(7.0, abs=0.1)


@virtually
async def test_a_deadline_in_mid_stream() -> None:
    """The caller gets what there is, then one error event with the reason; the engine is left at once."""
    async with engine_with([steps.chunk("a"), steps.hang()]) as engine, front(engine) as gate:
        answer, took = await timed(gate.client.url, STREAM, ("x-headrace-deadline", "5"))
        await engine.until(lambda: engine.closed_by_peer == 1, within=1.0)
        await gate.idle()
    assert answer.broken
    assert answer.error_events[0]["code"] == "deadline_exceeded"
    assert took == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize(
    ("name", "value", "stream", "seconds"),
    [
        ("x-headrace-deadline", "3.5", True, 3.5),
        ("x-headrace-deadline", "Unix time", False, 80.0),
        ("x-headrace-deadline", "0", False, 0.0),
        ("x-stainless-read-timeout", "6", False, 6.0),
        ("x-stainless-read-timeout", "6", True, 120.0),
        ("x-stainless-read-timeout", "never", False, 600.0),
    ],
    ids=["seconds", "Unix time", "now", "the SDK's", "the SDK's on a stream", "nonsense of an SDK"],
)
@virtually
async def test_how_a_deadline_is_told(name: str, value: str, stream: bool, seconds: float) -> None:
    """Seconds from now or a Unix time; else the read timeout of the official SDKs, which bounds whole answers only."""
    dated = value == "Unix time"
    async with engine_with(steps.hang()) as engine, front(engine, routing=ONCE) as gate:
        told = str(time() + seconds) if dated else value
        answer, took = await timed(gate.client.url, {**chat(), "stream": stream}, (name, told))
        await gate.idle()
    assert answer.status == 504
    # The real clock goes on while a busy machine does other things.
    assert seconds - (10.0 if dated else 0.5) <= took <= seconds + 0.5


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf", ""])
async def test_a_deadline_that_is_none(value: str) -> None:
    """What cannot be a time is the caller's mistake, named, and nothing is asked."""
    async with ScriptedEngine() as engine, front(engine) as gate:
        answer = await asked(gate.client.url, chat(), (("x-headrace-deadline", value),))
        assert not engine.requests
    assert (answer.status, answer.error["param"]) == (400, "x-headrace-deadline")
