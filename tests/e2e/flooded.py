"""A flood and a light user before one whole engine, played once for all tests that look at it.

The engine is the shipped mock, a continuous batch with so many slots and a first-come queue of its own; all sockets are
real, and time is virtual, so that what is compared are the engine's times and not the machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from typing import Literal

from headrace.testing import MockEngine, MockStats, run_virtual
from tests.e2e.client import client
from tests.e2e.flood import Crowd, Felt, Load, alone, crowd
from tests.e2e.front import Front, front
from tests.runtime.virtual import SETTLE

PATIENCE = 6000.0
"""Seconds, virtual, that callers wait."""
LOAD = Load()
GATED: Mapping[str, object] = {"engine": "vllm", "max_concurrent": 64}
"""As a user would have it who does not know the engine's slots: more than there are."""
UNGATED: Mapping[str, object] = {"engine": "vllm", "max_concurrent": 1024, "window_tokens": None}

How = Literal["fair", "blind", "fifo", "pass_through"]
"""With metrics; without them; by arrival behind the same gates; nothing held back."""


def a100(slots: int, speed: float = 1.0) -> MockEngine:
    """About what one such card does with a model of eight billion parameters."""
    return MockEngine(model="m", slots=slots, prefill_tps=14_700, decode_tps=90, speed=speed)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the light user felt alone, what both felt together, and what the engine saw."""

    alone: tuple[Felt, ...]
    together: Crowd
    engine: MockStats


@cache
def seen(how: How, slots: int, load: Load = LOAD) -> Seen:
    """The flood and the light user before an engine with so many slots; run once for all tests that look at it."""
    return run_virtual(_seen(how, slots, load), settle=SETTLE)


async def _seen(how: How, slots: int, load: Load) -> Seen:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(a100(slots))
        gate = await stack.enter_async_context(
            front(
                engine,
                scheduling={"policy": "fair" if how in ("fair", "blind") else "fifo"},
                instances=UNGATED if how == "pass_through" else GATED,
                metrics={"enabled": how in ("fair", "fifo")},
                timeouts={"queue": PATIENCE},
            )
        )
        caller = await stack.enter_async_context(client(gate.client.url, PATIENCE))
        before = await alone(caller, load)
        together = await crowd(caller, load, accepted(gate, load.light + load.flood))
        await gate.idle()
        return Seen(tuple(before), together, engine.stats)


async def accepted(gate: Front, number: int) -> None:
    """Wait until so many requests were accepted since the start."""
    await gate.until(lambda: gate.totals["accepted"] == number, "all of the flood is accepted")
