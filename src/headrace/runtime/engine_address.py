"""An engine's address and a request to it as the bytes that go out. Both are the same for thousands of requests."""

from __future__ import annotations

import ipaddress
from base64 import b64encode
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote, urlsplit

_PORTS = {"http": 80, "https": 443}
# Content-Length is the body's; the others belong to the connection or are the client's own.
_OWN = frozenset(
    {"content-length", "transfer-encoding", "connection", "keep-alive", "te", "upgrade", "expect", "host", "user-agent"}
)


class NoAddress(ValueError):
    """It names no HTTP server."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where an engine listens. `named` is the Host header's value; `base` the path before every other, without slash.

    Two of the same address are not equal; what links are told apart by is `endpoint`.

    `credentials` is the value of an Authorization header that the address itself asks for, or "".
    """

    secure: bool
    host: str
    port: int
    named: str
    base: str
    credentials: str = field(repr=False)
    endpoint: tuple[bool, str, int] = field(init=False)
    """Scheme, host and port."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "endpoint", (self.secure, self.host, self.port))

    @property
    def numeric(self) -> bool:
        """The host is an address itself; no name has to be looked up."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


@lru_cache(maxsize=1024)
def place_of(address: str) -> Place:
    """The place that an address (scheme, host, port, perhaps user and base path) names. Raises ValueError."""
    parts = urlsplit(address)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("not an address of an HTTP server")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode("ascii")
    port = parts.port or _PORTS[parts.scheme]
    named = f"[{host}]" if ":" in host else host
    if port != _PORTS[parts.scheme]:
        named = f"{named}:{port}"
    credentials = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = f"Basic {b64encode(pair.encode()).decode('ascii')}"
    return Place(parts.scheme == "https", host, port, named, parts.path.rstrip("/"), credentials)


@lru_cache(maxsize=1024)
def opening(address: str, method: str, path: str, headers: tuple[tuple[str, str], ...]) -> tuple[Place, bytes]:
    """Where a request goes, and its head until the number of bytes of its body, which a blank line follows.

    Raises NoAddress for an address of no HTTP server, ValueError for what cannot be written into a head.
    """
    try:
        place = place_of(address)
    except ValueError as error:
        raise NoAddress(*error.args) from error
    target = f"{place.base}{path}" or "/"
    if any(character <= " " for character in target):
        raise ValueError("a blank in a path")
    lines = [f"{method} {target} HTTP/1.1", f"host: {place.named}", "user-agent: headrace"]
    given = {name.lower() for name, _ in headers}
    if "accept-encoding" not in given:
        lines.append("accept-encoding: identity")
    if "accept" not in given:
        lines.append("accept: */*")
    if place.credentials and "authorization" not in given:
        lines.append(f"authorization: {place.credentials}")
    lines += [f"{name}: {value}" for name, value in headers if name.lower() not in _OWN]
    if any(character in line for line in lines for character in "\r\n\0"):
        raise ValueError("a line's end in a header")
    return place, "\r\n".join([*lines, "content-length: "]).encode()
