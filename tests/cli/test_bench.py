"""`headrace bench` as a person uses it: tables, JSON, mistakes in one sentence, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from rich.console import Console

from headrace.bench.patterns import read_users
from headrace.bench.report import report
from headrace.bench.run import Plan, Run
from headrace.cli import Refused, main
from headrace.cli.bench import bench
from headrace.cli.bench_tables import live_table, seconds, service_table, verdict, waits_tables
from headrace.testing import MockEngine, run_virtual
from tests.bench.world import Slots
from tests.patience import GUARD


class Engine:
    """A mock engine in a thread of its own, since the command brings an event loop itself."""

    def __init__(self) -> None:
        self.url = ""
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with MockEngine(model="m", slots=4, speed=50) as engine:
            self.url = engine.url
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(GUARD)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The address of an engine that is fifty times as fast as usual."""
    with Engine() as running:
        yield running.url


def run(*arguments: str) -> int:
    """The command's exit code."""
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_tables_and_json_say_the_same(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each user has a row in both tables, and the file has the numbers."""
    users = ("--users", "flood:burst=40", "--users", "light:rate=20,requests=5,class=interactive")
    assert run(engine, *users, "--json", str(tmp_path / "r.json"), "--seed", "3") == 0
    shown = capsys.readouterr()
    result = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (result["model"], result["seed"], result["url"], result["interrupted"]) == ("m", 3, engine, False)
    assert [user["name"] for user in result["users"]] == ["flood", "light"]
    assert all(user["served"] == user["asked"] > 0 for user in result["users"])
    assert shown.out.count("flood  ") >= 3
    assert "A request alone had its first token after" in shown.out
    assert "Jain's index of service against max-min fair shares" in shown.out
    assert shown.err == f"Asking m for 20 s.\nwrote {tmp_path / 'r.json'}\n"


def test_json_can_be_all_there_is(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json -` prints nothing else to standard output."""
    assert run(engine, "-u", "ann:requests=2", "-u", "ben:burst=3", "--json", "-") == 0
    assert [user["served"] for user in json.loads(capsys.readouterr().out)["users"]] == [2, 3]


def test_mistakes_are_sentences(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line for what the person can mend."""
    cases = [
        ((engine, "-u", "a:rat=1"), "user a: 'rat' is no key"),
        ((engine, "--model", "other"), "refused a first request to other: 404"),
        (("ftp://x",), "'ftp://x' is no address"),
        ((engine, "--api-key-env", "HEADRACE_NO_SUCH_KEY"), "HEADRACE_NO_SUCH_KEY is not set"),
        ((engine, "--preset", "flood", "-u", "flood"), "the preset has a user flood too"),
        ((engine, "-u", "a:requests=1", "--json", str(tmp_path / "no" / "r.json")), "cannot write"),
    ]
    for arguments, sentence in cases:
        assert run(*arguments) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("headrace: ")
        assert sentence in line


def test_another_machine_is_not_loaded_by_accident() -> None:
    """Where nobody can be asked, it has to be said."""
    with pytest.raises(Refused, match=r"^models\.example is not this machine, .* say --yes"):
        bench("http://models.example/v1")


def test_ctrl_c_ends_it_with_the_tables(engine: str) -> None:
    """What was measured so far is shown; the exit code is that of an interruption."""
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "bench", engine, "--duration", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "Asking m for 600 s.\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=GUARD)
    assert (process.returncode, errors) == (130, "")
    assert "Ended early, after" in out
    assert "light-2" in out


def text(*tables: object) -> str:
    """Tables as a wide terminal shows them."""
    console = Console(width=200)
    with console.capture() as captured:
        for table in tables:
            console.print(table)
    return captured.get()


def test_bounds_and_estimates_are_marked() -> None:
    """What is only known to be at least so long, and what was counted without usage, can be told at a glance."""

    async def story() -> tuple[str, str]:
        users = read_users(["flood:concurrency=9,prompt=10,output=10", "light:rate=1,prompt=10,output=10"])
        plan, asker = Plan(users=users, model="m", duration=10, grace=0), Slots(1, usage=False)
        asker.refuse = {}
        current = Run(plan, asker)
        live: list[str] = []
        asyncio.get_running_loop().call_later(5, lambda: live.append(text(live_table(current))))
        window = await current.go()
        result = report(plan, current.tallies, window=window, url="u", started=0.0)
        return live[0], "\n".join([text(*waits_tables(result, 120), service_table(result)), *verdict(result)])

    live, final = run_virtual(story())
    assert "m: 5 s to go. Ctrl-C ends it." in live
    assert "█" in live
    assert "≥" in final
    assert "~ The endpoint reports no usage" in final
    assert "Jain's index over the 2 users that wanted more" in final


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (0.00083, "830 µs"),
        (0.0123, "12.3 ms"),
        (0.456, "456 ms"),
        (1.3, "1.30 s"),
        (95.0, "95.0 s"),
    ],
)
def test_durations_are_readable(value: float | None, shown: str) -> None:
    """Three digits and the unit that fits."""
    assert seconds(value) == shown
