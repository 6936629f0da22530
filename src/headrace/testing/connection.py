"""What a script can do with a request: every verb of `ScriptedConnection` is one deed on the wire."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headrace.testing.http_reader import ReceivedRequest
from headrace.testing.link import Link
from headrace.testing.waiting import Changes, guarded

Headers = Sequence[tuple[str, str]] | Mapping[str, str]

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}


class ScriptedConnection:
    """The engine's side of one request. Verbs raise `PeerGone` when the peer has left, which ends the script quietly.

    `sse` and the verbs built on it send the head of a streamed 200 answer first when no head was sent. `id` and
    `created` in chunks are constant, `model` is what the request asked for.
    """

    def __init__(self, link: Link, changes: Changes, request: ReceivedRequest, number: int, guard: float) -> None:
        self.request = request
        self.number = number
        """Position among the engine's requests, from 0."""
        self.ended = False
        """The answer is complete, or the connection was given up."""
        self._link = link
        self._changes = changes
        self._guard = guard
        self._chunked = False
        self._headed = False

    # -- the peer

    async def peer_closed(self, within: float | None = None) -> None:
        """Wait until the peer closed its side; raises `GuardExpired` after `within` seconds (default: the guard)."""
        seconds = self._guard if within is None else within
        await self._changes.until(lambda: self._link.peer_closed, seconds, "the peer closes the connection")

    async def hang(self) -> None:
        """Send nothing more until the peer closes; the guard counts."""
        await self.peer_closed()
        self.ended = True

    async def wait(self, happened: Awaitable[object], what: str = "the event a script waits for") -> None:
        """Wait for something the test does, such as `event.wait()`; the guard counts."""
        await guarded(happened, self._guard, what)

    # -- plain HTTP

    async def head(self, status: int = 200, headers: Headers = ()) -> None:
        """Status line and headers in one write. Without a `content-length` among them the body is chunked."""
        pairs = _pairs(headers)
        names = {name.lower() for name, _ in pairs}
        if "content-length" not in names and status not in (204, 304):
            self._chunked = True
            pairs.append(("transfer-encoding", "chunked"))
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Answer')}", *(f"{name}: {value}" for name, value in pairs)]
        self._headed = True
        await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def raw(self, data: bytes) -> None:
        """These bytes exactly, in one write, past all framing."""
        await self._link.write(data, self._guard)

    async def send(self, data: bytes) -> None:
        """A piece of the body in one write: one HTTP chunk, or plain when the head gave a length."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def drip(self, data: bytes, size: int = 1) -> None:
        """A piece of the body in writes of `size` bytes."""
        for start in range(0, len(data), size):
            await self.send(data[start : start + size])

    async def end(self) -> None:
        """The proper end of the body; the connection stays open for the next request."""
        if self._chunked:
            await self.raw(b"0\r\n\r\n")
        self.ended = True

    async def close(self) -> None:
        """Close the connection in order, without having announced it."""
        self._link.close()
        self.ended = True

    async def cut(self) -> None:
        """Close without the last chunk: the answer is truncated."""
        await self.close()

    async def reset(self) -> None:
        """Reset the connection (RST)."""
        self._link.reset()
        self.ended = True

    async def json(self, status: int, obj: object, headers: Headers = ()) -> None:
        """A whole answer with a JSON body, head and body in one write."""
        await self.whole(status, jsonlib.dumps(obj).encode(), (("content-type", "application/json"), *_pairs(headers)))

    async def whole(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """A whole answer with any body, head and body in one write."""
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Answer')}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in _pairs(headers)]
        self._headed = True
        await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
        self.ended = True

    # -- streamed answers

    async def sse(self, obj: object) -> None:
        """One event whose data is `obj` as JSON."""
        await self.event(b"data: " + jsonlib.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n")

    async def event(self, data: bytes) -> None:
        """These bytes as a piece of an event stream."""
        if not self._headed:
            await self.head(200, (("content-type", "text/event-stream; charset=utf-8"),))
        await self.send(data)

    async def comment(self, text: str) -> None:
        """An SSE comment, as engines send them to keep a connection alive."""
        await self.event(f": {text}\n\n".encode())

    async def role(self, index: int = 0) -> None:
        """The chunk that only names the role, before any content."""
        await self._chunk(index, {"role": "assistant", "content": ""}, None)

    async def chunk(self, text: str, index: int = 0) -> None:
        """A chunk with a piece of text."""
        await self._chunk(index, {"content": text}, None)

    async def finish(self, reason: str = "stop", index: int = 0) -> None:
        """The chunk that carries the `finish_reason`."""
        await self._chunk(index, {}, reason)

    async def usage(self, prompt: int, completion: int) -> None:
        """The chunk with empty `choices` and the usage in tokens."""
        total = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        await self.sse({**self._envelope(), "choices": [], "usage": total})

    async def error(self, message: str = "boom", kind: str = "server_error", code: str | None = None) -> None:
        """An error event inside the stream."""
        await self.sse({"error": {"message": message, "type": kind, "param": None, "code": code}})

    async def done(self) -> None:
        """`data: [DONE]`."""
        await self.event(b"data: [DONE]\n\n")

    async def answer(self, text: str, *, usage: tuple[int, int] = (1, 1), reason: str = "stop") -> None:
        """A complete good answer in the form the request asks for; streamed, each word is a chunk."""
        if not self.request.streams:
            await self.json(200, self._whole_answer(text, usage, reason))
            return
        if self._is_chat:
            await self.role()
        for position, word in enumerate(text.split(" ")):
            await self.chunk(f" {word}" if position else word)
        await self.finish(reason)
        await self.usage(*usage)
        await self.done()
        await self.end()

    @property
    def _is_chat(self) -> bool:
        return "/chat/" in self.request.path

    def _envelope(self) -> dict[str, object]:
        try:
            model = self.request.json().get("model", "scripted")
        except ValueError:
            model = "scripted"
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {"id": "chatcmpl-scripted", "object": kind, "created": 1700000000, "model": model}

    async def _chunk(self, index: int, delta: dict[str, object], reason: str | None) -> None:
        choice: dict[str, object] = {"index": index, "delta": delta, "finish_reason": reason}
        if not self._is_chat:
            choice = {"index": index, "text": delta.get("content", ""), "finish_reason": reason}
        await self.sse({**self._envelope(), "choices": [choice]})

    def _whole_answer(self, text: str, usage: tuple[int, int], reason: str) -> dict[str, object]:
        choice: dict[str, object] = {"index": 0, "text": text, "finish_reason": reason}
        kind = "text_completion"
        if self._is_chat:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
            kind = "chat.completion"
        total = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        return {**self._envelope(), "object": kind, "choices": [choice], "usage": total}


def _pairs(headers: Headers) -> list[tuple[str, str]]:
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)


Step = Callable[[ScriptedConnection], Awaitable[None]]
Script = Step | Sequence[Step]
