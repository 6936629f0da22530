"""A process that can open nothing more."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def none_left() -> Iterator[None]:
    """No file descriptor can be had; those there are keep working."""
    granted = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, granted[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, granted)
