"""Dead letters as text, one JSON object a line: to be looked through, moved elsewhere, and taken in again.

The body is base64, since it is bytes and must come back as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from headrace.runtime.stores import StoredLetter

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(StoredLetter)


class UnreadableLetter(ValueError):
    """A line that is no letter; the message has its number, from 1, and what is wrong with it."""


def export_lines(letters: Iterable[StoredLetter]) -> Iterator[bytes]:
    """Each letter as a line with its line end."""
    for letter in letters:
        yield _ENCODER.encode(letter) + b"\n"


def import_lines(lines: Iterable[bytes]) -> Iterator[StoredLetter]:
    """The letters of an export, unclaimed and without ids: the store that takes them in gives new ones.

    Empty lines are skipped. Raises UnreadableLetter at the first line that is none.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            letter = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadableLetter(f"line {number}: {error}") from error
        yield replace(letter, id=0, claimed=False)
