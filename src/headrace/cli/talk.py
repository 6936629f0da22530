"""A conversation with a gateway over HTTP: asks, streams the answer, tells the place in the queue meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypedDict
from uuid import uuid4

import aiohttp

from headrace.cli import Refused
from headrace.cli.replies import base_of, message_in, message_of
from headrace.wire.queue_notes import read_queued_note
from headrace.wire.sse import SseReader

LONGEST_REPLY_BYTES = 1024 * 1024
"""Bound on what is read of a list of models, a queue or an error body."""

CONNECT_SECONDS = 5.0


class Message(TypedDict):
    """One turn of a conversation, as the API has it."""

    role: str
    content: str


class Gateway:
    """A running gateway, as a client of its API sees it. `waiting` is told the place in the queue, 1 being next."""

    def __init__(self, url: str, user: str, *, waiting: Callable[[int], None], poll_seconds: float = 1.0) -> None:
        self._url = base_of(url)
        self._headers = {"x-headrace-user": user}
        self._waiting = waiting
        self._poll_seconds = poll_seconds

    async def models(self) -> list[str]:
        """The model names it serves, patterns left out. Raises Refused when it cannot be asked."""
        async with self._session() as session:
            found = _entries(await self._json(session, "/v1/models"))
        return [name for entry in found if isinstance(name := entry.get("id"), str) and "*" not in name]

    async def answer(self, model: str, messages: Sequence[Message]) -> AsyncIterator[str]:
        """The answer's text, piece by piece. Raises Refused when there is none or it breaks off."""
        request_id = f"chat-{uuid4().hex}"
        body = {"model": model, "messages": list(messages), "stream": True}
        async with self._session() as session:
            watch = asyncio.create_task(self._watch(session, request_id))
            try:
                async with session.post(
                    f"{self._url}/v1/chat/completions", json=body, headers={"x-request-id": request_id}
                ) as response:
                    if response.status != 200:
                        raise Refused(_told(await response.content.read(LONGEST_REPLY_BYTES), response))
                    async for text in _texts(response, self._waiting, watch.cancel):
                        yield text
            except (aiohttp.ClientError, TimeoutError) as error:
                raise Refused(self._unreached(error)) from error
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        return aiohttp.ClientSession(headers=self._headers, timeout=timeout)

    async def _json(self, session: aiohttp.ClientSession, path: str) -> object:
        try:
            async with session.get(self._url + path) as response:
                data = await response.content.read(LONGEST_REPLY_BYTES)
                if response.status != 200:
                    raise Refused(_told(data, response))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Refused(self._unreached(error)) from error
        try:
            return json.loads(data)
        except ValueError:
            raise Refused(f"what answers at {self._url} is no gateway") from None

    async def _watch(self, session: aiohttp.ClientSession, request_id: str) -> None:
        """Tell the place in the queue until cancelled; a gateway that cannot say is not asked again."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                entries = _entries(await self._json(session, "/v1/queue/me"))
            except Refused:
                return
            for entry in entries:
                position = entry.get("position")
                if request_id in (entry.get("id"), entry.get("request_id")) and isinstance(position, int):
                    self._waiting(position)

    def _unreached(self, error: Exception) -> str:
        if isinstance(error, aiohttp.ClientConnectorError):
            return (
                f"nothing answers at {self._url}; `headrace serve` starts a gateway, `headrace chat --echo` needs none"
            )
        if isinstance(error, aiohttp.InvalidURL):
            return f"'{self._url}' is no URL"
        return f"the connection to {self._url} broke off"


async def _texts(
    response: aiohttp.ClientResponse, waiting: Callable[[int], None], begun: Callable[[], object]
) -> AsyncIterator[str]:
    """The pieces of text in a streamed answer. Raises Refused for an error event or a missing end.

    `waiting` is told the places that the stream itself tells; `begun` is called when asking for them has become
    needless, perhaps more than once.
    """
    reader = SseReader()
    async for data in response.content.iter_any():
        for event in reader.feed(data):
            begun()
            if event.data == b"[DONE]":
                return
            text = _piece(event.data)
            if text:
                yield text
        place, reader.comment = read_queued_note(reader.comment), b""
        if place is not None:
            begun()
            waiting(place[0])
    raise Refused("the answer broke off before it was complete")


def _piece(data: bytes) -> str:
    try:
        chunk: object = json.loads(data)
    except ValueError:
        return ""
    if not isinstance(chunk, dict):
        return ""
    if "error" in chunk:
        raise Refused(message_in(chunk) or "the answer broke off")
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    delta = first.get("delta") if isinstance(first, dict) else None
    text = delta.get("content") if isinstance(delta, dict) else None
    return text if isinstance(text, str) else ""


def _entries(body: object) -> list[dict[str, object]]:
    """The list in a reply of the form `{"data": [...]}`; empty for anything else."""
    data = body.get("data") if isinstance(body, dict) else None
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def _told(data: bytes, response: aiohttp.ClientResponse) -> str:
    message = message_of(data)
    again = response.headers.get("retry-after", "")
    wait = f" (try again in {again} s)" if again.isdecimal() else ""
    return (message or f"the gateway answered {response.status}") + wait
