"""A small incremental reader of HTTP/1.1 requests, for engines in tests. No sockets in here."""

from __future__ import annotations

import json
from dataclasses import dataclass

_HEAD_LIMIT = 64 * 1024
_BODY_LIMIT = 64 * 1024 * 1024


class MalformedRequest(Exception):
    """The peer sent something that is no HTTP/1.1 request, or one beyond the bounds (64 KiB head, 64 MiB body)."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request as it came: path with query, header names in lower case in their order, body decoded from chunks."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """The first header of that (lower-case) name."""
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> dict[str, object]:
        """The body as a JSON object; raises ValueError when it is none."""
        value: object = json.loads(self.body)
        if not isinstance(value, dict):
            raise ValueError("the body is no JSON object")  # noqa: TRY004 - wrong data, not a wrong call
        return {str(key): item for key, item in value.items()}

    @property
    def streams(self) -> bool:
        """Whether the body asks for a streamed answer."""
        try:
            return self.json().get("stream") is True
        except ValueError:
            return False

    @property
    def keeps_alive(self) -> bool:
        """Whether the peer wants to use the connection again."""
        return (self.header("connection") or "").lower() != "close"


class RequestReader:
    """Feed it bytes as they come; it gives back each request when it is whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: ReceivedRequest | None = None
        self._body = bytearray()

    def feed(self, data: bytes) -> list[ReceivedRequest]:
        """The requests completed by `data`; raises `MalformedRequest`."""
        self._buffer += data
        done: list[ReceivedRequest] = []
        while True:
            if self._head is None:
                self._head = self._take_head()
                if self._head is None:
                    return done
            if not self._take_body(self._head):
                return done
            head, body = self._head, bytes(self._body)
            self._head, self._body = None, bytearray()
            done.append(ReceivedRequest(head.method, head.path, head.headers, body))

    def _take_head(self) -> ReceivedRequest | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_LIMIT:
                raise MalformedRequest("the head is too long")
            return None
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise MalformedRequest(f"no request line: {lines[0][:80]!r}")
        headers: list[tuple[str, str]] = []
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise MalformedRequest(f"no header: {line[:80]!r}")
            headers.append((name.strip().lower(), value.strip()))
        return ReceivedRequest(parts[0], parts[1], tuple(headers))

    def _take_body(self, head: ReceivedRequest) -> bool:
        if "chunked" in (head.header("transfer-encoding") or "").lower():
            return self._take_chunks()
        length = _number(head.header("content-length") or "0", 10)
        if length > _BODY_LIMIT:
            raise MalformedRequest("the body is too long")
        if len(self._buffer) < length:
            return False
        self._body += self._buffer[:length]
        del self._buffer[:length]
        return True

    def _take_chunks(self) -> bool:
        while True:
            line_end = self._buffer.find(b"\r\n")
            if line_end < 0:
                return False
            size = _number(bytes(self._buffer[:line_end]).decode("latin-1").partition(";")[0], 16)
            if size + len(self._body) > _BODY_LIMIT:
                raise MalformedRequest("the body is too long")
            if len(self._buffer) < line_end + 2 + size + 2:
                return False
            self._body += self._buffer[line_end + 2 : line_end + 2 + size]
            del self._buffer[: line_end + 2 + size + 2]
            if size == 0:
                return True


def _number(text: str, radix: int) -> int:
    try:
        value = int(text, radix)
    except ValueError:
        raise MalformedRequest(f"no length: {text[:40]!r}") from None
    if value < 0:
        raise MalformedRequest("a length below 0")
    return value
