"""A caller on a raw socket: writes any bytes, notes every byte it gets in the order of arrival, leaves in any way."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from headrace.testing import Changes
from tests.e2e.client import CHAT, chat
from tests.patience import GUARD

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer as far as it has come. `complete`: its body ended as its framing says it must."""

    status: int
    fields: Headers
    body: bytes
    complete: bool

    def header(self, name: str) -> str | None:
        """The value of a (lower-case) header; it must not be there twice."""
        values = [value for key, value in self.fields if key == name]
        assert len(values) <= 1, f"{name} comes {len(values)} times"
        return values[0] if values else None

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object; it must have the length that was announced."""
        assert self.complete
        assert self.header("content-length") == str(len(self.body))
        value: dict[str, Any] = json.loads(self.body)
        return value

    @property
    def error(self) -> dict[str, Any]:
        """The error of an OpenAI error body; all four fields."""
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[bytes]:
        """The data of each event of a stream. Every byte must belong to an event of one line, and none may be empty."""
        *blocks, rest = self.body.split(b"\n\n")
        assert not self.complete or not rest
        for block in blocks:
            assert block.startswith(b"data: ")
            assert b"\n" not in block
            assert b"\r" not in block
        return [block.removeprefix(b"data: ") for block in blocks]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The JSON objects among the events."""
        return [json.loads(event) for event in self.events if event != b"[DONE]"]

    @property
    def text(self) -> str:
        """What the first choice of a stream says."""
        return self.choice(0)

    def choice(self, index: int) -> str:
        """What one choice of a stream says."""
        said = [choice for chunk in self.chunks for choice in chunk.get("choices", []) if choice["index"] == index]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in said)

    @property
    def finish_reasons(self) -> list[str]:
        """Every finish reason that is not null."""
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices", [])]
        return [choice["finish_reason"] for choice in choices if choice.get("finish_reason") is not None]

    @property
    def error_events(self) -> list[dict[str, Any]]:
        """The error events of a stream; each has all four fields."""
        errors = [chunk["error"] for chunk in self.chunks if "error" in chunk]
        assert all(set(error) == {"message", "type", "param", "code"} for error in errors)
        return errors

    @property
    def done(self) -> bool:
        """The stream ended properly with exactly one `[DONE]`, and nothing after it."""
        return self.complete and self.events.count(b"[DONE]") == 1 and self.events[-1] == b"[DONE]"

    @property
    def broken(self) -> bool:
        """The stream ended properly with exactly one error event, nothing after it, and no `[DONE]` anywhere."""
        return (
            self.complete
            and len(self.error_events) == 1
            and b'"error"' in self.events[-1]
            and b"[DONE]" not in self.events
        )


