"""`headrace dlq`: look into the dead letters, take them out, send them again.

In their file, whether or not a gateway runs, or with `--gateway` in a running gateway over its admin API.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import Refused
from headrace.cli.admin_client import AdminKey
from headrace.cli.replies import DEFAULT_URL, Url
from headrace.model import ServiceClass

if TYPE_CHECKING:
    from headrace.cli.letters import LetterSource
    from headrace.runtime.stores import LetterFilter

dlq = typer.Typer(no_args_is_help=True)

MOST_LETTERS = 1_000_000
"""Bound on what one command reads or takes in; gateways keep far fewer."""

Db = Annotated[Path | None, typer.Option(help="SQLite file of the dead letters; else the configuration's.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; else HEADRACE_CONFIG.")]
Gateway = Annotated[str | None, typer.Option("--gateway", help="Address of a running gateway, instead of a file.")]
Reason = Annotated[str | None, typer.Option(help="Only this reason, as inference_timeout or backpressure.")]
Model = Annotated[str | None, typer.Option(help="Only requests for this model.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
User = Annotated[str | None, typer.Option(help="Only this user's.")]
Class = Annotated[ServiceClass | None, typer.Option("--class", help="Only this class.")]
Instance = Annotated[str | None, typer.Option("--tried", help="Only those that this instance was asked in vain.")]
Since = Annotated[str | None, typer.Option(help="Only what died since: 15m, 2h, 7d, or a date.")]
Until = Annotated[str | None, typer.Option(help="Only what died before.")]
Limit = Annotated[int, typer.Option(min=1, max=MOST_LETTERS, help="At most so many, the youngest first.")]
Numbers = Annotated[list[int], typer.Argument(metavar="ID...", help="Numbers of letters, as `list` shows them.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, one letter a line.")]


@dlq.callback()
def _start() -> None:
    """Dead letters: requests that were accepted and could not be answered."""
    from headrace.cli.logs import configure

    configure("error", "console")  # a file that cannot be used is told in the command's own words


@dlq.command("list")
def list_letters(
    *,
    db: Db = None,
    config: ConfigOption = None,
    gateway: Gateway = None,
    key: AdminKey = None,
    reason: Reason = None,
    model: Model = None,
    tenant: Tenant = None,
    user: User = None,
    service_class: Class = None,
    tried: Instance = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List letters, the youngest first."""
    from headrace.cli.letters import letters_table, line_of
    from headrace.cli.tables import show

    source = _source(db, config, gateway, key)
    found = source.list(_filter(reason, model, tenant, user, service_class, tried, since, until, limit))
    if as_json:
        for one in found:
            print(line_of(one))
    elif found:
        show(letters_table(found))
    else:
        print("no dead letters")


@dlq.command("show")
def show_letter(
    letter_id: Annotated[int, typer.Argument(metavar="ID", help="Number of the letter, as `list` shows it.")],
    *,
    db: Db = None,
    config: ConfigOption = None,
    gateway: Gateway = None,
    key: AdminKey = None,
) -> None:
    """Print everything that is kept of one letter, the request included."""
    from headrace.cli.letters import letter_json

    print(letter_json(_source(db, config, gateway, key).letter(letter_id)))


