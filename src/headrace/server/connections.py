"""The connections of one server: what makes them, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
import uvicorn
from uvicorn.server import ServerState

from headrace.runtime.outbox import Outbox
from headrace.server.app import Application
from headrace.server.connection import HEAD_TIMEOUT, Connection
from headrace.server.exchange import status_line
from headrace.server.intake import LINGER
from headrace.server.limits import TimeLimit
from headrace.server.turns import Unsent

_log = structlog.get_logger("headrace.server")


class Connections:
    """Makes the connections of one server, as uvicorn asks for them, and is what they share.

    Made inside the loop that serves. `keep_alive`: seconds an idle connection is kept.
    """

    def __init__(self, application: Application, keep_alive: float) -> None:
        self.direct, self.intake = application.direct, application.intake
        self.config: uvicorn.Config
        self.state: ServerState
        self.loop = loop = asyncio.get_running_loop()
        self.heads = TimeLimit(loop, HEAD_TIMEOUT, Connection.cut)
        self.bodies = TimeLimit(loop, self.intake.settings.body_timeout, Connection.give_up_body)
        self.idle = TimeLimit(loop, keep_alive, Connection.close_idle)
        self.lingering = TimeLimit(loop, LINGER, Connection.close)
        self.outbox = Outbox()
        self._unsent: list[Unsent] = []
        self._preamble_of: Sequence[tuple[bytes, bytes]] = ()
        self._openings: dict[int, bytes] = {}

    def __call__(self, config: uvicorn.Config, server_state: ServerState, **_: object) -> Connection:
        """A new one. What else uvicorn gives its protocols is nothing to these."""
        self.config, self.state = config, server_state
        return Connection(self)

    def opening(self, status: int) -> bytes:
        """See `turns.Shared`. uvicorn replaces its list of headers once a second, for the date."""
        if self.state.default_headers is not self._preamble_of:
            self._preamble_of = self.state.default_headers
            self._openings.clear()
        opening = self._openings.get(status)
        if opening is None:
            headers = b"".join([b"%b: %b\r\n" % header for header in self._preamble_of])
            opening = self._openings[status] = status_line(status).encode() + headers
        return opening

    def flush_soon(self, exchange: Unsent) -> None:
        """See `turns.Shared`. One callback of the loop does it for all."""
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent.append(exchange)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for exchange in unsent:
            try:
                exchange.flush()
            except Exception:  # noqa: BLE001 - a callback's outer edge: a mistake of ours with one holds up nobody else
                _log.exception("an answer could not be sent on", path=exchange.path)
