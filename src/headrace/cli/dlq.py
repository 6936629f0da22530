"""`headrace dlq`: look into the dead letters, take them out, send them again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import Refused
from headrace.cli.replies import DEFAULT_URL, Url

if TYPE_CHECKING:
    from headrace.cli.replay import Answered, Plan
    from headrace.runtime.stores import LetterFilter, StoredLetter

dlq = typer.Typer(help="Dead letters: requests that were accepted and could not be answered.", no_args_is_help=True)

MOST_LETTERS = 1_000_000
"""Bound on what one command reads or takes in; gateways keep far fewer."""

Db = Annotated[Path | None, typer.Option(help="SQLite file of the dead letters; else the configuration's.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; else HEADRACE_CONFIG.")]
Reason = Annotated[str | None, typer.Option(help="Only this reason, as inference_timeout or backpressure.")]
Model = Annotated[str | None, typer.Option(help="Only requests for this model.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
User = Annotated[str | None, typer.Option(help="Only this user's.")]
Since = Annotated[str | None, typer.Option(help="Only what died since: 15m, 2h, 7d, or a date.")]
Limit = Annotated[int, typer.Option(min=1, max=MOST_LETTERS, help="At most so many, the youngest first.")]
Numbers = typer.Argument(metavar="ID...", help="Numbers of letters, as `list` shows them.")


@dlq.command("list")
def list_letters(
    *,
    db: Db = None,
    config: ConfigOption = None,
    reason: Reason = None,
    model: Model = None,
    tenant: Tenant = None,
    user: User = None,
    since: Since = None,
    limit: Limit = 100,
) -> None:
    """List letters, the youngest first."""
    from headrace.cli.letters import letters_path, letters_table
    from headrace.cli.tables import show

    letters = asyncio.run(
        _found(letters_path(db, config, os.environ), _filter(reason, model, tenant, user, since, limit))
    )
    if letters:
        show(letters_table(letters))
    else:
        print("no dead letters")


@dlq.command("show")
def show_letter(
    letter_id: Annotated[int, typer.Argument(metavar="ID", help="Number of the letter, as `list` shows it.")],
    *,
    db: Db = None,
    config: ConfigOption = None,
) -> None:
    """Print everything that is kept of one letter, the request included."""
    from headrace.cli.letters import letter_json, letters_path

    (letter,) = asyncio.run(_named(letters_path(db, config, os.environ), [letter_id]))
    print(letter_json(letter))


@dlq.command("export")
def export(
    *,
    db: Db = None,
    config: ConfigOption = None,
    reason: Reason = None,
    model: Model = None,
    tenant: Tenant = None,
    user: User = None,
    since: Since = None,
    limit: Limit = MOST_LETTERS,
) -> None:
    """Print letters as JSON, one a line, requests included; they stay."""
    from headrace.cli.letters import letters_path

    which = _filter(reason, model, tenant, user, since, limit)
    _print_lines(asyncio.run(_found(letters_path(db, config, os.environ), which)))


@dlq.command("drain")
def drain(*, db: Db = None, config: ConfigOption = None) -> None:
    """Print all letters as JSON, one a line, and remove them; keep the output, it is the only copy."""
    from headrace.cli.letters import letters_path, opened
    from headrace.runtime.stores import LetterFilter

    async def work() -> int:
        async with opened(letters_path(db, config, os.environ)) as store:
            found = await store.list(LetterFilter(limit=MOST_LETTERS))
            free = [letter for letter in found if not letter.claimed]
            # Removed only once they are written: a reader that goes away must not cost a letter.
            _print_lines(free)
            return await store.delete(letter.id for letter in free)

    print(f"removed {asyncio.run(work())} letters", file=sys.stderr)


@dlq.command("import")
def import_letters(
    file: Annotated[Path, typer.Argument(help="What `export` or `drain` printed.")],
    *,
    db: Db = None,
    config: ConfigOption = None,
) -> None:
    """Take exported letters in under their numbers; those that are here already stay as they are.

    Lines that are no letters are told, and make the exit code 1.
    """
    from headrace.cli.letters import letters_path, opened
    from headrace.runtime.stores import StoredLetter, TakenIn, Unwritable
    from headrace.runtime.stores.ndjson import BadLine, import_lines

    async def work(letters: list[StoredLetter]) -> TakenIn:
        async with opened(letters_path(db, config, os.environ, made=True)) as store:
            return await store.take_in(letters)

    try:
        with file.open("rb") as lines:
            found = list(islice(import_lines(lines), MOST_LETTERS))
    except OSError as error:
        raise Refused(f"{file} cannot be read ({error.strerror or error})") from None
    bad = [line for line in found if isinstance(line, BadLine)]
    try:
        taken = asyncio.run(work([letter for letter in found if isinstance(letter, StoredLetter)]))
    except Unwritable:
        raise Refused("the letters cannot be written; none was taken in") from None
    for line in bad:
        print(f"{file}: {line}", file=sys.stderr)
    print(f"took in {taken.added} letters; {taken.known} were here already")
    if bad:
        raise typer.Exit(1)


@dlq.command("replay")
def replay(
    ids: Annotated[list[int] | None, Numbers] = None,
    *,
    db: Db = None,
    config: ConfigOption = None,
    reason: Reason = None,
    only_model: Annotated[str | None, typer.Option(help="Only requests for this model.")] = None,
    tenant: Tenant = None,
    user: User = None,
    since: Since = None,
    limit: Limit = 1000,
    url: Url = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Ask this model instead of the one asked at first.")] = None,
    rate: Annotated[float, typer.Option(min=0.001, max=1000, help="Letters a second at most.")] = 1.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be sent.")] = False,
) -> None:
    """Send letters again through a running gateway, at class batch; prints the answers as JSON, one a line.

    An answered letter is removed, any other stays. Without numbers all letters that fit the filters are sent.
    """
    from headrace.cli.letters import letters_path, letters_table
    from headrace.cli.replay import Plan
    from headrace.cli.tables import show

    path = letters_path(db, config, os.environ)
    which = _filter(reason, only_model, tenant, user, since, limit)
    letters = asyncio.run(_named(path, ids) if ids else _found(path, which))
    if dry_run or not letters:
        show(letters_table(letters))
        print(f"{len(letters)} letters would be sent to {url}")
        return
    if not asyncio.run(_replayed(path, letters, Plan(url=url, rate=rate, model=model))):
        raise typer.Exit(1)


@dlq.command("release")
def release(ids: Annotated[list[int], Numbers], *, db: Db = None, config: ConfigOption = None) -> None:
    """Let letters be sent again whose replay was cut short. Its call may have been made: look before you do."""
    from headrace.cli.letters import letters_path, opened

    path = letters_path(db, config, os.environ)

    async def work() -> int:
        held = [letter.id for letter in await _named(path, ids) if letter.claimed]
        async with opened(path) as store:
            for letter_id in held:
                await store.release(letter_id)
        return len(held)

    print(f"released {asyncio.run(work())} letters")


async def _found(path: Path, which: LetterFilter) -> tuple[StoredLetter, ...]:
    from headrace.cli.letters import opened

    async with opened(path) as store:
        return await store.list(which)


async def _named(path: Path, ids: list[int]) -> tuple[StoredLetter, ...]:
    from headrace.cli.letters import opened

    async with opened(path) as store:
        found = {number: await store.get(number) for number in ids}
    missing = [str(number) for number, letter in found.items() if letter is None]
    if missing:
        raise Refused(f"there is no dead letter {', '.join(missing)}")
    return tuple(letter for letter in found.values() if letter is not None)


async def _replayed(path: Path, letters: tuple[StoredLetter, ...], plan: Plan) -> bool:
    from headrace.cli.letters import opened
    from headrace.cli.replay import Replay

    async with opened(path) as store:
        return await Replay(store, plan).run(letters, _tell)


def _tell(result: Answered) -> None:
    """The answer on standard output, trouble on standard error."""
    from headrace.cli.letters import readable

    if not result.well:
        print(f"letter {result.letter.id}: {result.trouble}", file=sys.stderr)
        return
    answer = readable(result.body)
    print(json.dumps({"id": result.letter.id, "request_id": result.letter.request_id, "answer": answer}), flush=True)


def _filter(
    reason: str | None, model: str | None, tenant: str | None, user: str | None, since: str | None, limit: int
) -> LetterFilter:
    from headrace.cli.letters import since as moment
    from headrace.runtime.stores import LetterFilter

    begin = moment(since, datetime.now(UTC))
    return LetterFilter(reason=reason, model=model, tenant=tenant, user=user, since=begin, limit=limit)


def _print_lines(letters: Iterable[StoredLetter]) -> None:
    from headrace.runtime.stores.ndjson import export_lines

    for line in export_lines(letters):
        sys.stdout.write(line.decode())
    sys.stdout.flush()
