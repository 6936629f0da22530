"""Dead letters sent again, live: real processes, real files, killed and stopped in the middle, and nothing lost."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from headrace.testing import ScriptedConnection, ScriptedEngine, guarded, steps
from tests.e2e.client import Client, chat, client
from tests.e2e.front import front
from tests.e2e.process import Program, program, run, serving
from tests.patience import GUARD

KEY = "admin-key-of-the-tests"
LETTERS = 8


def config(engine: ScriptedEngine, **sections: object) -> str:
    """A gateway that gives up at once and keeps its letters in a file."""
    return json.dumps(
        {
            "instances": [{"id": "a", "address": engine.url, "models": ["m"]}],
            "routing": {"max_retries": 0},
            "load_balancer": {"cooldown_seconds": 0.001},
            "circuit_breaker": {"failure_threshold": 1000},
            "health_check": {"interval_seconds": 86_400},
            "dead_letters": {"path": "letters.db"},
            "admin": {"api_key": KEY},
            "server": {"drain_seconds": GUARD},
            **sections,
        }
    )


async def outage(running: Program, engine: ScriptedEngine) -> None:
    """The engine is down: every request becomes a letter. Then it is up again."""
    await engine.stop_listening()
    engine.close_connections()
    async with client(running.url) as caller:
        for number in range(LETTERS):
            heard = await caller.ask(chat(f"c{number}"), {"x-request-id": f"r{number}"})
            assert heard.status == 502
        await until_kept(caller, LETTERS)
    await engine.listen()


async def until_kept(caller: Client, count: int) -> None:
    """Wait until so many letters are kept."""

    async def wait() -> None:
        while (await caller.get("/health")).json["dead_letters"]["kept"] != count:
            pass

    await guarded(wait(), GUARD, f"{count} letters are kept")


def on_disk(directory: Path) -> Mapping[str, bool]:
    """The letters' request ids, and whether they are claimed."""
    with closing(sqlite3.connect(directory / "letters.db", timeout=5.0)) as conn:
        return dict(conn.execute("SELECT request_id, claimed FROM dead_letters").fetchall())


def files(directory: Path) -> list[bytes]:
    """What lies on disk of the letters, the database's own files included."""
    return [file.read_bytes() for file in directory.glob("letters.db*")]


async def dlq(running: Program, cwd: Path, *arguments: str) -> tuple[int, str, str]:
    """`headrace dlq ...` at the running gateway."""
    return await run("dlq", *arguments, "--gateway", running.url, "--key", KEY, cwd=cwd)


async def test_after_an_outage_all_letters_are_answered_in_their_own_time(tmp_path: Path) -> None:
    """Engine down: letters. Engine up: one command sends them all, paced; each is answered, and none is left."""
    times: list[float] = []
    good = steps.answer("at last")

    async def answer(conn: ScriptedConnection) -> None:
        times.append(asyncio.get_running_loop().time())
        await good(conn)

    async with ScriptedEngine(answer) as engine, serving(config(engine), tmp_path) as running:
        await outage(running, engine)
        _, planned, _ = await dlq(running, tmp_path, "replay", "--dry-run")
        begun = asyncio.get_running_loop().time()
        code, output, trouble = await dlq(running, tmp_path, "replay", "--rate", "4", "--reason", "inference_failure")
        _, left, _ = await dlq(running, tmp_path, "list")

    assert f"{LETTERS} of {LETTERS} letters would be sent" in planned
    assert (code, trouble, left) == (0, f"{LETTERS} of {LETTERS} letters were answered", "no dead letters")
    answers = [json.loads(line) for line in output.splitlines()]
    assert [answer["request_id"] for answer in answers] == [f"r{number}" for number in range(LETTERS)]
    assert {answer["answer"]["choices"][0]["message"]["content"] for answer in answers} == {"at last"}
    assert [json.loads(request.body)["messages"][0]["content"] for request in engine.requests] == [
        f"c{number}" for number in range(LETTERS)
    ]
    # Each is a quarter of a second after the one before, the first after the command.
    assert times[-1] - begun > 0.25 * (LETTERS - 1)
    assert on_disk(tmp_path) == {}


