"""One call to an engine: between the link that carries it and the sink that takes what comes.

It finds a link, sends, unpacks, holds back while the sink is paused, and tells the end once. A call on a used link that
broke off unanswered goes out once more on a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog

from headrace.runtime.client import STALE_WITHIN, Sink
from headrace.runtime.engine_address import Place
from headrace.runtime.engine_link import PROPERLY, Ending, Head, Link
from headrace.runtime.failures import Failure, UpstreamFailed, unconnected
from headrace.runtime.unpacking import Unpacker, unpacker_for, unwrapped

_log = structlog.get_logger(__name__)


class Links(Protocol):
    """Where links come from."""

    def take(self, place: Place) -> Link | None:
        """A free link, the one used last."""
        ...

    async def connect(self, place: Place) -> Link:
        """A new link. Raises OSError (ssl.SSLError among them) or ValueError."""
        ...

    def replayed(self) -> None:
        """A call goes out a second time."""
        ...


class EngineExchange:
    """One call: the link's rider, and the `Connection` its owner holds. After its end it knows nobody any more."""

    __slots__ = (
        "_body",
        "_connect_timeout",
        "_group",
        "_head",
        "_held",
        "_link",
        "_links",
        "_over",
        "_paused",
        "_place",
        "_reused",
        "_sink",
        "_unpacker",
        "connecting",
    )

    def __init__(self, links: Links, sink: Sink, connect_timeout: float, group: set[EngineExchange]) -> None:
        self.connecting: asyncio.Task[None] | None = None
        self._links = links
        self._sink = sink
        self._connect_timeout = connect_timeout
        self._group = group
        self._place: Place
        self._head = self._body = b""
        """The request, until something of the answer has come."""
        self._link: Link | None = None
        self._reused = self._paused = self._over = False
        self._held: tuple[Head | None, bytes, Ending | None] | None = None
        """What the sink has not heard yet, because it is paused."""
        self._unpacker: Unpacker | None = None
        group.add(self)

    def begin(self, place: Place, head: bytes, body: bytes) -> None:
        """Send it: on a free link, or on a new one."""
        link = self._links.take(place)
        self._place, self._head, self._body = place, head, body
        if link is None:
            self._connect()
        else:
            self._reused = True
            self._link = link
            link.send(self, head, body)

    def fail_soon(self, failure: Failure, detail: str) -> None:
        """It failed before it began."""
        self._held = (None, b"", (failure, detail))
        asyncio.get_running_loop().call_soon(self._deliver)

    # ------------------------------------------------------------------ the owner's side

    def abort(self) -> None:
        """See `client.Connection`."""
        if not self._over:
            self._let_go()

    def pause(self) -> None:
        """See `client.Connection`."""
        if not self._over:
            self._paused = True
            if self._link is not None:
                self._link.pause()

    def resume(self) -> None:
        """See `client.Connection`. What was held back comes in the loop's next turn."""
        if not self._paused or self._over:
            return
        self._paused = False
        if self._link is not None:
            self._link.resume()
        if self._held is not None:
            asyncio.get_running_loop().call_soon(self._deliver)

    # ------------------------------------------------------------------ the link's side

    def heard(self, head: Head | None, data: bytes, ending: Ending | None) -> None:
        """See `engine_link.Rider`."""
        if ending is not None:
            self._link = None
        if head is not None:
            self._head = self._body = b""
        if self._unpacker is not None or (head is not None and "content-encoding" in head[1]):
            head, data, ending = self._unpacked(head, data, ending)
        if self._held is not None:
            earlier, before, _ = self._held
            self._held = (earlier or head, before + data, ending)
        else:
            self._tell(head, data, ending)

    def lost(self, failure: Failure, detail: str, answered: bool) -> None:
        """See `engine_link.Rider`."""
        link, self._link = self._link, None
        if self._reused and not answered and link is not None and link.loop.time() - link.since < STALE_WITHIN:
            self._reused = False
            self._links.replayed()
            self._connect()
        else:
            self.heard(None, b"", (failure, detail))

    # ------------------------------------------------------------------ inside

    def _connect(self) -> None:
        self.connecting = asyncio.get_running_loop().create_task(self._ride_new_link())

    async def _ride_new_link(self) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                link = await self._links.connect(self._place)
        except (OSError, ValueError) as error:
            failed = unconnected(error)
            self._tell(None, b"", (failed.failure, failed.detail))
        except Exception:  # noqa: BLE001 - the task's outer edge
            _log.exception("upstream_connect_failed")
            self._end_after_fault()
        else:
            self._link = link
            if self._paused:
                link.pause()
            link.send(self, self._head, self._body)
        finally:
            self.connecting = None

    def _unpacked(
        self, head: Head | None, data: bytes, ending: Ending | None
    ) -> tuple[Head | None, bytes, Ending | None]:
        """What a read brought, as it was before it was packed. What cannot be unpacked ends the call."""
        try:
            if head is not None:
                self._unpacker = unpacker_for(head[1])
                head = head[0], unwrapped(head[1])
            if self._unpacker is not None:
                data = self._unpacker.feed(data, ending == PROPERLY)
        except UpstreamFailed as failed:
            if self._link is not None:
                self._link.abort()
                self._link = None
            return head, b"", (failed.failure, failed.detail)
        return head, data, ending

    def _deliver(self) -> None:
        """The sink takes more: what was held back for it."""
        if self._held is not None and not self._paused:
            held, self._held = self._held, None
            self._tell(*held)

    def _tell(self, head: Head | None, data: bytes, ending: Ending | None) -> None:
        """Tell the sink, in order, until it pauses; the rest is held back. One that has let go hears nothing more."""
        try:
            if head is not None and not self._paused:
                self._sink.head(*head)
                head = None
            if data and not self._paused:
                self._sink.data(data)
                data = b""
            if ending is not None and not self._paused:
                self._end(*ending)
                return
        except Exception:  # noqa: BLE001 - the outer edge: a sink's fault ends this attempt and nothing else
            _log.exception("upstream_sink_failed")
            self._end_after_fault()
            return
        if self._paused and not self._over:
            self._held = (head, data, ending) if head is not None or data or ending is not None else None

    def _end(self, failure: Failure | None, detail: str) -> None:
        sink = self._sink
        self._let_go()
        sink.end(failure, detail)

    def _end_after_fault(self) -> None:
        """The sink raised: it is told the end all the same, so that its attempt does not hang."""
        if self._over:
            return
        try:
            self._end(Failure.PROTOCOL, "internal error")
        except Exception:  # noqa: BLE001 - the same edge
            _log.exception("upstream_sink_failed_again")

    def _let_go(self) -> None:
        self._over = True
        self._group.discard(self)
        self._held = None
        self._head = self._body = b""
        link, self._link = self._link, None
        if link is not None:
            link.abort()
        if self.connecting is not None and self.connecting is not asyncio.current_task():
            self.connecting.cancel()
        self._sink = _NOBODY


class _Nobody:
    """Hears what nobody wants to hear."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        pass

    def data(self, data: bytes) -> None:
        pass

    def end(self, failure: Failure | None, detail: str) -> None:
        pass


_NOBODY = _Nobody()
