"""Dead letters on their way out and in: pages of lines, new ones as events. At most `PAGE` requests are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace

import msgspec

from headrace.errors import Fault, error_for
from headrace.runtime.letter_keeping import shown
from headrace.runtime.stores import DeadLetters, LetterFilter, Listed, StoredLetter, Unwritable
from headrace.runtime.stores.feed import Missed
from headrace.runtime.stores.ndjson import BadLine, export_line, import_lines
from headrace.server.admin.letter_shapes import ImportOut, RefusedLine

PAGE = 16
"""Letters with their requests that are in memory at a time."""
KEEPALIVE = 15.0
"""Seconds of silence after which a stream of events gives a sign of life."""
LINES_TOLD = 100
_CAUGHT_UP = 1000
"""Most letters that one who listens again is told of those it missed, the youngest."""


async def exported(letters: DeadLetters, which: LetterFilter) -> AsyncIterator[bytes]:
    """The letters meant as lines, the youngest first; what comes meanwhile is not among them."""
    left = which.limit
    while left > 0 and (page := await letters.list(replace(which, limit=min(PAGE, left)))):
        for letter in page:
            yield export_line(letter)
        left -= len(page)
        which = replace(which, before=page[-1].id)


async def drained(letters: DeadLetters, reader_gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
    """All letters that nobody has claimed as lines, each removed once it was sent.

    They are claimed meanwhile, so that no replay sends what is given away here. When the reader leaves, the letter that
    is on its way is let go and nothing more is removed; what lies in the connection's buffers by then is lost.
    """
    which = LetterFilter(limit=PAGE)
    while page := await letters.outline(which):
        for one in page:
            letter = await letters.claim(one.letter.id)
            if letter is None:
                continue
            sent = False
            try:
                yield export_line(msgspec.structs.replace(letter, claimed=False))
                sent = not await reader_gone()
            finally:
                await (letters.done(letter.id) if sent else letters.release(letter.id))
            if not sent:
                return
        which = replace(which, before=page[-1].letter.id)


async def imported(letters: DeadLetters, lines: Iterable[bytes]) -> ImportOut:
    """Take lines in. Raises HeadraceError (503) when they cannot be written; sending them again does no harm."""
    result = ImportOut(added=0, known=0, dropped=0, refused=0, lines=[])
    batch: list[StoredLetter] = []
    for found in import_lines(lines):
        if isinstance(found, BadLine):
            result.refused += 1
            if len(result.lines) < LINES_TOLD:
                result.lines.append(RefusedLine(line=found.number, message=found.trouble))
            continue
        batch.append(found)
        if len(batch) >= PAGE:
            await _take_in(letters, batch, result)
            batch.clear()
    await _take_in(letters, batch, result)
    return result


async def events(letters: DeadLetters, last_event_id: str | None) -> AsyncIterator[bytes]:
    """Server-sent events: `letter` with a letter's number as id, `missed` where some were lost on the way.

    Ends when the gateway is being stopped. With the id of the last event it was told, a listener that comes back is
    told what it has missed first.
    """
    # Here and not before: a stream whose reader leaves before it begins must leave nobody listening.
    with letters.feed.listen() as listener:
        last = int(last_event_id) if last_event_id is not None and last_event_id.isdecimal() else None
        yield b": dead letters\n\n"
        if last is not None:
            since = await letters.outline(LetterFilter(younger=last, limit=_CAUGHT_UP))
            for one in reversed(since):
                last = one.letter.id
                yield _event(one)
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE):
                    item = await listener.next()
            except TimeoutError:
                yield b": still there\n\n"
                continue
            if item is None:
                return
            if isinstance(item, Missed):
                yield b"event: missed\ndata: %b\n\n" % msgspec.json.encode({"count": item.count})
            elif last is None or item.letter.id > last:
                yield _event(item)


def _event(one: Listed) -> bytes:
    return b"event: letter\nid: %d\ndata: %b\n\n" % (one.letter.id, msgspec.json.encode(shown(one)))


async def _take_in(letters: DeadLetters, batch: list[StoredLetter], result: ImportOut) -> None:
    try:
        taken = await letters.take_in(batch)
    except Unwritable:
        message = "The letters cannot be written at the moment. Send the same lines again later; it does no harm."
        raise error_for(Fault(503, "server_error", "store_unwritable", message, retry_after=10.0)) from None
    result.added += taken.added
    result.known += taken.known
    result.dropped += taken.dropped
