"""What the gateway wants of an HTTP client to the engines, and who takes what it brings.

Two of them keep these promises: `direct_upstream.DirectUpstream`, the lean one, and `upstream.Upstream` on aiohttp for
interpreters without httptools and for engines behind an HTTP proxy. `new_client` makes the better one there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from headrace.runtime.failures import Failure

if TYPE_CHECKING:
    from headrace.runtime.proxies import Proxies
    from headrace.wire.adapters import EngineRequest

KEEPALIVE = 15.0
"""Seconds a connection nobody uses is kept."""
STALE_WITHIN = 1.0
"""Seconds after which the end of a used connection no longer shows that the engine had closed it before the call: by
then it would have been seen, and the engine has been working on the call."""


class Sink(Protocol):
    """Takes what an engine answers. Nothing is called any more once the connection was aborted."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Once, before any data. Names are lower-case; the values of a repeated header are joined by ", "."""
        ...

    def data(self, data: bytes) -> None:
        """A piece of the body, decompressed."""
        ...

    def end(self, failure: Failure | None, detail: str) -> None:
        """Exactly once. `detail` is for operators: no host, port, path or key."""
        ...


class Connection(Protocol):
    """One exchange under way. Every call is harmless after its end."""

    def abort(self) -> None:
        """Closes the socket now; the sink hears nothing more."""
        ...

    def pause(self) -> None:
        """The sink takes no more until `resume`; the end waits, too."""
        ...

    def resume(self) -> None:
        """The sink takes more."""
        ...


class Client(Protocol):
    """Sends requests to engines. Must be used from one event loop; nothing is created before the first call."""

    @property
    def running(self) -> int:
        """Exchanges of `open` that have not ended."""
        ...

    @property
    def replays(self) -> int:
        """Calls sent a second time because their kept connection turned out to be closed."""
        ...

    def open(self, address: str, request: EngineRequest, sink: Sink, connect_timeout: float) -> Connection:
        """Starts to send `request` to the engine at `address` (scheme, host, port, perhaps a base path).

        Returns at once; everything else is told to `sink`. `connect_timeout` is in seconds and covers resolving,
        connecting and TLS.
        """
        ...

    async def fetch(
        self,
        address: str,
        request: EngineRequest,
        timeout: float,  # noqa: ASYNC109
        limit: int,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """The whole answer to a small request, such as a probe.

        `timeout` in seconds covers everything, `limit` bounds the body in bytes. Raises UpstreamFailed.
        """
        ...

    async def close(self) -> None:
        """Aborts what is under way and closes every connection."""
        ...


def new_client(proxies: Proxies | None = None) -> Client:
    """The leanest client that this interpreter can run; for engines behind one of `proxies`, one that knows them."""
    if proxies:
        from headrace.runtime.proxies import WithProxies  # noqa: PLC0415 - hardly anybody needs it
        from headrace.runtime.upstream import Upstream  # noqa: PLC0415 - the slower one is not loaded in vain

        return WithProxies(new_client(), Upstream(proxy=proxies.of), proxies)
    try:
        from headrace.runtime.direct_upstream import DirectUpstream  # noqa: PLC0415 - needs httptools
    except ImportError:
        from headrace.runtime.upstream import Upstream  # noqa: PLC0415 - the slower one is not loaded in vain

        return Upstream()
    return DirectUpstream()
