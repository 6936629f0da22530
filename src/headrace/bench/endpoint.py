"""The endpoint under test, over HTTP: asks, reads the stream, and names how each request ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec

from headrace.bench.answer import AnswerReader, error_name
from headrace.bench.questions import Question
from headrace.model import Usage

LARGEST_REPLY = 1024 * 1024
"""Most bytes read of a list of models or of an error body."""
CONNECT_SECONDS = 10.0


class Unusable(Exception):
    """The endpoint cannot be measured; the message is one sentence for the person who asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """How one request ended, as its client saw it."""

    result: str
    """`served` for a complete answer; else a status with its code, or connect, timeout, cut, empty, stream: CODE."""
    usage: Usage | None = None
    """As the endpoint reported it; None: it did not."""
    waited: float | None = None
    """Seconds in the gateway's queue, where it says so (`x-headrace-queue-ms`)."""
    retry_after: float | None = None
    """Seconds to stay away, where the endpoint said so."""
    text: str = ""

    @property
    def served(self) -> bool:
        """The answer is complete. A refused or broken one never is."""
        return self.result == SERVED


SERVED = "served"


class Asker(Protocol):
    """Whatever answers questions; cancelling `ask` lets go of the request."""

    async def ask(self, question: Question, seen: Callable[[int], None]) -> Answered:
        """Ask; `seen` is told of each batch of content chunks at the moment it is there."""
        ...


class Endpoint:
    """An OpenAI-shaped endpoint; an async context manager.

    Args:
        url: with or without `/v1`. Raises Unusable when it is no http(s) URL.
        key: sent as bearer token where a question brings none of its own.
        timeout: most seconds one request may take.
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = 300.0) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable:
            raise Unusable(f"'{url}' is no address; write http://HOST:PORT")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_SECONDS)
        # One connection for each request under way: a bound here would be a queue that nobody sees.
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def models(self) -> tuple[str, ...]:
        """The models it lists by name. Raises Unusable when it cannot be asked or lists none."""
        try:
            async with self._open.get(f"{self.url}/v1/models", headers=self._headers) as response:
                status, body = response.status, await _read(response)
        except aiohttp.ClientConnectorError:
            raise Unusable(f"nothing answers at {self.url}") from None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Unusable(f"{self.url} does not answer ({type(error).__name__})") from None
        data = body.get("data") if isinstance(body, dict) else None
        entries = data if isinstance(data, list) else []
        names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
        found = tuple(name for name in names if isinstance(name, str) and name and "*" not in name)
        if not found:
            said = f"status {status}" if status != 200 else "no model by name"
            raise Unusable(f"{self.url}/v1/models gave {said}; name one with --model, and a key with --api-key-env")
        return found

    async def ask(self, question: Question, seen: Callable[[int], None]) -> Answered:
        """See `Asker`."""
        headers = {**self._headers, **dict(question.headers), "content-type": "application/json"}
        url = f"{self.url}/v1/chat/completions"
        reader = AnswerReader()
        waited: float | None = None
        try:
            async with self._open.post(url, data=question.body, headers=headers) as response:
                waited = _milliseconds(response.headers.get("x-headrace-queue-ms"))
                if response.status != 200:
                    return await _refused(response, waited)
                async for data in response.content.iter_any():
                    pieces = reader.feed(data)
                    if pieces:
                        seen(pieces)
        except TimeoutError:
            return Answered(result="timeout", usage=reader.usage, waited=waited)
        except aiohttp.ClientConnectorError:
            return Answered(result="connect")
        except aiohttp.ClientError:
            return Answered(result="cut", usage=reader.usage, waited=waited)
        return Answered(result=_result(reader), usage=reader.usage, waited=waited, text=reader.text)

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the endpoint has not been entered")
        return self._session


def _result(reader: AnswerReader) -> str:
    """What a stream that ended by itself was."""
    if reader.error:
        return f"stream: {reader.error}"
    if not reader.finished:
        return "cut"
    return SERVED if reader.pieces else "empty"


async def _refused(response: aiohttp.ClientResponse, waited: float | None) -> Answered:
    code = error_name(await _read(response))
    return Answered(
        result=f"{response.status} {code}".strip(), waited=waited, retry_after=_retry_after(response.headers)
    )


async def _read(response: aiohttp.ClientResponse) -> object:
    """A bounded JSON body; None for anything else."""
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > LARGEST_REPLY:
            return None
    try:
        found: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def _retry_after(headers: Mapping[str, str]) -> float | None:
    exact = _milliseconds(headers.get("retry-after-ms"))
    if exact is not None:
        return exact
    whole = headers.get("retry-after", "")
    return float(whole) if whole.isdecimal() and len(whole) < 10 else None


def _milliseconds(text: str | None) -> float | None:
    """Seconds."""
    try:
        number = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return number / 1000 if 0 <= number < 1e10 else None
