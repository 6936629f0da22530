"""`headrace instances`: a running gateway's instances from a terminal, and clear words when something is wrong."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import structlog
from prometheus_client import CollectorRegistry

from headrace.build import Headrace, build
from headrace.cli import main
from headrace.cli.instances import details_table, instances_table, state_of
from headrace.cli.serve import server_settings
from headrace.config import Config
from headrace.server import hosted
from headrace.testing import ScriptedEngine, steps

KEY = "k-0123456789abcdef"


@asynccontextmanager
async def gateway(key: str | None = None) -> AsyncIterator[tuple[Headrace, str]]:
    """A gateway with the built-in echo as its only instance, and its URL."""
    config = Config.model_validate(
        {
            "instances": [{"id": "first", "engine": "echo"}],
            "dead_letters": {"path": None},
            "admin": {"api_key": key},
        }
    ).with_keys({})
    registry = CollectorRegistry()
    with structlog.testing.capture_logs():
        async with (
            build(config, registry=registry, random=Random(1)) as headrace,
            hosted(headrace, server_settings(config), registry) as url,
        ):
            yield headrace, url


class Terminal:
    """Runs commands and hears what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of `headrace instances ...`."""

        def run() -> int:
            try:
                main(["instances", *arguments])
            except SystemExit as stop:
                return stop.code if isinstance(stop.code, int) else 0
            return 0

        code = await asyncio.to_thread(run)
        out = self._capsys.readouterr()
        return code, out.out, out.err


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in which no gateway and no key are named."""
    monkeypatch.delenv("HEADRACE_URL", raising=False)
    monkeypatch.delenv("HEADRACE_ADMIN_KEY", raising=False)
    return Terminal(capsys)


async def test_an_instance_s_whole_life(terminal: Terminal) -> None:
    """Added, listed, shown, drained and back, tripped and reset, removed: each says what it did."""
    async with gateway() as (headrace, url):
        at = ("--gateway", url)
        code, out, _ = await terminal(
            "add", "http://gpu.invalid:8000/v1", "--id", "gpu-1", "--engine", "vllm", "--model", "big",
            "--model", "small=big", "--max-concurrent", "4", "--window-tokens", "none", "--tier", "remote",
            "--metadata", "rack=7", *at,
        )  # fmt: skip
        assert code == 0
        assert "added gpu-1: vllm, http://gpu.invalid:8000, big, small=big" in out
        assert "warning: The name gpu.invalid" in out
        (_, entry) = headrace.registry.instances
        assert (entry.instance.max_concurrent, entry.instance.window_tokens) == (4, None)
        assert (entry.instance.tier.value, entry.instance.metadata) == ("remote", {"rack": "7"})
        _, out, _ = await terminal("list", *at)
        assert "first" in out
        assert "(built in)" in out
        assert "big, small=big" in out
        _, out, _ = await terminal("show", "gpu-1", *at)
        assert "http://gpu.invalid:8000" in out
        assert "rack=7" in out
        assert (await terminal("drain", "gpu-1", *at))[1] == "gpu-1 gets nothing new; 0 requests are running there\n"
        assert headrace.registry.drained == {"gpu-1"}
        assert (await terminal("undrain", "gpu-1", *at))[1] == "gpu-1 is used again\n"
        assert (await terminal("trip", "gpu-1", "first", *at))[1].count("is open for 60 s") == 2
        assert (await terminal("reset", "gpu-1", *at))[1] == "the breaker of gpu-1 is closed\n"
        assert (await terminal("remove", "gpu-1", *at))[1] == "removed gpu-1\n"
        assert [entry.instance.id for entry in headrace.registry.instances] == ["first"]


async def test_answers_can_be_had_as_json(terminal: Terminal) -> None:
    """Programs read what the API said."""
    async with gateway() as (_, url):
        for arguments in (["list"], ["show", "first"], ["add", "http://127.0.0.1:9", "--id", "b"]):
            code, out, _ = await terminal(*arguments, "--json", "--gateway", url + "/v1/")
            assert code == 0
            assert set(json.loads(out)) <= {"instances", "instance", "warnings"}


