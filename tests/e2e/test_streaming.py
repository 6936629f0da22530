"""Streams through the whole gateway, byte by byte: nothing held back, nothing garbled, no ending invented."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from headrace.model import BreakerState
from headrace.testing import Script, ScriptedConnection, ScriptedEngine, Step, steps
from tests.e2e.client import CHAT, chat
from tests.e2e.front import front
from tests.e2e.raw import RawAnswer, asked, raw_caller
from tests.runtime.virtual import later, virtually

COMPLETIONS = "/v1/completions"
PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
TEXT = "你好🌍"
REPLACED = "\N{REPLACEMENT CHARACTER}".encode()


def asking(path: str, **fields: object) -> dict[str, object]:
    """A streamed request to this path."""
    if path == CHAT:
        return {**chat(), "stream": True, **fields}
    return {"model": "m", "prompt": "hi", "stream": True, **fields}


def piece(path: str, text: str, **more: object) -> bytes:
    """A chunk as an engine writes it."""
    choice: dict[str, object] = {"index": 0, "delta": {"content": text}} if path == CHAT else {"index": 0, "text": text}
    return json.dumps({"model": "m", "choices": [{**choice, **more}]}, ensure_ascii=False).encode()


def hard_stream(path: str, line_end: bytes = b"") -> bytes:
    """A good stream with everything in it that SSE allows; `line_end` replaces all line ends when given."""
    data = (
        b": OPENROUTER PROCESSING\n\n"
        b"data:" + piece(path, TEXT) + b"\r\n\r\n"
        b"data:\n\n"
        b"data: " + piece(path, "", finish_reason="stop") + b"\n\n"
        b"data: [DONE]\n\n"
    )
    return data.replace(b"\r\n", b"\n").replace(b"\n", line_end) if line_end else data


async def heard_of(script: Script, path: str = CHAT, **fields: object) -> RawAnswer:
    """The answer to one streamed request whose engine plays `script`."""
    async with ScriptedEngine(script) as engine, front(engine) as gate:
        answer = await asked(gate.client.url, asking(path, **fields), path=path)
        await gate.idle()
    return answer


def cuts_of(data: bytes) -> list[list[bytes]]:
    """`data` in two pieces, cut at every place."""
    return [[data[:at], data[at:]] for at in range(1, len(data))]


# ------------------------------------------------------------------------------------------------ how it is cut


@PATHS
async def test_no_cut_shows(path: str) -> None:
    """Wherever the engine's writes are cut, also inside a character, the client gets the same events."""
    data = hard_stream(path)
    runs = [*cuts_of(data), [data[at : at + 1] for at in range(len(data))], data.splitlines(keepends=True)]
    expected: RawAnswer | None = None
    async with ScriptedEngine() as engine, front(engine) as gate, raw_caller(gate.client.url) as caller:
        for run in runs:
            engine.once([*(steps.event(part) for part in run), steps.end()])
            caller.forget()
            caller.ask(asking(path), path=path)
            answer = await caller.answer()
            assert answer.text == TEXT
            assert answer.done
            assert REPLACED not in answer.body
            assert expected is None or answer.events == expected.events
            expected = answer
        await gate.idle()
        assert gate.totals["answered"] == len(runs)


@PATHS
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
async def test_every_line_end_is_one(path: str, line_end: bytes) -> None:
    """LF, CRLF and a lone CR end lines alike, also when the two bytes of a CRLF come in different writes."""
    data = hard_stream(path, line_end)
    for parts in ([data], [data[at : at + 1] for at in range(len(data))]):
        answer = await heard_of([*(steps.event(part) for part in parts), steps.end()], path)
        assert (answer.text, answer.done) == (TEXT, True)
        assert all(event == b"[DONE]" or json.loads(event) for event in answer.events)


@PATHS
async def test_what_needs_no_change_is_not_changed(path: str) -> None:
    """After the first content the engine's own bytes go out, odd blanks and unknown fields included."""
    odd = b'data: {"x_engine" : [1,2 , {"y":"\xc3\xa9"}],' + piece(path, "b")[1:] + b"\n\n"

    async def script(conn: ScriptedConnection) -> None:
        await conn.chunk("a")
        await conn.event(odd)
        await conn.finish()
        await conn.done()
        await conn.end()

    answer = await heard_of(script, path)
    assert odd in answer.body
    assert (answer.text, answer.done) == ("ab", True)


# ------------------------------------------------------------------------------------------------ when it comes


