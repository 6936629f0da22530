"""A load generator on raw sockets: keep-alive connections, each sending its next request when the last is answered."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable

import httptools

_STAMP = re.compile(rb"@(\d+)@")


class Connection(asyncio.Protocol):
    """One client. `next_body` gives each request's body, or None when it is done."""

    def __init__(self, next_body: Callable[[], bytes | None], seconds: list[float], delays: list[float]) -> None:
        self.next_body = next_body
        self.seconds = seconds
        self.delays = delays
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._send()

    def _send(self) -> None:
        body = self.next_body()
        if body is None:
            self.transport.close()
            return
        self.parser = httptools.HttpResponseParser(self)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += b"content-length: %d\r\n\r\n" % len(body)
        self.sent = time.perf_counter()
        self.transport.write(head + body)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        for stamp in _STAMP.findall(data):
            self.delays.append((now - int(stamp)) / 1e9)
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.seconds.append(time.perf_counter() - self.sent)
        if self.parser.get_status_code() != 200:
            self.done.set_exception(RuntimeError(f"status {self.parser.get_status_code()}"))
            return
        asyncio.get_running_loop().call_soon(self._send)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def bodies(count: int, *, stream: bool = False, tokens: int = 16, gap_us: int = 0) -> Callable[[], bytes | None]:
    """`count` different bodies, one at a time: no two are shared by single-flight."""
    number = 0

    def next_body() -> bytes | None:
        nonlocal number
        number += 1
        if number > count:
            return None
        asked: dict[str, object] = {
            "model": "bench",
            "messages": [{"role": "user", "content": f"question {number} " + "y" * 200}],
        }
        if stream:
            asked |= {"stream": True, "max_tokens": tokens, "seed": gap_us}
        return json.dumps(asked).encode()

    return next_body


async def drive(
    port: int, connections: int, next_body: Callable[[], bytes | None]
) -> tuple[list[float], list[float], float]:
    """Send all bodies; gives the seconds of each request, the delay of each chunk and the seconds in all."""
    seconds: list[float] = []
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    begun = time.perf_counter()
    clients = [
        (await loop.create_connection(lambda: Connection(next_body, seconds, delays), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(client.done for client in clients))
    return seconds, delays, time.perf_counter() - begun
