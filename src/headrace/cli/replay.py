"""Sending dead letters again: through a running gateway, at class batch, paced, each at most once."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp

from headrace.cli import Refused
from headrace.cli.letters import FileLetters, LetterSource, letters_table, opened, readable
from headrace.cli.replies import base_of, message_of
from headrace.cli.tables import show
from headrace.runtime.resending import Unsendable, body_again
from headrace.runtime.stores import DeadLetters, LetterFilter, StoredLetter, listed

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "embeddings": "/v1/embeddings"}

TRIES = 6
"""How often a letter is sent while the gateway says that it has no room."""

LONGEST_PAUSE = 60.0
"""Bound on the wait between two tries: 2^n seconds, or longer if the gateway says so, but never more than this."""

LONGEST_ANSWER_BYTES = 64 * 1024 * 1024

_NO_ROOM = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class Answered:
    """How one letter fared."""

    letter: StoredLetter
    status: int
    """HTTP status of the last try; 0 when there was no answer."""
    body: bytes = b""
    trouble: str = ""

    @property
    def well(self) -> bool:
        """The letter is answered and gone."""
        return self.status == 200 and not self.trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How letters are sent: to which gateway, how many a second at most, and to which model if not the first one."""

    url: str
    rate: float
    model: str | None = None


class Replay:
    """Takes letters out of `store` one by one and has them answered; `pause` waits so many seconds."""

    def __init__(
        self, store: DeadLetters, plan: Plan, *, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._store = store
        self._plan = plan
        self._pause = pause
        self._url = base_of(plan.url)

    async def run(self, letters: Sequence[StoredLetter], told: Callable[[Answered], None]) -> bool:
        """Send the letters, oldest first, and tell of each; whether all were answered.

        A letter without a request, or one that another replay holds, is skipped and told as such. Raises Refused when
        the gateway is not there; what was not sent stays a dead letter.
        """
        well = True
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for number, letter in enumerate(sorted(letters, key=lambda known: known.id)):
                if number:
                    await self._pause(1 / self._plan.rate)
                result = await self._one(session, letter)
                told(result)
                well = well and result.well
        return well

    async def _one(self, session: aiohttp.ClientSession, letter: StoredLetter) -> Answered:
        try:
            body = body_again(letter, self._plan.model)
        except Unsendable as error:
            return Answered(letter, 0, trouble=str(error))
        if await self._store.claim(letter.id) is None:
            return Answered(letter, 0, trouble="another replay has it")
        answered = False
        try:
            result = await self._sent(session, letter, body)
            answered = result.well
        finally:
            # A letter that got no answer, for whatever reason, goes back.
            await (self._store.done(letter.id) if answered else self._store.release(letter.id))
        return result

    async def _sent(self, session: aiohttp.ClientSession, letter: StoredLetter, body: bytes) -> Answered:
        status, answer = 0, b""
        for attempt in range(TRIES):
            status, answer, asked = await self._post(session, letter, body)
            if status not in _NO_ROOM:
                break
            if attempt < TRIES - 1:
                await self._pause(min(LONGEST_PAUSE, max(2.0**attempt, asked)))
        if status == 200:
            return Answered(letter, status, answer)
        return Answered(letter, status, trouble=message_of(answer) or f"answered {status}")

    async def _post(
        self, session: aiohttp.ClientSession, letter: StoredLetter, body: bytes
    ) -> tuple[int, bytes, float]:
        """Status, body, and the seconds the gateway wants to be left alone."""
        headers = _headers(letter)
        try:
            async with session.post(self._url + PATHS[letter.endpoint], data=body, headers=headers) as response:
                answer = await _bounded(response)
                return response.status, answer, _seconds(response.headers.get("retry-after"))
        except aiohttp.ClientConnectorError as error:
            raise Refused(f"nothing answers at {self._url}; start the gateway first") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Refused(f"the connection to {self._url} broke off; the letter stays") from error


def replay(source: LetterSource, ids: Sequence[int], which: LetterFilter, plan: Plan, *, dry_run: bool) -> bool:
    """Send letters of a file to the gateway at `plan.url`; whether all were answered. Raises Refused."""
    if not isinstance(source, FileLetters):
        raise TypeError("letters of a running gateway are sent by it")
    wanted = list(ids) or [one.letter.id for one in source.list(which)]
    letters = source.letters(wanted)
    if dry_run or not letters:
        show(letters_table(listed(letter) for letter in letters))
        print(f"{len(letters)} letters would be sent to {plan.url}")
        return True

    answered = 0

    def told(result: Answered) -> None:
        nonlocal answered
        answered += result.well
        _tell(result)

    async def work() -> bool:
        async with opened(source.path) as store:
            return await Replay(store, plan).run(letters, told)

    well = asyncio.run(work())
    print(f"{answered} of {len(letters)} letters were answered", file=sys.stderr)
    return well


def _tell(result: Answered) -> None:
    """The answer on standard output, trouble on standard error."""
    if not result.well:
        print(f"letter {result.letter.id}: {result.trouble}", file=sys.stderr)
        return
    answer = readable(result.body)
    print(json.dumps({"id": result.letter.id, "request_id": result.letter.request_id, "answer": answer}), flush=True)


def _headers(letter: StoredLetter) -> dict[str, str]:
    headers = {
        "content-type": "application/json",
        "x-headrace-class": "batch",
        "x-headrace-user": letter.user,
        "x-request-id": f"replay-{letter.id}-{letter.request_id}"[:128],
    }
    return {**headers, "x-session-id": letter.session} if letter.session else headers


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > LONGEST_ANSWER_BYTES:
            raise Refused("an answer is larger than 64 MiB; the letter stays")
        pieces.append(piece)
    return b"".join(pieces)


def _seconds(value: str | None) -> float:
    return float(value) if value is not None and value.isdecimal() and len(value) <= 9 else 0.0
