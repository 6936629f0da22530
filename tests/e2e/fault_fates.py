"""The words of the fault matrix: what can become of a request whose engine does something wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headrace.model import Cause, Ending
from headrace.testing import Script, steps
from tests.e2e import fault_scripts as does

LIMITS = {"connect": 2, "first_token": 12, "idle": 8, "attempt": 30}
"""Seconds; the names of the configuration's section `timeouts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How a request fares at the engine, if there is no other."""

    cause: Cause
    ending: Ending
    status: int = 200
    code: str | None = None
    kind: str | None = None
    """The error's type."""
    text: str = ""
    """What the caller has read in the end."""
    again: bool = False
    """A second instance is asked, and answers."""
    asked: int = 1
    """How often the engine is asked while it is the only one."""
    limit: str | None = None
    """Which of the timeouts ends an attempt; None: nobody waits."""
    retry_after: tuple[int, ...] = ()
    """What the header may say; (): there is none."""
    final: bool = False
    """Client libraries are told not to try again."""

    @property
    def broken(self) -> bool:
        """The caller has read a part of the answer, then an error."""
        return self.code is not None and self.status == 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault. `whole` is None where it does not apply."""

    name: str
    script: Script = field(default=steps.hang(), repr=False)
    whole: Fate | None
    stream: Fate
    engine: type[does.FaultyEngine] = does.FaultyEngine
    usage: tuple[int, int] | None = None
    """Prompt and completion tokens that are counted."""


FINE = Fate(cause=Cause.OK, ending=Ending.ANSWERED, text="fine")


def failed(cause: Cause, status: int = 502, limit: str | None = None, retry_after: tuple[int, ...] = ()) -> Fate:
    """Nothing reached the caller: the next instance is asked, and with none left this is the error."""
    code, ending = "upstream_error", Ending.INFERENCE_FAILURE
    if cause is Cause.TIMEOUT:
        status, code, ending = 504, "upstream_timeout", Ending.INFERENCE_TIMEOUT
    elif cause is Cause.BROKEN_STREAM:
        ending = Ending.STREAM_BROKEN
    return Fate(
        cause=cause,
        ending=ending,
        status=status,
        code=code,
        kind="server_error",
        again=True,
        limit=limit,
        retry_after=retry_after,
    )


def broken(cause: Cause = Cause.BROKEN_STREAM, limit: str | None = None, kind: str = "server_error") -> Fate:
    """The caller has read something: an error event ends the stream, and nobody else is asked."""
    return Fate(cause=cause, ending=Ending.STREAM_BROKEN, code="stream_incomplete", kind=kind, text="a", limit=limit)


def rejected(status: int, kind: str = "some_error", code: str | None = None) -> Fate:
    """The caller's own mistake: the engine's words are passed on, nobody is blamed, nobody else is asked."""
    return Fate(cause=Cause.REJECTED, ending=Ending.REJECTED, status=status, code=code, kind=kind, final=True)


def limited(*retry_after: int, asked: int = 1) -> Fate:
    """The engine wants to be left alone: another is asked, else it is waited for if that is not long."""
    return Fate(
        cause=Cause.RATE_LIMITED,
        ending=Ending.INFERENCE_FAILURE,
        status=429,
        code="rate_limit_exceeded",
        kind="rate_limit_error",
        again=True,
        asked=asked,
        retry_after=retry_after,
    )


def full(fate: Fate) -> Fate:
    """The same, told as want of room, since that is what the engine said: no limit of the caller's."""
    return replace(fate, status=503, code="upstream_error", kind="server_error")


OUR_KEY = Fate(
    cause=Cause.UPSTREAM_AUTH,
    ending=Ending.INFERENCE_FAILURE,
    status=502,
    code="upstream_auth",
    kind="server_error",
    again=True,
    final=True,
)
IN_VAIN = limited(5, asked=3)
"""It asks for less than the usual cooldown: waited for, and asked as often as any."""


def both(name: str, script: Script, fate: Fate, usage: tuple[int, int] | None = None) -> Row:
    """A fault that is the same to both forms."""
    return Row(name=name, script=script, whole=fate, stream=fate, usage=usage)


def streams(name: str, script: Script, fate: Fate) -> Row:
    """A fault that only streams can have."""
    return Row(name=name, script=script, whole=None, stream=fate)


def split(name: str, script: Script, *, whole: Fate, stream: Fate) -> Row:
    """A fault that is not."""
    return Row(name=name, script=script, whole=whole, stream=stream)


def at(name: str, engine: type[does.FaultyEngine], fate: Fate) -> Row:
    """A fault before any byte."""
    return Row(name=name, engine=engine, whole=fate, stream=fate)
