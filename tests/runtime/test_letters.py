"""Promises that every store of dead letters keeps, in memory or on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.model import AttemptRecord, Cause, ServiceClass
from headrace.runtime.stores import MOST_ATTEMPTS, DeadLetters, LetterFilter, Listed, StoredLetter, TakenIn, Tried
from headrace.runtime.stores.database import sqlite_url
from headrace.runtime.stores.memory import MemoryDeadLetters
from headrace.runtime.stores.ndjson import BadLine, export_lines, import_lines
from headrace.runtime.stores.sql import SqlDeadLetters
from tests.runtime.letters import letter, names, shed

EVERYTHING = LetterFilter(limit=10_000)
ATTEMPT = AttemptRecord(1, "gpu-2", 60.0, 61.0, Cause.TIMEOUT, None, "no answer")


@pytest.fixture(params=["memory", "disk"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DeadLetters]:
    """A store of each kind with room for ten letters."""
    if request.param == "memory":
        yield MemoryDeadLetters(10)
        return
    disk = SqlDeadLetters(sqlite_url(tmp_path / "dead.db"), capacity=10)
    await disk.open()
    yield disk
    await disk.close()


async def test_each_filter_alone_finds_what_it_says(store: DeadLetters) -> None:
    """Class, instance and the beginnings of both ids, upper and lower case apart; whole names of instances only."""
    tried = replace(letter("c"), attempts=(replace(ATTEMPT, instance="gpu-1"), ATTEMPT))
    for kept in (
        replace(letter("Abc", died_at=1.0), service_class=ServiceClass.INTERACTIVE, attempts=()),
        replace(letter("abd", died_at=2.0), service_class=ServiceClass.NORMAL, attempts=()),
        replace(tried, died_at=3.0),
    ):
        store.add(kept)
    youngest, middle, _ = await store.list(EVERYTHING)
    for which, found in (
        (LetterFilter(service_class=ServiceClass.NORMAL), ["abd"]),
        (LetterFilter(instance="gpu-2"), ["c"]),
        (LetterFilter(instance="GPU-2"), []),
        (LetterFilter(instance="gpu"), []),
        (LetterFilter(id_prefix="ab"), ["abd"]),
        (LetterFilter(id_prefix=""), ["c", "abd", "Abc"]),
        (LetterFilter(id_prefix=str(middle.id)), ["abd"]),
        (LetterFilter(id_prefix="%"), []),
        (LetterFilter(younger=middle.id), ["c"]),
        (LetterFilter(before=youngest.id, service_class=ServiceClass.INTERACTIVE), ["Abc"]),
    ):
        assert names(await store.list(which)) == found
        assert [each.letter.request_id for each in await store.outline(which)] == found


async def test_pages_neither_lose_nor_double_a_letter_while_new_ones_come(store: DeadLetters) -> None:
    """The cursor is a letter's number: what comes or goes meanwhile does not move it."""
    for number in range(6):
        store.add(letter(f"r{number}", died_at=float(number)))
    first = await store.list(LetterFilter(limit=2))
    store.add(letter("new", died_at=100.0))
    await store.delete([first[1].id])
    second = await store.list(LetterFilter(limit=10, before=first[1].id))
    assert names(first) + names(second) == ["r5", "r4", "r3", "r2", "r1", "r0"]


async def test_an_outline_has_all_but_the_request(store: DeadLetters) -> None:
    """Its length is told, so that one sees whether it was kept."""
    store.add(letter("a", body=b"x" * 5000))
    store.add(letter("b", body=None))
    b, a = await store.outline(EVERYTHING)
    assert a == Listed(replace(letter("a", body=None), id=a.letter.id), 5000)
    assert (b.letter.request_id, b.body_bytes) == ("b", None)


async def test_a_replay_in_vain_adds_to_its_letter(store: DeadLetters) -> None:
    """One letter with all attempts and the last error; it can be claimed again, and found by the new instance."""
    store.add(letter("a"))
    (kept,) = await store.list(EVERYTHING)
    for _ in range(2):
        assert await store.claim(kept.id) is not None
        await store.release(kept.id, Tried((ATTEMPT,), "no answer"))
    (after,) = await store.list(LetterFilter(instance="gpu-2"))
    assert after == replace(kept, attempts=(*kept.attempts, ATTEMPT, ATTEMPT), detail="no answer", replays=2)
    assert store.count == 1
    await store.release(12345, Tried((ATTEMPT,), "of a letter that is gone"))


async def test_the_attempts_of_a_letter_are_bounded(store: DeadLetters) -> None:
    """However often it is replayed, the oldest attempts are forgotten."""
    store.add(letter("a"))
    (kept,) = await store.list(EVERYTHING)
    many = tuple(replace(ATTEMPT, number=number) for number in range(2 * MOST_ATTEMPTS))
    await store.release(kept.id, Tried(many, "still"))
    after = await store.get(kept.id)
    assert after is not None
    assert after.attempts == many[-MOST_ATTEMPTS:]


async def test_ageing_is_counted(store: DeadLetters) -> None:
    """Letters that were too old are no evictions and no deletions."""
    for number in range(4):
        store.add(letter(f"r{number}", died_at=float(number)))
    assert await store.age_out(3.0) == 3
    assert (store.count, store.aged_out, store.evicted) == (1, 3, 0)


