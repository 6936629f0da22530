"""The faults a mock engine can be told to have, by admin call or by the request itself. Pure values, no IO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

HEADER = "x-mock-fault"
"""The request header that gives one request a fault: `name` or `name=argument`."""


class FaultName(StrEnum):
    """What goes wrong. In brackets what the header's argument means."""

    FAIL = "fail"
    """A whole error answer [status, default 500]."""
    RATE_LIMIT = "rate_limit"
    """429 with `Retry-After` [seconds, default 1]."""
    HANG = "hang"
    """The request is taken, holds a slot, and nothing is ever sent."""
    SLOW = "slow"
    """The first token comes later [by seconds, default 1]."""
    STALL = "stall"
    """No further token for a while [after chunks, default 1]."""
    CUT = "cut"
    """The connection closes without the end of the body [after chunks, default 1]."""
    RESET = "reset"
    """The connection is reset [after chunks, default 0: before any head]."""
    GARBAGE = "garbage"
    """200 with a body that is no answer [`json`: broken JSON, `html`: a web page; default json]."""
    ERROR_EVENT = "error_event"
    """An error event inside a 200 stream [after chunks, default 0]."""


class Scope(StrEnum):
    """Which requests a fault hits."""

    INFERENCE = "inference"
    HEALTH = "health"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault and how often it strikes.

    It strikes until it has hit `count` requests, until `for_seconds` are over, or (both None) until it is cleared.
    """

    name: FaultName
    status: int = 500
    after: int = 0
    """Chunks with content that are still sent before it strikes."""
    seconds: float = 0.0
    """How long a stall or the wait for the first token lasts; infinite for a hang."""
    retry_after: str = "1"
    """The header's value as it is sent, so that odd forms can be tried."""
    form: str = "json"
    count: int | None = None
    for_seconds: float | None = None
    scope: Scope = Scope.INFERENCE
    message: str = "injected fault"
    type: str = "server_error"

    def to_json(self) -> dict[str, object]:
        """The fault as `GET /admin/faults` shows it."""
        seconds = self.seconds if math.isfinite(self.seconds) else None
        return {
            "fault": self.name.value,
            "status": self.status,
            "after": self.after,
            "seconds": seconds,
            "retry_after": self.retry_after,
            "form": self.form,
            "count": self.count,
            "for_seconds": self.for_seconds,
            "scope": self.scope.value,
            "message": self.message,
            "type": self.type,
        }


_DEFAULTS: Mapping[FaultName, Mapping[str, object]] = {
    FaultName.RATE_LIMIT: {"status": 429, "type": "rate_limit_error"},
    FaultName.HANG: {"seconds": math.inf},
    FaultName.SLOW: {"seconds": 1.0},
    FaultName.STALL: {"after": 1, "seconds": 60.0},
    FaultName.CUT: {"after": 1},
}
_ARGUMENT: Mapping[FaultName, str] = {
    FaultName.FAIL: "status",
    FaultName.RATE_LIMIT: "retry_after",
    FaultName.SLOW: "seconds",
    FaultName.STALL: "after",
    FaultName.CUT: "after",
    FaultName.RESET: "after",
    FaultName.GARBAGE: "form",
    FaultName.ERROR_EVENT: "after",
}
_KEYS = frozenset(Fault.__dataclass_fields__) - {"name"}


def from_header(text: str) -> Fault:
    """The fault that `name[=argument][;key=value]...` stands for, for one request; raises ValueError.

    `stall=2;seconds=5` stalls for 5 s after two chunks. The keys are those of the admin call.
    """
    first, *rest = (part.strip() for part in text.split(";"))
    word, equals, argument = first.partition("=")
    fields: dict[str, object] = {"fault": word}
    if equals:
        name = _name(word)
        if name not in _ARGUMENT:
            raise ValueError(f"the fault {word} takes no argument")
        fields[_ARGUMENT[name]] = argument
    for part in rest:
        key, _, value = part.partition("=")
        fields[key.strip()] = value.strip()
    return replace(from_json(fields), count=1)


def from_json(fields: Mapping[str, object]) -> Fault:
    """The fault that an admin call's object stands for: `fault` and any of the fields of `Fault`; raises ValueError."""
    name = _name(str(fields.get("fault", "")))
    merged = {**_DEFAULTS.get(name, {}), **{key: value for key, value in fields.items() if key != "fault"}}
    unknown = sorted(set(merged) - _KEYS)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]}; known are fault, {', '.join(sorted(_KEYS))}")
    plain = Fault(name=name)
    form = str(merged.get("form", plain.form))
    if form not in ("json", "html"):
        raise ValueError(f"form must be json or html, not {form[:40]}")
    try:
        return Fault(
            name=name,
            status=_status(merged.get("status", plain.status)),
            after=int(_number(merged.get("after", plain.after))),
            seconds=_number(merged.get("seconds", plain.seconds)),
            retry_after=str(merged.get("retry_after", plain.retry_after)),
            form=form,
            count=None if merged.get("count") is None else int(_number(merged["count"])),
            for_seconds=None if merged.get("for_seconds") is None else _number(merged["for_seconds"]),
            scope=Scope(str(merged.get("scope", plain.scope))),
            message=str(merged.get("message", plain.message))[:1000],
            type=str(merged.get("type", plain.type))[:100],
        )
    except OverflowError:
        raise ValueError("a number is too large") from None


def _name(word: str) -> FaultName:
    try:
        return FaultName(word.strip())
    except ValueError:
        known = ", ".join(FaultName)
        raise ValueError(f"unknown fault {word[:40]!r}; known are {known}") from None


def _number(value: object) -> float:
    number = float(value) if isinstance(value, int | float | str) else math.nan
    if math.isnan(number) or number < 0:
        raise ValueError(f"expected a number of at least 0, not {str(value)[:40]!r}")
    return number


def _status(value: object) -> int:
    status = int(_number(value))
    if not 400 <= status <= 599:
        raise ValueError(f"status must be 400 to 599, not {status}")
    return status


@dataclass(slots=True)
class _Armed:
    fault: Fault
    left: int | None
    until: float


class FaultBox:
    """The faults that are armed, oldest first; at most 64 at a time. Times are seconds on the caller's clock."""

    CAPACITY = 64

    def __init__(self) -> None:
        self._armed: list[_Armed] = []

    def add(self, fault: Fault, now: float) -> None:
        """Arm a fault; raises ValueError when 64 are armed."""
        self._expire(now)
        if len(self._armed) >= self.CAPACITY:
            raise ValueError(f"{self.CAPACITY} faults are armed already; clear some")
        until = math.inf if fault.for_seconds is None else now + fault.for_seconds
        self._armed.append(_Armed(fault, fault.count, until))
        self._expire(now)

    def take(self, scope: Scope, now: float) -> Fault | None:
        """The fault that strikes a request of that scope: the oldest one, whose count goes down by one."""
        self._expire(now)
        for armed in self._armed:
            if armed.fault.scope in (scope, Scope.ALL):
                if armed.left is not None:
                    armed.left -= 1
                return armed.fault
        return None

    def clear(self) -> None:
        """Disarm everything."""
        self._armed.clear()

    def armed(self, now: float) -> list[Fault]:
        """What is armed, with the count and the seconds that are left."""
        self._expire(now)
        return [
            replace(
                armed.fault,
                count=armed.left,
                for_seconds=None if armed.until == math.inf else armed.until - now,
            )
            for armed in self._armed
        ]

    def _expire(self, now: float) -> None:
        self._armed = [armed for armed in self._armed if armed.left != 0 and armed.until > now]
