"""One model call for identical requests that run at once, whoever leaves, joins late or asks in another form."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from headrace.testing import ScriptedConnection, ScriptedEngine, steps
from tests.e2e.client import CHAT, Heard, chat, next_event
from tests.e2e.front import Front, front
from tests.patience import GUARD

PATIENT: Mapping[str, Mapping[str, object]] = {
    "load_balancer": {"cooldown_seconds": 0.001},
    "circuit_breaker": {"failure_threshold": 100},
}


def _asked(gate: Front, body: dict[str, object], headers: dict[str, str] | None = None) -> asyncio.Task[Heard]:
    return asyncio.create_task(gate.client.ask(body, headers))


async def _riding(gate: Front, tickets: int) -> None:
    """Wait until so many requests are accepted and not ended."""
    await gate.until(lambda: gate.headrace.gateway.alive == tickets, f"{tickets} requests are on their way")


async def test_a_hundred_identical_requests_are_one_call() -> None:
    """Without any setting, a hundred callers who ask the same at once get the same answer from one model call."""
    ready = asyncio.Event()
    async with ScriptedEngine([steps.wait(ready.wait), steps.answer("shared")]) as engine, front(engine) as gate:
        callers = [_asked(gate, chat("same"), {"x-headrace-user": f"user-{number}"}) for number in range(100)]
        await _riding(gate, 100)
        ready.set()
        heard = await asyncio.gather(*callers)
        await gate.idle()
        totals = gate.totals

    assert {(answer.status, answer.text) for answer in heard} == {(200, "shared")}
    assert sorted(answer.headers["x-headrace-cache"] for answer in heard) == ["joined"] * 99 + ["miss"]
    assert (len(engine.requests), totals["model_calls"], totals["joined"]) == (1, 1, 99)


async def test_the_next_one_after_the_answer_asks_anew() -> None:
    """By default only running calls are shared: what is over is over."""
    async with ScriptedEngine() as engine, front(engine) as gate:
        heard = [await gate.client.ask(chat("same", temperature=0)) for _ in range(2)]

    assert [answer.headers["x-headrace-cache"] for answer in heard] == ["miss", "miss"]
    assert len(engine.requests) == 2


@pytest.mark.parametrize("leaves", ["the first", "a later one"])
async def test_who_leaves_takes_nobody_down(leaves: str) -> None:
    """The first caller or a later one goes away: the call goes on, and the others get the whole answer."""
    ready = asyncio.Event()
    async with ScriptedEngine([steps.wait(ready.wait), steps.answer("shared")]) as engine, front(engine) as gate:
        callers = []
        for number in range(3):
            callers.append(_asked(gate, chat("same")))
            await _riding(gate, number + 1)
        goer = callers.pop(0 if leaves == "the first" else 1)
        goer.cancel()
        await _riding(gate, 2)
        closed = engine.closed_by_peer
        ready.set()
        heard = await asyncio.gather(*callers)
        await gate.idle()
        totals = gate.totals

    assert (closed, len(engine.requests)) == (0, 1)
    assert [(answer.status, answer.text) for answer in heard] == [(200, "shared")] * 2
    assert (totals["cancelled"], totals["answered"]) == (1, 2)


async def test_when_all_have_left_the_engine_is_let_go() -> None:
    """The last one's leaving closes the connection to the engine within a second."""
    async with ScriptedEngine(steps.hang()) as engine, front(engine) as gate:
        callers = [_asked(gate, chat("same")) for _ in range(3)]
        await _riding(gate, 3)
        await engine.got(1)
        for caller in callers:
            caller.cancel()
        await engine.until(lambda: engine.closed_by_peer == 1)
        await gate.idle()

    assert len(engine.requests) == 1


async def test_after_a_failure_one_of_those_who_wait_takes_over_once() -> None:
    """The first call fails: its caller is told, the next in line asks again, and all who are left get that answer."""
    ready = asyncio.Event()
    broken = [steps.wait(ready.wait), steps.json(500, {"error": {"message": "boom"}})]
    async with (
        ScriptedEngine(steps.answer("second")) as engine,
        front(engine, routing={"max_retries": 0}, **PATIENT) as gate,
    ):
        engine.once(broken)
        callers = []
        for number in range(3):
            callers.append(_asked(gate, chat("same")))
            await _riding(gate, number + 1)
        ready.set()
        heard = await asyncio.gather(*callers)
        later = await gate.client.ask(chat("same"))
        await gate.idle()

    assert [answer.status for answer in heard] == [502, 200, 200]
    assert (len(engine.requests), later.headers["x-headrace-cache"]) == (3, "miss")


async def test_a_second_failure_is_told_to_all() -> None:
    """The one who took over fails as well: everybody is told, nobody hangs, and two calls were made, not three."""
    ready = asyncio.Event()
    broken = [steps.wait(ready.wait), steps.json(500, {"error": {"message": "boom"}})]
    async with ScriptedEngine(broken) as engine, front(engine, routing={"max_retries": 0}, **PATIENT) as gate:
        callers = [_asked(gate, chat("same")) for _ in range(3)]
        await _riding(gate, 3)
        ready.set()
        heard = await asyncio.gather(*callers)
        await gate.idle()

    assert [answer.status for answer in heard] == [502] * 3
    assert len(engine.requests) == 2


