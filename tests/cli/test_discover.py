"""`headrace discover`: an engine's models become one instance of a running gateway, and nobody else's is touched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from headrace.cli import main
from headrace.cli.discover import Change, Step, place_of, plan
from headrace.errors import ConfigError
from headrace.model import Engine, Flow, Instance, ServedModel
from headrace.testing import MockEngine
from headrace.wire.discovery import Found
from tests.cli.test_instances import gateway

OLLAMA = {"/api/tags": {"models": [{"name": "qwen3:8b", "model": "qwen3:8b"}, {"name": "nomic", "model": "nomic"}]}}


@asynccontextmanager
async def listing(pages: Mapping[str, object], status: int = 404) -> AsyncIterator[str]:
    """An HTTP server with JSON at these paths, raw bytes where a page is bytes, and `status` everywhere else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        page = pages.get(head.split(b" ", 2)[1].decode())
        body = page if isinstance(page, bytes) else json.dumps(page).encode()
        code = status if page is None else 200
        writer.write(b"HTTP/1.1 %d -\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (code, len(body)) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HEADRACE_URL", "HEADRACE_ADMIN_KEY", "ENGINE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


async def discover(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `headrace discover ...`."""

    def run() -> int:
        try:
            main(["discover", *arguments])
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else 0
        return 0

    code = await asyncio.to_thread(run)
    out = capsys.readouterr()
    return code, out.out, out.err


async def test_an_engine_becomes_one_instance_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Its kind is found, its models are registered together, and a second run changes nothing."""
    pages = dict(OLLAMA)
    async with gateway() as (headrace, url), listing(pages) as engine:
        code, out, _ = await discover(capsys, engine, "--gateway", url, "--id", "box", "--max-concurrent", "2")
        assert code == 0
        assert "added the instance box with 2 models" in out
        (_, entry) = headrace.registry.instances
        assert entry.instance.engine is Engine.OLLAMA
        assert entry.instance.models == (ServedModel(name="qwen3:8b"), ServedModel(name="nomic"))
        assert (entry.instance.max_concurrent, entry.source) == (2, f"discovered:{engine}")
        before = headrace.registry.instances
        _, out, _ = await discover(capsys, engine, "--gateway", url)
        assert "the instance box has them already" in out
        assert headrace.registry.instances == before


async def test_models_that_come_and_go_are_followed(capsys: pytest.CaptureFixture[str]) -> None:
    """A new model is added to the instance, one that is gone leaves it, and with the last one it goes itself."""
    pages: dict[str, object] = {"/v1/models": {"data": [{"id": "a", "owned_by": "vllm"}]}}
    async with gateway() as (headrace, url), listing(pages) as engine:
        await discover(capsys, engine, "--gateway", url)
        pages["/v1/models"] = {"data": [{"id": "b", "owned_by": "vllm"}, {"id": "c", "owned_by": "vllm"}]}
        _, out, _ = await discover(capsys, engine, "--gateway", url)
        assert "now has 2 models" in out
        assert [served.name for served in headrace.registry.instances[1].instance.models] == ["b", "c"]
        pages["/v1/models"] = {"data": []}
        _, out, _ = await discover(capsys, engine, "--gateway", url)
        assert "removed the instance" in out
        assert [entry.instance.id for entry in headrace.registry.instances] == ["first"]


async def test_only_its_own_are_taken_away(capsys: pytest.CaptureFixture[str]) -> None:
    """`--remove` leaves instances of the configuration, of people and of other URLs alone."""
    async with gateway() as (headrace, url), listing(OLLAMA) as engine, listing(OLLAMA) as other:
        headrace.registry.add(Instance(id="mine", address=engine, models=(ServedModel(name="own"),)), "admin")
        await discover(capsys, engine, "--gateway", url, "--id", "one")
        await discover(capsys, other, "--gateway", url, "--id", "two")
        code, out, _ = await discover(capsys, engine, "--remove", "--gateway", url)
        assert (code, out) == (0, "removed one\n")
        assert {entry.instance.id for entry in headrace.registry.instances} == {"first", "mine", "two"}
        _, out, _ = await discover(capsys, engine, "--remove", "--gateway", url)
        assert "nothing was registered from" in out


async def test_a_dry_run_asks_no_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    """With `--dry-run` it lists what is there, also where no gateway runs; as JSON, too."""
    async with MockEngine(model="m") as engine:
        code, out, _ = await discover(capsys, engine.url, "--dry-run", "--gateway", "http://127.0.0.1:9")
        assert (code, out) == (0, f"vllm at {engine.url}\n  m\n")
        _, out, _ = await discover(capsys, engine.url, "--dry-run", "--json")
        told = json.loads(out)
        assert (told["engine"], told["models"], told["change"]) == ("vllm", ["m"], None)


async def test_a_discovered_engine_answers_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """What was discovered is asked without a restart."""
    async with gateway() as (headrace, url), MockEngine(model="fresh") as engine:
        assert not headrace.places()
        code, *_ = await discover(capsys, engine.url, "--gateway", url)
        assert code == 0
        assert "fresh" in {name for view in headrace.snapshot().instances for name in view.models}
        assert not headrace.positions(Flow())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("http://127.0.0.1:9",), "nothing answers at http://127.0.0.1:9"),
        (("nonsense", "http://127.0.0.1:9"), "'nonsense' is no kind of engine"),
        (("a", "b", "c"), "give one URL"),
        (("ftp://127.0.0.1",), "URL: the address must begin with http"),
        (("http://127.0.0.1:9", "--api-key-env", "ENGINE_API_KEY"), "ENGINE_API_KEY is not set"),
        (("http://127.0.0.1:8080/v1",), "is the gateway itself"),
    ],
)
async def test_what_cannot_be_done_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    """A mistake in the asking is one sentence and exit code 2."""
    code, _, err = await discover(capsys, *arguments)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("pages", "status", "sentence"),
    [
        ({"/v1/models": b"<html>Welcome</html>"}, 404, "is no engine that headrace knows"),
        ({"/v1/models": b"[" * 100_000}, 404, "is no engine that headrace knows"),
        ({"/v1/models": b'"' + b"x" * 1_048_576 + b'"'}, 404, "is no engine that headrace knows"),
        ({}, 401, "wants a key; name the variable that holds it with --api-key-env"),
    ],
)
async def test_what_is_no_engine_is_not_taken_for_one(
    capsys: pytest.CaptureFixture[str], pages: dict[str, object], status: int, sentence: str
) -> None:
    """A web page, nonsense, an endless list and a closed door are told apart from an engine without models."""
    async with listing(pages, status) as url:
        code, _, err = await discover(capsys, url, "--dry-run")
    assert code == 2
    assert sentence in err


def test_others_at_the_same_address_keep_their_models() -> None:
    """What somebody registered there, under an alias or with a star, is not registered again."""
    found, address = Found(Engine.VLLM, ("a", "b")), "http://gpu:8000"
    theirs = {"id": "x", "address": "http://GPU:8000/v1", "models": ["small=a"], "source": "config"}
    assert plan(found, address, [theirs]) == Step(Change.ADDED, None, ("b",))
    assert plan(found, address, [{**theirs, "models": ["*"]}]) == Step(Change.ELSEWHERE)
    assert plan(Found(Engine.VLLM, ()), address, []) == Step(Change.NOTHING)


def test_a_kind_knows_its_port() -> None:
    """`discover ollama box` means Ollama's usual port, `discover ollama` there on this machine; a URL says its own."""
    assert place_of(["ollama"]) == (Engine.OLLAMA, "http://127.0.0.1:11434")
    assert place_of(["ollama", "box"]) == (Engine.OLLAMA, "http://box:11434")
    assert place_of(["lmstudio", "http://box:5000/v1/"]) == (Engine.LMSTUDIO, "http://box:5000")
    with pytest.raises(ConfigError):
        place_of(["http://user:secret@box"])
