"""`headrace chat`: streams, tells the place in the queue, and says in one sentence what went wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from headrace.cli import Refused
from headrace.cli.chat import converse, say
from headrace.cli.talk import Gateway, Message
from headrace.testing import ScriptedConnection, ScriptedEngine, steps

HELLO: list[Message] = [{"role": "user", "content": "Hello"}]


def nobody(position: int) -> None:
    """Takes a place in the queue that is not expected."""
    raise AssertionError(position)


async def collected(gateway: Gateway) -> list[str]:
    """All pieces of one answer."""
    return [piece async for piece in gateway.answer("m", HELLO)]


async def test_an_answer_comes_in_pieces() -> None:
    """Each piece is handed on as it comes; the user and an id go along."""
    async with ScriptedEngine() as engine:
        engine.once([steps.role(), steps.chunk("Hel"), steps.chunk("lo"), steps.finish(), steps.done(), steps.end()])
        assert await collected(Gateway(engine.url + "/v1/", "ann", waiting=nobody)) == ["Hel", "lo"]
        request = engine.requests[0]
        assert request.header("x-headrace-user") == "ann"
        assert (request.header("x-request-id") or "").startswith("chat-")


async def test_models_are_listed() -> None:
    """The names the gateway lists, without patterns."""

    async def listing(conn: ScriptedConnection) -> None:
        await conn.json(200, {"data": [{"id": "gpt-*"}, {"id": "m"}]})

    async with ScriptedEngine() as engine:
        engine.answers_probes = False
        engine.once(listing)
        assert await Gateway(engine.url, "ann", waiting=nobody).models() == ["m"]


async def test_a_refusal_is_its_message() -> None:
    """What the gateway says is what the person reads, with the time to wait."""

    async def full(conn: ScriptedConnection) -> None:
        await conn.json(503, {"error": {"message": "The queue is full."}}, [("retry-after", "3")])

    async with ScriptedEngine() as engine:
        engine.once(full)
        with pytest.raises(Refused, match=r"^The queue is full\. \(try again in 3 s\)$"):
            await collected(Gateway(engine.url, "ann", waiting=nobody))


async def test_a_broken_answer_is_told() -> None:
    """An error in mid-stream and a missing end both end the answer with a sentence."""
    async with ScriptedEngine() as engine:
        engine.once([steps.chunk("a"), steps.error("engine gone"), steps.end()], [steps.chunk("a"), steps.end()])
        gateway = Gateway(engine.url, "ann", waiting=nobody)
        with pytest.raises(Refused, match="engine gone"):
            await collected(gateway)
        with pytest.raises(Refused, match="broke off before it was complete"):
            await collected(gateway)


async def test_no_gateway_is_told() -> None:
    """A closed port is one sentence with what to do."""
    with pytest.raises(Refused, match=r"nothing answers at http://127\.0\.0\.1:1; `headrace serve` starts"):
        await collected(Gateway("http://127.0.0.1:1", "ann", waiting=nobody))


async def test_the_place_in_the_queue_is_told() -> None:
    """While the answer has not begun, the own request's place is asked for and shown."""
    places: list[int] = []

    async with ScriptedEngine() as engine:

        async def place(conn: ScriptedConnection) -> None:
            own = engine.requests[0].header("x-request-id")
            await conn.json(200, {"data": [{"id": "other", "position": 9}, {"id": own, "position": 2}]})

        async def waiting(conn: ScriptedConnection) -> None:
            await engine.until(lambda: bool(places))
            await conn.answer("now")

        engine.default = place
        engine.once(waiting)
        gateway = Gateway(engine.url, "ann", waiting=places.append, poll_seconds=0)
        assert "".join(await collected(gateway)) == "now"
        assert set(places) == {2}


async def test_pieces_are_printed_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is held back until the end."""

    async def answer(_turns: list[Message]) -> AsyncIterator[str]:
        yield "Hel"
        assert capsys.readouterr().out == "Hel"
        yield "lo"

    assert await say(answer, HELLO) == "Hello"
    assert capsys.readouterr().out == "lo\n"


def test_a_conversation_remembers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Earlier turns go along; a failed one is forgotten; /clear begins anew and /quit ends; the model is not asked
    for what only looks like one of these."""
    seen: list[list[str]] = []

    async def answer(turns: list[Message]) -> AsyncIterator[str]:
        seen.append([turn["content"] for turn in turns])
        if turns[-1]["content"] == "bad":
            raise Refused("no")
        yield "ok"

    lines: Iterator[str] = iter(["one", "bad", "two", "/help", "/clear", "", "three", "/quit"])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(lines))
    converse(answer, [{"role": "system", "content": "sys"}])
    assert seen == [["sys", "one"], ["sys", "one", "ok", "bad"], ["sys", "one", "ok", "two"], ["sys", "three"]]
    assert capsys.readouterr().err == "error: no\n"
