"""Backpressure before real engines: two llama.cpp servers, a flood, and somebody with one request at a time."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e import llama
from tests.e2e.client import Client, client
from tests.e2e.flood import Load, crowd
from tests.e2e.process import python, serving

PATIENCE = 1200.0
LOAD = Load(flood=40, light=3, prompt=80, output=16, light_output=8, model=llama.ALIAS)
WINDOW = 3 * LOAD.prompt

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.skipif(llama.missing() is not None, reason=f"no real engine: {llama.missing()}"),
]


async def deferred(engine: Client) -> float:
    """Requests in the engine's own queue, as it says at this moment."""
    text = (await engine.get("/metrics")).body.decode()
    families = text_string_to_metric_families(text)
    return next(
        sample.value for family in families for sample in family.samples if sample.name == "llamacpp:requests_deferred"
    )


async def longest_queue(engine: Client, over: asyncio.Event) -> float:
    """The longest queue of its own that it tells of, asked again and again until `over`."""
    longest = 0.0
    while not over.is_set():
        longest = max(longest, await deferred(engine))
    return longest


async def test_a_flood_waits_in_the_gateway_and_not_in_the_engines(tmp_path: Path) -> None:
    """Each engine has two slots and may be sent sixteen requests, but three unread prompts: never do more than three
    wait in it, and a light user has his first token in a third of the time that the flood takes, at most."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(python(str(Path(llama.__file__)), "0", cwd=tmp_path)) for _ in "ab"]
        instances = [
            {
                "id": name,
                "engine": "llamacpp",
                "address": await engine.listens(),
                "models": [llama.ALIAS],
                "max_concurrent": 16,
                "window_tokens": WINDOW,
            }
            for name, engine in zip("ab", engines, strict=True)
        ]
        limits = {"queue": PATIENCE, "first_token": PATIENCE, "idle": PATIENCE, "attempt": PATIENCE}
        config = {"instances": instances, "timeouts": limits, "dead_letters": {"path": None}}
        gateway = await stack.enter_async_context(serving(json.dumps(config), tmp_path))
        caller = await stack.enter_async_context(client(gateway.url, PATIENCE))
        watched = [await stack.enter_async_context(client(engine.url, PATIENCE)) for engine in engines]
        over = asyncio.Event()
        queues = [asyncio.create_task(longest_queue(engine, over)) for engine in watched]
        together = await crowd(caller, LOAD)
        over.set()
        longest = [await queue for queue in queues]
        assert not gateway.tracebacks
    assert together.all_answered
    assert max(longest) <= 3
    assert max(felt.ttft for felt in together.light) <= together.seconds / 3
