"""Where the gateway lets itself be sent by people it only half trusts: instances and webhooks named over HTTP.

Whoever may name an address could otherwise read through the gateway what only its machine can reach. Never allowed are
link-local addresses (RFC 3927, RFC 4291 section 2.5.6), the addresses under which clouds give credentials to their
machines, and what is no single machine, in whatever spelling: IPv4 inside IPv6 (mapped, compatible, 6to4, NAT64),
octal, hexadecimal and shortened IPv4. Private addresses are where engines live; an allow-list narrows them down.

A name is looked up when it is given, and its answers are filtered once more when a connection is made (`reachable`),
so that it cannot point elsewhere later. Addresses in the configuration file are the operator's own; of these only names
are filtered, when a connection is made.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

LOOK_UP_SECONDS = 5.0
"""A name that is not resolved after this time counts as unknown."""

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

_CREDENTIALS = frozenset(
    ipaddress.ip_address(text)
    for text in ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
)
"""Metadata services of AWS, Google, Alibaba, Oracle and Azure that are not link-local."""
_CREDENTIAL_NAMES = (
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")
_OWN_IDEA_OF_IPV4 = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}")
_PATTERN = re.compile(r"[A-Za-z0-9*?._-]{1,253}")


class AddressRefused(ValueError):
    """An address that must not be used; the text says why and does not repeat it."""


class Resolve(Protocol):
    """Looks a name up."""

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Its addresses; none when it is not known. Must not raise for a name that does not exist."""
        ...


class Allowed(NamedTuple):
    """An allow-list: networks, and patterns of names. Both empty: everything that is not barred."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    names: tuple[str, ...] = ()


def allowed(entries: Iterable[str]) -> Allowed:
    """The allow-list these texts stand for: `10.0.0.0/8`, `192.0.2.7`, `gpu-*.lab`. Raises ValueError."""
    networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    names: list[str] = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            if "/" in entry or not _PATTERN.fullmatch(entry):
                raise ValueError(f"'{entry}' is neither a network, as 10.0.0.0/8, nor a name, as gpu-*.lab") from None
            names.append(entry.lower())
    return Allowed(tuple(networks), tuple(names))


def barred(address: Ip) -> str:
    """Why nothing is ever sent to `address`, or ""."""
    inner = _inside(address)
    if address in _CREDENTIALS or inner in _CREDENTIALS:
        return "it is a cloud's metadata service"
    for one in (address, inner):
        if one is None:
            continue
        if one.is_link_local:
            return "it is a link-local address"
        if one.is_multicast or str(one) == "255.255.255.255":
            return "it is not the address of one machine"
    return ""


Resolved = TypeVar("Resolved", bound=Sequence[object])


def reachable(found: Iterable[Resolved]) -> list[Resolved]:
    """Those answers of `getaddrinfo` for a name that may be connected to."""
    kept: list[Resolved] = []
    for answer in found:
        place = answer[4]  # the socket address
        if isinstance(place, tuple) and not barred_text(str(place[0])):
            kept.append(answer)
    return kept


def barred_text(address: str) -> str:
    """The same for an address as it is written; what is no address is barred."""
    literal = _literal(address)
    return "it is no address" if literal is None else barred(literal)


async def check(address: str, listed: Allowed, resolve: Resolve | None = None) -> tuple[str, ...]:
    """Whether an http(s) base URL may be used; sentences about what could not be looked at.

    Raises AddressRefused.
    """
    parts = _parts(address)
    host = (parts.hostname or "").rstrip(".")
    literal = _literal(host)
    if literal is not None:
        _judge([literal], host, listed)
        return ()
    if _OWN_IDEA_OF_IPV4.fullmatch(host):
        raise AddressRefused("the address is written in an unusual way; write it as four decimal numbers")
    if host in _CREDENTIAL_NAMES:
        raise AddressRefused("nothing is sent to this address: it is a cloud's metadata service")
    answers = await (resolve or look_up)(host, parts.port or 0)
    found = [literal for text in answers if (literal := _literal(text)) is not None]
    if not found and listed.networks and not _named(host, listed):
        raise AddressRefused("the name is not known, so it cannot be compared with admin.allow_addresses")
    _judge(found, host, listed)
    return () if found else (f"The name {host} is not known at the moment; it is looked up when it is used.",)


async def look_up(host: str, port: int) -> Sequence[str]:
    """A name's addresses, from the system. None for a name that does not exist or takes too long."""
    try:
        async with asyncio.timeout(LOOK_UP_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return ()
    return [str(answer[4][0]) for answer in found]


def scrubbed(address: str) -> str:
    """An address without user, password, query and fragment, for showing."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _parts(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        raise AddressRefused("this is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressRefused("the address must begin with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise AddressRefused("the address must not hold a user or password")
    return parts


def _judge(found: Sequence[Ip], host: str, listed: Allowed) -> None:
    """Raises AddressRefused when one of a host's addresses is barred, or not on a list that there is."""
    for address in found:
        if reason := barred(address):
            raise AddressRefused(f"nothing is sent to this address: {reason}")
    if (listed.networks or listed.names) and not _named(host, listed):
        inside = [any(_plain(address) in network for network in listed.networks) for address in found]
        if not inside or not all(inside):
            raise AddressRefused("the address is not one of admin.allow_addresses")


def _named(host: str, listed: Allowed) -> bool:
    return any(fnmatchcase(host.lower(), pattern) for pattern in listed.names)


def _literal(host: str) -> Ip | None:
    """The address that is written there; None: it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _plain(address: Ip) -> Ip:
    """An IPv4 address in IPv6's clothes as itself."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _inside(address: Ip) -> Ip | None:
    """The IPv4 address that an IPv6 address stands for or leads to."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or address in _COMPATIBLE:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
