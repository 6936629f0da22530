"""A process that serves takes as many sockets as it may."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("resource")

_ASK = """
import resource
from headrace.server.serving import open_many_sockets
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (128, {most}))
open_many_sockets()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("most", ["min(most, 4096)", "128"], ids=["more is allowed", "nothing more is allowed"])
def test_a_low_first_limit_is_raised_to_what_is_allowed(most: str) -> None:
    """Systems grant few sockets at first; a gateway that left it at that would cut callers off at five hundred streams.

    The limit that only an administrator may raise stays what it was.
    """
    told = subprocess.run([sys.executable, "-c", _ASK.format(most=most)], check=True, capture_output=True, text=True)
    granted, allowed = map(int, told.stdout.split())
    assert granted == allowed
