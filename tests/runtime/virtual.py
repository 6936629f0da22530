"""Virtual time for tests whose peers are on loopback in the same event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from headrace.testing import run_virtual

P = ParamSpec("P")

_SETTLE = 0.004
"""Real seconds of silence on all sockets after which virtual time jumps."""


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorator: the test runs on virtual time, loopback sockets included."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs), settle=_SETTLE)

    return run
