"""For clients on aiohttp: a resolver that leaves out what must not be connected to (see `addresses`)."""

from __future__ import annotations

import errno
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from headrace.runtime.addresses import barred_text


class GuardedResolver(AbstractResolver):
    """The system's resolver, or another one, without link-local and metadata addresses in its answers."""

    def __init__(self, inner: AbstractResolver | None = None) -> None:
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses that may be connected to. Raises OSError when there are none."""
        found = await self._inner.resolve(host, port, family)
        kept = [answer for answer in found if not barred_text(answer["host"])]
        if not kept:
            raise OSError(errno.EHOSTUNREACH, "the name has no address that may be used")
        return kept

    async def close(self) -> None:
        """Let go of the inner one."""
        await self._inner.close()
