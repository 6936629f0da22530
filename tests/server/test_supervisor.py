"""Workers are kept alive, with growing pauses, and stopped together."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

import pytest

from headrace.server.supervisor import FIRST_PAUSE, HOPELESS, LONGEST_PAUSE, STEADY, Supervisor


class Machine:
    """A system in which time passes only while somebody waits. `script`: what happens at which second, in order.

    A number is the exit code with which the worker started last ends (or (worker, code)); "stop" a signal to the
    supervisor, after which the workers end with `obedient` when they are told to.
    """

    def __init__(self, *script: tuple[float, int | str], obedient: int = 0) -> None:
        self._script = list(script)
        self._obedient = obedient
        self._time = 0.0
        self._dead: list[tuple[int, int]] = []
        self.alive: dict[int, int] = {}
        self.started: list[tuple[float, int]] = []
        self.told: list[int] = []

    def start(self, worker: int) -> int:
        process = 100 + len(self.started)
        self.started.append((self._time, worker))
        self.alive[process] = worker
        return process

    def wait(self, seconds: float | None) -> bool:
        if self._dead:
            return False
        due = self._script[0][0] if self._script else None
        if due is None or (seconds is not None and self._time + seconds < due):
            assert seconds is not None, "it would wait for ever"
            self._time += seconds
            return False
        self._time, what = self._script.pop(0)
        if what == "stop":
            return True
        assert isinstance(what, int)
        self._end(max(self.alive), what)
        return False

    def ended(self) -> Iterable[tuple[int, int]]:
        dead, self._dead = self._dead, []
        return dead

    def stop(self, process: int) -> None:
        self.told.append(process)
        self._end(process, self._obedient)

    def now(self) -> float:
        return self._time

    def _end(self, process: int, code: int) -> None:
        if self.alive.pop(process, None) is not None:
            self._dead.append((process, code))


def run(machine: Machine, workers: int = 2) -> tuple[int, Sequence[float]]:
    """The exit code, and when workers were started beyond the first ones."""
    code = Supervisor(machine, workers).run()
    assert not machine.alive
    return code, [when for when, _ in machine.started[workers:]]


def test_a_stop_ends_all_and_is_no_failure() -> None:
    """Told to stop, it tells every worker, starts none anew, and the exit code is 0."""
    machine = Machine((5.0, "stop"))
    assert run(machine, 3) == (0, [])
    assert machine.told == [100, 101, 102]


def test_a_worker_that_cannot_stop_well_shows_in_the_exit_code() -> None:
    """The supervisor's exit code is not 0 when a worker's is not."""
    assert run(Machine((5.0, "stop"), obedient=3))[0] == 1


def test_a_worker_that_was_just_starting_may_end_by_the_signal() -> None:
    """A stop in the first moments, before a worker heeds it in its own way, is no failure; any other signal's is."""
    assert run(Machine((0.1, "stop"), obedient=-signal.SIGTERM))[0] == 0
    assert run(Machine((0.1, "stop"), obedient=-signal.SIGKILL))[0] == 1


def test_a_dead_worker_is_started_again_after_a_pause() -> None:
    """An end that nobody asked for, with whatever code, is followed by a new worker of the same number."""
    machine = Machine((100.0, 0), (200.0, -9), (300.0, "stop"))
    assert run(machine) == (0, [100.0 + FIRST_PAUSE, 200.0 + FIRST_PAUSE])
    assert [worker for _, worker in machine.started] == [0, 1, 1, 1]


def test_pauses_grow_while_it_dies_quickly_and_start_anew_when_it_lived() -> None:
    """1, 2, 4 seconds after quick ends; a worker that lived for a while begins at 1 again."""
    first = 1.0
    second = first + 1.0 + 1.0
    third = second + 2.0 + 1.0
    lived = third + 4.0 + STEADY
    machine = Machine((first, 1), (second, 1), (third, 1), (lived, 1), (lived + 50.0, "stop"))
    assert run(machine) == (0, [first + 1.0, second + 2.0, third + 4.0, lived + FIRST_PAUSE])
    assert max(1.0, FIRST_PAUSE * 2 ** (HOPELESS - 2)) <= LONGEST_PAUSE


def test_one_that_dies_at_once_again_and_again_ends_all() -> None:
    """After so many quick ends of one worker the others are stopped, too, and the exit code says that it failed."""
    script: list[tuple[float, int | str]] = []
    when = 0.0
    for number in range(HOPELESS):
        when += 0.5
        script.append((when, 1))
        when += FIRST_PAUSE * 2**number
    code, _ = run(Machine(*script))
    assert code == 1


def test_a_stop_while_a_worker_pauses_starts_it_no_more() -> None:
    """What was due is forgotten."""
    assert run(Machine((1.0, 1), (1.5, "stop"))) == (0, [])


@pytest.mark.parametrize("workers", [1, 8])
def test_every_worker_is_started_once(workers: int) -> None:
    """In the order of their numbers, at once."""
    machine = Machine((1.0, "stop"))
    run(machine, workers)
    assert machine.started == [(0.0, worker) for worker in range(workers)]
