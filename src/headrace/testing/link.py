"""One accepted socket of a scripted engine: raw bytes, whole requests, and who closed it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable

from headrace.testing.http_reader import MalformedRequest, ReceivedRequest, RequestReader
from headrace.testing.waiting import Changes

_RECEIVED_LIMIT = 64 * 1024 * 1024
_PIPELINED_LIMIT = 64
_TURNS = 3
"""Turns of the loop given away after each write, so that a peer in the same loop reads each write by itself."""


class PeerGone(ConnectionError):
    """The peer closed while a script was still writing."""


class Link(asyncio.Protocol):
    """The socket. `changes` is told whenever something about it changes; `on_open` gets it once it is accepted.

    Bounds: 64 MiB received and 64 requests ahead of the script; beyond them the socket is aborted.
    """

    def __init__(self, changes: Changes, on_open: Callable[[Link], None]) -> None:
        self.received = bytearray()
        self.requests: deque[ReceivedRequest] = deque()
        self.peer_closed = False
        self.closed = False
        self.malformed: MalformedRequest | None = None
        self._changes = changes
        self._on_open = on_open
        self._reader = RequestReader()
        self._writable = True
        self._transport: asyncio.Transport | None = None

    @property
    def gone(self) -> bool:
        """Nothing can be written any more."""
        return self.closed or self.peer_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is accepted."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a scripted engine needs a stream transport")
        self._transport = transport
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """Keep the raw bytes and the requests in them."""
        self.received += data
        try:
            self.requests.extend(self._reader.feed(data))
        except MalformedRequest as error:
            self.malformed = error
        if self.malformed or len(self.received) > _RECEIVED_LIMIT or len(self.requests) > _PIPELINED_LIMIT:
            self.abort()
        self._changes.notify()

    def eof_received(self) -> None:
        """The peer closed its side; the transport then closes as a whole."""
        self._peer_left()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it
        """The socket is gone, by whosever doing."""
        self._peer_left()
        self._writable = True
        self._changes.notify()

    def _peer_left(self) -> None:
        if not self.closed:
            self.peer_closed = True
        self._changes.notify()

    def pause_writing(self) -> None:
        """The peer does not read: writes wait."""
        self._writable = False

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writable = True
        self._changes.notify()

    async def write(self, data: bytes, guard: float) -> None:
        """One write to the socket; raises `PeerGone`, or `GuardExpired` when the peer does not read for `guard` s."""
        if self.gone or self._transport is None:
            raise PeerGone("the peer has closed the connection")
        self._transport.write(data)
        await self.give_way()
        if not self._writable:
            await self._changes.until(lambda: self._writable or self.gone, guard, "the peer reads what was written")

    async def give_way(self) -> None:
        """Let everybody else in this loop have a few turns."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def close(self) -> None:
        """Orderly: what was written is still sent, then FIN."""
        self._end(abruptly=False)

    def abort(self) -> None:
        """At once: what lies in the transport's buffer is dropped."""
        self._end(abruptly=True)

    def reset(self) -> None:
        """RST instead of FIN: the peer's next read fails."""
        if self._transport is not None and not self.gone:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._end(abruptly=True)

    def _end(self, *, abruptly: bool) -> None:
        if self._transport is None:
            return
        if not self.peer_closed:
            self.closed = True
        if abruptly:
            self._transport.abort()
        else:
            self._transport.close()
        self._changes.notify()
