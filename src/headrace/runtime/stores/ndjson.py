"""Dead letters as text, one JSON object a line: to be looked through, moved elsewhere, and taken in again.

The body is base64, since it is bytes and must come back as they were. Nothing that comes in is trusted to be an export:
a line that is damaged, too long or of something else is told by its number, and the others are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from headrace.runtime.stores import MOST_ATTEMPTS, StoredLetter

LONGEST_LINE = 32 * 1024 * 1024
"""Bytes of one line; a request of 10 MiB is 14 MiB in base64."""

_GREATEST_ID = 2**53 - 1
_LATEST = 253_402_300_799.0
"""The end of the year 9999, which is as far as dates go."""
_LONGEST_WAIT = 1e9
_LONGEST_TEXT = 64 * 1024

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(StoredLetter)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no letter."""

    number: int
    """From 1."""
    trouble: str
    """What is wrong with it; nothing of it is quoted."""

    def __str__(self) -> str:
        return f"line {self.number}: {self.trouble}"


def export_line(letter: StoredLetter) -> bytes:
    """A letter as a line with its line end."""
    return _ENCODER.encode(letter) + b"\n"


def export_lines(letters: Iterable[StoredLetter]) -> Iterator[bytes]:
    """Each letter as a line with its line end."""
    return map(export_line, letters)


def import_lines(lines: Iterable[bytes]) -> Iterator[StoredLetter | BadLine]:
    """The letters of an export, unclaimed, and what was no letter, in their order. Empty lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield import_line(line, number)


def import_line(line: bytes, number: int) -> StoredLetter | BadLine:
    """The letter in a line, unclaimed, or what is wrong with the line, which has that `number`."""
    if len(line) > LONGEST_LINE:
        return BadLine(number, f"it is longer than {LONGEST_LINE} bytes")
    try:
        letter = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return BadLine(number, str(error))
    trouble = _trouble(letter)
    return BadLine(number, trouble) if trouble else replace(letter, claimed=False)


def _trouble(letter: StoredLetter) -> str:
    """What no letter of ours would say, or ""."""
    if not 0 <= letter.id <= _GREATEST_ID:
        return "its id is no number of a letter"
    if not 0 <= letter.died_at <= _LATEST:
        return "died_at is no time"
    if not 0 <= letter.waited <= _LONGEST_WAIT or letter.replays < 0:
        return "waited or replays is no such number"
    if len(letter.attempts) > MOST_ATTEMPTS:
        return f"it has more than {MOST_ATTEMPTS} attempts"
    texts = (letter.request_id, letter.reason, letter.detail, letter.tenant, letter.user, letter.session, letter.model)
    if not letter.request_id or max(map(len, texts)) > _LONGEST_TEXT:
        return "its request has no id, or a text is too long"
    return ""
