"""The bench's client over real sockets: an answer is an answer, everything else has a name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from headrace.bench.endpoint import Answered, Endpoint, Unusable
from headrace.bench.lengths import Fixed
from headrace.bench.patterns import User
from headrace.bench.questions import Questioner
from headrace.bench.run import Plan, Run
from headrace.model import Usage
from headrace.testing import MockEngine, ScriptedConnection, ScriptedEngine, Step, run_virtual, steps

ANN = User(name="ann", prompt=Fixed(12), output=Fixed(4))


async def asked(url: str, seen: Callable[[int], None] = lambda _: None, key: str | None = None) -> Answered:
    """One question to whatever answers there."""
    async with Endpoint(url, key) as endpoint:
        return await endpoint.ask(Questioner(ANN, "m", Random(1), key=None).ask(), seen)


async def scripted(*script: Step) -> Answered:
    """One question to an engine that follows a script."""
    async with ScriptedEngine() as engine:
        engine.once(list(script))
        return await asked(engine.url)


async def test_an_answer_is_read_with_its_usage() -> None:
    """From an engine with continuous batching: the pieces as they come, the text, the counts."""
    pieces: list[int] = []
    async with MockEngine(model="m", speed=1000, api_key="k") as engine:
        answer = await asked(f"{engine.url}/v1/", pieces.append, "k")
    assert (answer.result, answer.usage) == ("served", Usage(12, 4))
    assert sum(pieces) == 4
    assert len(answer.text.split()) == 4


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ([steps.role(), steps.chunk("a"), steps.cut()], "cut"),
        ([steps.role(), steps.chunk("a"), steps.end()], "cut"),
        ([steps.role(), steps.finish(), steps.done(), steps.end()], "empty"),
        ([steps.chunk("a"), steps.sse({"error": {"code": "upstream_error"}}), steps.end()], "stream: upstream_error"),
        ([steps.reset()], "cut"),
    ],
    ids=["cut", "no end", "no content", "error event", "reset"],
)
async def test_what_is_no_answer_has_a_name(script: list[Step], result: str) -> None:
    """A stream without a proper end, without content or with an error is never a served request."""
    answer = await scripted(*script)
    assert (answer.result, answer.served) == (result, False)


async def test_a_refusal_is_its_status_and_code() -> None:
    """With the time to stay away and the time in the queue, as the gateway tells them."""

    async def full(conn: ScriptedConnection) -> None:
        body = {"error": {"message": "full", "type": "server_error", "param": None, "code": "queue_full"}}
        await conn.json(503, body, [("retry-after", "7"), ("retry-after-ms", "6500"), ("x-headrace-queue-ms", "30")])

    answer = await scripted(full)
    assert answer == Answered(result="503 queue_full", waited=0.03, retry_after=6.5)


async def test_nonsense_in_a_refusal_is_left_out() -> None:
    """A proxy's page and headers that are no numbers are no code and no time."""

    async def page(conn: ScriptedConnection) -> None:
        await conn.head(502, [("retry-after", "soon"), ("content-type", "text/html")])
        await conn.send(b"<html>" * 1000)
        await conn.end()

    assert await scripted(page) == Answered(result="502")


async def test_nobody_there_is_told_apart() -> None:
    """A port that nobody listens on is no broken answer."""
    async with ScriptedEngine() as engine:
        url = engine.url
    assert (await asked(url)).result == "connect"
    async with Endpoint(url) as endpoint:
        with pytest.raises(Unusable, match="nothing answers at"):
            await endpoint.models()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://a", "http://", "http://a:99999", "http://[::1"])
def test_what_is_no_address_is_told(url: str) -> None:
    """One sentence, before anything is sent."""
    with pytest.raises(Unusable, match="is no address"):
        Endpoint(url)


async def test_models_are_those_with_names() -> None:
    """Patterns and nonsense are left out; a list without names says what to do."""

    async def listed(conn: ScriptedConnection) -> None:
        await conn.json(200, {"data": [{"id": "gpt-*"}, 5, {"id": 3}, {"id": "m"}]})

    async def locked(conn: ScriptedConnection) -> None:
        await conn.json(401, {"error": {"message": "key"}})

    async with ScriptedEngine() as engine, Endpoint(engine.url) as endpoint:
        engine.answers_probes = False
        engine.once(listed)
        assert await endpoint.models() == ("m",)
        engine.once(locked)
        with pytest.raises(Unusable, match="status 401; name one with --model, and a key with --api-key-env"):
            await endpoint.models()


def test_the_first_token_s_time_is_the_engine_s() -> None:
    """Through HTTP and on virtual time: the prompt at its speed, then tokens at theirs."""

    async def main() -> tuple[float, float]:
        engine = MockEngine(model="m", slots=1, prefill_tps=10, decode_tps=2)
        async with engine, Endpoint(engine.url) as endpoint:
            user = User(name="ann", requests=1, prompt=Fixed(20), output=Fixed(5))
            run = Run(Plan(users=(user,), model="m"), endpoint)
            await run.go()
            samples = run.tallies["ann"].samples
            return samples.first[0], samples.token[0]

    first, token = run_virtual(main(), settle=0.02)
    assert first == pytest.approx(2.0)
    assert token == pytest.approx(0.5)
