"""Dead letters on disk: they survive, they are bounded, and a broken disk is nobody's error but the operator's."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from headrace.runtime.stores import DeadLetters, LetterFilter
from headrace.runtime.stores.database import sqlite_url
from headrace.runtime.stores.sql import SqlDeadLetters
from tests.runtime.letters import letter, names, shed

EVERYTHING = LetterFilter(limit=10_000)
V1_TEXTS = {
    "request_id": "old",
    "reason": "inference_timeout",
    "detail": "d",
    "tenant": "t",
    "user": "u",
    "session": "s",
    "service_class": "batch",
    "model": "m",
    "endpoint": "chat",
}
"""The columns of texts in the first version's table, and what one letter has in them."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlDeadLetters]:
    """An open store in a fresh file."""
    opened = SqlDeadLetters(sqlite_url(tmp_path / "dead.db"), capacity=10)
    await opened.open()
    yield opened
    await opened.close()


def run_sql(path: Path, statement: str) -> list[tuple[object, ...]]:
    """Looks at the file from outside."""
    with closing(sqlite3.connect(path, timeout=1.0)) as conn, conn:
        return conn.execute(statement).fetchall()


def modes(directory: Path) -> dict[str, int]:
    """Who may do what with each file in a directory."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


async def test_a_letter_comes_back_as_it_was(store: SqlDeadLetters) -> None:
    """Every field, its attempts and its bytes survive the way to the disk and back."""
    protocol: DeadLetters = store
    protocol.add(letter("a", body=bytes(range(256)), detail="zwei\nZeilen ü"))
    protocol.add(letter("b", body=None))
    b, a = await protocol.list(EVERYTHING)
    assert (a.request_id, a.body, a.detail) == ("a", bytes(range(256)), "zwei\nZeilen ü")
    assert a == replace(letter("a", body=a.body, detail=a.detail), id=a.id)
    assert b.body is None
    assert await protocol.get(a.id) == a
    assert await protocol.get(1) is None


async def test_the_writer_writes_by_itself(tmp_path: Path) -> None:
    """What was added is on disk without anybody asking."""
    path = tmp_path / "dead.db"
    store = SqlDeadLetters(sqlite_url(path))
    store.add(letter("before opening"))
    await store.open()
    assert run_sql(path, "SELECT request_id FROM dead_letters") == [("before opening",)]
    store.add(letter("after"))
    await store.close()
    assert run_sql(path, "SELECT count(*) FROM dead_letters") == [(2,)]
    assert run_sql(path, "PRAGMA journal_mode") == [("wal",)]


async def test_letters_survive_a_restart(tmp_path: Path) -> None:
    """A new process finds the letters and goes on with greater ids."""
    url = sqlite_url(tmp_path / "dead.db")
    first = SqlDeadLetters(url)
    await first.open()
    first.add(letter("old", died_at=5000.0))
    await first.close()
    second = SqlDeadLetters(url)
    await second.open()
    assert second.count == 1
    second.add(letter("new", died_at=1.0))
    assert names(await second.list(EVERYTHING)) == ["new", "old"]
    await second.close()


def test_letters_survive_a_kill(tmp_path: Path) -> None:
    """What was written, and what a replay had claimed, is there after kill -9: visible, and not replayed again."""
    path = tmp_path / "dead.db"
    script = f"""
import asyncio, time
from headrace.runtime.stores.database import sqlite_url
from headrace.runtime.stores.sql import SqlDeadLetters
from tests.runtime.letters import letter
async def main():
    store = SqlDeadLetters(sqlite_url({str(path)!r}))
    await store.open()
    for number in range(20):
        store.add(letter(f"r{{number}}"))
    await store.flush()
    ids = [each.id for each in await store.list({LetterFilter(limit=1)!r})]
    await store.claim(ids[0])
    print("ready", flush=True)
    await asyncio.Event().wait()
from headrace.runtime.stores import LetterFilter
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)

    async def look() -> None:
        store = SqlDeadLetters(sqlite_url(path))
        await store.open()
        (youngest,) = await store.list(LetterFilter(limit=1))
        assert (store.count, youngest.claimed) == (20, True)
        assert await store.claim(youngest.id) is None
        assert len(await store.drain()) == 19
        await store.release(youngest.id)
        assert await store.claim(youngest.id) is not None
        await store.close()

    asyncio.run(look())


async def test_filters_and_pages(store: SqlDeadLetters) -> None:
    """The database finds what the ring would find."""
    store.add(letter("a", tenant="x", died_at=1.0))
    store.add(letter("b", user="y", died_at=2.0))
    store.add(letter("c", model="z_%", died_at=3.0))
    store.add(shed("d", died_at=4.0))
    everything = await store.list(EVERYTHING)
    for which in (
        LetterFilter(),
        LetterFilter(tenant="x"),
        LetterFilter(user="y"),
        LetterFilter(model="z_%"),
        LetterFilter(reason="backpressure"),
        LetterFilter(reason="backpressure:inference"),
        LetterFilter(reason="backpressure:in"),
        LetterFilter(reason="%"),
        LetterFilter(since=2.0, until=4.0),
        LetterFilter(before=everything[1].id),
    ):
        assert await store.list(which) == tuple(each for each in everything if which.takes(each))
    assert len(await store.list(LetterFilter(limit=3))) == 3


