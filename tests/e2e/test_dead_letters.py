"""What was accepted and not answered is kept: once, with its reason, within bounds, past the death of the process."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.model import Cause
from headrace.runtime.stores import LetterFilter, StoredLetter
from headrace.runtime.stores.database import sqlite_url
from headrace.runtime.stores.sql import SqlDeadLetters
from headrace.testing import Script, ScriptedConnection, ScriptedEngine, steps
from tests.e2e.client import chat, client
from tests.e2e.front import Front, front
from tests.e2e.process import Program, program, run, serving
from tests.patience import GUARD
from tests.runtime.virtual import virtually

BROKEN = steps.json(500, {"error": {"message": "boom", "type": "internal_error"}})
ALONE = {"max_retries": 0}


async def _letters(gate: Front) -> tuple[StoredLetter, ...]:
    return await gate.headrace.dead_letters.list(LetterFilter())


@virtually
async def test_what_always_fails_is_tried_three_times_and_kept_once() -> None:
    """Three tries with growing gaps, then one letter that tells of each of them; the caller is told at once."""
    times: list[float] = []

    async def broken(conn: ScriptedConnection) -> None:
        times.append(asyncio.get_running_loop().time())
        await BROKEN(conn)

    async with ScriptedEngine(broken) as engine, front(engine, load_balancer={"cooldown_seconds": 0.1}) as gate:
        heard = await gate.client.ask(chat(), {"x-headrace-user": "xenia"})
        await gate.idle()
        (letter,) = await _letters(gate)

    first, second = (later - earlier for earlier, later in pairwise(times))
    assert (heard.status, heard.error["code"]) == (502, "upstream_error")
    assert 0 < first < second
    assert (letter.reason, letter.user, letter.model) == ("inference_failure", "xenia", "m")
    assert [(attempt.number, attempt.instance, attempt.cause) for attempt in letter.attempts] == [
        (number, "a", Cause.SERVER_ERROR) for number in (1, 2, 3)
    ]
    assert letter.detail == "HTTP 500, internal_error"
    assert letter.waited == pytest.approx(times[-1] - times[0], abs=0.01)
    assert letter.body is not None
    assert json.loads(letter.body) == chat()


async def test_callers_own_doing_leaves_no_letter() -> None:
    """A mistake of the caller, a caller who left, and a good answer: nothing to keep."""
    async with ScriptedEngine() as engine, front(engine) as gate:
        engine.once(steps.json(400, {"error": {"message": "no"}}), steps.hang())
        mistaken = await gate.client.ask(chat("mistaken"))
        leaver = asyncio.create_task(gate.client.ask(chat("leaves")))
        await engine.got(2)
        leaver.cancel()
        await engine.until(lambda: engine.closed_by_peer == 1)
        fine = await gate.client.ask(chat("fine"))
        await gate.idle()
        letters = await _letters(gate)

    assert (mistaken.status, fine.status, letters) == (400, 200, ())
    assert len(engine.requests) == 3


async def test_without_bodies_nothing_of_the_request_is_kept() -> None:
    """With `keep_bodies: false` neither prompt nor credentials lie in a letter, even where an engine quotes them."""
    quoting = steps.json(500, {"error": {"message": "cannot answer 'marker-text' for Bearer sk-caller-secret"}})
    async with (
        ScriptedEngine(quoting) as engine,
        front(engine, routing=ALONE, dead_letters={"path": None, "keep_bodies": False}) as gate,
    ):
        await gate.client.ask(chat("marker-text"), {"authorization": "Bearer sk-caller-secret"})
        await gate.idle()
        (letter,) = await _letters(gate)

    assert letter.body is None
    assert "marker-text" not in repr(letter)
    assert "sk-caller-secret" not in repr(letter)


async def test_the_oldest_letter_goes_when_there_are_too_many_and_is_counted() -> None:
    """Five places, eleven letters: the last five are there, six are counted as gone."""
    async with (
        ScriptedEngine(BROKEN) as engine,
        front(
            engine,
            routing=ALONE,
            load_balancer={"cooldown_seconds": 0.001},
            circuit_breaker={"failure_threshold": 100},
            dead_letters={"path": None, "capacity": 5},
        ) as gate,
    ):
        for number in range(11):
            await gate.client.ask(chat(), {"x-request-id": f"r{number}"})
        await gate.idle()
        letters = await _letters(gate)
        metrics = (await gate.client.get("/metrics")).body.decode()

    assert [letter.request_id for letter in letters] == ["r10", "r9", "r8", "r7", "r6"]
    assert "headrace_dead_letter_depth 5.0" in metrics
    assert "headrace_dead_letters_evicted_total 6.0" in metrics


BEGUN = [steps.role(), steps.chunk("a")]
REASONS: Mapping[str, tuple[Script, int]] = {
    "inference_failure": (BROKEN, 502),
    "inference_timeout": (steps.hang(), 504),
    "stream_broken": ([*BEGUN, steps.cut()], 200),
    "deadline_expired": (steps.hang(), 504),
}


@pytest.mark.parametrize("reason", REASONS)
@virtually
async def test_each_way_to_fail_at_the_engine_has_its_reason(reason: str) -> None:
    """The reason in the letter, the label of the metric and the caller's header are one word."""
    script, status = REASONS[reason]
    headers = {"x-headrace-deadline": "1"} if reason == "deadline_expired" else {}
    async with ScriptedEngine(script) as engine, front(engine, routing=ALONE, timeouts={"first_token": 2}) as gate:
        heard = await gate.client.ask(chat(stream=True), headers)
        await gate.idle()
        letters = await _letters(gate)
        metrics = (await gate.client.get("/metrics")).body.decode()

    assert (heard.status, [letter.reason for letter in letters]) == (status, [reason])
    assert f'headrace_dead_letters_total{{reason="{reason}"}} 1.0' in metrics
    assert heard.headers.get("x-headrace-drop-reason", reason) == reason


