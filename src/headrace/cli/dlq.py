"""`headrace dlq`: look into the dead letters, take them out, send them again.

In their file, whether or not a gateway runs, or with `--gateway` in a running gateway over its admin API.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import Refused
from headrace.cli.admin_client import AdminKey
from headrace.cli.groups import From, grouped
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the letters are: in a file, or in a running gateway."""

    db: Db = None
    config: ConfigOption = None
    gateway: Gateway = None
    key: AdminKey = None

    def letters(self, *, made: bool = False) -> LetterSource:
        """The letters there; `made`: a file that is not there is made. Raises Refused."""
        from headrace.cli.letters import FileLetters, letters_path

        if self.gateway is None:
            return FileLetters(letters_path(self.db, self.config, os.environ, made=made))
        if self.db is not None:
            raise Refused("--db names a file and --gateway a running gateway; take one of them")
        from headrace.cli.letters_remote import GatewayLetters

        return GatewayLetters(self.gateway, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which letters are meant, their model apart."""

    reason: Reason = None
    tenant: Tenant = None
    user: User = None
    service_class: Class = None
    tried: Instance = None
    since: Since = None
    until: Until = None

    def which(self, model: str | None, limit: int) -> LetterFilter:
        """At most so many of them, the youngest. Raises Refused."""
        from headrace.cli.letters import since as moment
        from headrace.runtime.stores import LetterFilter

        now = datetime.now(UTC)
        return LetterFilter(
            reason=self.reason,
            model=model,
            tenant=self.tenant,
            user=self.user,
            service_class=self.service_class,
            instance=self.tried,
            since=moment(self.since, now),
            until=moment(self.until, now),
            limit=limit,
        )


Where = Annotated[Place, From(Place)]
Filters = Annotated[Chosen, From(Chosen)]


@dlq.callback()
def _start() -> None:
    """Dead letters: requests that were accepted and could not be answered."""
    from headrace.cli.logs import configure

    configure("error", "console")  # a file that cannot be used is told in the command's own words


@dlq.command("list")
@grouped
def list_letters(
    *, where: Where, filters: Filters, model: Model = None, limit: Limit = 100, as_json: AsJson = False
) -> None:
    """List letters, the youngest first."""
    from headrace.cli.letters import letters_table, line_of
    from headrace.cli.tables import show

    found = where.letters().list(filters.which(model, limit))
    if as_json:
        for one in found:
            print(line_of(one))
    elif found:
        show(letters_table(found))
    else:
        print("no dead letters")


@dlq.command("show")
@grouped
def show_letter(
    letter_id: Annotated[int, typer.Argument(metavar="ID", help="Number of the letter, as `list` shows it.")],
    *,
    where: Where,
) -> None:
    """Print everything that is kept of one letter, the request included."""
    from headrace.cli.letters import letter_json

    print(letter_json(where.letters().letter(letter_id)))


@dlq.command("watch")
@grouped
def watch(*, where: Where, as_json: AsJson = False) -> None:
    """Print new letters as they come, until Ctrl-C."""
    from headrace.cli.letters import line_of, told

    for new in where.letters().watch():
        if isinstance(new, int):
            print(f"{new} letters came too fast to be told", file=sys.stderr)
        else:
            print(line_of(new) if as_json else told(new), flush=True)


@dlq.command("export")
@grouped
def export(*, where: Where, filters: Filters, model: Model = None, limit: Limit = MOST_LETTERS) -> None:
    """Print letters as JSON, one a line, requests included; they stay."""
    _print_lines(where.letters().export(filters.which(model, limit)))


@dlq.command("drain")
@grouped
def drain(*, where: Where) -> None:
    """Print all letters as JSON, one a line, and remove them; keep the output, it is the only copy."""
    from headrace.runtime.stores import LetterFilter

    source = where.letters()
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
@grouped
def import_letters(
    file: Annotated[Path, typer.Argument(help="What `export` or `drain` printed.")],
    *,
    where: Where,
) -> None:
    """Take exported letters in under their numbers; those that are here already stay as they are.

    Lines that are no letters are told, and make the exit code 1.
    """
    source = where.letters(made=True)
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
@grouped
def delete(ids: Numbers, *, where: Where) -> None:
    """Remove letters; nothing of them is left."""
    print(f"removed {where.letters().delete(ids)} letters")


@dlq.command("release")
@grouped
def release(ids: Numbers, *, where: Where) -> None:
    """Let letters be sent again whose replay was cut short. Its call may have been made: look before you do."""
    print(f"released {where.letters().release(ids)} letters")


@dlq.command("replay")
@grouped
def replay(
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID...", help="Numbers of letters; else the filters.")
    ] = None,
    *,
    where: Where,
    filters: Filters,
    only_model: Model = None,
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

    which = filters.which(only_model, limit)
    if where.gateway is not None:
        asked = by_gateway.Asked(tuple(ids or ()), which, model, instance, rate, webhook)
        well = by_gateway.replay(where.gateway, where.key, asked, detach=detach, dry_run=dry_run)
    elif instance or webhook or detach:
        raise Refused("--instance, --webhook and --detach need --gateway: the gateway itself sends its letters then")
    else:
        plan = by_file.Plan(url=url, rate=rate, model=model)
        well = by_file.replay(where.letters(), ids or (), which, plan, dry_run=dry_run)
    if not well:
        raise typer.Exit(1)


def _print_lines(lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.write(line.decode())
    sys.stdout.flush()
