"""Dead letters on a terminal: where they come from, those in a file, and letters as rows and as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace
from rich.table import Table

from headrace.cli import Refused
from headrace.cli.dlq import MOST_LETTERS
from headrace.cli.options import config_path
from headrace.cli.tables import plain_table
from headrace.config import load
from headrace.runtime.letter_keeping import shown
from headrace.runtime.stores import LetterFilter, Listed, StoredLetter, Unwritable
from headrace.runtime.stores.database import sqlite_url
from headrace.runtime.stores.moments import moment_of
from headrace.runtime.stores.ndjson import BadLine, export_lines, import_lines
from headrace.runtime.stores.sql import SqlDeadLetters

COLUMNS = ("id", "died (UTC)", "reason", "user", "class", "model", "waited", "attempts", "request", "detail")
LOOK_EVERY = 1.0
"""Seconds between two looks into a file that is watched."""
PAGE = 16
"""Letters with their requests that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of imported lines."""

    added: int
    known: int
    dropped: int
    refused: int
    bad: Sequence[str]
    """What is wrong with the first of the refused lines."""


class LetterSource(Protocol):
    """Dead letters, in a file or in a running gateway. Every method may raise Refused."""

    def list(self, which: LetterFilter) -> Sequence[Listed]:
        """The letters meant, the youngest first, without their requests."""
        ...

    def letter(self, number: int) -> StoredLetter:
        """One letter."""
        ...

    def export(self, which: LetterFilter) -> Iterator[bytes]:
        """The letters meant as lines, requests included."""
        ...

    def take_in(self, lines: Iterable[bytes]) -> Imported:
        """Take exported lines in."""
        ...

    def delete(self, ids: Sequence[int]) -> int:
        """Remove letters; how many there were."""
        ...

    def release(self, ids: Sequence[int]) -> int:
        """Let claimed letters be claimed again; how many were claimed."""
        ...

    def watch(self) -> Iterator[Listed | int]:
        """New letters as they come, for ever; a number: so many were missed."""
        ...


class FileLetters:
    """The letters in a SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def list(self, which: LetterFilter) -> Sequence[Listed]:
        """See `LetterSource`."""

        async def work() -> Sequence[Listed]:
            async with opened(self.path) as store:
                return await store.outline(which)

        return asyncio.run(work())

    def letter(self, number: int) -> StoredLetter:
        """See `LetterSource`."""
        return self.letters([number])[0]

    def letters(self, ids: Sequence[int]) -> tuple[StoredLetter, ...]:
        """These letters. Raises Refused when one of them is not there."""

        async def work() -> Mapping[int, StoredLetter | None]:
            async with opened(self.path) as store:
                return {number: await store.get(number) for number in ids}

        found = asyncio.run(work())
        missing = [str(number) for number, letter in found.items() if letter is None]
        if missing:
            raise Refused(f"there is no dead letter {', '.join(missing)}")
        return tuple(letter for letter in found.values() if letter is not None)

    def export(self, which: LetterFilter) -> Iterator[bytes]:
        """See `LetterSource`."""
        ids = [one.letter.id for one in self.list(which)]

        async def page(numbers: Sequence[int]) -> list[StoredLetter]:
            async with opened(self.path) as store:
                return [letter for number in numbers if (letter := await store.get(number)) is not None]

        for start in range(0, len(ids), PAGE):
            yield from export_lines(asyncio.run(page(ids[start : start + PAGE])))

    def take_in(self, lines: Iterable[bytes]) -> Imported:
        """See `LetterSource`."""
        found = list(islice(import_lines(lines), MOST_LETTERS))
        bad = [str(line) for line in found if isinstance(line, BadLine)]
        letters = [letter for letter in found if isinstance(letter, StoredLetter)]

        async def work() -> Imported:
            async with opened(self.path) as store:
                taken = await store.take_in(letters)
                return Imported(taken.added, taken.known, taken.dropped, len(bad), bad)

        try:
            return asyncio.run(work())
        except Unwritable:
            raise Refused("the letters cannot be written; taking them in again does no harm") from None

    def delete(self, ids: Sequence[int]) -> int:
        """See `LetterSource`."""

        async def work() -> int:
            async with opened(self.path) as store:
                return await store.delete(ids)

        gone = asyncio.run(work())
        if not gone:
            raise Refused("there is no such dead letter")
        return gone

    def release(self, ids: Sequence[int]) -> int:
        """See `LetterSource`."""
        held = [letter.id for letter in self.letters(ids) if letter.claimed]

        async def work() -> None:
            async with opened(self.path) as store:
                for number in held:
                    await store.release(number)

        asyncio.run(work())
        return len(held)

    def watch(self) -> Iterator[Listed | int]:
        """See `LetterSource`."""
        last = max((one.letter.id for one in self.list(LetterFilter(limit=1))), default=0)
        while True:
            for one in reversed(self.list(LetterFilter(younger=last, limit=MOST_LETTERS))):
                last = one.letter.id
                yield one
            time.sleep(LOOK_EVERY)


