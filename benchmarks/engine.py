"""An engine that costs next to nothing, so that what is measured is the gateway. `python -m benchmarks.engine PORT`.

The body's `max_tokens` is the number of chunks of a streamed answer, its `seed` the microseconds between them;
each chunk carries the time it was sent. An answer that is not streamed is 1 KB of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import httptools
import uvloop

_TEXT = "x" * 700
_WHOLE = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": _TEXT}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110},
    }
).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_WHOLE) + _WHOLE
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_START = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,'


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Engine(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        asked = json.loads(self.body) if self.body else {}
        self.body = b""
        if not asked.get("stream"):
            self.transport.write(_ANSWER)
            return
        self.transport.write(
            _HEAD + _chunk(_START + b'"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n')
        )
        self._next(asked.get("max_tokens", 16), asked.get("seed", 0) / 1e6)

    def _next(self, left: int, gap: float) -> None:
        if self.transport.is_closing():
            return
        if left == 0:
            end = _START + b'"delta":{},"finish_reason":"stop"}]}\n\n'
            self.transport.write(_chunk(end + b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        stamp = _START + b'"delta":{"content":"@%d@"},"finish_reason":null}]}\n\n' % time.monotonic_ns()
        self.transport.write(_chunk(stamp))
        asyncio.get_running_loop().call_later(gap, self._next, left - 1, gap)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
