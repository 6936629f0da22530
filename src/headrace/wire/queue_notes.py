"""What a caller is told while his stream waits: comments of server-sent events, which every client skips.

    : queued position=3 expected_start=4.2s

says that this one is the third to go, and in about 4.2 seconds. When the answer begins, what would have been response
headers had they been known in time follows in the same way, one `: name: value` line each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

WAITING = b": waiting\n\n"
"""The request is not in the queue any more; its first content is not there yet."""

_NOTE = re.compile(rb"queued position=(\d{1,9}) expected_start=(\d{1,9}(?:\.\d{1,3})?)s")


def queued_note(position: int, seconds: float) -> bytes:
    """The comment for who stands at `position` (1 goes next) and is expected to start in `seconds`."""
    return b": queued position=%d expected_start=%.1fs\n\n" % (position, seconds)


def read_queued_note(comment: bytes) -> tuple[int, float] | None:
    """Position and seconds from a comment's text, without its colon; None: it says something else."""
    found = _NOTE.fullmatch(comment.strip())
    return None if found is None else (int(found[1]), float(found[2]))


def late_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers as comments. Their values must not hold line ends."""
    return "".join([f": {name}: {value}\n" for name, value in headers]).encode() + b"\n"
