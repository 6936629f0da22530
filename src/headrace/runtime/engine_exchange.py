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
        """See `engine_link.Rider`. Told in order, until the sink pauses; the rest is held back."""
        if head is not None:
            self._head = self._body = b""
        if ending is not None:
            self._link = None
        if self._held is not None:
            earlier, before, _ = self._held
            self._held = (earlier or head, before + data, ending)
            return
        try:
            if head is not None and not self._paused:
                self._begin_answer(*head)
                head = None
            if not self._paused:
                if self._unpacker is not None:
                    data = self._unpacker.feed(data, ending == PROPERLY)
                if data:
                    self._sink.data(data)
                    data = b""
            if ending is not None and not self._paused:
                self._end(*ending)
        except UpstreamFailed as failed:
            self._end_early(failed.failure, failed.detail)
        except Exception:  # noqa: BLE001 - the outer edge: a sink's fault ends this attempt and nothing else
            _log.exception("upstream_sink_failed")
            self._end_early(Failure.PROTOCOL, "internal error")
        if self._paused and not self._over and (head is not None or data or ending is not None):
            self._held = (head, data, ending)

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
            self.heard(None, b"", (failed.failure, failed.detail))
        except Exception:  # noqa: BLE001 - the task's outer edge
            _log.exception("upstream_connect_failed")
            self._end_early(Failure.PROTOCOL, "internal error")
        else:
            self._link = link
            if self._paused:
                link.pause()
            link.send(self, self._head, self._body)
        finally:
            self.connecting = None

    def _begin_answer(self, status: int, headers: Mapping[str, str]) -> None:
        """Raises UpstreamFailed if the body cannot be unpacked."""
        if "content-encoding" not in headers:
            self._sink.head(status, headers)
        else:
            self._sink.head(status, unwrapped(headers))
            self._unpacker = unpacker_for(headers)

    def _deliver(self) -> None:
        """The sink takes more: what was held back for it."""
        if self._held is not None and not self._paused:
            held, self._held = self._held, None
            self.heard(*held)

    def _end(self, failure: Failure | None, detail: str) -> None:
        sink, self._sink = self._sink, _NOBODY
        self._over = True
        self._group.discard(self)
        sink.end(failure, detail)

    def _end_early(self, failure: Failure, detail: str) -> None:
        """Tell the end, although more may come; a sink that raised is told, too, so that its attempt does not hang."""
        if self._over:
            return
        sink = self._sink
        self._let_go()
        try:
            sink.end(failure, detail)
        except Exception:  # noqa: BLE001 - the outer edge, as in `heard`
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
