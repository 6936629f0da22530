"""A provider that can be switched off: it stands in front of any worker and answers 503 in its place."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace.model import Cause, Dispatch, Outcome
from headrace.runtime.backend import Port, Running, Timeouts
from headrace.runtime.worker_errors import unavailable
from headrace.runtime.worker_set import AnyWorker, ClosingBackend, backend
from headrace.wire.frames import Frame


class Watcher(Protocol):
    """Sees what gets through to the model."""

    def model_start(self, request_id: str) -> None:
        """The model is asked."""
        ...

    def model_done(self, request_id: str) -> None:
        """It has answered, or failed."""
        ...


class Outage:
    """`model`, unless `down`: then every attempt is answered with 503 before it gets there."""

    def __init__(self, model: AnyWorker) -> None:
        self._model = model
        self._watchers: list[Watcher] = []
        self.down = False
        self.passed = 0
        """Attempts that reached the model."""

    def watch(self, watcher: Watcher) -> None:
        """Let `watcher` see what gets through."""
        self._watchers.append(watcher)

    def attempt_backend(self, timeouts: Timeouts) -> _OutageBackend:
        """The model's own backend, with the switch before it."""
        return _OutageBackend(self, backend(self._model, timeouts))

    def began(self, request_id: str) -> None:
        """An attempt reaches the model."""
        self.passed += 1
        for watcher in self._watchers:
            watcher.model_start(request_id)

    def ended(self, request_id: str) -> None:
        """It is over."""
        for watcher in self._watchers:
            watcher.model_done(request_id)


class _OutageBackend:
    def __init__(self, switch: Outage, model: ClosingBackend) -> None:
        self._switch = switch
        self._model = model

    def start(self, dispatch: Dispatch, port: Port) -> Running:
        """Ask the model, or say 503 in its place."""
        if self._switch.down:
            return _Unavailable(port)
        self._switch.began(dispatch.request.id)
        return self._model.start(dispatch, _WatchedPort(self._switch, dispatch.request.id, port))

    async def close(self) -> None:
        """Let go of the model."""
        await self._model.close()


class _Unavailable:
    """An attempt that is answered with 503."""

    def __init__(self, port: Port) -> None:
        outcome = Outcome(Cause.SERVER_ERROR, status=503, detail="HTTP 503", fault=unavailable())
        self._answer = asyncio.get_running_loop().call_soon(port.finished, outcome)

    def abort(self) -> None:
        """Nobody waits for it any more."""
        self._answer.cancel()

    def pause(self) -> None:
        """It has nothing to say."""

    def resume(self) -> None:
        """It has nothing to say."""


class _WatchedPort:
    """Hands everything on and reports the end."""

    def __init__(self, switch: Outage, request_id: str, port: Port) -> None:
        self._switch = switch
        self._request_id = request_id
        self.started = port.started
        self.progressed = port.progressed
        self._port = port

    def feed(self, frame: Frame) -> None:
        """Bytes for the callers."""
        self._port.feed(frame)

    def finished(self, outcome: Outcome) -> None:
        """The end."""
        self._switch.ended(self._request_id)
        self._port.finished(outcome)
