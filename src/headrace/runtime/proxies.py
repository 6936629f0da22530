"""Which engines are reached through an HTTP proxy, by the usual variables, and a client that keeps both ways apart.

`HTTPS_PROXY` and `HTTP_PROXY` name the proxy by the scheme of the engine's address, `ALL_PROXY` the one for both,
`NO_PROXY` the hosts that are asked directly: names with what is below them, addresses, networks, `*` for all. This
machine's own engines never are behind a proxy. Only calls that need one go through the slower client.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.runtime.client import Client, Connection, Sink

if TYPE_CHECKING:
    from headrace.wire.adapters import EngineRequest


@dataclass(frozen=True, slots=True)
class Proxies:
    """What the variables say. Proxies are URLs, with user and password where they want some."""

    http: str = field(default="", repr=False)
    https: str = field(default="", repr=False)
    no_proxy: str = ""

    def __bool__(self) -> bool:
        return bool(self.http or self.https)

    def of(self, address: str) -> str | None:
        """The proxy to ask for `address` (a URL); None: none."""
        parts = urlsplit(address)
        proxy = self.https if parts.scheme == "https" else self.http
        host = (parts.hostname or "").rstrip(".")
        return proxy if proxy and host and not _direct(host, self.no_proxy) else None


def proxies_in(env: Mapping[str, str]) -> Proxies:
    """What the environment `env` says; lower-case names go first, as with other programs."""

    def value(name: str) -> str:
        return env.get(name) or env.get(name.upper()) or ""

    every = value("all_proxy")
    return Proxies(_url(value("http_proxy") or every), _url(value("https_proxy") or every), value("no_proxy"))


class WithProxies:
    """See `client.Client`: `plain` for engines that are reached directly, `proxied` for the others."""

    def __init__(self, plain: Client, proxied: Client, proxies: Proxies) -> None:
        self._plain = plain
        self._proxied = proxied
        self._proxies = proxies

    @property
    def running(self) -> int:
        """See `client.Client`."""
        return self._plain.running + self._proxied.running

    @property
    def replays(self) -> int:
        """See `client.Client`."""
        return self._plain.replays + self._proxied.replays

    def open(self, address: str, request: EngineRequest, sink: Sink, connect_timeout: float) -> Connection:
        """See `client.Client`."""
        return self._for(address).open(address, request, sink, connect_timeout)

    async def fetch(
        self,
        address: str,
        request: EngineRequest,
        timeout: float,  # noqa: ASYNC109 - as in `client.Client`
        limit: int,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """See `client.Client`. Raises UpstreamFailed."""
        return await self._for(address).fetch(address, request, timeout, limit)

    async def close(self) -> None:
        """See `client.Client`."""
        await self._plain.close()
        await self._proxied.close()

    def _for(self, address: str) -> Client:
        return self._plain if self._proxies.of(address) is None else self._proxied


def _url(proxy: str) -> str:
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


@lru_cache(maxsize=1024)
def _direct(host: str, no_proxy: str) -> bool:
    """Whether `host` is asked without a proxy."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        number = None
    if host == "localhost" or (number is not None and number.is_loopback):
        return True
    for word in no_proxy.replace(",", " ").split():
        if word == "*":
            return True
        if number is not None and "/" in word:
            try:
                if number in ipaddress.ip_network(word, strict=False):
                    return True
            except ValueError:
                continue
        name = word.rpartition(":")[0] if word.count(":") == 1 else word.strip("[]")
        name = name.removeprefix("*").lstrip(".").lower()
        if name and (host == name or host.endswith(f".{name}")):
            return True
    return False
