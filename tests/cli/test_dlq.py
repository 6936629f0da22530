"""`headrace dlq`: what is in the dead letters can be seen, taken out, and sent again at most once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.cli import Refused, main
from headrace.cli.letters import letters_path, opened, since
from headrace.cli.replay import Answered, Plan, Replay
from headrace.model import AttemptRecord, Cause, ServiceClass
from headrace.runtime.stores import LetterFilter, StoredLetter
from headrace.runtime.stores.memory import MemoryDeadLetters
from headrace.testing import ScriptedConnection, ScriptedEngine

BODY = b'{"model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true}}'


def letter(number: int, *, reason: str = "inference_failure", body: bytes | None = BODY) -> StoredLetter:
    """A letter of user `u<number>`."""
    return StoredLetter(
        request_id=f"r-{number}",
        reason=reason,
        detail="connection refused",
        tenant="default",
        user=f"u{number}",
        session="s",
        service_class=ServiceClass.NORMAL,
        model="m",
        endpoint="chat",
        died_at=1_700_000_000.0 + number,
        waited=1.25,
        attempts=(AttemptRecord(1, "gpu-1", 0.0, 0.5, Cause.CONNECT),),
        body=body,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with three letters."""
    path = tmp_path / "letters.db"

    async def fill() -> None:
        path.touch()
        async with opened(path) as store:
            for kept in (letter(1), letter(2, reason="backpressure:inference"), letter(3, body=None)):
                store.add(kept)
            await store.flush()

    asyncio.run(fill())
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `headrace dlq ...`."""
    with pytest.raises(SystemExit) as caught:
        main(["dlq", *arguments])
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def test_letters_are_listed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The youngest first, with the reason and no word of the prompt."""
    code, out, _ = run(capsys, "list", "--db", str(file))
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert "2023-11-14 22:13:23 inference_failure default/u3 normal m 1.2 s 1 not kept connection refused" in rows[1]
    assert "2023-11-14 22:13:22 backpressure:inference default/u2" in rows[2]
    assert "messages" not in out


def test_filters_choose(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By reason, user and time; nothing found is said in words."""
    _, out, _ = run(capsys, "list", "--db", str(file), "--reason", "backpressure")
    assert "u2" in out
    assert "u1" not in out
    assert run(capsys, "list", "--db", str(file), "--user", "u9")[1] == "no dead letters\n"
    assert run(capsys, "list", "--db", str(file), "--since", "1h")[1] == "no dead letters\n"


def test_one_letter_is_shown_whole(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that is kept, the request as JSON; an unknown number is a sentence."""
    first = json.loads(run(capsys, "export", "--db", str(file))[1].splitlines()[-1])
    code, out, _ = run(capsys, "show", str(first["id"]), "--db", str(file))
    shown = json.loads(out)
    assert code == 0
    assert (shown["request_id"], shown["body"]["model"], shown["attempts"][0]["cause"]) == ("r-1", "m", "connect")
    assert run(capsys, "show", "99", "--db", str(file)) == (2, "", "headrace: there is no dead letter 99\n")


def test_export_leaves_and_drain_removes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both print every letter, one a line; after a drain there is none."""
    _, exported, _ = run(capsys, "export", "--db", str(file))
    _, drained, told = run(capsys, "drain", "--db", str(file))
    assert len(exported.splitlines()) == 3
    assert exported == drained
    assert told == "removed 3 letters\n"
    assert run(capsys, "list", "--db", str(file))[1] == "no dead letters\n"


def test_what_was_exported_is_taken_in_elsewhere(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a file that is made for it, whole and under the same numbers; twice is once; broken lines are told."""
    moved, lines = tmp_path / "moved.db", tmp_path / "letters.ndjson"
    lines.write_text(run(capsys, "drain", "--db", str(file))[1])

    told = "took in 3 letters; 0 were here already\n"
    assert run(capsys, "import", str(lines), "--db", str(moved)) == (0, told, "")
    sent = lines.read_text().splitlines()
    assert run(capsys, "export", "--db", str(moved))[1].splitlines() == sent

    lines.write_text("{no letter}\n" + lines.read_text())
    code, out, err = run(capsys, "import", str(lines), "--db", str(moved))
    assert (code, out) == (1, "took in 0 letters; 3 were here already\n")
    assert err.startswith(f"{lines}: line 1: ")
    assert run(capsys, "export", "--db", str(moved))[1].splitlines() == sent
    assert run(capsys, "import", str(tmp_path / "none"), "--db", str(moved))[0] == 2


def test_a_missing_file_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking creates nothing."""
    absent = tmp_path / "absent.db"
    code, _, err = run(capsys, "list", "--db", str(absent))
    assert (code, err) == (2, f"headrace: there are no dead letters at {absent}: the file does not exist\n")
    assert not absent.exists()


def test_a_file_of_something_else_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, in one line: what the store would tell a gateway's operator is not told beside it."""
    (tmp_path / "notes.txt").write_text("not a database at all")
    code, out, err = run(capsys, "list", "--db", str(tmp_path / "notes.txt"))
    assert (code, out) == (2, "")
    assert (
        err
        == f"headrace: {tmp_path}/notes.txt cannot be used: it is no file of dead letters, or is locked or read-only\n"
    )


def test_the_file_is_the_configuration_s(tmp_path: Path) -> None:
    """Without --db the configured file is meant; one in memory only is told."""
    config = tmp_path / "c.yaml"
    config.write_text("dead_letters: {path: null}")
    with pytest.raises(Refused, match="in memory only"):
        letters_path(None, config, {})
    here = tmp_path / "x.db"
    here.touch()
    assert letters_path(None, None, {"HEADRACE_DEAD_LETTERS__PATH": str(here)}) == here


def test_a_dry_run_sends_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What would be sent is shown, and stays."""
    code, out, _ = run(capsys, "replay", "--db", str(file), "--dry-run", "--reason", "inference_failure")
    assert code == 0
    assert "2 letters would be sent to http://127.0.0.1:8080" in out
    assert len(run(capsys, "export", "--db", str(file))[1].splitlines()) == 3


def test_a_replay_without_gateway_keeps_the_letters(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A closed port is a sentence, and nothing is lost or left claimed."""
    code, _, err = run(capsys, "replay", "--db", str(file), "--url", "http://127.0.0.1:1")
    assert (code, err) == (2, "headrace: nothing answers at http://127.0.0.1:1; start the gateway first\n")
    exported = run(capsys, "export", "--db", str(file))[1]
    assert [json.loads(line)["claimed"] for line in exported.splitlines()] == [False, False, False]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400), ("2026-11-30T11:00", 3600)]
)
def test_times_are_read(text: str, seconds: int) -> None:
    """Durations count back from now; dates are UTC."""
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert since(text, now) == now.timestamp() - seconds