class RawCaller(asyncio.Protocol):
    """One connection to the gateway."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        """What each read brought."""
        self.closed = False
        """The gateway closed the connection."""
        self._changes = Changes()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self._changes.notify()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._changes.notify()

    # -- writing and leaving

    def send(self, data: bytes) -> None:
        """These bytes exactly."""
        self._open_transport.write(data)

    def ask(self, body: Mapping[str, object] | bytes | None = None, headers: Headers = (), path: str = CHAT) -> None:
        """A POST; `body` is made JSON unless it is bytes. A chat request when None."""
        data = body if isinstance(body, bytes) else json.dumps(chat() if body is None else body).encode()
        fields = [("host", "gateway.example"), ("content-type", "application/json"), *headers]
        self.send(head("POST", path, [*fields, ("content-length", str(len(data)))]) + data)

    def get(self, path: str, headers: Headers = (), method: str = "GET") -> None:
        """A request without a body; `path` goes out as it is."""
        self.send(head(method, path, [("host", "gateway.example"), *headers]))

    def close(self) -> None:
        """Leave in order: FIN."""
        self._open_transport.close()

    def reset(self) -> None:
        """Leave abruptly: RST."""
        sock = self._open_transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._open_transport.abort()

    def stop_reading(self) -> None:
        """Take nothing more from the socket."""
        self._open_transport.pause_reading()

    def read_on(self) -> None:
        """Take what comes again."""
        self._open_transport.resume_reading()

    @property
    def _open_transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    # -- reading

    @property
    def received(self) -> bytes:
        """Every byte so far."""
        return b"".join(self.pieces)

    @property
    def heard(self) -> RawAnswer | None:
        """The (first) answer so far; None until its head is complete."""
        return parsed(self.received, ended=self.closed)

    async def until(self, condition: Callable[[], bool], what: str, within: float = GUARD) -> None:
        """Wait until a condition over what came is true."""
        await self._changes.until(condition, within, what)

    async def sees(self, data: bytes, within: float = GUARD) -> None:
        """Wait until these bytes have come."""
        await self.until(lambda: data in self.received, f"{data!r} arrives", within)

    async def answer(self, within: float = GUARD) -> RawAnswer:
        """Wait for the whole answer, or for the end of the connection."""

        def over() -> bool:
            if self.closed or not self.pieces or self._in_mid_chunks:
                return self.closed
            return (heard := self.heard) is not None and heard.complete

        await self.until(over, "the answer is complete", within)
        heard = self.heard
        assert heard is not None, f"no answer: {self.received[:200]!r}"
        return heard

    @property
    def _in_mid_chunks(self) -> bool:
        """Cheaply: a chunked body that cannot have ended yet."""
        return b"chunked" in self.pieces[0] and not b"".join(self.pieces[-5:]).endswith(b"0\r\n\r\n")

    def forget(self) -> None:
        """Forget what came, to use the connection for another request."""
        self.pieces.clear()


def head(method: str, path: str, fields: Headers) -> bytes:
    """A request's head."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


def parsed(data: bytes, *, ended: bool = False) -> RawAnswer | None:
    """The first answer in `data`. `ended`: nothing more will come."""
    start, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    status, *lines = start.decode("latin-1").split("\r\n")
    fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    answer = RawAnswer(int(status.split(" ")[1]), fields, b"", complete=False)
    if answer.header("transfer-encoding") == "chunked":
        assert answer.header("content-length") is None, "never both framings"
        body, complete = _dechunked(rest)
    elif (length := answer.header("content-length")) is not None:
        body, complete = rest[: int(length)], len(rest) >= int(length)
    else:
        body, complete = rest, ended
    return RawAnswer(answer.status, fields, body, complete)


def _dechunked(data: bytes) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    while True:
        line, separator, data = data.partition(b"\r\n")
        if not separator:
            return b"".join(parts), False
        size = int(line, 16)
        if size == 0:
            return b"".join(parts), data.startswith(b"\r\n")
        parts.append(data[:size])
        if len(data) < size + 2:
            return b"".join(parts), False
        data = data[size + 2 :]


@asynccontextmanager
async def raw_caller(url: str) -> AsyncIterator[RawCaller]:
    """A connection to `url`; dropped in the end."""
    host, _, port = urlsplit(url).netloc.rpartition(":")
    transport, caller = await asyncio.get_running_loop().create_connection(RawCaller, host, int(port))
    try:
        yield caller
    finally:
        transport.abort()


async def asked(
    url: str,
    body: Mapping[str, object] | bytes | None = None,
    headers: Headers = (),
    path: str = CHAT,
    within: float = GUARD,
) -> RawAnswer:
    """One POST over a connection of its own, and its whole answer."""
    async with raw_caller(url) as caller:
        caller.ask(body, headers, path)
        return await caller.answer(within)


async def got(url: str, path: str, headers: Headers = (), method: str = "GET") -> RawAnswer:
    """One request without a body over a connection of its own, and its whole answer."""
    async with raw_caller(url) as caller:
        caller.get(path, headers, method)
        return await caller.answer()