def letters_path(db: Path | None, config: Path | None, env: Mapping[str, str], *, made: bool = False) -> Path:
    """The file of the dead letters: `--db`, else the configuration's.

    Raises Refused when there is none; with `made` one that does not exist is fine, since it will be made.
    """
    if db is None:
        configured = load(config_path(config, env), env).dead_letters.path
        if configured is None:
            raise Refused("the configuration keeps dead letters in memory only; a running gateway has them: --gateway")
        db = Path(configured)
    if not made and not db.is_file():
        raise Refused(f"there are no dead letters at {db}: the file does not exist")
    return db


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqlDeadLetters]:
    """The letters at `path`, closed in the end; the gateway's own bound counts again when it writes its next one.

    Raises Refused when the file cannot be used.
    """
    store = SqlDeadLetters(sqlite_url(path), capacity=MOST_LETTERS)
    try:
        await store.open()
        if store.degraded:
            raise Refused(f"{path} cannot be used: it is no file of dead letters, or is locked or read-only")
        yield store
    finally:
        await store.close()


def letters_table(letters: Iterable[Listed]) -> Table:
    """One row for each letter; of a request only its length is shown."""
    table = plain_table(*COLUMNS)
    for letter, size in letters:
        kept = "not kept" if size is None else f"{size} bytes"
        table.add_row(
            str(letter.id),
            moment(letter.died_at),
            letter.reason,
            f"{letter.tenant}/{letter.user}",
            letter.service_class.value,
            letter.model,
            f"{letter.waited:.1f} s",
            str(len(letter.attempts)),
            f"{kept}, redacted" if letter.redacted else kept,
            f"{letter.detail} (being replayed)" if letter.claimed else letter.detail,
        )
    return table


def told(one: Listed) -> str:
    """A letter in one line, for those who watch."""
    letter = one.letter
    who = f"{letter.tenant}/{letter.user}"
    return f"{letter.id}  {moment(letter.died_at)}  {letter.reason}  {who}  {letter.model}  {letter.detail}"


def line_of(one: Listed) -> str:
    """A letter as a line of JSON, without its request."""
    return json.dumps(shown(one), ensure_ascii=False)


def letter_json(letter: StoredLetter) -> str:
    """Everything that is kept of a letter, indented; the request as JSON where it is, else in base64."""
    fields = msgspec.to_builtins(replace(letter, body=None))
    fields |= {"died_at": moment(letter.died_at), "body": readable(letter.body)}
    return json.dumps(fields, indent=2, ensure_ascii=False)


def moment(seconds: float) -> str:
    """A wall-clock time in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def since(text: str | None, now: datetime) -> float | None:
    """The time meant by `90s`, `15m`, `2h`, `7d` (ago), by Unix seconds or by an ISO date. Raises Refused."""
    if text is None:
        return None
    try:
        return moment_of(text, now.timestamp())
    except ValueError as error:
        raise Refused(str(error)) from None


def readable(body: bytes | None) -> object:
    """A body as it can be put into JSON: what it writes where it is JSON itself, else base64; None for none."""
    if body is None:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return base64.b64encode(body).decode()


def letter_from(line: bytes) -> StoredLetter:
    """The letter of an exported line, with its claim. Raises ValueError."""
    return msgspec.json.decode(line, type=StoredLetter)
