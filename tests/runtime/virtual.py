"""Virtual time for tests whose peers are on loopback in the same event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from headrace.testing import run_virtual

P = ParamSpec("P")

SETTLE = 0.001
"""Real seconds of silence on all sockets after which virtual time jumps. All peers live in the same thread, and what is
sent over loopback can be read when the sending call returns: nothing ever came later, however busy the machine."""


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorator: the test runs on virtual time, loopback sockets included."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs), settle=SETTLE)

    return run


async def later(seconds: float) -> None:
    """Let virtual time pass; only on a virtual-time loop."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_later(seconds, passed.set_result, None)
    await passed