@virtually
async def test_each_way_to_fail_before_the_engine_has_its_reason() -> None:
    """Full queue, too long a wait, open breaker, nobody there: each refused or given up with its own word."""
    async with (
        ScriptedEngine(steps.hang(), guard=60) as engine,
        front(
            engine,
            routing=ALONE,
            instances={"max_concurrent": 1},
            scheduling={"queue_size": 1},
            timeouts={"queue": 5, "first_token": 20},
            circuit_breaker={"failure_threshold": 1},
            health_check={"interval_seconds": 86_400, "unhealthy_threshold": 1},
        ) as gate,
    ):
        running = asyncio.create_task(gate.client.ask(chat("runs", stream=True)))
        await engine.got(1)
        waiting = asyncio.create_task(gate.client.ask(chat("waits")))
        await gate.until(lambda: gate.headrace.snapshot().queued == 1, "one waits")
        full = await gate.client.ask(chat("full"))
        late, failed = await waiting, await running
        shut = await gate.client.ask(chat("shut"))
        await gate.idle()
        letters = await _letters(gate)

    assert (full.status, full.error["code"]) == (503, "queue_full")
    assert (late.status, late.error["code"]) == (503, "queue_timeout")
    assert (failed.status, failed.error["code"]) == (504, "upstream_timeout")
    assert (shut.status, shut.error["code"]) == (503, "circuit_open")
    assert [letter.reason for letter in reversed(letters)] == [
        "backpressure:inference",
        "queue_timeout",
        "inference_timeout",
        "circuit_open",
    ]


def _config(engine: ScriptedEngine) -> str:
    return json.dumps(
        {
            "instances": [{"id": "a", "address": engine.url, "models": ["m"]}],
            "routing": {"max_retries": 0},
            "load_balancer": {"cooldown_seconds": 0.001},
            "dead_letters": {"path": "letters.db"},
            "health_check": {"interval_seconds": 86_400},
        }
    )


async def _fail(running: Program, content: str) -> None:
    async with client(running.url) as caller:
        heard = await caller.ask(chat(content), {"x-request-id": content, "authorization": "Bearer sk-caller"})
    assert heard.status == 502


async def _stored(path: Path, count: int) -> tuple[StoredLetter, ...]:
    """Wait until so many letters are on disk; they are those."""
    store = SqlDeadLetters(sqlite_url(path))
    try:
        async with asyncio.timeout(GUARD):
            while len(found := await store.list(LetterFilter())) < count:
                pass
    finally:
        await store.close()
    return found


def _files(directory: Path) -> list[bytes]:
    return [file.read_bytes() for file in directory.glob("letters.db*")]