@dlq.command("watch")
def watch(
    *,
    db: Db = None,
    config: ConfigOption = None,
    gateway: Gateway = None,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Print new letters as they come, until Ctrl-C."""
    from headrace.cli.letters import line_of, told

    for new in _source(db, config, gateway, key).watch():
        if isinstance(new, int):
            print(f"{new} letters came too fast to be told", file=sys.stderr)
        else:
            print(line_of(new) if as_json else told(new), flush=True)


@dlq.command("export")
def export(
    *,
    db: Db = None,
    config: ConfigOption = None,
    gateway: Gateway = None,
    key: AdminKey = None,
    reason: Reason = None,
    model: Model = None,
    tenant: Tenant = None,
    user: User = None,
    service_class: Class = None,
    tried: Instance = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = MOST_LETTERS,
) -> None:
    """Print letters as JSON, one a line, requests included; they stay."""
    which = _filter(reason, model, tenant, user, service_class, tried, since, until, limit)
    _print_lines(_source(db, config, gateway, key).export(which))


@dlq.command("drain")
def drain(*, db: Db = None, config: ConfigOption = None, gateway: Gateway = None, key: AdminKey = None) -> None:
    """Print all letters as JSON, one a line, and remove them; keep the output, it is the only copy."""
    from headrace.runtime.stores import LetterFilter

    source = _source(db, config, gateway, key)
    free: list[int] = []
    for line in source.export(LetterFilter(limit=MOST_LETTERS)):
        letter = json.loads(line)
        if not letter["claimed"]:
            _print_lines((line,))
            free.append(letter["id"])
    # Removed only once they are written: a reader that goes away must not cost a letter.
    removed = source.delete(free) if free else 0
    print(f"removed {removed} letters", file=sys.stderr)


@dlq.command("import")
def import_letters(
    file: Annotated[Path, typer.Argument(help="What `export` or `drain` printed.")],
    *,
    db: Db = None,
    config: ConfigOption = None,
    gateway: Gateway = None,
    key: AdminKey = None,
) -> None:
    """Take exported letters in under their numbers; those that are here already stay as they are.

    Lines that are no letters are told, and make the exit code 1.
    """
    source = _source(db, config, gateway, key, made=True)
    try:
        with file.open("rb") as lines:
            taken = source.take_in(lines)
    except OSError as error:
        raise Refused(f"{file} cannot be read ({error.strerror or error})") from None
    for line in taken.bad:
        print(f"{file}: {line}", file=sys.stderr)
    full = f"; for {taken.dropped} there was no room" if taken.dropped else ""
    print(f"took in {taken.added} letters; {taken.known} were here already{full}")
    if taken.refused:
        print(f"{taken.refused} lines are no letters", file=sys.stderr)
        raise typer.Exit(1)


@dlq.command("delete")
def delete(
    ids: Numbers,
    *,
    db: Db = None,
    config: ConfigOption = None,
    gateway: Gateway = None,
    key: AdminKey = None,
) -> None:
    """Remove letters; nothing of them is left."""
    print(f"removed {_source(db, config, gateway, key).delete(ids)} letters")


@dlq.command("release")
def release(
    ids: Numbers,
    *,
    db: Db = None,
    config: ConfigOption = None,
    gateway: Gateway = None,
    key: AdminKey = None,
) -> None:
    """Let letters be sent again whose replay was cut short. Its call may have been made: look before you do."""
    print(f"released {_source(db, config, gateway, key).release(ids)} letters")


@dlq.command("replay")
def replay(
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID...", help="Numbers of letters; else the filters.")
    ] = None,
    *,
    db: Db = None,
    config: ConfigOption = None,
    gateway: Gateway = None,
    key: AdminKey = None,
    reason: Reason = None,
    only_model: Annotated[str | None, typer.Option(help="Only requests for this model.")] = None,
    tenant: Tenant = None,
    user: User = None,
    service_class: Class = None,
    tried: Instance = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the youngest.")] = 1000,
    url: Url = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Ask this model instead of the one asked at first.")] = None,
    instance: Annotated[str | None, typer.Option(help="Only this instance may answer; with --gateway.")] = None,
    rate: Annotated[float, typer.Option(min=0.001, max=1000, help="Letters a second at most.")] = 1.0,
    webhook: Annotated[str | None, typer.Option(help="A URL that gets the result; with --gateway.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the answers; with --gateway.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be sent.")] = False,
) -> None:
    """Send letters again through a running gateway, at class batch; prints the answers as JSON, one a line.

    An answered letter is removed, any other stays. Without numbers all letters that fit the filters are sent. Letters
    of a file go to the gateway at --url; with --gateway it sends its own, which needs no file and goes on without you.
    """
    from headrace.cli import replay as by_file
    from headrace.cli import replay_remote as by_gateway

    which = _filter(reason, only_model, tenant, user, service_class, tried, since, until, limit)
    if gateway is not None:
        asked = by_gateway.Asked(tuple(ids or ()), which, model, instance, rate, webhook)
        well = by_gateway.replay(gateway, key, asked, detach=detach, dry_run=dry_run)
    elif instance or webhook or detach:
        raise Refused("--instance, --webhook and --detach need --gateway: the gateway itself sends its letters then")
    else:
        plan = by_file.Plan(url=url, rate=rate, model=model)
        well = by_file.replay(_source(db, config, None, None), ids or (), which, plan, dry_run=dry_run)
    if not well:
        raise typer.Exit(1)


def _source(
    db: Path | None, config: Path | None, gateway: str | None, key: str | None, *, made: bool = False
) -> LetterSource:
    """Where the letters are. Raises Refused."""
    from headrace.cli.letters import FileLetters, letters_path

    if gateway is None:
        return FileLetters(letters_path(db, config, os.environ, made=made))
    if db is not None:
        raise Refused("--db names a file and --gateway a running gateway; take one of them")
    from headrace.cli.letters_remote import GatewayLetters

    return GatewayLetters(gateway, key)


def _filter(
    reason: str | None,
    model: str | None,
    tenant: str | None,
    user: str | None,
    service_class: ServiceClass | None,
    tried: str | None,
    since: str | None,
    until: str | None,
    limit: int,
) -> LetterFilter:
    from headrace.cli.letters import since as moment
    from headrace.runtime.stores import LetterFilter

    now = datetime.now(UTC)
    return LetterFilter(
        reason=reason,
        model=model,
        tenant=tenant,
        user=user,
        service_class=service_class,
        instance=tried,
        since=moment(since, now),
        until=moment(until, now),
        limit=limit,
    )


def _print_lines(lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.write(line.decode())
    sys.stdout.flush()
