"""A plain HTTP client for end-to-end tests: sees every header and every byte, retries nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.patience import GUARD

CHAT = "/v1/chat/completions"


def chat(content: str = "hi", **fields: object) -> dict[str, object]:
    """A chat request for the model `m`; `fields` are added or take the place of others."""
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


@dataclass(frozen=True, slots=True)
class Heard:
    """One whole answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        value: dict[str, Any] = json.loads(self.body)
        return value

    @property
    def error(self) -> dict[str, Any]:
        """The error object of an OpenAI error body, or of the error event in a stream."""
        if self.headers.get("content-type", "").startswith("application/json"):
            errors = [self.json["error"]]
        else:
            errors = [event["error"] for event in self.events if "error" in event]
        (error,) = errors
        assert set(error) == {"message", "type", "param", "code"}
        return dict(error)

    @property
    def payloads(self) -> list[bytes]:
        """The data of each event of a streamed answer, `[DONE]` included."""
        return [line.removeprefix(b"data: ") for line in self.body.split(b"\n") if line.startswith(b"data: ")]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON objects of a streamed answer."""
        return [json.loads(payload) for payload in self.payloads if payload != b"[DONE]"]

    @property
    def done(self) -> bool:
        """Whether a streamed answer ends as a complete one does."""
        return self.payloads.count(b"[DONE]") == 1 and self.payloads[-1] == b"[DONE]"

    @property
    def text(self) -> str:
        """The text of the (first) answer, whichever form it came in."""
        events = self.events if self.headers["content-type"].startswith("text/event-stream") else [self.json]
        return "".join(_text(event) for event in events)


class Client:
    """Talks to one address."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def ask(
        self, body: Mapping[str, object], headers: Mapping[str, str] | None = None, path: str = CHAT
    ) -> Heard:
        """Send a request and read the whole answer, streamed or not."""
        return await self.send(json.dumps(body).encode(), headers, path)

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None, path: str = CHAT) -> Heard:
        """Send these bytes as JSON and read the whole answer."""
        fields = {"content-type": "application/json", **(headers or {})}
        async with self._session.post(self.url + path, data=body, headers=fields) as response:
            return await _heard(response)

    async def get(self, path: str) -> Heard:
        """Read what is at a path."""
        async with self._session.get(self.url + path) as response:
            return await _heard(response)

    async def totals(self) -> dict[str, int]:
        """The gateway's counts since its start."""
        return dict((await self.get("/health")).json["totals"])

    @asynccontextmanager
    async def open(
        self, body: Mapping[str, object], headers: Mapping[str, str] | None = None, path: str = CHAT
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and read its answer piece by piece; leaving the block early closes the connection."""
        async with self._session.post(self.url + path, json=body, headers=headers) as response:
            try:
                yield response
            finally:
                response.close()


@asynccontextmanager
async def client(url: str, patience: float = GUARD) -> AsyncIterator[Client]:
    """A client for `url` that opens as many connections as it needs, each for one request.

    `patience` is the longest time for one answer in seconds.
    """
    timeout = aiohttp.ClientTimeout(total=patience)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=timeout
    ) as session:
        yield Client(url, session)


async def next_event(response: aiohttp.ClientResponse) -> bytes:
    """The next event's data of a streamed answer; empty at its end."""
    async for line in response.content:
        if line.startswith(b"data: "):
            return line.removeprefix(b"data: ").strip()
    return b""


async def _heard(response: aiohttp.ClientResponse) -> Heard:
    body = await response.read()
    return Heard(response.status, {name.lower(): value for name, value in response.headers.items()}, body)


def _text(answer: Mapping[str, object]) -> str:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        return ""
    part = choices[0].get("message") or choices[0].get("delta") or {}
    return str(part.get("content") or choices[0].get("text") or "")
