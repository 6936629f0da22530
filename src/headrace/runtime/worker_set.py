"""The workers of a pipeline as instances: a name and a backend for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from headrace.model import Engine, Instance
from headrace.runtime.backend import Backend, Timeouts
from headrace.runtime.workers import WorkerBackend, WorkerLike


class ClosingBackend(Backend, Protocol):
    """A backend with something to let go of."""

    async def close(self) -> None:
        """Let go of it."""
        ...


@runtime_checkable
class BringsBackend(Protocol):
    """A worker that is asked in a way of its own."""

    def attempt_backend(self, timeouts: Timeouts) -> ClosingBackend:
        """Makes what carries out its attempts."""
        ...


AnyWorker: TypeAlias = "WorkerLike | BringsBackend"


def backends(
    workers: AnyWorker | Sequence[AnyWorker] | Mapping[str, AnyWorker], timeouts: Timeouts
) -> dict[str, ClosingBackend]:
    """A backend for each worker, by name; those without one are `worker-1`, `worker-2`, ...

    Raises:
        ValueError: there is no worker.
        TypeError: something is no worker.
    """
    if isinstance(workers, Mapping):
        named = dict(workers)
    else:
        several = workers if isinstance(workers, Sequence) else (workers,)
        named = {f"worker-{number}": worker for number, worker in enumerate(several, 1)}
    if not named:
        raise ValueError("a pipeline needs a worker")
    return {name: backend(worker, timeouts) for name, worker in named.items()}


def instances(names: Mapping[str, object], max_concurrent: int) -> list[Instance]:
    """The workers as the scheduler sees them: each serves every model."""
    return [Instance(id=name, engine=Engine.WORKER, max_concurrent=max_concurrent) for name in names]


def backend(worker: AnyWorker, timeouts: Timeouts) -> ClosingBackend:
    """What carries out the attempts at one worker.

    Raises:
        TypeError: it is no worker.
    """
    if isinstance(worker, BringsBackend):
        return worker.attempt_backend(timeouts)
    return WorkerBackend(worker, timeouts)
