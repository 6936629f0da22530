"""Engines behind an HTTP proxy: who is, and that the proxy is really asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.runtime.client import new_client
from headrace.runtime.failures import Failure
from headrace.runtime.proxies import Proxies, proxies_in
from headrace.testing import ScriptedEngine
from tests.runtime.listener import ASK, Listener, ask

BOTH = Proxies(
    "http://proxy:1", "http://proxy:2", "example.com, .corp:80 10.0.0.0/8,192.168.1.7 [2001:db8::1] nonsense/8"
)


@pytest.mark.parametrize(
    ("address", "proxy"),
    [
        ("http://engine.test/v1", "http://proxy:1"),
        ("https://api.openai.com", "http://proxy:2"),
        ("https://example.com", None),
        ("https://api.example.com", None),
        ("https://notexample.com", "http://proxy:2"),
        ("http://gpu.corp:80", None),
        ("http://10.1.2.3:8000", None),
        ("http://11.1.2.3:8000", "http://proxy:1"),
        ("http://192.168.1.7", None),
        ("http://[2001:db8::1]:8000", None),
        ("http://127.0.0.1:8000", None),
        ("http://[::1]:8000", None),
        ("http://localhost:8000", None),
    ],
)
def test_who_is_behind_a_proxy(address: str, proxy: str | None) -> None:
    """The scheme chooses, the exceptions hold for names below a name, addresses and networks, and this machine's own
    engines are never asked through one."""
    assert BOTH.of(address) == proxy


def test_what_the_environment_says() -> None:
    """Lower case goes first, `ALL_PROXY` fills in, a host without a scheme is an HTTP proxy, `*` means nobody."""
    found = proxies_in({"HTTP_PROXY": "up:1", "http_proxy": "http://low:2", "ALL_PROXY": "all:3", "NO_PROXY": "*"})
    assert (found.http, found.https) == ("http://low:2", "http://all:3")
    assert found.of("http://engine.test") is None
    assert not proxies_in({"NO_PROXY": "x"})
    assert "low" not in repr(found)


@asynccontextmanager
async def _proxy(heard: list[str]) -> AsyncIterator[str]:
    """A proxy that answers for every engine, writes down what it is asked, and makes no tunnels."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        heard.append(head.split("\r\n", 1)[0])
        refused = head.startswith("CONNECT")
        status = "403 Forbidden" if refused else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def test_the_proxy_is_asked_for_engines_elsewhere_only() -> None:
    """An engine elsewhere is reached through the proxy, by its name, which is not looked up here; a tunnel that is
    refused is a failure to connect; a local engine is asked directly, by the lean client."""
    heard: list[str] = []
    async with _proxy(heard) as proxy, ScriptedEngine() as engine:
        client = new_client(Proxies(proxy, proxy))
        through, refused = Listener(), Listener()
        client.open("http://engine.test:8000", ASK, through, 5.0)
        assert await through.ended() is None
        assert (through.status, through.body) == (200, b"{}")
        client.open("https://engine.test", ASK, refused, 5.0)
        assert await refused.ended() is Failure.CONNECT
        local, _ = ask(client, engine)
        assert await local.ended() is None
        assert heard == [
            "POST http://engine.test:8000/v1/chat/completions HTTP/1.1",
            "CONNECT engine.test:443 HTTP/1.1",
        ]
        assert len(engine.requests) == 1
        assert (await client.fetch("http://engine.test:8000", ASK, 5.0, 100))[0] == 200
        assert client.running == client.replays == 0
        await client.close()
