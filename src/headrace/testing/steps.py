"""The verbs of `ScriptedConnection` as steps, so that a script can be written as a list.

engine.once([steps.chunk("a"), steps.chunk("b"), steps.cut()])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.testing.connection import Headers, ScriptedConnection, Step


def head(status: int = 200, headers: Headers = ()) -> Step:
    """Status line and headers."""
    return lambda conn: conn.head(status, headers)


def raw(data: bytes) -> Step:
    """Bytes past all framing."""
    return lambda conn: conn.raw(data)


def send(data: bytes) -> Step:
    """One piece of the body, one write."""
    return lambda conn: conn.send(data)


def drip(data: bytes, size: int = 1) -> Step:
    """A piece of the body in writes of `size` bytes."""
    return lambda conn: conn.drip(data, size)


def sse(obj: object) -> Step:
    """One event with `obj` as JSON."""
    return lambda conn: conn.sse(obj)


def event(data: bytes) -> Step:
    """Bytes of an event stream."""
    return lambda conn: conn.event(data)


def comment(text: str) -> Step:
    """An SSE comment."""
    return lambda conn: conn.comment(text)


def role(index: int = 0) -> Step:
    """The role-only chunk."""
    return lambda conn: conn.role(index)


def chunk(text: str, index: int = 0) -> Step:
    """A chunk with text."""
    return lambda conn: conn.chunk(text, index)


def finish(reason: str = "stop", index: int = 0) -> Step:
    """The chunk with the `finish_reason`."""
    return lambda conn: conn.finish(reason, index)


def usage(prompt: int, completion: int) -> Step:
    """The usage-only chunk."""
    return lambda conn: conn.usage(prompt, completion)


def error(message: str = "boom", kind: str = "server_error", code: str | None = None) -> Step:
    """An error event inside the stream."""
    return lambda conn: conn.error(message, kind, code)


def done() -> Step:
    """`data: [DONE]`."""
    return ScriptedConnection.done


def end() -> Step:
    """The proper end of the body."""
    return ScriptedConnection.end


def close() -> Step:
    """Close the connection unannounced, after whatever was sent."""
    return ScriptedConnection.close


def cut() -> Step:
    """Close without the last chunk."""
    return ScriptedConnection.cut


def reset() -> Step:
    """Reset the connection."""
    return ScriptedConnection.reset


def hang() -> Step:
    """Nothing more until the peer closes."""
    return ScriptedConnection.hang


def wait(happened: Callable[[], Awaitable[object]]) -> Step:
    """Wait for something the test does: `steps.wait(event.wait)`."""
    return lambda conn: conn.wait(happened())


def json(status: int, obj: object, headers: Headers = ()) -> Step:
    """A whole JSON answer."""
    return lambda conn: conn.json(status, obj, headers)


def whole(status: int, body: bytes, headers: Headers = ()) -> Step:
    """A whole answer with any body."""
    return lambda conn: conn.whole(status, body, headers)


def answer(text: str, *, tokens: tuple[int, int] = (1, 1), reason: str = "stop") -> Step:
    """A complete good answer in the form asked for; `tokens` are (prompt, completion)."""
    return lambda conn: conn.answer(text, usage=tokens, reason=reason)
