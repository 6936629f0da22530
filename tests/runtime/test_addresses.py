"""Addresses given over HTTP lead to engines, never to what only the gateway's own machine may reach."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from headrace.runtime.addresses import AddressRefused, Allowed, allowed, check, look_up, reachable
from headrace.runtime.direct_upstream import DirectUpstream
from headrace.runtime.failures import Failure, UpstreamFailed
from headrace.runtime.guarded_resolver import GuardedResolver
from headrace.wire.adapters import EngineRequest


class Names:
    """Resolves from a list; counts how often it is asked."""

    def __init__(self, **known: Sequence[str]) -> None:
        self._known = {name.replace("_", "."): found for name, found in known.items()}
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self._known.get(host, ())


FINE = [
    "http://127.0.0.1:8001",
    "http://192.168.1.7:8000/base",
    "https://10.1.2.3",
    "http://[::1]:8001",
    "http://[fd12:3456::7]:8000",
    "http://[::ffff:192.168.1.7]:8000",
    "https://203.0.113.7",
]
BARRED = [
    "http://169.254.169.254/",
    "http://169.254.169.254./",
    "http://169.254.1.1:8000",
    "http://[fe80::1]:8000",
    "http://[fe80::1%25eth0]:8000",
    "http://[fd00:ec2::254]/",
    "http://[fd20:ce::254]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[::a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0xA9.0xFE.0xA9.0xFE/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://metadata.google.internal/",
    "http://Metadata.Google.Internal./",
    "http://metadata/",
    "http://instance-data.ec2.internal/",
    "http://100.100.100.200/",
    "http://192.0.0.192/",
    "http://168.63.129.16/",
    "http://224.0.0.1/",
    "http://[ff02::1]/",
    "http://255.255.255.255/",
    "http://user:secret@10.0.0.1/",
    "http://user@10.0.0.1/",
    "http://@10.0.0.1/",
    "ftp://10.0.0.1/",
    "file:///etc/passwd",
    "gopher://10.0.0.1",
    "//10.0.0.1",
    "10.0.0.1:8000",
    "http://",
    "http://:8000",
    "http://[::1",
    "http://10.0.0.1:99999",
    "",
]


@pytest.mark.parametrize("address", FINE)
async def test_machines_may_be_named(address: str) -> None:
    """Private and loopback addresses are where engines live; nothing is looked up for a literal."""
    names = Names()
    assert await check(address, Allowed(), names) == ()
    assert names.asked == 0


@pytest.mark.parametrize("address", BARRED)
async def test_what_hands_out_credentials_may_not_be_named(address: str) -> None:
    """Link-local and metadata addresses in every spelling, other schemes, and addresses with a user, are refused.

    The reason does not repeat the address.
    """
    with pytest.raises(AddressRefused) as refused:
        await check(address, Allowed(), Names())
    assert len(address) < 10 or address not in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_name_is_judged_by_everything_it_resolves_to() -> None:
    """One bad answer among good ones is enough to refuse; a name that is not known yet is let in with a warning."""
    names = Names(gpu_lab=["10.0.0.7"], mixed_lab=["10.0.0.7", "169.254.169.254"], six_lab=["fe80::1%eth0"])
    assert await check("http://gpu.lab:8000", Allowed(), names) == ()
    for bad in ("http://mixed.lab", "http://six.lab"):
        with pytest.raises(AddressRefused, match="link-local"):
            await check(bad, Allowed(), names)
    (word,) = await check("http://unknown.lab", Allowed(), names)
    assert "unknown.lab" in word


@pytest.mark.parametrize(
    ("address", "fine"),
    [
        ("http://10.1.2.3", True),
        ("http://[::ffff:10.1.2.3]", True),
        ("http://127.0.0.1", False),
        ("http://192.0.2.7", True),
        ("http://192.0.2.8", False),
        ("http://gpu-7.lab", True),
        ("http://GPU-7.lab", True),
        ("http://gpu-8.lab", False),
        ("http://inside.example", True),
        ("http://outside.example", False),
        ("http://both.example", False),
        ("http://unknown.example", False),
        ("http://unknown-but-listed.lab", True),
        ("http://169.254.169.254", False),
    ],
)
async def test_an_allow_list_narrows_it_down(address: str, fine: bool) -> None:
    """With a list, a host is on it by name or with all its addresses; link-local stays out even when it is listed."""
    listed = allowed(["10.0.0.0/8", "192.0.2.7", "gpu-*.lab", "unknown-but-listed.lab", "169.254.0.0/16"])
    names = Names(
        **{
            "gpu-7_lab": ["198.51.100.1"],
            "gpu-8_lab": ["169.254.1.1"],
            "inside_example": ["10.9.9.9"],
            "outside_example": ["198.51.100.1"],
            "both_example": ["10.9.9.9", "198.51.100.1"],
        }
    )
    if fine:
        await check(address, listed, names)
    else:
        with pytest.raises(AddressRefused):
            await check(address, listed, names)


@pytest.mark.parametrize("entry", ["10.0.0.0/99", "not a name", "http://10.0.0.1", "", "x/y"])
def test_a_list_that_cannot_be_meant_is_refused(entry: str) -> None:
    """An entry is a network or a pattern of names, and the message shows both."""
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/8"):
        allowed([entry])


def test_a_name_that_points_elsewhere_later_is_not_followed() -> None:
    """At each connection the barred among a name's addresses are left out."""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 80)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1%eth0", 80, 0, 2)),
    ]
    assert reachable(found) == found[:1]


async def test_the_system_s_resolver_never_raises() -> None:
    """A name that does not exist, or cannot be one, has no addresses."""
    assert "127.0.0.1" in await look_up("localhost", 0)
    assert await look_up("no-such-host.invalid", 0) == ()
    assert await look_up("a" * 300, 0) == ()


class Pointing(AbstractResolver):
    """Names lead where a test says."""

    def __init__(self, *answers: str) -> None:
        self._answers = answers

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=text, port=port, family=family, proto=6, flags=0)
            for text in self._answers
        ]

    async def close(self) -> None:
        """Nothing is held."""


async def test_the_other_client_s_resolver_leaves_them_out_as_well() -> None:
    """aiohttp is given what may be connected to, and an error it knows when nothing is left."""
    resolver = GuardedResolver(Pointing("10.0.0.7", "169.254.169.254"))
    assert [entry["host"] for entry in await resolver.resolve("engine.lab", 80)] == ["10.0.0.7"]
    with pytest.raises(OSError, match="no address"):
        await GuardedResolver(Pointing("169.254.169.254")).resolve("engine.lab", 80)
    await resolver.close()


async def test_an_engine_s_name_that_was_rebound_gets_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself finds no address behind it: the attempt fails as one without a connection."""

    async def rebound(host: str, port: int, **options: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", rebound)
    client = DirectUpstream()
    request = EngineRequest(method="GET", path="/health", headers=(), body=b"")
    with pytest.raises(UpstreamFailed) as failed:
        await client.fetch("http://engine.lab:8000", request, 5.0, 1024)
    assert failed.value.failure is Failure.CONNECT
    await client.close()
