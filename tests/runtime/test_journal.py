"""The journal: one line for each request, no names, never in the way, and whole whatever happens to the disk."""

from __future__ import annotations

import asyncio
import errno
import stat
from io import FileIO
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs
from typing_extensions import Buffer

from headrace.model import (
    AnswerForm,
    Arrived,
    CacheResult,
    Cause,
    Decision,
    Dispatch,
    Ending,
    Event,
    Finished,
    Flow,
    Instance,
    Join,
    Outcome,
    Request,
    ServiceClass,
    Settle,
    Started,
    Usage,
    Woke,
)
from headrace.runtime import journal as journal_room
from headrace.runtime.journal import Header, Journal, Line
from headrace.sim.trace import read
from headrace.testing import on_virtual_time, run_virtual

INSTANCE = Instance(id="gpu-1")
USAGE = Usage(120, 30, 16)


def request(name: str, user: str = "ann") -> Request:
    """A streamed request of a user."""
    flow = Flow(ServiceClass.INTERACTIVE, "lab", user, "s-1")
    return Request(
        id=name,
        flow=flow,
        model="m",
        prompt_tokens=100,
        output_cap=50,
        form=AnswerForm.STREAM,
        payload=b"SECRET PROMPT",
    )


def settled(name: str, call: str, ending: Ending = Ending.ANSWERED, usage: Usage | None = USAGE) -> Settle:
    """The end of a request at gpu-1."""
    return Settle(name, call, ending, usage=usage, instance="gpu-1", attempts=1)


def one(journal: Journal, name: str = "r", user: str = "ann", at: float = 0.0) -> None:
    """A request from its arrival to its answer, 4 seconds long."""
    asked = request(name, user)
    steps: list[tuple[Event, list[Decision], float]] = [
        (Arrived(asked), [Join(name, name), Dispatch(name, 1, INSTANCE, "m", asked, 0.0)], at),
        (Started(name, 1), [], at + 1.5),
        (Finished(name, 1, Outcome(Cause.OK, USAGE)), [settled(name, name)], at + 4.0),
    ]
    for event, decisions, now in steps:
        journal(event, decisions, now)


def names_in(folder: Path) -> list[str]:
    """The files there."""
    return sorted(file.name for file in folder.iterdir())


def contents(path: Path) -> tuple[list[Header], list[Line]]:
    """What is written there: every line is one or the other."""
    headers: list[Header] = []
    lines: list[Line] = []
    for text in path.read_bytes().splitlines():
        if text.startswith(b'{"headrace_journal"'):
            headers.append(msgspec.json.decode(text, type=Header))
        else:
            lines.append(msgspec.json.decode(text, type=Line))
    return headers, lines


@on_virtual_time
async def test_a_request_is_one_line(tmp_path: Path) -> None:
    """Who, what, when, how long, how much, where, and how it ended; never a word of what was said."""
    path = tmp_path / "j.ndjson"
    journal = Journal(path, plain=True, wall=lambda: 1000.5)
    journal.start()
    asked = request("r")
    journal(Arrived(asked), [Join("r", "c")], 3.0)
    journal(Woke(), [Dispatch("c", 1, INSTANCE, "m", asked, 0.5)], 3.5)
    journal(Woke(), [Dispatch("c", 2, INSTANCE, "m", asked, 0.9)], 4.0)
    journal(Started("c", 2), [], 4.25)
    journal(Finished("c", 2, Outcome(Cause.OK)), [settled("r", "c")], 7.0)
    await journal.close()
    headers, lines = contents(path)
    assert headers == [Header(headrace_journal=1, started=1000.5, names="plain")]
    expected = Line(
        at=3.0,
        id="r",
        tenant="lab",
        user="ann",
        service_class="interactive",
        session="s-1",
        model="m",
        endpoint="chat",
        stream=True,
        prompt_tokens=120,
        output_tokens=30,
        cached_tokens=16,
        estimated=False,
        output_cap=50,
        wait=0.5,
        first_token=1.25,
        took=4.0,
        instance="gpu-1",
        attempts=1,
        cache="miss",
        ending="answered",
    )
    assert lines == [expected]
    assert b"SECRET" not in path.read_bytes()