@pytest.mark.slow
async def test_a_kill_in_the_middle_loses_no_letter_and_charges_none_twice(tmp_path: Path) -> None:
    """Killed while half are answered and one is under way: the answered are gone, all others are there, the one that
    was under way is marked and sent again only when somebody says so."""
    async with ScriptedEngine(steps.answer("at last")) as engine:
        async with serving(config(engine), tmp_path) as running:
            await outage(running, engine)
            engine.once(*[steps.answer("at last")] * 3)
            engine.default = steps.hang()
            async with client(running.url) as caller:
                order = {"filter": {}, "pace_per_second": 1000}
                await caller.ask(order, {"x-api-key": KEY}, "/admin/dlq/replay")
                await engine.got(LETTERS)
                await until_kept(caller, LETTERS - 3)
            running.signal(signal.SIGKILL)
            await running.ended()
        killed = on_disk(tmp_path)
        asked = len(engine.requests)
        engine.default = steps.answer("at last")

        async with serving(config(engine), tmp_path) as reborn:
            code, output, trouble = await dlq(reborn, tmp_path, "replay", "--rate", "1000")
            _, listed, _ = await dlq(reborn, tmp_path, "list", "--json")
            held = [json.loads(line)["id"] for line in listed.splitlines()]
            _, released, _ = await dlq(reborn, tmp_path, "release", *map(str, held))
            again, _, _ = await dlq(reborn, tmp_path, "replay", "--rate", "1000")

    assert sorted(killed) == [f"r{number}" for number in range(3, LETTERS)]
    assert all(killed.values()), "all that were under way are marked"
    assert (code, output) == (1, "")
    assert trouble.count("another replay has it") == LETTERS - 3
    assert released == f"released {LETTERS - 3} letters"
    assert again == 0
    assert len(engine.requests) - asked == LETTERS - 3
    assert on_disk(tmp_path) == {}


async def test_a_stop_in_the_middle_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    """SIGTERM during a replay: what runs is answered, nothing more is sent, the others are letters nobody has."""
    async with ScriptedEngine(steps.answer("at last")) as engine, serving(config(engine), tmp_path) as running:
        await outage(running, engine)
        async with client(running.url) as caller:
            await caller.ask({"filter": {}, "pace_per_second": 0.01}, {"x-api-key": KEY}, "/admin/dlq/replay")
            await engine.got(1)
        running.signal(signal.SIGTERM)
        code = await running.ended()

    left = on_disk(tmp_path)
    assert code == 0
    assert len(left) == LETTERS - len(engine.requests) > 0
    assert not any(left.values())
    assert running.tracebacks == []


@pytest.mark.slow
async def test_every_command_works_on_a_running_gateway(tmp_path: Path) -> None:
    """List, show, export, import, delete, drain: as on the file; a wrong key is a sentence."""
    async with ScriptedEngine() as engine, serving(config(engine), tmp_path) as running:
        await outage(running, engine)
        _, listed, _ = await dlq(running, tmp_path, "list", "--tried", "a", "--since", "1h", "--limit", "3")
        _, lines, _ = await dlq(running, tmp_path, "list", "--json")
        first = json.loads(lines.splitlines()[-1])
        _, shown, _ = await dlq(running, tmp_path, "show", str(first["id"]))
        _, exported, _ = await dlq(running, tmp_path, "export")
        (tmp_path / "letters.ndjson").write_text(exported + "\nno letter\n")
        _, removed, _ = await dlq(running, tmp_path, "delete", str(first["id"]))
        code, taken, bad = await dlq(running, tmp_path, "import", "letters.ndjson")
        _, drained, told = await dlq(running, tmp_path, "drain")
        _, empty, _ = await dlq(running, tmp_path, "list")
        refused = await run("dlq", "list", "--gateway", running.url, "--key", "wrong", cwd=tmp_path)
        missing, _, nothing = await dlq(running, tmp_path, "show", "4711")

    assert len(listed.splitlines()) == 4
    assert json.loads(shown)["body"] == chat("c0")
    assert removed == "removed 1 letters"
    assert (code, taken) == (1, f"took in 1 letters; {LETTERS - 1} were here already")
    assert f"line {LETTERS + 1}" in bad
    assert sorted(drained.splitlines()) == sorted(exported.splitlines())
    assert (told, empty) == (f"removed {LETTERS} letters", "no dead letters")
    assert refused[0] == 2
    assert refused[2] == "headrace: This is not the admin API's key."
    assert (missing, nothing) == (2, "headrace: there is no dead letter 4711")


