"""Webhooks: JSON pushed to an address that somebody named, signed, and tried again for a while.

The headers are those of Standard Webhooks (standardwebhooks.com, specification 1.0): `webhook-id` stays the same over
all tries of one message, so that a receiver can drop what it has already; `webhook-signature` is `v1,` and the base64
of HMAC-SHA256 over `id.timestamp.body`. A secret that begins with `whsec_` is base64 behind it, any other is taken as
it is.

A redirect is not followed: it would lead where nobody looked. What an address leads to is filtered when the connection
is made (see `addresses`); who takes an address from outside checks it before.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headrace.runtime.client import Client
from headrace.runtime.failures import UpstreamFailed
from headrace.wire.adapters import EngineRequest

TRIES = 8
"""How often one message is sent at most; with the pauses between them about two minutes."""
LONGEST_PAUSE = 60.0
"""Bound on the pause before the n-th repetition: 2^n seconds and never more than this."""
TIMEOUT = 10.0
_ANSWER_LIMIT = 1024 * 1024
_BASE64_MARK = "whsec_"


@dataclass(frozen=True, slots=True)
class Hook:
    """Where messages go, and what signs them; None: they are not signed."""

    url: str
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one message."""

    delivered: bool
    tries: int
    detail: str = ""
    """Why the last try failed: no address, no key."""


class Webhooks:
    """Sends messages.

    Args:
        client: makes the connections.
        wall: wall clock, for timestamps.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        wall: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        tries: int = TRIES,
    ) -> None:
        self._client = client
        self._wall = wall
        self._pause = pause
        self._tries = tries

    async def deliver(self, hook: Hook, body: bytes) -> Delivery:
        """Send `body`, which is JSON, until it is taken (any 2xx) or the tries are used up.

        410 says that nobody wants it any more: it ends at once.
        """
        name, detail, tries = f"msg_{secrets.token_hex(12)}", "", 0
        for tries in range(1, self._tries + 1):
            if tries > 1:
                await self._pause(min(LONGEST_PAUSE, 2.0 ** (tries - 2)))
            status, detail = await self._sent(hook, name, body)
            if 200 <= status < 300:
                return Delivery(delivered=True, tries=tries)
            if status == 410:
                break
        return Delivery(delivered=False, tries=tries, detail=detail)

    async def _sent(self, hook: Hook, name: str, body: bytes) -> tuple[int, str]:
        """One try: the status (0: no answer) and what went wrong."""
        parts = urlsplit(hook.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        stamp = str(int(self._wall()))
        headers = [("content-type", "application/json"), ("webhook-id", name), ("webhook-timestamp", stamp)]
        if hook.secret is not None:
            headers.append(("webhook-signature", signature(hook.secret, name, stamp, body)))
        request = EngineRequest("POST", path, tuple(headers), body)
        try:
            address = f"{parts.scheme}://{parts.netloc}"
            status, _, _ = await self._client.fetch(address, request, TIMEOUT, _ANSWER_LIMIT)
        except UpstreamFailed as failed:
            return 0, failed.detail
        return status, f"HTTP {status}"


def signature(secret: str, name: str, stamp: str, body: bytes) -> str:
    """The value of `webhook-signature` for the message `name` at the Unix time `stamp`."""
    signed = b".".join((name.encode(), stamp.encode(), body))
    return "v1," + base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    if secret.startswith(_BASE64_MARK):
        try:
            return base64.b64decode(secret.removeprefix(_BASE64_MARK), validate=True)
        except binascii.Error:
            pass
    return secret.encode()