async def test_listeners_hear_of_each_new_letter(store: DeadLetters) -> None:
    """Without its request; what is taken in from elsewhere is not news."""
    with store.feed.listen() as listener:
        store.add(letter("a", body=b"12345"))
        await store.take_in([letter("b")])
        store.add(letter("c", body=None))
        heard = [await listener.next(), await listener.next()]
    outline = {each.letter.request_id: each for each in await store.outline(EVERYTHING)}
    assert heard == [outline["a"], outline["c"]]
    assert heard[0] == Listed(replace(letter("a", body=None), id=outline["a"].letter.id), 5)


# ------------------------------------------------------------------------------------------------- export and import


async def exported(store: DeadLetters) -> list[bytes]:
    """All letters as lines."""
    return list(export_lines(await store.list(EVERYTHING)))


def imported(lines: list[bytes]) -> list[StoredLetter]:
    """The letters in these lines, which must all be some."""
    letters = list(import_lines(lines))
    assert not [each for each in letters if isinstance(each, BadLine)]
    return [each for each in letters if isinstance(each, StoredLetter)]


async def test_an_export_comes_back_whole_and_twice_is_once(store: DeadLetters) -> None:
    """Every field and every byte, under the same numbers; taking the file in again changes nothing."""
    store.add(letter("a", body=bytes(range(256)), detail="zwei\nZeilen ü"))
    store.add(replace(letter("b", body=b"{}"), replays=3, redacted=True))
    before = await store.list(EVERYTHING)
    await store.claim(before[0].id)
    lines = await exported(store)
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)

    assert await store.take_in(imported(lines)) == TakenIn(0, 2, 0)
    await store.delete([each.id for each in before])
    assert await store.take_in(imported(lines)) == TakenIn(2, 0, 0)
    assert await store.take_in(imported(lines)) == TakenIn(0, 2, 0)
    assert await store.list(EVERYTHING) == before


async def test_a_number_that_is_in_use_is_not_taken_away(store: DeadLetters) -> None:
    """A letter of another gateway with the same number gets a new one, and only once."""
    store.add(letter("mine"))
    (mine,) = await store.list(EVERYTHING)
    foreign = replace(letter("foreign"), id=mine.id)
    assert await store.take_in([foreign]) == TakenIn(1, 0, 0)
    assert await store.take_in([foreign]) == TakenIn(0, 1, 0)
    assert sorted(names(await store.list(EVERYTHING))) == ["foreign", "mine"]
    assert await store.get(mine.id) == mine


async def test_letters_from_elsewhere_have_no_more_room_than_others(store: DeadLetters) -> None:
    """The oldest go, whoever brought them; what was dropped at once is told and is no eviction."""
    for number in range(9):
        store.add(letter(f"r{number}", died_at=1000.0 + number))
    old = [replace(letter(f"old{number}", died_at=float(number)), id=number) for number in range(1, 4)]
    assert await store.take_in(old) == TakenIn(1, 0, 2)
    assert names(await store.list(EVERYTHING))[-2:] == ["r0", "old3"]
    assert (store.count, store.evicted) == (10, 0)
    store.add(letter("new", died_at=2000.0))
    assert names(await store.list(EVERYTHING))[-1] == "r0"


async def test_letters_without_numbers_get_some(store: DeadLetters) -> None:
    """As in exports that were written by hand."""
    assert await store.take_in([letter("a"), shed("b")]) == TakenIn(2, 0, 0)
    assert len({each.id for each in await store.list(EVERYTHING)}) == 2


BAD = {
    b"{": "truncated",
    b"[]": "object",
    b'{"request_id":"a"}': "missing",
    b"\xff": "",
    b'{"type":"something else"}': "missing",
}


@pytest.mark.parametrize("line", BAD)
def test_a_line_that_is_no_letter_is_told_and_costs_no_other(line: bytes) -> None:
    """By its number, and the letters around it are taken."""
    first, bad, last = import_lines([*export_lines([letter("a")]), line, b"\n", *export_lines([letter("b")])])
    assert isinstance(first, StoredLetter)
    assert isinstance(last, StoredLetter)
    assert isinstance(bad, BadLine)
    assert bad.number == 2
    assert BAD[line] in bad.trouble


@pytest.mark.parametrize(
    "odd",
    [
        {"id": -1},
        {"id": 2**53},
        {"died_at": -1.0},
        {"died_at": 1e12},
        {"waited": -1.0},
        {"replays": -1},
        {"request_id": ""},
        {"user": "x" * 100_000},
        {"attempts": (ATTEMPT,) * (MOST_ATTEMPTS + 1)},
    ],
)
def test_what_no_letter_of_ours_would_say_is_refused(odd: dict[str, object]) -> None:
    """Numbers that no store or calendar can hold do not get in."""
    (line,) = import_lines(export_lines([replace(letter(), **odd)]))
    assert isinstance(line, BadLine)


def test_what_is_taken_in_is_nobody_s() -> None:
    """A claim belongs to the store it was made in."""
    (back,) = import_lines(export_lines([replace(letter(), claimed=True)]))
    assert isinstance(back, StoredLetter)
    assert not back.claimed
