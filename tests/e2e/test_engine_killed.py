"""An engine dies under two hundred streams, and comes back: real processes, real signals, real time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.client import Client, Heard, chat, client, next_event
from tests.e2e.process import mock_engine, serving

STREAMS = 200
TOKENS = 80
PATIENCE = 300.0
BACK_WITHIN = 45.0
"""Seconds from the moment the engine listens again to its first answer: before its breaker would try it by itself."""
ENGINE = f"--model m --slots {2 * STREAMS} --decode-tps 4 --batch-slowdown 0 --prefill-tps 1e6 --kv-tokens 1000000"
INSTANCE = {"models": ["m"], "engine": "vllm", "max_concurrent": 2 * STREAMS, "window_tokens": None}


def _words(number: int) -> str:
    return " ".join(f"w{number}.{position}" for position in range(TOKENS))


class Crowd:
    """Two hundred callers who stream, and a word when all of them have begun to read."""

    def __init__(self, caller: Client) -> None:
        self._caller = caller
        self._begun = 0
        self.all_begun = asyncio.Event()

    async def stream(self, number: int) -> tuple[str, bytes]:
        """One stream: the instance that began it, and everything that was read."""
        body = chat(_words(number), stream=True, max_tokens=TOKENS)
        async with self._caller.open(body, {"x-headrace-user": f"u{number}"}) as response:
            assert response.status == 200
            first = await next_event(response)
            self._begun += 1
            if self._begun == STREAMS:
                self.all_begun.set()
            rest = await response.read()
        return response.headers["x-headrace-instance"], b"data: " + first + b"\n\n" + rest


async def _newcomers(caller: Client) -> list[Heard]:
    """Requests that begin while the engine is dead."""
    asked = [caller.ask(chat(f"new {number}", max_tokens=4), {"x-headrace-user": f"n{number}"}) for number in range(50)]
    return await asyncio.gather(*asked)


async def _until_back(caller: Client, name: str) -> float:
    """Ask one thing after the other until `name` answers; every one is answered. Seconds that took."""
    loop = asyncio.get_running_loop()
    began, number = loop.time(), 0
    while True:
        heard = await caller.ask(chat(f"back {number}", max_tokens=2))
        assert heard.status == 200
        if heard.headers["x-headrace-instance"] == name:
            return loop.time() - began
        number += 1
        assert loop.time() - began < PATIENCE


def _fate(number: int, body: bytes) -> str:
    """How a stream ended; what was read of it is the answer's beginning in any case."""
    heard = Heard(200, {"content-type": "text/event-stream"}, body.replace(b"\n: ", b"\n\n: "))
    if heard.done:
        assert heard.text == _words(number)
        return "resumed" if b": headrace resumed" in body else "whole"
    assert heard.error["code"] == "stream_incomplete"
    assert _words(number).startswith(heard.text)
    return "error"


@pytest.mark.slow
async def test_an_engine_killed_under_many_streams_takes_nobody_else_along(tmp_path: Path) -> None:
    """New requests are all answered, cut streams go on or end with an error, and it is used again once it is back."""
    async with mock_engine(tmp_path, *ENGINE.split()) as one, mock_engine(tmp_path, *ENGINE.split()) as two:
        instances = [{**INSTANCE, "id": "one", "address": one.url}, {**INSTANCE, "id": "two", "address": two.url}]
        config = {
            "server": {"log_level": "info"},
            "dead_letters": {"path": None},
            "instances": instances,
            # Half of the streams at each: by what is learned of two processes on a busy machine it may be a fifth, and
            # an engine that says it has three waiting, as this one may between two of its steps, gets no more for now.
            "load_balancer": {"strategy": "least_in_flight"},
            "gates": {"waiting_below": 2 * STREAMS},
        }
        async with serving(json.dumps(config), tmp_path) as gateway, client(gateway.url, PATIENCE) as caller:
            # Until an engine has told of itself it gets few at a time.
            await gateway.until(lambda: sum("engine metrics known" in line for line in gateway.log) == 2, "both known")
            crowd = Crowd(caller)
            streams = [asyncio.create_task(crowd.stream(number)) for number in range(STREAMS)]
            await crowd.all_begun.wait()
            await one.kill()
            new = await _newcomers(caller)
            told = await asyncio.gather(*streams)
            port = str(urlsplit(one.url).port)
            async with mock_engine(tmp_path, *ENGINE.split(), "--port", port):
                took = await _until_back(caller, "one")
            health = (await caller.get("/health")).json
            assert gateway.tracebacks == []

    assert {heard.status for heard in new} == {200}
    begun = Counter(instance for instance, _ in told)
    fates = Counter((instance, _fate(number, body)) for number, (instance, body) in enumerate(told))
    assert begun["one"] == pytest.approx(STREAMS / 2, abs=STREAMS / 5)
    assert fates["two", "whole"] == begun["two"]
    assert fates["one", "whole"] == 0
    assert fates["one", "resumed"] >= 20
    assert fates["one", "resumed"] + fates["one", "error"] == begun["one"]
    assert took <= BACK_WITHIN
    assert [view["in_flight"] for view in health["instances"]] == [0, 0]
    assert health["totals"]["resumes"] == health["totals"]["retries"] == fates["one", "resumed"]
