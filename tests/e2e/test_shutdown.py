"""Told to stop, the process lets the running finish, answers the waiting, keeps what was not answered, ends well."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from headrace.testing import Script, ScriptedEngine, steps
from tests.e2e.client import Client, Heard, chat, client, next_event
from tests.e2e.process import Program, run, serving

RUNNING = 50
WAITING = 5
LONG = 3600.0
"""Seconds of drain time that no test waits for."""


def _config(engine: ScriptedEngine, drain_seconds: float = LONG) -> str:
    return json.dumps(
        {
            "server": {"drain_seconds": drain_seconds},
            "instances": [{"id": "a", "address": engine.url, "models": ["m"], "max_concurrent": RUNNING}],
            "dead_letters": {"path": "letters.db"},
            "dedup": {"mode": "off"},
        }
    )


async def _streams(stack: AsyncExitStack, caller: Client) -> list[aiohttp.ClientResponse]:
    """As many streams as the engine takes, each with its beginning read."""
    streams = [await stack.enter_async_context(caller.open(chat(stream=True))) for _ in range(RUNNING)]
    for stream in streams:
        while b"begun" not in await next_event(stream):
            pass
    return streams


async def _queued(caller: Client) -> list[asyncio.Task[Heard]]:
    """A few requests that find no place at the engine."""
    tasks = [asyncio.create_task(caller.ask(chat("waits"))) for _ in range(WAITING)]
    while (await caller.get("/health")).json["queue"]["waiting"] < WAITING:
        pass
    return tasks


async def _letters(tmp_path: Path) -> list[str]:
    """The reasons of the dead letters."""
    code, lines, trouble = await run("dlq", "export", "--db", "letters.db", cwd=tmp_path)
    assert (code, trouble) == (0, "")
    return [json.loads(line)["reason"] for line in lines.splitlines()]


async def test_a_stop_in_the_middle_of_work_loses_nothing(tmp_path: Path) -> None:
    """Fifty streams run and five requests wait when SIGTERM comes: the streams end complete, the waiting get 503 with
    `Retry-After` and lie in the dead letters, `/ready` says no at once while `/live` says yes, the exit code is 0."""
    go_on = asyncio.Event()
    script = [steps.role(), steps.chunk("begun"), steps.wait(go_on.wait), steps.chunk(" and ended"), steps.finish()]
    async with (
        ScriptedEngine([*script, steps.done(), steps.end()]) as engine,
        serving(_config(engine), tmp_path) as running,
        client(running.url) as caller,
        AsyncExitStack() as stack,
    ):
        streams = await _streams(stack, caller)
        queued = await _queued(caller)
        running.signal(signal.SIGTERM)
        refused = await asyncio.gather(*queued)
        ready, live, late = await caller.get("/ready"), await caller.get("/live"), await caller.ask(chat("late"))
        go_on.set()
        rest = [await stream.read() for stream in streams]
        code = await running.ended()

    assert [(answer.status, answer.error["code"]) for answer in refused] == [(503, "draining")] * WAITING
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in (*refused, late))
    assert (ready.status, live.status, late.status) == (503, 200, 503)
    assert all(b"and ended" in end and end.endswith(b"data: [DONE]\n\n") for end in rest)
    assert (code, running.tracebacks) == (0, [])
    assert (await _letters(tmp_path)).count("shutting_down") == WAITING
    assert len(engine.requests) == RUNNING


async def _stopped_in_mid_stream(tmp_path: Path, drain_seconds: float, *, again: bool) -> tuple[Program, list[bytes]]:
    """Stop a gateway whose streams never end; the process after its end, and what the callers still got."""
    hanging: Script = [steps.role(), steps.chunk("begun"), steps.hang()]
    async with (
        ScriptedEngine(hanging) as engine,
        serving(_config(engine, drain_seconds), tmp_path) as running,
        client(running.url) as caller,
        AsyncExitStack() as stack,
    ):
        streams = await _streams(stack, caller)
        running.signal(signal.SIGTERM)
        if again:
            while (await caller.get("/ready")).status == 200:
                pass
            running.signal(signal.SIGTERM)
        rest = await asyncio.gather(*(stream.read() for stream in streams), return_exceptions=True)
        assert await running.ended() == 0
        return running, [end for end in rest if isinstance(end, bytes)]


async def test_who_is_not_done_in_time_is_told_and_kept(tmp_path: Path) -> None:
    """Streams that outlast the drain time get an error event and a proper end, and lie in the dead letters."""
    running, ends = await _stopped_in_mid_stream(tmp_path, 0.5, again=False)

    assert len(ends) == RUNNING
    assert all(b'"code":"draining"' in end and b"[DONE]" not in end for end in ends)
    assert await _letters(tmp_path) == ["shutting_down"] * RUNNING
    assert running.tracebacks == []


async def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """An hour of drain time is left, but the person at the keyboard insists: it ends without it, and in order."""
    running, _ = await _stopped_in_mid_stream(tmp_path, LONG, again=True)

    assert running.tracebacks == []
