"""A replay that the gateway itself carries out: ordered, looked at until it is over, told."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.cli import Refused
from headrace.cli.admin_client import AdminClient
from headrace.cli.letters_remote import query_of
from headrace.cli.tables import plain_table, show
from headrace.runtime.stores import LetterFilter

LOOK_EVERY = 1.0
"""Seconds between two looks at a replay."""
_OVER = ("answered", "failed", "skipped")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be sent again, and how."""

    ids: tuple[int, ...]
    which: LetterFilter
    """Where there are no ids."""
    model: str | None
    instance: str | None
    rate: float
    webhook: str | None

    def body(self, *, dry_run: bool) -> Mapping[str, object]:
        """As the admin API wants it."""
        fields: dict[str, object] = {
            "model": self.model,
            "instance": self.instance,
            "pace_per_second": self.rate,
            "webhook": self.webhook,
            "dry_run": dry_run,
            "ids": list(self.ids) or None,
            "filter": None if self.ids else {**query_of(self.which), "limit": self.which.limit},
        }
        return {name: value for name, value in fields.items() if value is not None}


def replay(
    gateway: str,
    key: str | None,
    asked: Asked,
    *,
    detach: bool,
    dry_run: bool,
) -> bool:
    """Order the replay and tell of each letter as it ends; whether all were answered. Raises Refused."""
    client = AdminClient(gateway, key)
    answer = client.post("/dlq/replay", asked.body(dry_run=dry_run))
    if dry_run:
        _show_plan(answer, client.url)
        return True
    name = str(answer.get("id"))
    if detach:
        print(name)
        return True
    told: set[int] = set()
    try:
        while not _tell(client, name, told, _letters(answer)) or answer.get("status") == "running":
            time.sleep(LOOK_EVERY)
            answer = client.get(f"/dlq/replays/{name}", answers="false")
    except KeyboardInterrupt:
        print(f"{name} goes on in the gateway; DELETE /admin/dlq/replays/{name} ends it", file=sys.stderr)
        raise
    counts = answer.get("counts")
    answered = counts.get("answered") if isinstance(counts, dict) else None
    print(f"{answered} of {len(told)} letters were answered", file=sys.stderr)
    return answered == len(told)


def _tell(client: AdminClient, name: str, told: set[int], letters: list[Mapping[str, object]]) -> bool:
    """Tell what ended since the last look: answers on standard output, trouble on standard error. True: all told."""
    for place, letter in enumerate(letters):
        if place in told or letter.get("status") not in _OVER:
            continue
        told.add(place)
        if letter.get("status") != "answered":
            print(f"letter {letter.get('id')}: {letter.get('detail')}", file=sys.stderr)
            continue
        (whole,) = _letters(client.get(f"/dlq/replays/{name}", offset=place, limit=1))
        line = {"id": whole.get("id"), "request_id": whole.get("request_id"), "answer": whole.get("answer")}
        print(json.dumps(line, ensure_ascii=False), flush=True)
    return len(told) == len(letters)


def _show_plan(answer: Mapping[str, object], url: str) -> None:
    table = plain_table("id", "user", "model", "instances", "would go to", "detail")
    letters = _letters(answer)
    for letter in letters:
        able = letter.get("instances")
        names = ", ".join(str(name) for name in able) if isinstance(able, list) else ""
        now, trouble = letter.get("now"), letter.get("trouble")
        table.add_row(
            str(letter.get("id")),
            str(letter.get("user")),
            str(letter.get("model")),
            names,
            str(now or ("nobody" if trouble else "the queue")),
            str(trouble or ""),
        )
    show(table)
    able_count = sum(letter.get("trouble") is None for letter in letters)
    print(f"{able_count} of {len(letters)} letters would be sent by {url}")


def _letters(answer: Mapping[str, object]) -> list[Mapping[str, object]]:
    letters = answer.get("letters")
    if not isinstance(letters, list):
        raise Refused("what answers there is no gateway of this kind")
    return letters