async def test_letters_survive_the_death_of_the_process(tmp_path: Path) -> None:
    """Killed without a warning, the process leaves its letters; the command line shows all of them but credentials."""
    async with ScriptedEngine(BROKEN) as engine, serving(_config(engine), tmp_path) as running:
        await _fail(running, "first")
        await _fail(running, "second")
        _, first = await _stored(tmp_path / "letters.db", 2)
        running.signal(signal.SIGKILL)
        died = await running.ended()
        async with serving(_config(engine), tmp_path) as reborn, client(reborn.url) as caller:
            metrics = (await caller.get("/metrics")).body.decode()

    code, listed, trouble = await run("dlq", "list", "--db", "letters.db", cwd=tmp_path)
    _, shown, _ = await run("dlq", "show", str(first.id), "--db", "letters.db", cwd=tmp_path)

    assert (died, code, trouble) == (-signal.SIGKILL, 0, "")
    assert listed.count("inference_failure") == 2
    assert "headrace_dead_letter_depth 2.0" in metrics
    told = json.loads(shown)
    assert (told["request_id"], told["body"], told["attempts"][0]["instance"]) == ("first", chat("first"), "a")
    assert "sk-caller" not in shown
    assert all(b"sk-caller" not in file for file in _files(tmp_path))


async def test_two_replays_of_one_letter_are_one_call(tmp_path: Path) -> None:
    """Two operators send the same letter again at the same moment: one call, one answer, and the letter is gone."""
    async with ScriptedEngine(BROKEN) as engine, serving(_config(engine), tmp_path) as running:
        await _fail(running, "first")
        (letter,) = await _stored(tmp_path / "letters.db", 1)
        asked = len(engine.requests)
        engine.default = steps.answer("at last")
        replay = ("dlq", "replay", str(letter.id), "--db", "letters.db", "--url", running.url)
        results = await asyncio.gather(run(*replay, cwd=tmp_path), run(*replay, cwd=tmp_path))
        _, listed, _ = await run("dlq", "list", "--db", "letters.db", cwd=tmp_path)
        calls = len(engine.requests) - asked

    answers = [json.loads(output) for code, output, _ in results if code == 0 and output]
    assert [answer["answer"]["choices"][0]["message"]["content"] for answer in answers] == ["at last"]
    assert (calls, listed) == (1, "no dead letters")
    assert json.loads(engine.requests[-1].body)["messages"] == chat("first")["messages"]


async def test_a_replay_that_was_killed_is_not_repeated_unless_somebody_says_so(tmp_path: Path) -> None:
    """A replay dies between its call and the letter's removal: the letter is there, marked, and not sent again
    until an operator releases it."""
    async with ScriptedEngine(BROKEN) as engine, serving(_config(engine), tmp_path) as running:
        await _fail(running, "first")
        (letter,) = await _stored(tmp_path / "letters.db", 1)
        asked = len(engine.requests)
        engine.default = steps.answer("at last")
        engine.once(steps.hang())
        replay = ("dlq", "replay", str(letter.id), "--db", "letters.db", "--url", running.url)
        async with program(*replay, cwd=tmp_path) as killed:
            await engine.got(asked + 1, within=GUARD)
            await killed.kill()
        await engine.until(lambda: engine.closed_by_peer == 1)
        again, _, trouble = await run(*replay, cwd=tmp_path)
        calls = len(engine.requests) - asked
        _, listed, _ = await run("dlq", "list", "--db", "letters.db", cwd=tmp_path)
        _, released, _ = await run("dlq", "release", str(letter.id), "--db", "letters.db", cwd=tmp_path)
        code, answer, _ = await run(*replay, cwd=tmp_path)

    assert (again, calls) == (1, 1)
    assert "another replay has it" in trouble
    assert "0 of 1 letters were answered" in trouble
    assert "(being replayed)" in " ".join(listed.split())
    assert (released, code) == ("released 1 letters", 0)
    assert json.loads(answer)["answer"]["choices"][0]["message"]["content"] == "at last"


async def test_drain_gives_all_letters_out_and_leaves_none(tmp_path: Path) -> None:
    """Each letter comes out once as a line of JSON while the gateway runs; afterwards nothing is left."""
    async with ScriptedEngine(BROKEN) as engine, serving(_config(engine), tmp_path) as running:
        for content in ("one", "two", "three"):
            await _fail(running, content)
        await _stored(tmp_path / "letters.db", 3)
        code, drained, _ = await run("dlq", "drain", "--db", "letters.db", cwd=tmp_path)
        _, listed, _ = await run("dlq", "list", "--config", "headrace.yaml", cwd=tmp_path)

    assert code == 0
    assert {json.loads(line)["request_id"] for line in drained.splitlines()} == {"one", "two", "three"}
    assert listed == "no dead letters"
