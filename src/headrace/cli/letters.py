"""Dead letters on a terminal: opening their file, and letters as rows and as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.table import Table

from headrace.cli import Refused
from headrace.cli.dlq import MOST_LETTERS
from headrace.cli.options import config_path
from headrace.cli.tables import plain_table
from headrace.config import load
from headrace.runtime.stores import StoredLetter
from headrace.runtime.stores.sql import SqlDeadLetters, sqlite_url

COLUMNS = ("id", "died (UTC)", "reason", "user", "class", "model", "waited", "attempts", "request", "detail")

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def letters_path(db: Path | None, config: Path | None, env: Mapping[str, str], *, made: bool = False) -> Path:
    """The file of the dead letters: `--db`, else the configuration's.

    Raises Refused when there is none; with `made` one that does not exist is fine, since it will be made.
    """
    if db is None:
        configured = load(config_path(config, env), env).dead_letters.path
        if configured is None:
            raise Refused("the configuration keeps dead letters in memory only; there is no file to look into")
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


def letters_table(letters: Iterable[StoredLetter]) -> Table:
    """One row for each letter; of a request only its length is shown."""
    table = plain_table(*COLUMNS)
    for letter in letters:
        table.add_row(
            str(letter.id),
            moment(letter.died_at),
            letter.reason,
            f"{letter.tenant}/{letter.user}",
            letter.service_class.value,
            letter.model,
            f"{letter.waited:.1f} s",
            str(len(letter.attempts)),
            "not kept" if letter.body is None else f"{len(letter.body)} bytes",
            f"{letter.detail} (being replayed)" if letter.claimed else letter.detail,
        )
    return table


def letter_json(letter: StoredLetter) -> str:
    """Everything that is kept of a letter, indented; the request as JSON where it is, else in base64."""
    shown = {**asdict(letter), "died_at": moment(letter.died_at), "body": readable(letter.body)}
    return json.dumps(shown, indent=2, ensure_ascii=False)


def moment(seconds: float) -> str:
    """A wall-clock time in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def since(text: str | None, now: datetime) -> float | None:
    """The time meant by `90s`, `15m`, `2h`, `7d` (ago), or by an ISO date. Raises Refused for anything else."""
    if text is None:
        return None
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is not None and number.isdecimal() and len(number) <= 6:
        return (now - timedelta(**{unit: int(number)})).timestamp()
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"'{text}' is no time; say 15m, 2h, 7d or a date as 2026-11-30T12:00") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def readable(body: bytes | None) -> object:
    """A body as it can be put into JSON: what it writes where it is JSON itself, else base64; None for none."""
    if body is None:
        return None
    try:
        return json.loads(body)
    except ValueError:
        return base64.b64encode(body).decode()