async def test_deleting_and_ageing(store: SqlDeadLetters) -> None:
    """Letters go when they are told to or too old, and the count is right."""
    for number in range(6):
        store.add(letter(f"r{number}", died_at=float(number)))
    ids = [each.id for each in await store.list(EVERYTHING)]
    assert await store.delete([*ids[:2], 12345]) == 2
    assert await store.age_out(2.0) == 2
    assert names(await store.list(EVERYTHING)) == ["r3", "r2"]
    assert (store.count, store.evicted) == (2, 0)


async def test_draining_gives_each_letter_once(store: SqlDeadLetters) -> None:
    """Two drains at the same time share the letters between them; nothing is left and nothing is doubled."""
    for number in range(8):
        store.add(letter(f"r{number}"))
    one, two = await asyncio.gather(store.drain(), store.drain())
    assert sorted(names(one + two)) == [f"r{number}" for number in range(8)]
    assert store.count == 0


async def test_two_replays_at_once_make_one_call(store: SqlDeadLetters, tmp_path: Path) -> None:
    """Of many claims one succeeds, whichever process it comes from."""
    store.add(letter("a"))
    (waiting,) = await store.list(EVERYTHING)
    other = SqlDeadLetters(sqlite_url(tmp_path / "dead.db"))
    await other.open()
    claims = await asyncio.gather(*(each.claim(waiting.id) for each in (store, other, store, other)))
    assert sum(claim is not None for claim in claims) == 1
    await store.done(waiting.id)
    assert await other.get(waiting.id) is None
    await other.close()


async def test_the_bounds_hold_on_disk(store: SqlDeadLetters) -> None:
    """The rule of the ring: refusals fill at most half and go first; every loss is counted."""
    for number in range(4):
        store.add(letter(f"failed{number}"))
    await store.flush()
    for number in range(1000):
        store.add(shed(f"shed{number}"))
    await store.flush()
    assert names(await store.list(EVERYTHING))[5:] == ["failed3", "failed2", "failed1", "failed0"]
    assert (store.count, store.evicted) == (9, 995)
    for number in range(4, 16):
        store.add(letter(f"failed{number}"))
    assert names(await store.list(EVERYTHING)) == [f"failed{number}" for number in range(15, 5, -1)]
    assert store.count + store.evicted == 1016


async def test_the_bytes_on_disk_are_bounded(tmp_path: Path) -> None:
    """Large requests make room for each other."""
    store = SqlDeadLetters(sqlite_url(tmp_path / "dead.db"), max_bytes=10_000)
    await store.open()
    for number in range(10):
        store.add(letter(f"r{number}", body=b"x" * 3000))
        await store.flush()
    assert names(await store.list(EVERYTHING)) == ["r9", "r8"]
    await store.close()


async def test_a_claimed_letter_is_the_last_to_be_evicted(store: SqlDeadLetters) -> None:
    """A letter on its way to a replay is not lost to a flood."""
    store.add(letter("claimed"))
    (waiting,) = await store.list(EVERYTHING)
    await store.claim(waiting.id)
    for number in range(30):
        store.add(letter(f"r{number}"))
    assert "claimed" in names(await store.list(EVERYTHING))


async def test_a_directory_that_is_not_there_only_degrades(tmp_path: Path) -> None:
    """Nothing raises; letters are kept in memory, one line is logged, and they are written once it is possible."""
    path = tmp_path / "missing" / "dead.db"
    store = SqlDeadLetters(sqlite_url(path))
    with capture_logs() as logs:
        await store.open()
        store.add(letter("a"))
        store.add(letter("b"))
        assert not await store.flush()
        assert names(await store.list(EVERYTHING)) == ["b", "a"]
        youngest = (await store.list(LetterFilter(limit=1)))[0]
        assert await store.claim(youngest.id) is not None
        assert await store.claim(youngest.id) is None
        assert (store.degraded, store.count) == (True, 2)
    (told,) = logs
    assert (told["event"], told["database"]) == ("dead letters cannot be written", str(path))
    path.parent.mkdir()
    with capture_logs() as logs:
        assert await store.flush()
    assert [entry["event"] for entry in logs] == ["dead letters are written again"]
    assert not store.degraded
    assert [each.claimed for each in await store.list(EVERYTHING)] == [True, False]
    await store.close()