@on_virtual_time
async def test_refused_and_failed_requests_are_there_too(tmp_path: Path) -> None:
    """They were asked for: what was never sent has no wait and no usage of an engine."""
    journal = Journal(tmp_path / "j", plain=True)
    journal.start()
    refused = Settle("r", "", Ending.BACKPRESSURE)
    journal(Arrived(request("r")), [refused], 1.0)
    await journal.close()
    (line,) = contents(tmp_path / "j")[1]
    assert (line.ending, line.wait, line.first_token, line.took) == ("backpressure", None, None, 0.0)
    assert (line.prompt_tokens, line.output_tokens, line.estimated) == (100, 0, True)


@on_virtual_time
async def test_followers_and_hits_say_so(tmp_path: Path) -> None:
    """Who joins a running answer has his first token at once; who gets a kept one, when it is there."""
    journal = Journal(tmp_path / "j", plain=True)
    journal.start()
    journal(Arrived(request("a")), [Join("a", "c"), Dispatch("c", 1, INSTANCE, "m", request("a"), 0.0)], 0.0)
    journal(Started("c", 1), [], 2.0)
    journal(Arrived(request("b")), [Join("b", "c", CacheResult.JOINED)], 3.0)
    ends = [settled("a", "c"), Settle("b", "c", Ending.ANSWERED, cache=CacheResult.JOINED, usage=USAGE)]
    journal(Finished("c", 1, Outcome(Cause.OK)), ends, 5.0)
    hit = Settle("h", "d", Ending.ANSWERED, cache=CacheResult.HIT, usage=USAGE)
    journal(Arrived(request("h")), [Join("h", "d"), hit], 6.0)
    await journal.close()
    lines = contents(tmp_path / "j")[1]
    assert [(line.id, line.cache, line.first_token) for line in lines] == [
        ("a", "miss", 2.0),
        ("b", "joined", 0.0),
        ("h", "hit", 0.0),
    ]
    assert journal.remembered == 0


@on_virtual_time
async def test_names_are_hashed_the_same_after_a_restart(tmp_path: Path) -> None:
    """Nobody's name is in the file, yet one user's requests belong together; the salt is its owner's only."""
    for start in range(2):
        journal = Journal(tmp_path / "j")
        journal.start()
        one(journal, f"r{start}", "ann")
        one(journal, f"q{start}", "ben")
        await journal.close()
    headers, lines = contents(tmp_path / "j")
    assert [header.names for header in headers] == ["hashed"] * 2
    assert lines[0].user == lines[2].user != lines[1].user == lines[3].user
    assert len({line.id for line in lines}) == 4
    text = (tmp_path / "j").read_text(encoding="utf-8")
    assert not any(name in text for name in ('"ann"', '"ben"', '"lab"', '"s-1"', '"r0"'))
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600 for name in ("j", "j.salt"))
    beside = Journal(tmp_path / "k", salted_as=tmp_path / "j")
    beside.start()
    one(beside, "r", "ann")
    await beside.close()
    assert contents(tmp_path / "k")[1][0].user == lines[0].user, "with the same salt it is the same user"


@on_virtual_time
async def test_lines_are_written_each_second_and_at_the_end(tmp_path: Path) -> None:
    """The observer itself writes nothing: a request's line is there a second later, or when the journal is closed."""
    path = tmp_path / "j"
    journal = Journal(path)
    journal.start()
    one(journal, "a")
    assert contents(path)[1] == []
    await asyncio.sleep(1.5)
    assert len(contents(path)[1]) == 1
    one(journal, "b")
    await journal.close()
    assert len(contents(path)[1]) == 2


