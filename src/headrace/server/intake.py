"""Request bodies, read under three bounds: the size of one, the sum of all, and time.

A body counts towards the sum from the moment it is announced or arrives until its request is answered, because that is
how long it is held. Nothing is parsed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from starlette.types import Receive

from headrace import errors
from headrace.errors import CapacityError, Fault, InvalidRequest, invalid_request
from headrace.server.settings import ServerSettings

LINGER = 2.0
"""Seconds that are read on, and nothing kept, after a request was refused before its body was complete."""
_SUM_RETRY = 1.0
_JSON = b"application/json"


class CallerGone(Exception):
    """The caller left before the body was complete: there is nobody to answer."""


class Intake:
    """Reads the bodies of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        """The bounds."""
        self.held = 0
        """Bytes of bodies whose requests are not answered yet."""

    @contextmanager
    def hold(self) -> Iterator[Hold]:
        """A body's share of the sum, given back on exit."""
        hold = Hold(self)
        try:
            yield hold
        finally:
            hold.release()

    async def read(self, hold: Hold, announced: int | None, receive: Receive) -> bytes:
        """The whole body. `announced` is the Content-Length, None without one.

        Raises InvalidRequest (413 too large, 408 too slow), CapacityError (503, the sum is reached) or CallerGone.
        """
        if announced is not None:
            hold.reserve(announced)
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                return await _collect(hold, receive)
        except TimeoutError:
            raise InvalidRequest(errors.body_too_slow(self.settings.body_timeout)) from None


class Hold:
    """What one request's body takes of the bounds."""

    __slots__ = ("_intake", "size")

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.size = 0

    def reserve(self, total: int) -> None:
        """The body is at least `total` bytes long. Raises InvalidRequest or CapacityError when that is too much."""
        if total <= self.size:
            return
        settings = self._intake.settings
        if total > settings.body_limit:
            raise InvalidRequest(errors.body_too_large(settings.body_limit))
        if self._intake.held + total - self.size > settings.bodies_limit:
            raise CapacityError(errors.bodies_full(_SUM_RETRY))
        self._intake.held += total - self.size
        self.size = total

    def release(self) -> None:
        """The request is answered, or its caller has gone. Harmless when repeated."""
        self._intake.held -= self.size
        self.size = 0


def unreadable(headers: Mapping[bytes, bytes]) -> Fault | None:
    """Why a body that is announced like this will not be read; None: it will."""
    media = headers.get(b"content-type", _JSON)
    if media != _JSON:
        media = media.partition(b";")[0].strip().lower()
        if media not in (b"", _JSON) and not (media.startswith(b"application/") and media.endswith(b"+json")):
            return invalid_request("The body must be JSON. Send it with content-type: application/json.", status=415)
    coding = headers.get(b"content-encoding")
    if coding is not None and coding.strip().lower() != b"identity":
        return invalid_request("Compressed bodies are not accepted. Send it without content-encoding.", status=415)
    return None


def announced(headers: Mapping[bytes, bytes]) -> int | None:
    """The Content-Length; None without one."""
    length = headers.get(b"content-length")
    return int(length) if length is not None and length.isdigit() else None


async def _collect(hold: Hold, receive: Receive) -> bytes:
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        part: bytes = message.get("body", b"")
        if part:
            length += len(part)
            hold.reserve(length)
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def discard(receive: Receive) -> None:
    """Read on for a moment without keeping anything.

    A connection that is closed while the peer still sends is reset, and a reset can destroy the answer that is on its
    way to the peer. So a refusal is followed by this before the connection is closed.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
