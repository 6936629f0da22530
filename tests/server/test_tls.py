"""The front door over TLS, on a connection of its own kind: no half of it can be closed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from prometheus_client import CollectorRegistry

from headrace.model import AnswerForm
from headrace.server import ServerSettings
from headrace.server.serving import hosted, tls_context
from tests.server.fakes import CHAT, DONE, WHOLE, FakeGateway, RawClient, chunk

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Whoever signed the server's certificate."""
    return trustme.CA()


@pytest.fixture
def settings(authority: trustme.CA, tmp_path: Path) -> ServerSettings:
    """Those of a front door with a certificate for 127.0.0.1."""
    file = tmp_path / "both.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
    return ServerSettings(tls=tls_context(str(file)))


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """What a caller speaks TLS with who knows the authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@asynccontextmanager
async def over_tls(url: str, authority: trustme.CA) -> AsyncIterator[RawClient]:
    """A connection that knows the authority."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port, ssl=trusting(authority))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


async def test_one_connection_serves_whole_answers_streams_and_the_asgi_lane(
    authority: trustme.CA, settings: ServerSettings
) -> None:
    """A large body, a stream in pieces and another route, over one handshake."""
    gateway = FakeGateway()
    async with hosted(gateway, settings, CollectorRegistry()) as url, over_tls(url, authority) as client:
        assert url.startswith("https://")
        assert (await client.get("/live")).status == 200
        client.post(PATH, {**CHAT, "user": "x" * 1_000_000, "stream": True})
        reply = await gateway.arrived()
        reply.begin()
        reply.write(chunk("one"))
        await client.head()
        assert await client.piece() == chunk("one")
        reply.write(DONE)
        reply.end()
        assert await client.rest() == DONE
        client.post(PATH, CHAT)
        reply = await gateway.arrived(2)
        reply.begin(AnswerForm.WHOLE)
        reply.write(WHOLE)
        reply.end()
        assert (await client.answer()).body == WHOLE


async def test_a_caller_who_leaves_over_tls_is_noticed(authority: trustme.CA, settings: ServerSettings) -> None:
    """The engine is not kept busy for nobody."""
    gateway = FakeGateway()
    async with hosted(gateway, settings, CollectorRegistry()) as url, over_tls(url, authority) as client:
        client.post(PATH, {**CHAT, "stream": True})
        reply = await gateway.arrived()
        reply.begin()
        reply.write(chunk("one"))
        await client.head()
        client.leave()
        await gateway.until_cancelled(reply)


async def test_a_refusal_over_tls_comes_whole(authority: trustme.CA, settings: ServerSettings) -> None:
    """What is no HTTP is answered and not listened to any more, though the end cannot be said on one half only."""
    gateway = FakeGateway()
    async with hosted(gateway, settings, CollectorRegistry()) as url, over_tls(url, authority) as client:
        client.writer.write(b"FOO BAR\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        client.post(PATH, CHAT)
        client.leave()
    assert gateway.replies == []


async def test_who_speaks_plainly_to_a_tls_port_gets_nothing(authority: trustme.CA, settings: ServerSettings) -> None:
    """No request is read that was not encrypted, and the next caller is served."""
    gateway = FakeGateway()
    async with hosted(gateway, settings, CollectorRegistry()) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        plain = RawClient(reader, writer)
        plain.post(PATH, CHAT)
        assert b"HTTP/" not in await plain.closed()
        writer.close()
        async with over_tls(url, authority) as client:
            assert (await client.get("/live")).status == 200
    assert gateway.replies == []


def test_files_that_hold_no_certificate_are_told(tmp_path: Path) -> None:
    """A file that is missing, and one with anything else in it."""
    with pytest.raises(FileNotFoundError):
        tls_context(str(tmp_path / "none.pem"))
    (tmp_path / "text.pem").write_text("no certificate")
    with pytest.raises(ssl.SSLError):
        tls_context(str(tmp_path / "text.pem"))
