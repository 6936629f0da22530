"""uvicorn's HTTP connection with the two things it lacks: a bound on request heads, and a way to reset.

The parser keeps a head in memory until it is complete and sets it no limit of size or time.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.server.asgi import CUT_EXTENSION

HEAD_LIMIT = 64 * 1024
"""Most bytes of a request line with its headers; more gets 431."""
HEAD_TIMEOUT = 30.0
"""Seconds from the first byte of a head, or from the connection, until it must be complete."""

_BODY = b'{"error":{"message":"The headers are too large.","type":"invalid_request_error","param":null,"code":null}}'
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: " + str(len(_BODY)).encode() + b"\r\n\r\n" + _BODY
)


class BoundedHttp(HttpToolsProtocol):
    """One connection of a caller."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_size = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first head."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer has gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head; a read in which one is completed starts the count anew."""
        self._head_size = self._head_size + len(data) if self._in_head else 0
        super().data_received(data)
        if self._head_size > HEAD_LIMIT and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self.scope["extensions"] = {CUT_EXTENSION: {"cut": self.transport.abort}}
        self._start_timer()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head = False
        self._head_size = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes are a head again."""
        self._in_head = True
        super().on_message_complete()

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
