"""A real gateway behind the front door of a test, and one request to its admin API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

from prometheus_client import CollectorRegistry

from headrace.build import Headrace, build
from headrace.config import Config
from headrace.server.settings import AdminSettings, ServerSettings
from tests.server.fakes import Answer, FakeGateway, Front, RawClient, front_door

KEY = "k-0123456789abcdef"
SECRET = "s3cr3t-of-an-engine"
ELSEWHERE = {"x-forwarded-for": "203.0.113.9"}
"""What a request has that came through a proxy."""

LOCKED = ServerSettings(admin=AdminSettings(key=KEY, key_variables=("*_API_KEY",)))
OPEN = ServerSettings(admin=AdminSettings(key_variables=("*_API_KEY",)), body_limit=100_000)


@asynccontextmanager
async def administered(settings: ServerSettings = OPEN, **sections: object) -> AsyncIterator[tuple[Headrace, Front]]:
    """A real gateway with one instance `a` that is not there, behind the front door of this test."""
    config = Config.model_validate(
        {
            "instances": [{"id": "a", "address": "http://127.0.0.1:9", "models": ["m"], "api_key_env": "A_API_KEY"}],
            "dead_letters": {"path": None},
            "health_check": {"interval_seconds": 86_400},
            **sections,
        }
    ).with_keys({"A_API_KEY": SECRET, "OTHER_API_KEY": SECRET})
    gateway = build(config, registry=CollectorRegistry(), random=Random(1))
    async with gateway, front_door(FakeGateway(administration=gateway), settings) as front:
        yield gateway, front


async def send(
    client: RawClient, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request from this machine, with a JSON body if there is one."""
    fields = {"host": "127.0.0.1", **(headers or {})}
    data = b"" if body is None else json.dumps(body).encode()
    if data:
        fields.setdefault("content-type", "application/json")
    client.send(method, path, fields, data)
    return await client.answer()


async def routes(client: RawClient, headers: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Every method and path that the API's own document names, with names put into the places."""
    document = json.loads((await send(client, "GET", "/openapi.json", headers=headers)).body)
    return [
        (method.upper(), path.replace("{id}", "a"))
        for path, operations in document["paths"].items()
        for method in operations
    ]
