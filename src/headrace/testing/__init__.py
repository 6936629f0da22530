"""Engines and clocks for tests: nothing here is needed to run headrace, all of it to test what talks through it.

`ScriptedEngine` controls every write of a raw socket, `MockEngine` behaves like a continuous-batching server with
faults to inject, `run_virtual` runs a coroutine on a clock that jumps.
"""

from headrace.testing import steps
from headrace.testing.connection import Script, ScriptedConnection, Step
from headrace.testing.http_reader import ReceivedRequest
from headrace.testing.link import PeerGone
from headrace.testing.load import MockStats
from headrace.testing.mock_engine import MockEngine
from headrace.testing.scripted import ScriptedEngine
from headrace.testing.virtual_time import (
    Deadlock,
    Endless,
    RealIO,
    VirtualTimeError,
    VirtualTimeLoop,
    on_virtual_time,
    run_virtual,
)
from headrace.testing.waiting import Changes, GuardExpired, guarded

__all__ = [
    "Changes",
    "Deadlock",
    "Endless",
    "GuardExpired",
    "MockEngine",
    "MockStats",
    "PeerGone",
    "RealIO",
    "ReceivedRequest",
    "Script",
    "ScriptedConnection",
    "ScriptedEngine",
    "Step",
    "VirtualTimeError",
    "VirtualTimeLoop",
    "guarded",
    "on_virtual_time",
    "run_virtual",
    "steps",
]
