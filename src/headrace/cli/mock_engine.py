"""`headrace mock-engine`: an engine to try a gateway against, without a model."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import Refused

if TYPE_CHECKING:
    from headrace.testing import MockEngine


class SchedulingPolicy(StrEnum):
    """vLLM's names for the order of an engine's own queue."""

    FCFS = "fcfs"
    PRIORITY = "priority"


_Order = typer.Option(help="Who of them is next: fcfs, or priority (the body's, lower first).")


def mock_engine(
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="Name of the one model it serves.")] = "mock",
    slots: Annotated[int, typer.Option(help="Requests answered at the same time.")] = 4,
    queue: Annotated[int, typer.Option(help="Requests that may wait for a slot; one more gets 503.")] = 1024,
    scheduling_policy: Annotated[SchedulingPolicy, _Order] = SchedulingPolicy.FCFS,
    prefill_tps: Annotated[float, typer.Option(help="Prompt tokens per second, of all requests together.")] = 4000.0,
    decode_tps: Annotated[float, typer.Option(help="Answer tokens per second of a request that runs alone.")] = 50.0,
    batch_slowdown: Annotated[float, typer.Option(help="Slower by this fraction for each further request.")] = 0.02,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of prompts and answers that fit at the same time.")] = 65536,
    speed: Annotated[float, typer.Option(help="Divides every duration.")] = 1.0,
    jitter: Annotated[float, typer.Option(help="Durations vary by up to this fraction.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Start of the random numbers behind --jitter.")] = 0,
    eos_after: Annotated[int | None, typer.Option(help="Tokens after which answers end by themselves.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Bearer token that requests need.")] = None,
) -> None:
    """Play a continuous-batching engine: OpenAI API, vLLM's metrics, faults on demand. Ctrl-C stops it."""
    from headrace.testing import MockEngine

    with _explained():
        engine = MockEngine(
            model=model,
            host=host,
            port=port,
            slots=slots,
            queue=queue,
            by_priority=scheduling_policy is SchedulingPolicy.PRIORITY,
            prefill_tps=prefill_tps,
            decode_tps=decode_tps,
            batch_slowdown=batch_slowdown,
            kv_tokens=kv_tokens,
            speed=speed,
            jitter=jitter,
            seed=seed,
            eos_after=eos_after,
            api_key=api_key,
        )
    _run(engine)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Numbers that make no sense are the asker's mistake."""
    try:
        yield
    except ValueError as error:
        raise Refused(f"{error}.") from None


def _run(engine: MockEngine) -> None:
    """Serve until SIGINT or SIGTERM, on uvloop where there is one."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_serve(engine))
    except OSError as error:
        place = engine.url.removeprefix("http://")
        raise Refused(f"Cannot listen on {place}: {error.strerror}.") from None


async def _serve(engine: MockEngine) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with engine:
        print(f"The mock engine serves the model {engine.model} at {engine.url}; Ctrl-C stops it.", flush=True)
        await stop.wait()