@on_virtual_time
async def test_a_full_file_is_put_aside(tmp_path: Path) -> None:
    """Files have a bound, old ones are kept up to a number, and each begins with a header."""
    path = tmp_path / "j"
    journal = Journal(path, most_bytes=500)
    journal.start()
    for number in range(40):
        one(journal, f"r{number}")
        await journal.flush()
    await journal.close()
    assert names_in(tmp_path) == ["j", "j.1", "j.2", "j.3", "j.4", "j.salt"]
    for name in ("j", "j.1", "j.2", "j.3", "j.4"):
        headers, lines = contents(tmp_path / name)
        assert len(headers) == 1
        assert 1 <= len(lines) <= 2


@on_virtual_time
async def test_a_lost_disk_is_logged_once_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be written is counted; when the disk is back, whole lines follow whole lines."""
    path, full = tmp_path / "j", False

    class Disk(FileIO):
        def write(self, data: Buffer) -> int:
            if not full:
                return super().write(data)
            super().write(bytes(data)[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_room, "FileIO", Disk)
    journal = Journal(path)
    journal.start()
    one(journal, "before")
    await journal.flush()
    full = True
    with capture_logs() as logs:
        for number in range(3):
            one(journal, f"lost{number}")
            await journal.flush()
        full = False
        one(journal, "after")
        await journal.close()
    assert [entry["event"] for entry in logs] == ["journal cannot be written", "journal is written again"]
    assert journal.lost == 3
    assert len(contents(path)[1]) == 2


@on_virtual_time
async def test_half_a_line_left_by_a_kill_is_cut_off(tmp_path: Path) -> None:
    """What follows can be read."""
    path = tmp_path / "j"
    journal = Journal(path)
    journal.start()
    one(journal)
    await journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:70].replace(b"\n", b""))
    again = Journal(path)
    again.start()
    await again.close()
    assert path.read_bytes().startswith(whole)
    assert len(contents(path)[0]) == 2


def test_what_waits_to_be_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs does not fill the memory."""
    monkeypatch.setattr(journal_room, "MOST_NOTED", 3)
    journal = Journal(tmp_path / "j")
    for number in range(10):
        one(journal, f"r{number}")
    assert journal.lost == 7


def test_a_place_that_cannot_be_written_is_told_before_the_start(tmp_path: Path) -> None:
    """A directory that is not there, and a salt that is none."""
    with pytest.raises(FileNotFoundError):
        Journal(tmp_path / "no" / "j").check()
    (tmp_path / "j.salt").write_bytes(b"short")
    with pytest.raises(OSError, match="there is no salt in it"):
        Journal(tmp_path / "j").check()


def test_the_simulator_reads_what_was_written(tmp_path: Path) -> None:
    """In order of arrival, over restarts, without what cost no engine anything, with a length for what failed."""

    async def recorded(wall: float, *stories: tuple[str, float]) -> None:
        journal = Journal(tmp_path / "j", wall=lambda: wall)
        journal.start()
        for name, at in stories:
            one(journal, name, at=at)
        failed = request("f")
        journal(Arrived(failed), [Settle("f", "", Ending.QUEUE_TIMEOUT)], 8.0)
        journal(Arrived(failed), [Settle("f", "", Ending.MODEL_NOT_FOUND)], 8.0)
        journal(Arrived(failed), [Settle("f", "", Ending.ANSWERED, cache=CacheResult.JOINED)], 8.0)
        await journal.close()

    run_virtual(recorded(1000.0, ("late", 5.0), ("early", 2.0)))
    run_virtual(recorded(1100.0, ("next", 1.0)))
    rows = read("j", "headrace", tmp_path)
    assert [row.at for row in rows] == [0.0, 3.0, 6.0, 99.0, 106.0]
    assert [(row.prompt, row.output) for row in rows] == [(120, 30), (120, 30), (100, 30), (120, 30), (100, 30)]
    assert {row.service_class for row in rows} == {"interactive"}
    assert len({row.user for row in rows}) == 1
