"""The words headrace speaks: frozen values that pass between its rooms.

Facts (`Event`) go into the scheduler, orders (`Decision`) come out. Everything here is a value: it holds no
clock, no socket and no behaviour beyond reading itself. Times are seconds on the scheduler's monotonic clock
unless a name says `wall`; tokens are counts; money is absent.
"""

from __future__ import annotations

from headrace.model.decision import Abort, Bury, Decision, Dispatch, Join, LookUp, Remember, Settle, WakeAt
from headrace.model.event import (
    Arrived,
    Cancelled,
    Drained,
    Draining,
    EngineReport,
    Event,
    Finished,
    Learned,
    Looked,
    Mended,
    Probed,
    Progressed,
    Recalled,
    Reconfigured,
    Reported,
    Sealed,
    Started,
    Tripped,
    Woke,
)
from headrace.model.kinds import (
    AnswerForm,
    BreakerState,
    CacheResult,
    Cause,
    Ending,
    Engine,
    FallbackCause,
    OutcomeKind,
    ServiceClass,
    Tier,
)
from headrace.model.outcome import AttemptRecord, DeadLetter, Outcome
from headrace.model.request import Flow, Instance, Request, ServedModel, Usage
from headrace.model.view import InstanceView, Snapshot

__all__ = [
    "Abort",
    "AnswerForm",
    "Arrived",
    "AttemptRecord",
    "BreakerState",
    "Bury",
    "CacheResult",
    "Cancelled",
    "Cause",
    "DeadLetter",
    "Decision",
    "Dispatch",
    "Drained",
    "Draining",
    "Ending",
    "Engine",
    "EngineReport",
    "Event",
    "FallbackCause",
    "Finished",
    "Flow",
    "Instance",
    "InstanceView",
    "Join",
    "Learned",
    "LookUp",
    "Looked",
    "Mended",
    "Outcome",
    "OutcomeKind",
    "Probed",
    "Progressed",
    "Recalled",
    "Reconfigured",
    "Remember",
    "Reported",
    "Request",
    "Sealed",
    "ServedModel",
    "ServiceClass",
    "Settle",
    "Snapshot",
    "Started",
    "Tier",
    "Tripped",
    "Usage",
    "WakeAt",
    "Woke",
]