async def test_a_full_disk_only_degrades(store: SqlDeadLetters, tmp_path: Path) -> None:
    """When the file may not grow, reading goes on, the new letters wait in memory, and nothing raises."""
    path = tmp_path / "dead.db"
    store.add(letter("old"))
    await store.flush()
    run_sql(path, "CREATE TRIGGER full BEFORE INSERT ON dead_letters BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    store.add(letter("new"))
    assert not await store.flush()
    assert store.degraded
    assert names(await store.list(EVERYTHING)) == ["new", "old"]
    run_sql(path, "DROP TRIGGER full")
    assert await store.flush()
    assert names(await store.list(EVERYTHING)) == ["new", "old"]
    assert not store.degraded


async def test_a_file_that_is_no_database_only_degrades(tmp_path: Path) -> None:
    """A file of something else is left alone."""
    path = tmp_path / "dead.db"
    path.write_bytes(b"this is my diary" * 100)
    store = SqlDeadLetters(sqlite_url(path))
    await store.open()
    store.add(letter("a"))
    assert names(await store.drain()) == ["a"]
    assert store.degraded
    await store.close()
    assert path.read_bytes() == b"this is my diary" * 100


async def test_a_newer_schema_is_not_touched(store: SqlDeadLetters, tmp_path: Path) -> None:
    """A database of a later version is refused, not damaged."""
    await store.flush()
    run_sql(tmp_path / "dead.db", "UPDATE schema_versions SET version = 99")
    older = SqlDeadLetters(sqlite_url(tmp_path / "dead.db"))
    with capture_logs() as logs:
        await older.open()
    assert logs[0]["error"] == "SchemaTooNew"
    older.add(letter("a"))
    assert older.degraded
    await older.close()
    assert run_sql(tmp_path / "dead.db", "SELECT count(*) FROM dead_letters") == [(0,)]


async def test_a_file_of_the_first_version_is_used_on(tmp_path: Path) -> None:
    """Letters of an older headrace are there, can be found by everything new, and new ones are written beside them."""
    path = tmp_path / "dead.db"
    columns = ", ".join(f'"{name}" TEXT NOT NULL' for name in V1_TEXTS)
    run_sql(
        path,
        f"CREATE TABLE dead_letters (id INTEGER PRIMARY KEY, {columns}, died_at DOUBLE NOT NULL,"
        " waited DOUBLE NOT NULL,"
        " attempts BLOB NOT NULL, claimed BOOLEAN NOT NULL, shed BOOLEAN NOT NULL, size INTEGER NOT NULL, body BLOB)",
    )
    run_sql(path, "CREATE TABLE schema_versions (part VARCHAR(64) PRIMARY KEY, version INTEGER NOT NULL)")
    run_sql(path, "INSERT INTO schema_versions VALUES ('dead_letters', 1)")
    texts = ", ".join(f"'{text}'" for text in V1_TEXTS.values())
    attempts = '[{"number":1,"instance":"gpu-9","started":0.0,"ended":1.0,"cause":"timeout","status":null,"detail":""}]'
    run_sql(
        path, f"INSERT INTO dead_letters VALUES (7, {texts}, 5.0, 1.0, CAST('{attempts}' AS BLOB), 0, 0, 9, 'body')"
    )

    for _ in range(2):
        store = SqlDeadLetters(sqlite_url(path))
        await store.open()
        store.add(letter("new"))
        assert not store.degraded
        (old,) = await store.list(LetterFilter(instance="gpu-9"))
        assert (old.id, old.request_id, old.replays, old.redacted) == (7, "old", 0, False)
        await store.close()
    assert run_sql(path, "SELECT version FROM schema_versions") == [(2,)]
    assert run_sql(path, "SELECT count(*) FROM dead_letters") == [(3,)]


async def test_an_id_another_process_took_is_not_used_twice(store: SqlDeadLetters, tmp_path: Path) -> None:
    """Two writers of one file lose no letter to each other."""
    other = SqlDeadLetters(sqlite_url(tmp_path / "dead.db"))
    await other.open()
    for number in range(3):
        store.add(letter(f"one{number}"))
        other.add(letter(f"two{number}"))
    assert await store.flush()
    assert await other.flush()
    assert len(await store.list(EVERYTHING)) == 6
    await other.close()


async def test_writing_a_letter_again_does_not_double_it(store: SqlDeadLetters) -> None:
    """A write whose end was not seen is repeated without harm."""
    store.add(letter("a"))
    (again,) = store._pending.oldest(1)
    assert await store.flush()
    await store._insert((again,))
    assert names(await store.list(EVERYTHING)) == ["a"]


async def test_names_no_database_takes_do_not_stop_the_writer(store: SqlDeadLetters) -> None:
    """A lone surrogate or a zero byte in a caller's name costs that character and nothing else."""
    store.add(letter("a", user="x\ud800y\0z"))
    store.add(letter("b"))
    assert await store.flush()
    assert (await store.list(LetterFilter(user="x?y?z")))[0].request_id == "a"


async def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    """Prompts lie in the database and in the files SQLite puts beside it: nobody else on the machine reads them."""
    store = SqlDeadLetters(sqlite_url(tmp_path / "dead.db"))
    await store.open()
    store.add(letter("a", body=b"MARKER-4711"))
    assert await store.flush()

    assert modes(tmp_path) == dict.fromkeys(("dead.db", "dead.db-shm", "dead.db-wal"), 0o600)
    await store.close()
