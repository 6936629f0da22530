"""A request for ASGI on a connection: its scope, and uvicorn's cycle for one, in line with the others."""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import Callable

import httptools
import uvicorn
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from headrace.server.asgi import CUT_EXTENSION

_log = logging.getLogger("headrace.server")


class AsgiTurn:
    """A request that the ASGI application serves. The connection tells it the same as a `direct.DirectExchange`."""

    __slots__ = ("_answered", "_begun", "_config", "_cycle", "_flow", "_state")

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        transport: asyncio.Transport,
        parser: httptools.HttpRequestParser,
        url: bytes,
        headers: list[tuple[bytes, bytes]],
        answered: Callable[[], None],
    ) -> None:
        """`parser` has just read the head. Raises httptools.HttpParserError for a URL that is none."""
        self._config = config
        self._state = state
        self._answered = answered
        self._begun = False
        self._flow = FlowControl(transport)
        version = parser.get_http_version()
        self._cycle = RequestResponseCycle(
            scope=_scope(config, transport, version, parser.get_method(), url, headers),
            transport=transport,
            flow=self._flow,
            logger=_log,
            access_logger=_log,
            access_log=False,
            default_headers=state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers),
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self._over,
        )

    @property
    def started(self) -> bool:
        """Whether the answer has begun."""
        return self._cycle.response_started

    def proceed(self) -> None:
        """It is this request's turn."""
        if self._begun:
            return
        self._begun = True
        tasks = self._state.tasks
        task = asyncio.get_running_loop().create_task(self._cycle.run_asgi(self._config.loaded_app))
        task.add_done_callback(tasks.discard)
        tasks.add(task)

    def take(self, data: bytes) -> None:
        """A piece of the body. Nothing is kept once the answer is complete."""
        cycle = self._cycle
        if cycle.response_complete:
            return
        cycle.body += data
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self._flow.pause_reading()
        cycle.message_event.set()

    def arrived(self) -> None:
        """The body is complete."""
        self._cycle.more_body = False
        self._cycle.message_event.set()

    def crowd(self) -> None:
        """The socket takes no more for now."""
        self._flow.pause_writing()

    def room(self) -> None:
        """The socket takes more."""
        self._flow.resume_writing()

    def last(self) -> None:
        """The connection is closed after this answer."""
        self._cycle.keep_alive = False

    def leave(self) -> None:
        """The caller has gone."""
        self._cycle.disconnected = True
        self._cycle.message_event.set()
        self._flow.resume_writing()

    def _over(self) -> None:
        self._flow.resume_reading()
        self._answered()


def _scope(
    config: uvicorn.Config,
    transport: asyncio.Transport,
    version: str,
    method: bytes,
    url: bytes,
    headers: list[tuple[bytes, bytes]],
) -> HTTPScope:
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return {
        "type": "http",
        "asgi": {"version": config.asgi_version, "spec_version": "2.3"},
        "http_version": version,
        "server": get_local_addr(transport),
        "client": get_remote_addr(transport),
        "scheme": "https" if is_ssl(transport) else "http",
        "method": method.decode("ascii"),
        "root_path": "",
        "path": urllib.parse.unquote(path) if "%" in path else path,
        "raw_path": parsed.path,
        "query_string": parsed.query or b"",
        "headers": headers,
        "state": {},
        "extensions": {CUT_EXTENSION: {"cut": transport.abort}},
    }
