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
from headrace.runtime.engine_link import Head, Link
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
        "_delivering",
        "_ending",
        "_group",
        "_head",
        "_link",
        "_links",
        "_over",
        "_paused",
        "_pieces",
        "_place",
        "_request",
        "_reused",
        "_sent_at",
        "_sink",
        "_unpacker",
        "connecting",
    )

    def __init__(
        self, links: Links, sink: Sink, body: bytes, connect_timeout: float, group: set[EngineExchange]
    ) -> None:
        self.connecting: asyncio.Task[None] | None = None
        self._links = links
        self._sink = sink
        self._body = body
        self._connect_timeout = connect_timeout
        self._group = group
        self._place: Place
        self._request = b""
        self._sent_at = 0.0
        self._link: Link | None = None
        self._reused = self._paused = self._over = self._delivering = False
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._ending: tuple[Failure | None, str] | None = None
        self._unpacker: Unpacker | None = None

    def begin(self, place: Place, request: bytes) -> None:
        """Send it: on a free link, or on a new one."""
        self._place, self._request = place, request
        link = self._links.take(place)
        if link is None:
            self._connect()
        else:
            self._reused = True
            self._sent_at = link.loop.time()
            self._link = link
            link.send(self, request, self._body)

    def fail_soon(self, failure: Failure, detail: str) -> None:
        """It failed before it began."""
        self._ending = (failure, detail)
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
        if self._head is not None or self._pieces or self._ending is not None:
            asyncio.get_running_loop().call_soon(self._deliver)

    # ------------------------------------------------------------------ the link's side

    def heard(self, head: Head | None, data: bytes, ended: bool) -> None:
        """See `engine_link.Rider`."""
        if not (ended or head or self._unpacker or self._pieces or self._paused or self._delivering or self._head):
            self._forward(data)  # the usual case: the middle of a body, and a sink that keeps up
            return
        if ended:
            self._link = None
            self._ending = (None, "")
        try:
            if head is not None:
                self._head = head[0], unwrapped(head[1])
                self._unpacker = unpacker_for(head[1])
            if self._unpacker is not None:
                data = self._unpacker.feed(data, ended)
        except UpstreamFailed as failed:
            self._break(failed)
        else:
            if data:
                self._pieces.append(data)
        self._deliver()

    def lost(self, failure: Failure, detail: str, answered: bool) -> None:
        """See `engine_link.Rider`."""
        link, self._link = self._link, None
        if self._reused and not answered and link is not None and link.loop.time() - self._sent_at < STALE_WITHIN:
            self._reused = False
            self._links.replayed()
            self._connect()
            return
        self._ending = (failure, detail)
        self._deliver()

    # ------------------------------------------------------------------ inside

    def _connect(self) -> None:
        self.connecting = asyncio.get_running_loop().create_task(self._ride_new_link())

    async def _ride_new_link(self) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                link = await self._links.connect(self._place)
        except (OSError, ValueError) as error:
            failed = unconnected(error)
            self._ending = (failed.failure, failed.detail)
            self._deliver()
        except Exception:  # noqa: BLE001 - the task's outer edge
            _log.exception("upstream_connect_failed")
            self._end_after_fault()
        else:
            self._link = link
            if self._paused:
                link.pause()
            link.send(self, self._request, self._body)
        finally:
            self.connecting = None

    def _break(self, failed: UpstreamFailed) -> None:
        """What came cannot be understood: the rest is not waited for."""
        if self._link is not None:
            self._link.abort()
            self._link = None
        self._ending = (failed.failure, failed.detail)

    def _forward(self, data: bytes) -> None:
        self._delivering = True
        try:
            self._sink.data(data)
        except Exception:  # noqa: BLE001 - the outer edge, as in `_deliver`
            _log.exception("upstream_sink_failed")
            self._end_after_fault()
        finally:
            self._delivering = False

    def _deliver(self) -> None:
        """Tell the sink what is there, in order, until it pauses or has heard the end."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while not self._paused and not self._over:
                if self._head is not None:
                    head, self._head = self._head, None
                    self._sink.head(*head)
                elif self._pieces:
                    data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                    self._pieces.clear()
                    self._sink.data(data)
                elif self._ending is not None:
                    self._end(*self._ending)
                else:
                    break
        except Exception:  # noqa: BLE001 - the outer edge: a sink's fault ends this attempt and nothing else
            _log.exception("upstream_sink_failed")
            self._end_after_fault()
        finally:
            self._delivering = False

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
        self._pieces.clear()
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
