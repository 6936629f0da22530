"""One HTTP request and its answer, as the handlers see it: no framework, no coroutine, no socket.

Handlers are plain functions from an exchange to None. They may answer at once or keep the exchange and answer from
callbacks. What carries the bytes implements this Protocol: `asgi.AsgiExchange` for any ASGI server,
`direct.DirectExchange` on the connection itself.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol
from urllib.parse import quote

HIGH_WATER = 64 * 1024
"""Bytes waiting for one caller at which `Exchange.write` returns False."""

_HEADER_SAFE = string.printable[:95]


class Exchange(Protocol):
    """A request whose body is complete, and the way to answer it.

    Order of calls: `answer`; or `start`, any number of `write`, `finish`; or `abort` at any time. Once the caller has
    gone, what is written is dropped without an error.
    """

    method: str
    path: str
    """Percent-decoded, not normalised."""
    params: Mapping[str, str]
    """What the matched route's placeholders caught."""
    headers: Mapping[bytes, bytes]
    """By lower-case names, until the handler has returned; several values of one name are joined with ", "."""
    body: bytes
    on_disconnect: Callable[[], None] | None
    """Called once when the caller leaves before `finish`."""
    on_drain: Callable[[], None] | None
    """Called when there is room again after `write` returned False."""

    @property
    def peer(self) -> str:
        """The caller's network address, or "" when it is not known."""
        ...

    def answer(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """The whole answer; its length is told. Characters a header cannot carry are percent-encoded."""
        ...

    def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Status line and headers, once, of an answer whose length nobody knows yet; the headers as in `answer`."""
        ...

    def write(self, data: bytes) -> bool:
        """A part of the body. It is taken in any case; False: enough for now, wait for `on_drain`."""
        ...

    def finish(self, data: bytes = b"") -> None:
        """The body's last part. Nothing follows."""
        ...

    def abort(self) -> None:
        """Cut the connection, so that the caller cannot take what it has for a complete answer."""
        ...


Handler = Callable[[Exchange], None]
"""Answers an exchange, now or from callbacks. Must not wait."""


def headers_of(raw: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Headers, their names in lower case, as an exchange has them."""
    headers = dict(raw)
    if len(headers) != len(raw):
        headers.clear()
        for name, value in raw:
            headers[name] = b"%b, %b" % (headers[name], value) if name in headers else value
    return headers


def header(exchange: Exchange, name: str) -> str | None:
    """The value of a header by its lower-case name, as text."""
    value = exchange.headers.get(name.encode())
    return None if value is None else value.decode("latin-1")


def status_line(status: int) -> str:
    """The first line of an answer, with its end."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n"


@lru_cache(maxsize=1024)
def header_line(header: tuple[str, str]) -> bytes:
    """A header as it is written, with its line's end. Most of an answer's are those of thousands of others."""
    name, value = header
    return f"{name}: {header_value(value)}\r\n".encode()


def header_value(value: str) -> str:
    """A header's value; what it cannot carry is percent-encoded, so that nothing can be smuggled into an answer."""
    return value if value.isascii() and value.isprintable() else quote(value, safe=_HEADER_SAFE)
