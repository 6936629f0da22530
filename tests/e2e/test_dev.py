"""`headrace dev` as people run it: processes, files that change, and Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from headrace.cli.dev.child import Child
from headrace.cli.dev.run import PACKAGE, broken, concerns_engines
from tests.e2e.process import Program, program, run
from tests.patience import GUARD

CONFIG = "instances: [{id: own, engine: echo, models: [MODEL]}]\ndead_letters: {path: null}\n"


async def answers(gateway: str, model: str) -> bool:
    """Whether a gateway answers a question to this model."""

    def ask() -> bool:
        body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
        headers = {"content-type": "application/json"}
        request = Request(f"{gateway}/v1/chat/completions", json.dumps(body).encode(), headers)
        with build_opener(ProxyHandler({})).open(request, timeout=GUARD) as response:
            return bool(json.loads(response.read())["choices"])

    return await asyncio.to_thread(ask)


async def lines(development: Program, text: str, count: int) -> None:
    """Wait until so many lines with this text were printed."""
    await development.until(lambda: sum(text in line for line in development.output) >= count, f"{count} x {text}")


@pytest.mark.slow
async def test_it_follows_its_files_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Both engines answer; a new configuration restarts the gateway, a broken one does not; Ctrl-C ends all."""
    config = tmp_path / "headrace.yaml"
    config.write_text(CONFIG.replace("MODEL", "before"))
    wanted = ("--config", config.name, "--port", "0", "--engine-port", "0")
    async with program("dev", *wanted, cwd=tmp_path) as development:
        for model in ("mock-a", "mock-b"):
            await development.printed(f"{model}: added the instance {model}")
        gateway = next(line for line in development.output if line.startswith("gateway: ")).split()[1]
        assert await answers(gateway, "mock-a")
        assert await answers(gateway, "before")
        config.write_text("instances: [{id: own, engine: ecko}]\n")
        await development.printed("headrace.yaml changed, but what runs is kept")
        config.write_text(CONFIG.replace("MODEL", "after"))
        await development.printed("headrace.yaml changed: restarting gateway")
        await lines(development, "Listening on", 2)
        assert await answers(gateway, "after")
        assert await answers(gateway, "mock-b")
        development.signal(signal.SIGINT)
        assert await development.ended() == 0
    ports = [line.split(" at ")[1].split()[0] for line in development.output if ": a mock engine at " in line]
    for url in (gateway, *ports):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


@pytest.mark.slow
async def test_the_halves_run_in_two_terminals(tmp_path: Path) -> None:
    """`--engines-only` and `--gateway-only` together make the same as neither."""
    async with program("dev", "--engines-only", "--engine-port", "0", cwd=tmp_path) as engines:
        await lines(engines, "The mock engine serves", 2)
        first = next(line for line in engines.output if line.startswith("mock-a: ")).rpartition(":")[2]
        second = next(line for line in engines.output if line.startswith("mock-b: ")).rpartition(":")[2]
        assert int(second) > 0
        async with program("dev", "--gateway-only", "--port", "0", "--engine-port", first, cwd=tmp_path) as half:
            await half.printed("mock-a: added the instance mock-a")
            gateway = next(line for line in half.output if line.startswith("gateway: ")).split()[1]
            assert await answers(gateway, "mock-a")
            half.signal(signal.SIGTERM)
            assert await half.ended() == 0
        engines.signal(signal.SIGINT)
        assert await engines.ended() == 0


async def test_one_that_dies_is_said_and_started_again() -> None:
    """A process that ends by itself is told with its exit code and tried again, later each time."""
    said: list[str] = []
    twice = asyncio.Event()

    def say(line: str) -> None:
        said.append(line)
        if sum("ended with" in one for one in said) == 2:
            twice.set()

    task = asyncio.create_task(Child("dying", ("version",), {}, say).run())
    async with asyncio.timeout(GUARD):
        await twice.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    ends = [line for line in said if "ended with" in line]
    assert ends[0] == "dying ended with exit code 0; it is started again in 0.5 s"
    assert ends[1].endswith("in 1 s")
    assert any(line.startswith("dying    | ") for line in said)


def test_what_cannot_be_read_restarts_nothing(tmp_path: Path) -> None:
    """Half-written code or configuration is told with its place."""
    code, config = tmp_path / "a.py", tmp_path / "a.yaml"
    code.write_text("x = (\n")
    assert "a.py, line 1" in str(broken(code))
    code.write_text("x = 1\n")
    assert broken(code) is None
    config.write_text("sheduling: {}\n")
    assert "scheduling" in str(broken(config))
    config.unlink()
    assert broken(config) == "a.yaml is gone"


def test_engines_run_on_while_other_code_changes() -> None:
    """Only changes of the mock engine's own code restart the engines."""
    assert concerns_engines({PACKAGE / "testing" / "timing.py"})
    assert concerns_engines({PACKAGE / "cli" / "mock_engine.py"})
    assert not concerns_engines({PACKAGE / "core" / "fleet.py"})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--gateway-only", "--engines-only"), "exclude each other"),
        (("--gateway-only", "--engine-port", "0"), "say with --engine-port"),
    ],
)
async def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    """Options that contradict each other end in one sentence and exit code 2."""
    code, _, log = await run("dev", *arguments, cwd=tmp_path)
    assert code == 2
    assert sentence in log


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    """Nothing is started where something else listens."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        code, _, log = await run("dev", "--port", str(port), "--engine-port", "0", cwd=tmp_path)
    assert code == 2
    assert f"port {port} cannot be had" in log
