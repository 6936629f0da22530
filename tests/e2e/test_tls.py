"""Engines behind TLS: an authority of one's own is trusted when it is named, and nobody else is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from headrace.testing import ScriptedEngine, steps
from tests.e2e.client import Client, chat, client
from tests.e2e.fault_scripts import certified
from tests.e2e.process import program

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def before(engine: ScriptedEngine, cwd: Path, env: Mapping[str, str]) -> AsyncIterator[Client]:
    """A gateway of its own process before this engine."""
    instances = [{"id": "a", "address": engine.url, "models": ["m"]}]
    config = {"instances": instances, "routing": {"max_retries": 0}, "dead_letters": {"path": None}}
    (cwd / "headrace.yaml").write_text(json.dumps(config))
    async with program("serve", "--config", "headrace.yaml", "--port", "0", cwd=cwd, env=env) as running:
        async with client(await running.listens()) as caller:
            yield caller
        assert running.tracebacks == []


async def test_an_engine_with_a_certificate_of_ones_own_authority_answers(tmp_path: Path) -> None:
    """`SSL_CERT_FILE` names the authority: whole and streamed answers come through, and so does the health check."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "own.pem"))
    env = {"SSL_CERT_FILE": str(tmp_path / "own.pem")}
    async with (
        ScriptedEngine(steps.answer("fine"), tls=certified(authority, "127.0.0.1")) as engine,
        before(engine, tmp_path, env) as caller,
    ):
        whole, stream = await caller.ask(chat()), await caller.ask(chat(stream=True))
        await engine.until(lambda: len(engine.probes) > 0)
    assert (whole.text, stream.text, stream.done) == ("fine", "fine", True)


@pytest.mark.parametrize(("named", "name"), [(False, "127.0.0.1"), (True, "elsewhere.example")])
async def test_what_nobody_vouches_for_is_not_spoken_to(tmp_path: Path, named: bool, name: str) -> None:
    """An unknown authority, or a certificate for another name: an error that gives nothing away, and no request."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "own.pem"))
    env = {"SSL_CERT_FILE": str(tmp_path / "own.pem")} if named else {}
    async with (
        ScriptedEngine(steps.answer("fine"), tls=certified(authority, name)) as engine,
        before(engine, tmp_path, env) as caller,
    ):
        heard = await caller.ask(chat())
        asked = [*engine.requests, *engine.probes]
    assert (heard.status, heard.error["code"], asked) == (502, "upstream_error", [])
    assert "certificate" not in heard.body.decode()