async def test_a_key_is_sent_and_asked_for(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the gateway's refusal says where to give it; a wrong one is called wrong; neither is printed."""
    async with gateway(KEY) as (_, url):
        code, out, err = await terminal("list", "--gateway", url)
        assert (code, out) == (2, "")
        assert "HEADRACE_ADMIN_KEY" in err
        code, _, err = await terminal("list", "--gateway", url, "--key", "wrong-key")
        assert (code, err) == (2, "headrace: This is not the admin API's key.\n")
        assert (await terminal("list", "--gateway", url, "--key", KEY))[0] == 0
        monkeypatch.setenv("HEADRACE_ADMIN_KEY", KEY)
        monkeypatch.setenv("HEADRACE_URL", url)
        assert (await terminal("list"))[0] == 0


async def test_the_gateway_s_refusals_are_told_as_they_are(terminal: Terminal) -> None:
    """One sentence on standard error, exit code 2."""
    async with gateway() as (_, url):
        at = ("--gateway", url)
        for arguments, word in [
            (["show", "nobody"], "There is no instance 'nobody'"),
            (["remove", "a b?c"], "There is no instance 'a b?c'"),
            (["drain", "nobody"], "There is no instance"),
            (["trip", "nobody"], "There is no instance"),
            (["add", "http://169.254.169.254"], "link-local"),
            (["add", "gpu:8000"], "must begin with http://"),
            (["add", url.replace("127.0.0.1", "localhost") + "/v1/"], "is the gateway itself"),
            (["add", "http://10.0.0.1", "--engine", "vlm"], "engine"),
            (["add", "http://10.0.0.1", "--max-concurrent", "many"], "max_concurrent"),
            (["add", "http://10.0.0.1", "--id", "first"], "first"),
            (["add", "http://10.0.0.1", "--metadata", "rack"], "rack=7"),
        ]:
            code, out, err = await terminal(*arguments, *at)
            assert (code, out) == (2, ""), arguments
            assert word in err
            assert err.count("\n") == 1


async def test_nothing_or_something_else_at_the_address_is_said(terminal: Terminal) -> None:
    """No traceback for a closed port, an address that is none, or a server that is no gateway."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code, _, err = await terminal("list", "--gateway", f"http://127.0.0.1:{port}")
    assert (code, "headrace serve" in err) == (2, True)
    for address in ("nonsense", "ftp://127.0.0.1", "http://[::1"):
        code, _, err = await terminal("list", "--gateway", address)
        assert (code, address in err) == (2, True)
    page = steps.whole(200, b"<html>", [("content-type", "text/html")])
    gone = steps.whole(404, b"<html>", [("content-type", "text/html")])
    for script in (page, gone, steps.raw(b"SSH-2.0-x\r\n"), steps.json(200, [])):
        async with ScriptedEngine(script) as other:
            code, _, err = await terminal("list", "--gateway", other.url)
            assert (code, err.count("\n"), "Traceback" in err) == (2, 1, False)
    async with gateway() as (_, url):
        code, _, err = await terminal("list", "--gateway", url, "--key", "caf\u00e9\u20ac")
        assert (code, err.count("\n")) == (2, 1)


def test_how_an_instance_is_doing_is_said_in_a_word() -> None:
    """What matters most comes first: drained, down, the breaker, the gate."""
    up: dict[str, object] = {"healthy": True, "draining": False, "breaker": "closed", "gate": "open"}
    assert state_of(up) == "up"
    assert state_of({**up, "gate": "in_flight"}) == "up, in_flight"
    assert state_of({**up, "breaker": "half_open"}) == "breaker half-open"
    assert state_of({**up, "healthy": False, "breaker": "open"}) == "down"
    assert state_of({**up, "draining": True, "healthy": False}) == "draining"


def test_tables_take_what_an_older_gateway_leaves_out() -> None:
    """A field that is not there is a dash, not an error."""
    assert instances_table([{"id": "a", "models": ["m"]}]).row_count == 1
    assert (
        details_table({"id": "a", "models": ["m", "n"], "metadata": {}, "speed_tokens_per_second": None}).row_count == 4
    )