async def test_who_is_over_his_own_limit_leads_nobody() -> None:
    """A caller refused by his own limit was never a leader: those behind him are answered."""
    async with (
        ScriptedEngine() as engine,
        front(engine, limits={"per_user": {"requests_per_minute": 1}}) as gate,
    ):
        await gate.client.ask(chat("before"), {"x-headrace-user": "lena"})
        heard = await asyncio.gather(
            *(_asked(gate, chat("same"), {"x-headrace-user": user}) for user in ("lena", "finn", "fritz"))
        )
        await gate.idle()

    assert [answer.status for answer in heard] == [429, 200, 200]
    assert heard[0].error["code"] == "rate_limit_exceeded"


async def test_a_late_joiner_of_a_stream_gets_it_from_its_first_byte() -> None:
    """Half of the answer is out when the second caller comes: he gets that half at once, and then all that follows."""
    go_on = asyncio.Event()
    script = [steps.role(), steps.chunk("Once "), steps.wait(go_on.wait), steps.chunk("upon"), steps.finish()]
    async with ScriptedEngine([*script, steps.done(), steps.end()]) as engine, front(engine) as gate:
        first = _asked(gate, chat("same", stream=True))
        await gate.until(lambda: gate.instance().unstarted_tokens == 0 and gate.instance().in_flight == 1, "it begins")
        async with gate.client.open(chat("same", stream=True)) as late:
            opening = [await next_event(late), await next_event(late)]
            go_on.set()
            rest = await late.read()
        whole = await first
        await gate.idle()

    assert late.headers["x-headrace-cache"] == "joined"
    assert b"".join(b"data: " + event + b"\n\n" for event in opening) + rest.lstrip(b"\n") == whole.body
    assert (whole.text, whole.done, len(engine.requests)) == ("Once upon", True, 1)


@pytest.mark.parametrize("leader_streams", [True, False])
async def test_each_gets_the_form_he_asked_for(leader_streams: bool) -> None:
    """A caller who wants a stream and one who does not share a call, whoever comes first; both get all of it."""
    ready = asyncio.Event()
    script = [steps.wait(ready.wait), steps.answer("all of it", tokens=(3, 4))]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed, whole = chat("same", **options), chat("same")
    async with ScriptedEngine(script) as engine, front(engine) as gate:
        leader = _asked(gate, streamed if leader_streams else whole)
        await _riding(gate, 1)
        joiner = _asked(gate, whole if leader_streams else streamed)
        await _riding(gate, 2)
        ready.set()
        stream, body = (await leader, await joiner) if leader_streams else reversed((await leader, await joiner))
        await gate.idle()

    assert stream.headers["content-type"].startswith("text/event-stream")
    assert body.headers["content-type"].startswith("application/json")
    assert (stream.text, stream.done, body.text) == ("all of it", True, "all of it")
    assert stream.events[-1]["usage"] == body.json["usage"]
    assert len(engine.requests) == 1


@pytest.mark.parametrize(("directive", "calls"), [("no-store", 3), ("no-cache", 1), ("private, NO-STORE", 3)])
async def test_no_store_asks_for_a_call_of_ones_own(directive: str, calls: int) -> None:
    """`no-store` shares nothing; `no-cache` wants no old answer, and one that is being made now is none."""
    ready = asyncio.Event()
    async with ScriptedEngine([steps.wait(ready.wait), steps.answer("fine")]) as engine, front(engine) as gate:
        callers = [_asked(gate, chat("same"), {"cache-control": directive}) for _ in range(3)]
        await _riding(gate, 3)
        ready.set()
        heard = await asyncio.gather(*callers)
        await gate.idle()

    assert {answer.status for answer in heard} == {200}
    assert len(engine.requests) == calls


async def test_an_answer_too_long_to_keep_is_no_longer_joined() -> None:
    """Past what is kept for late joiners (4 MiB) the next caller gets his own call; both get all 10 MB in order."""
    go_on = asyncio.Event()
    pieces = [f"{number:05}" + "x" * 99_995 for number in range(100)]

    async def long(conn: ScriptedConnection) -> None:
        await conn.role()
        for number, piece in enumerate(pieces):
            if number == 90:
                await conn.wait(go_on.wait())
            await conn.chunk(piece)
        await conn.finish()
        await conn.done()
        await conn.end()

    async with ScriptedEngine(long) as engine, front(engine) as gate:
        first = _asked(gate, chat("same", stream=True))
        await gate.until(lambda: gate.sealed == 1, "the answer grows past what is kept")
        second = _asked(gate, chat("same", stream=True))
        await engine.got(2)
        go_on.set()
        heard = await asyncio.gather(first, second)
        await gate.idle()

    assert [answer.headers["x-headrace-cache"] for answer in heard] == ["miss", "miss"]
    assert all(answer.text == "".join(pieces) and answer.done for answer in heard)


async def test_different_users_share_but_different_models_do_not() -> None:
    """Sharing is within a tenant, and never across models or endpoints."""
    ready = asyncio.Event()
    async with (
        ScriptedEngine([steps.wait(ready.wait), steps.answer("fine")]) as engine,
        front(engine, instances={"models": ["m", "m2"]}) as gate,
    ):
        prompt = {"model": "m", "prompt": "same"}
        asked: list[tuple[str, Mapping[str, object]]] = [
            (CHAT, chat("same")),
            (CHAT, chat("same", model="m2")),
            ("/v1/completions", prompt),
        ] * 2
        callers = [asyncio.create_task(gate.client.ask(body, path=path)) for path, body in asked]
        await _riding(gate, 6)
        ready.set()
        await asyncio.wait_for(asyncio.gather(*callers), GUARD)
        await gate.idle()

    assert len(engine.requests) == 3