async def test_new_letters_are_watched_and_told_to_a_webhook(tmp_path: Path) -> None:
    """`dlq watch` prints each as it comes; the webhook is told of all of them, signed, and of no word they asked."""
    async with (
        ScriptedEngine(steps.json(200, {})) as hook,
        ScriptedEngine(steps.json(500, {"error": {"message": "boom"}})) as engine,
    ):
        told = {"path": "letters.db", "webhook": {"url": hook.url + "/dlq", "secret_env": "HOOK"}}
        (tmp_path / "headrace.yaml").write_text(config(engine, dead_letters=told))
        serve = ("serve", "--config", "headrace.yaml", "--port", "0")
        async with program(*serve, cwd=tmp_path, env={"HOOK": "hook-secret"}) as running:
            await running.listens()
            watch = ("dlq", "watch", "--json", "--gateway", running.url, "--key", KEY)
            async with client(running.url) as caller, program(*watch, cwd=tmp_path) as watching:
                await until_watched(caller, 2)
                await caller.ask(chat("SECRET-4711"), {"x-request-id": "r1"})
                await hook.got(1)
                await watching.printed("r1")
    (message,) = (json.loads(request.body) for request in hook.requests)
    assert [letter["request_id"] for letter in message["letters"]] == ["r1"]
    assert (hook.requests[0].header("webhook-signature") or "").startswith("v1,")
    assert b"SECRET-4711" not in hook.received


async def test_a_store_that_cannot_be_written_is_flagged_and_loses_nothing(tmp_path: Path) -> None:
    """The directory is not there: callers get their answers, letters are in memory, `/health` and `/metrics` say so;
    once it is there they are written."""
    path = tmp_path / "missing" / "letters.db"
    async with (
        ScriptedEngine(steps.json(500, {"error": {"message": "boom"}})) as engine,
        front(engine, routing={"max_retries": 0}, dead_letters={"path": str(path)}) as gate,
    ):
        heard = await gate.client.ask(chat("first"))
        health = (await gate.client.get("/health")).json["dead_letters"]
        metrics = (await gate.client.get("/metrics")).body.decode()
        listed = (await gate.client.get("/admin/dlq")).json["letters"]
        refused = await gate.client.ask({}, {"content-type": "application/x-ndjson"}, "/admin/dlq/import")
        path.parent.mkdir()
        await gate.client.get("/admin/dlq")
        healed = (await gate.client.get("/health")).json["dead_letters"]

    assert heard.status == 502
    assert health == {"kept": 1, "evicted": 0, "degraded": True}
    assert "headrace_dead_letters_degraded 1.0" in metrics
    assert len(listed) == 1
    assert refused.status == 200, "nothing to write is no trouble"
    assert healed == {"kept": 1, "evicted": 0, "degraded": False}


async def test_redacted_letters_tell_the_shape_and_are_not_sent_again(tmp_path: Path) -> None:
    """`redact: true`: no word that was said is on disk, and a replay says why it cannot be sent."""
    letters = {"path": str(tmp_path / "letters.db"), "redact": True}
    async with (
        ScriptedEngine(steps.json(500, {"error": {"message": "boom"}})) as engine,
        front(engine, routing={"max_retries": 0}, dead_letters=letters) as gate,
    ):
        await gate.client.ask(chat("SECRET-4711"))
        (letter,) = (await gate.client.get("/admin/dlq")).json["letters"]
        shown = (await gate.client.get(f"/admin/dlq/{letter['id']}")).json
        plan = (await gate.client.ask({"filter": {}, "dry_run": True}, path="/admin/dlq/replay")).json

    assert shown["request"]["messages"] == [{"role": "user", "content": "[11 characters]"}]
    assert plan["letters"][0]["trouble"] == "the request was kept without its texts"
    assert all(b"SECRET-4711" not in content for content in files(tmp_path))


async def until_watched(caller: Client, count: int) -> None:
    """Wait until so many listen to new letters."""

    async def wait() -> None:
        while f"headrace_dead_letter_listeners {count}.0" not in (await caller.get("/metrics")).body.decode():
            pass

    await guarded(wait(), GUARD, f"{count} listen")
