"""What the documents tell their readers to send: each request is asked of a gateway as it stands there."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from headrace.build import build
from headrace.cli.serve import server_settings
from headrace.config import Config
from headrace.server import hosted
from tests.documents import GATEWAY, Request, blocks, commands
from tests.e2e.process import python

KEY = "key-of-the-documents"
NOBODY = "http://127.0.0.1:9"
"""Where nothing listens."""
REQUESTS = [words for words in commands() if words[0] == "curl"]
OWN = f"{GATEWAY}/v1/queue/my-request-id"
"""A reader's own request, of which nobody else knows."""


@asynccontextmanager
async def documented() -> AsyncIterator[str]:
    """A gateway with the instances and the key that the documents speak of; its address."""
    instance = {"id": "gpu-1", "engine": "echo", "models": ["echo", "qwen3-1.7b"]}
    sections: dict[str, object] = {"admin": {"api_key_env": "HEADRACE_ADMIN_KEY"}, "dead_letters": {"path": None}}
    config = Config.model_validate({"instances": [instance], **sections}).with_keys({"HEADRACE_ADMIN_KEY": KEY})
    registry = CollectorRegistry()
    async with (
        build(config, registry=registry, random=Random(1)) as gateway,
        hosted(gateway, server_settings(config), registry) as url,
    ):
        yield url


async def test_each_request_is_answered() -> None:
    """In the order of the documents, with the key in its variable: each succeeds; what goes elsewhere goes nowhere."""
    assert len(REQUESTS) > 15
    async with documented() as url, aiohttp.ClientSession() as session:
        for words in REQUESTS:
            asked = Request.of([word.replace("$HEADRACE_ADMIN_KEY", KEY) for word in words])
            data = re.sub(r"https?://[\w.:]+", NOBODY, asked.data) if asked.data else None
            target = asked.url.replace(GATEWAY, url)
            async with session.request(asked.method, target, headers=asked.headers, data=data) as answer:
                body = await answer.text()
                assert (answer.status == 404) if asked.url == OWN else answer.ok, (asked, answer.status, body)


@pytest.mark.parametrize("text", [text for _, text in blocks("python") if "from openai" in text])
async def test_the_official_client_s_example_runs_as_written(text: str, tmp_path: Path) -> None:
    """The program of the first page prints the answer, word by word; the built-in echo says what it was told."""
    async with documented() as url, python("-c", text.replace(GATEWAY, url), cwd=tmp_path) as running:
        assert await running.ended() == 0, "\n".join(running.log)
        assert "Hello" in "\n".join(running.output)


async def test_the_shape_of_a_queue_is_the_documented_one() -> None:
    """The JSON that shows a reader his place has the keys of a real answer."""
    shown = next(json.loads(text) for document, text in blocks("json") if document == "fairness.md")
    async with (
        documented() as url,
        aiohttp.ClientSession(headers={"x-headrace-user": "ann"}) as session,
        session.get(f"{url}/v1/queue/me") as answer,
    ):
        found = await answer.json()
    assert set(found) == set(shown)
    assert (found["object"], found["user"], found["data"]) == (shown["object"], shown["user"], [])