def test_other_times_are_refused() -> None:
    """What is no time is named, with what would be one."""
    with pytest.raises(Refused, match="'soon' is no time; say 15m"):
        since("soon", datetime.now(UTC))


# --------------------------------------------------------------------------------------------------------- replay

Sent = tuple[MemoryDeadLetters, list[Answered], list[float]]


async def replayed(url: str, *letters: StoredLetter, model: str | None = None) -> Sent:
    """Replays letters from a store in memory; gives the store, what was told, and the pauses that were asked for."""
    store = MemoryDeadLetters(10)
    for kept in letters:
        store.add(kept)
    told: list[Answered] = []
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    replay = Replay(store, Plan(url=url, rate=4, model=model), pause=pause)
    well = await replay.run(await store.list(LetterFilter()), told.append)
    assert well == all(result.well for result in told)
    return store, told, pauses


def whole(status: int, body: object, *headers: tuple[str, str]) -> Callable[[ScriptedConnection], Awaitable[None]]:
    """A script that answers with one JSON body."""

    async def script(conn: ScriptedConnection) -> None:
        await conn.json(status, body, headers)

    return script


async def test_an_answered_letter_is_gone() -> None:
    """It is sent whole, at class batch, for its user, and removed; letters are paced."""
    async with ScriptedEngine(whole(200, {"ok": 1})) as engine:
        store, told, pauses = await replayed(engine.url + "/v1", letter(1), letter(2), model="other")
        request = engine.requests[0]
        assert request.json() == {"model": "other", "messages": []}
        assert (request.header("x-headrace-class"), request.header("x-headrace-user")) == ("batch", "u1")
        assert request.path == "/v1/chat/completions"
        assert [json.loads(result.body) for result in told] == [{"ok": 1}] * 2
        assert pauses == [0.25]
        assert store.count == 0


async def test_no_room_is_waited_out() -> None:
    """429 and 503 are tried again after 2^n seconds or what the gateway asks for, never above a minute."""
    busy = {"error": {"message": "The queue is full."}}
    async with ScriptedEngine(whole(200, {})) as engine:
        engine.once(whole(503, busy), whole(429, busy, ("retry-after", "7")), whole(503, busy, ("retry-after", "900")))
        store, _, pauses = await replayed(engine.url, letter(1))
        assert pauses == [1.0, 7.0, 60.0]
        assert store.count == 0


async def test_a_refused_letter_stays() -> None:
    """What is not answered goes back, unclaimed, and the reason is told."""
    async with ScriptedEngine(whole(404, {"error": {"message": "no such model"}})) as engine:
        store, told, _ = await replayed(engine.url, letter(1))
        assert (told[0].status, told[0].trouble) == (404, "no such model")
        (kept,) = await store.list(LetterFilter())
        assert not kept.claimed


async def test_letters_that_cannot_be_sent_are_told() -> None:
    """Without a request, or with one of an unknown kind, nothing is sent."""
    async with ScriptedEngine() as engine:
        odd = letter(2, body=b"\xff")
        _, told, _ = await replayed(engine.url, letter(1, body=None), odd)
        assert [result.trouble for result in told] == [
            "the request was not kept",
            "the request cannot be read: it is no JSON",
        ]
        assert engine.requests == []


async def test_a_letter_is_sent_once() -> None:
    """What another replay has claimed is left alone."""
    store = MemoryDeadLetters(10)
    store.add(letter(1))
    (kept,) = await store.list(LetterFilter())
    await store.claim(kept.id)
    told: list[Answered] = []
    async with ScriptedEngine() as engine:
        assert not await Replay(store, Plan(url=engine.url, rate=1)).run([kept], told.append)
        assert told[0].trouble == "another replay has it"
        assert engine.requests == []
