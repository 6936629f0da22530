"""What the tests of the clients to engines have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.runtime.client import Client
from headrace.testing import ScriptedEngine
from tests.runtime.listener import CLIENTS


@pytest.fixture(params=CLIENTS)
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """Each client in turn; it must leave nothing behind."""
    client: Client = request.param()
    yield client
    await client.close()
    assert client.running == 0


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """An engine whose every write is controlled."""
    async with ScriptedEngine() as scripted:
        yield scripted
