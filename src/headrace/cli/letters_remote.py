"""The dead letters of a running gateway, over its admin API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from headrace.cli import Refused
from headrace.cli.admin_client import AdminClient
from headrace.cli.letters import Imported, letter_from
from headrace.model import AttemptRecord, ServiceClass
from headrace.runtime.stores import LetterFilter, Listed, StoredLetter

PART_BYTES = 4 * 1024 * 1024
"""Lines that are sent in one request; a longer one goes alone."""
_PAGE = 1000
_AT_ONCE = 1000
_SILENCE = 60.0
"""Seconds without a sign of life after which a stream of events is taken for dead."""
_BAD_TOLD = 100


class GatewayLetters:
    """Letters where they are, without a file. See `letters.LetterSource`."""

    def __init__(self, url: str, key: str | None) -> None:
        self._client = AdminClient(url, key)

    def list(self, which: LetterFilter) -> Sequence[Listed]:
        """Page after page."""
        found: list[Listed] = []
        after: object = None
        while len(found) < which.limit:
            query = {**query_of(which), "limit": min(_PAGE, which.limit - len(found)), "after": after}
            answer = self._client.call("GET", f"/dlq?{_encoded(query)}")
            page, after = answer.get("letters"), answer.get("next")
            found += [listed_from(entry) for entry in page] if isinstance(page, list) else []
            if after is None:
                break
        return found

    def letter(self, number: int) -> StoredLetter:
        """One letter, as a line of an export: that has the request as it was."""
        query = _encoded({"id": str(number)})
        for line in self._client.lines("GET", f"/dlq/export?{query}"):
            letter = letter_from(line)
            if letter.id == number:
                return letter
        raise Refused(f"there is no dead letter {number}")

    def export(self, which: LetterFilter) -> Iterator[bytes]:
        """As they come."""
        return self._client.lines("GET", f"/dlq/export?{_encoded({**query_of(which), 'limit': which.limit})}")

    def take_in(self, lines: Iterable[bytes]) -> Imported:
        """In parts, since the gateway takes only so much at once."""
        added = known = dropped = refused = 0
        bad: list[str] = []
        for first, part in _parts(lines):
            answer = json.loads(b"".join(self._client.lines("POST", "/dlq/import", part)))
            added, known = added + answer["added"], known + answer["known"]
            dropped, refused = dropped + answer["dropped"], refused + answer["refused"]
            bad += [f"line {first + line['line'] - 1}: {line['message']}" for line in answer["lines"]]
        return Imported(added, known, dropped, refused, bad[:_BAD_TOLD])

    def delete(self, ids: Sequence[int]) -> int:
        """Many with one request."""
        gone = 0
        for start in range(0, len(ids), _AT_ONCE):
            numbers = ",".join(str(number) for number in ids[start : start + _AT_ONCE])
            removed = self._client.delete(f"/dlq/{numbers}").get("deleted")
            gone += removed if isinstance(removed, int) else 0
        return gone

    def release(self, ids: Sequence[int]) -> int:
        """One by one."""
        held = 0
        for number in ids:
            held += bool(self.letter(number).claimed)
            self._client.post(f"/dlq/{number}/release")
        return held

    def watch(self) -> Iterator[Listed | int]:
        """The gateway's events."""
        kind = b""
        for line in self._client.lines("GET", "/dlq/events", patience=_SILENCE):
            name, _, value = line.partition(b":")
            if name == b"event":
                kind = value.strip()
            elif name == b"data" and kind == b"letter":
                yield listed_from(json.loads(value))
            elif name == b"data" and kind == b"missed":
                yield int(json.loads(value)["count"])
        raise Refused("the gateway has ended")


def query_of(which: LetterFilter) -> dict[str, object]:
    """A filter as the admin API's fields; those that mean any are left out."""
    fields: dict[str, object] = {
        "reason": which.reason,
        "model": which.model,
        "tenant": which.tenant,
        "user": which.user,
        "class": None if which.service_class is None else which.service_class.value,
        "instance": which.instance,
        "since": None if which.since is None else str(which.since),
        "until": None if which.until is None else str(which.until),
    }
    return {name: value for name, value in fields.items() if value is not None}


def listed_from(fields: Mapping[str, object]) -> Listed:
    """A letter as the admin API shows it. Raises Refused for what is none."""
    try:
        plain = {name: fields[name] for name in _PLAIN}
        plain |= {
            "service_class": ServiceClass(str(fields["class"])),
            "waited": fields["waited_seconds"],
            "attempts": msgspec.convert(fields["attempts"], tuple[AttemptRecord, ...]),
        }
        size = fields["body_bytes"]
        return Listed(StoredLetter(**plain), size if isinstance(size, int) else None)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("what answers there is no gateway of this kind") from error


_PLAIN = (
    *("id", "request_id", "reason", "detail", "tenant", "user", "session", "model", "endpoint"),
    *("died_at", "replays", "claimed", "redacted"),
)


def _encoded(query: Mapping[str, object]) -> str:
    return urlencode({name: str(value) for name, value in query.items() if value is not None})


def _parts(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines in parts of about `PART_BYTES`, each with the number of its first line."""
    part: list[bytes] = []
    size, first = 0, 1
    for number, line in enumerate(lines, start=1):
        if part and size + len(line) > PART_BYTES:
            yield first, b"".join(part)
            part, size, first = [], 0, number
        part.append(line)
        size += len(line)
    if part:
        yield first, b"".join(part)