@PATHS
async def test_the_first_token_is_here_before_the_second_is_made(path: str) -> None:
    """Nothing waits for more to come: each token reaches the client while the engine has not made the next one."""
    taken = [asyncio.Event() for _ in range(3)]

    async def script(conn: ScriptedConnection) -> None:
        for number, event in enumerate(taken):
            await conn.chunk(f"<{number}>")
            await conn.wait(event.wait())
        await conn.finish()
        await conn.done()
        await conn.end()

    async with ScriptedEngine(script) as engine, front(engine) as gate, raw_caller(gate.client.url) as caller:
        caller.ask(asking(path), path=path)
        for number, event in enumerate(taken):
            await caller.sees(b"<%d>" % number)
            assert b"<%d>" % (number + 1) not in caller.received
            event.set()
        assert (await caller.answer()).done


async def test_the_role_waits_for_the_first_word() -> None:
    """Before content nothing is sent, not even a status: the attempt can still be made again elsewhere, unseen."""
    go, asked_once = asyncio.Event(), asyncio.Event()

    async def script(conn: ScriptedConnection) -> None:
        await conn.role()
        asked_once.set()
        await conn.wait(go.wait())
        await conn.answer("word")

    async with ScriptedEngine(script) as engine, front(engine) as gate, raw_caller(gate.client.url) as caller:
        caller.ask(asking(CHAT))
        await asked_once.wait()
        assert not caller.pieces
        go.set()
        answer = await caller.answer()
    assert answer.text == "word"
    assert answer.chunks[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_what_came_before_a_failure_is_not_seen() -> None:
    """A role and a reset at the first instance: the client sees one role, one id, and the second one's text."""
    async with ScriptedEngine() as first, ScriptedEngine() as second, front(first, second) as gate:
        first.once([steps.role(), steps.comment("working"), steps.reset()])
        second.default = steps.answer("from the second")
        answer = await asked(gate.client.url, asking(CHAT))
        await gate.idle()
        assert (len(first.requests), len(second.requests)) == (1, 1)
    assert (answer.text, answer.done) == ("from the second", True)
    assert (answer.header("x-headrace-attempts"), answer.header("x-headrace-instance")) == ("2", "b")
    assert len({chunk["id"] for chunk in answer.chunks}) == 1
    assert sum("role" in choice["delta"] for chunk in answer.chunks for choice in chunk["choices"]) == 1


# ------------------------------------------------------------------------------------------------ how it breaks off

BREAKS: dict[str, Sequence[Step]] = {
    "cut": [steps.cut()],
    "reset": [steps.reset()],
    "error event": [steps.error("gpu-7:8000 is on fire", "overheated"), steps.end()],
    "silence": [steps.hang()],
    "nonsense": [steps.event(b"data: {broken\n\n"), steps.hang()],
    "clean end without a finish": [steps.end()],
}


@PATHS
@pytest.mark.parametrize("how", BREAKS)
@virtually
async def test_a_broken_stream_says_so(path: str, how: str) -> None:
    """After the text one error event and a proper end of the body: no finish reason, no `[DONE]`, no second attempt."""
    script = [steps.chunk("a"), steps.chunk("b"), *BREAKS[how]]
    first, second = ScriptedEngine(script, guard=100.0), ScriptedEngine(script)
    async with first, second, front(first, second) as gate:
        answer = await asked(gate.client.url, asking(path), path=path, within=100.0)
        await gate.idle()
        assert (len(first.requests), len(second.requests)) == (1, 0)
        loser = gate.instance("a")
        assert loser.breaker is BreakerState.CLOSED
        assert (loser.reliability < 1, loser.cooldown > 0) == (True, True)
        assert gate.totals["failed"] == 1
        assert gate.headrace.dead_letters.count == 1
        await first.until(lambda: first.answering == 0, within=1.0)
    assert answer.broken
    assert (answer.text, answer.finish_reasons) == ("ab", [])
    (error,) = answer.error_events
    assert error["code"] == "stream_incomplete"
    assert error["type"] == ("overheated" if how == "error event" else "server_error")
    assert not any(word in answer.body.decode() for word in ("127.0.0.1", "gpu-7", "8000", "localhost"))


@virtually
async def test_the_breaker_counts_broken_streams() -> None:
    """Each broken stream is one failure of its instance, and only one."""
    script = [steps.chunk("a"), steps.cut()]
    breaker = {"failure_threshold": 3, "recovery_timeout": 60}
    async with ScriptedEngine(script) as engine, front(engine, circuit_breaker=breaker) as gate:
        for number in range(3):
            assert gate.instance().breaker is BreakerState.CLOSED, number
            assert (await asked(gate.client.url, asking(CHAT))).broken
            await later(6.0)
        assert gate.instance().breaker is BreakerState.OPEN


# ------------------------------------------------------------------------------------------------ what is finished

HALF_A_CALL = {
    "model": "m",
    "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "t", "function": {"arguments": '{"a'}}]}}],
}
FINISHED: dict[str, tuple[Sequence[Step], bool]] = {
    "end": ([steps.chunk("x"), steps.end()], False),
    "done": ([steps.chunk("x"), steps.done(), steps.end()], True),
    "finish": ([steps.chunk("x"), steps.finish(), steps.end()], True),
    "finish, usage, done": ([steps.chunk("x"), steps.finish(), steps.usage(1, 1), steps.done(), steps.end()], True),
    "usage, done": ([steps.chunk("x"), steps.usage(1, 1), steps.done(), steps.end()], True),
    "finish without its blank line": (
        [steps.chunk("x"), steps.event(b"data: " + piece(CHAT, "", finish_reason="stop")), steps.end()],
        True,
    ),
    "done, then cut": ([steps.chunk("x"), steps.done(), steps.cut()], True),
    "half of a tool call": ([steps.sse(HALF_A_CALL), steps.end()], False),
}


@PATHS
@pytest.mark.parametrize("how", FINISHED)
async def test_what_counts_as_finished(path: str, how: str) -> None:
    """A finish reason or `[DONE]` makes a stream complete, a mere end of the body does not; the counts say the same."""
    if path == COMPLETIONS and how == "half of a tool call":
        pytest.skip("completions know no tool calls")
    script, whole = FINISHED[how]
    async with ScriptedEngine(script) as engine, front(engine) as gate:
        answer = await asked(gate.client.url, asking(path), path=path)
        await gate.idle()
        assert (gate.totals.get("answered", 0), gate.totals.get("failed", 0)) == ((1, 0) if whole else (0, 1))
    assert (answer.done, answer.broken) == (whole, not whole)


@virtually
async def test_a_finished_stream_frees_its_connection() -> None:
    """After `[DONE]` nothing more is waited for; an engine that keeps the body open is closed soon."""
    script = [steps.chunk("x"), steps.finish(), steps.done(), steps.hang()]
    async with ScriptedEngine(script) as engine, front(engine) as gate:
        assert (await asked(gate.client.url, asking(CHAT))).done
        await gate.idle()
        await engine.until(lambda: engine.closed_by_peer == 1, within=3.0)


# ------------------------------------------------------------------------------------------------ usage, choices

COUNTS = {"prompt_tokens": 26, "completion_tokens": 7, "total_tokens": 33}


def with_usage(place: str, path: str) -> list[Step]:
    """A stream of two words with usage 26/7 somewhere."""
    first, last = piece(path, "a"), piece(path, "b", finish_reason="stop")
    if place == "finish":
        last = last[:-1] + b',"usage":' + json.dumps(COUNTS).encode() + b"}"
    if place == "middle":
        first = first[:-1] + b',"usage":' + json.dumps(COUNTS).encode() + b"}"
        last = last[:-1] + b',"usage":null}'
    script = [steps.event(b"data: " + chunk + b"\n\n") for chunk in (first, last)]
    if place == "after":
        script.append(steps.usage(26, 7))
    return [*script, steps.done(), steps.end()]


@PATHS
@pytest.mark.parametrize("place", ["finish", "after", "middle"])
@pytest.mark.parametrize("wanted", [True, False], ids=["asked for", "not asked for"])
async def test_usage_is_found_wherever_it_is(path: str, place: str, wanted: bool) -> None:
    """It is counted once; who asked gets exactly one usage chunk just before `[DONE]`, who did not gets none."""
    fields = {"stream_options": {"include_usage": True}} if wanted else {}
    async with ScriptedEngine(with_usage(place, path)) as engine, front(engine) as gate:
        answer = await asked(gate.client.url, asking(path, **fields), path=path)
        await gate.idle()
        assert engine.requests[0].json()["stream_options"] == {"include_usage": True}
        text = (await gate.client.get("/metrics")).body.decode()
    assert 'headrace_tokens_total{kind="prompt"} 26.0' in text
    assert 'headrace_tokens_total{kind="completion"} 7.0' in text
    assert (answer.text, answer.done) == ("ab", True)
    only = [number for number, chunk in enumerate(answer.chunks) if chunk["choices"] == []]
    assert only == ([len(answer.chunks) - 1] if wanted else [])
    if wanted:
        assert answer.chunks[-1]["usage"] == COUNTS


@PATHS
async def test_choices_are_kept_apart(path: str) -> None:
    """With n=2 every index is kept, each choice has its own text and its own finish, in the order they came."""

    async def script(conn: ScriptedConnection) -> None:
        for text in ("a", "b"):
            await conn.chunk(text, 0)
            await conn.chunk(text.upper(), 1)
        await conn.finish("length", 1)
        await conn.chunk("c", 0)
        await conn.finish("stop", 0)
        await conn.done()
        await conn.end()

    answer = await heard_of(script, path, n=2)
    assert (answer.choice(0), answer.choice(1)) == ("abc", "AB")
    assert answer.finish_reasons == ["length", "stop"]
    assert answer.done
