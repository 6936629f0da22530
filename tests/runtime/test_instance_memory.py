"""What is known of instances outlasts the process; a broken file is nobody's error but the operator's."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.model import Drained, Engine, Event, Instance, Learned, Recalled, Reconfigured, ServedModel
from headrace.runtime.instance_memory import EVERY, FORGET, InstanceMemory
from headrace.runtime.registry import Registry
from headrace.runtime.stores.database import sqlite_url

BUSY = Learned(
    instance="a",
    speed=80.0,
    reliability=0.7,
    prefill_seconds=1e-4,
    token_seconds=0.02,
    limit=17.5,
    opens_in=40.0,
    wait=120.0,
    cooldown=3.0,
)


def vllm(name: str, *models: str, address: str = "") -> Instance:
    """An engine at an address of its own."""
    served = tuple(ServedModel(name=model, upstream=f"x-{model}") for model in models or ("m",))
    return Instance(
        id=name, address=address or f"http://{name}", engine=Engine.VLLM, models=served, metadata={"rack": "7"}
    )


@pytest.fixture(autouse=True)
async def _threads_end_before_the_loop() -> AsyncIterator[None]:
    """The driver lets go of a connection that could not be made without waiting for its thread."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if "_connection_worker" in thread.name:
            await asyncio.to_thread(thread.join, 5.0)  # that of a test that failed ends with the process only


class Process:
    """One process's registry, its memory in `path`, and a scheduler that learns what it is told."""

    def __init__(self, path: Path, *configured: Instance, every: float = EVERY, workers: int = 1) -> None:
        self.wall = 1_000_000.0
        self.told: list[Event] = []
        self.learned: tuple[Learned, ...] = ()
        self.registry = Registry(configured, self.told.append)
        self.memory = InstanceMemory(
            sqlite_url(path),
            self.registry,
            self.told.append,
            self._look,
            wall=lambda: self.wall,
            every=every,
            workers=workers,
        )
        self.looks = 0
        self.looked = asyncio.Event()

    def _look(self) -> tuple[Learned, ...]:
        self.looks += 1
        if self.looks == 3:
            self.looked.set()
        return self.learned

    @property
    def ids(self) -> list[str]:
        """The instances, in order."""
        return [entry.instance.id for entry in self.registry.instances]

    @property
    def recalled(self) -> tuple[Learned, ...]:
        """What the scheduler was told of earlier processes."""
        return next((event.learned for event in self.told if isinstance(event, Recalled)), ())


async def opened(path: Path, *configured: Instance, at: float = 1_000_000.0) -> Process:
    """A process that has just started at that wall-clock time."""
    process = Process(path, *configured)
    process.wall = at
    await process.memory.open()
    return process


async def after(path: Path, learned: Sequence[Learned], *configured: Instance, at: float) -> tuple[Learned, ...]:
    """What a process that starts `at` is told, when one that wrote at 1,000,000 had learned this."""
    first = await opened(path, *configured)
    first.learned = tuple(learned)
    await first.memory.close()
    second = await opened(path, *configured, at=at)
    await second.memory.close()
    return second.recalled


async def test_what_was_registered_changed_removed_and_drained_is_so_after_a_kill(tmp_path: Path) -> None:
    """In the order of registration, every field, written before `flush` returns: nothing was closed."""
    path = tmp_path / "state.db"
    first = await opened(path, vllm("a"))
    for name in ("z", "y", "x", "w"):
        first.wall += 1.0
        first.registry.add(vllm(name), f"discovered:http://{name}")
    first.registry.remove("y")
    first.registry.drain("a")
    first.registry.drain("x")
    first.registry.drain("w")
    first.registry.undrain("w")
    assert await first.memory.flush()
    first.registry.replace("z", vllm("z", "new"))
    assert await first.memory.flush()

    second = await opened(path, vllm("a"), at=2_000_000.0)
    assert [entry for entry in second.registry.instances if entry.source != "config"] == list(first.registry.kept)
    assert second.ids == ["a", "z", "x", "w"]
    assert second.registry.drained == {"a", "x"}
    assert isinstance(second.told[0], Reconfigured)
    assert {event for event in second.told if isinstance(event, Drained)} == {Drained("a"), Drained("x")}
    await second.memory.close()
    await first.memory.close()


async def test_what_was_learned_is_told_to_the_next_process_less_the_time_between(tmp_path: Path) -> None:
    """Ten seconds later the breaker opens ten seconds sooner, and the cooldown is over; the rest is as it was."""
    told = await after(tmp_path / "state.db", [BUSY], vllm("a"), at=1_000_010.0)
    assert told == (replace(BUSY, opens_in=30.0, cooldown=0.0),)


async def test_what_was_learned_is_written_from_time_to_time(tmp_path: Path) -> None:
    """Without anybody asking, and without a change of the registry: a kill costs what was learned since."""
    path = tmp_path / "state.db"
    first = Process(path, vllm("a"), every=0.001)
    await first.memory.open()
    first.learned = (BUSY,)
    await first.looked.wait()
    second = await opened(path, vllm("a"))
    assert second.recalled == (BUSY,)
    await second.memory.close()
    await first.memory.close()


async def test_a_clock_that_was_set_back_makes_nothing_last_longer(tmp_path: Path) -> None:
    """A day back: the waits are those that were written."""
    assert await after(tmp_path / "state.db", [BUSY], vllm("a"), at=1_000_000.0 - 86_400.0) == (BUSY,)


async def test_what_was_learned_long_ago_or_elsewhere_is_not_believed(tmp_path: Path) -> None:
    """After a day, or at another address, an instance is a new one."""
    assert await after(tmp_path / "old.db", [BUSY], vllm("a"), at=1_000_001.0 + FORGET) == ()
    path = tmp_path / "moved.db"
    assert len(await after(path, [BUSY], vllm("a"), at=1_000_001.0)) == 1
    moved = await opened(path, vllm("a", address="http://elsewhere"), at=1_000_002.0)
    assert moved.recalled == ()
    await moved.memory.close()


async def test_only_what_changed_is_written_and_what_was_only_recalled_does_not_become_younger(tmp_path: Path) -> None:
    """A second flush changes nothing in the file; knowledge of a day ago is forgotten though the process was here."""
    path = tmp_path / "state.db"
    first = await opened(path, vllm("a"), vllm("b"))
    first.learned = (BUSY, Learned(instance="b"), Learned(instance="gone", speed=1.0))
    await first.memory.flush()
    with closing(sqlite3.connect(path)) as outside:
        before = outside.execute("PRAGMA data_version").fetchone()
        first.wall += 5.0
        first.learned = (replace(BUSY, opens_in=35.0, cooldown=0.0, speed=80.001), Learned(instance="b"))
        await first.memory.flush()
        assert outside.execute("SELECT id, noted_at FROM learned_of_instances").fetchall() == [("a", 1_000_005.0)]
        first.wall += 5.0
        first.learned = (replace(BUSY, opens_in=30.0, cooldown=0.0, speed=80.001), Learned(instance="b"))
        changed = outside.execute("PRAGMA data_version").fetchone()
        await first.memory.flush()
        assert before != changed == outside.execute("PRAGMA data_version").fetchone()
    await first.memory.close()
    second = await opened(path, vllm("a"), at=1_000_100.0)
    second.learned = second.recalled
    await second.memory.close()
    third = await opened(path, vllm("a"), at=1_000_010.0 + FORGET)
    assert third.recalled == ()
    await third.memory.close()


async def test_several_may_open_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    """Workers that start together make its tables once, and none of them has to try again."""
    path = tmp_path / "state.db"
    with capture_logs() as logs:
        workers = await asyncio.gather(*(opened(path, vllm("a")) for _ in range(8)))
    degraded = [worker.memory.degraded for worker in workers]
    for worker in workers:
        await worker.memory.close()
    assert logs == []
    assert not any(degraded)


async def test_workers_share_what_a_kept_instance_can_take(tmp_path: Path) -> None:
    """Four of them use a quarter each, and the file says the whole afterwards as before."""
    path = tmp_path / "state.db"
    first = await opened(path)
    first.registry.add(replace(vllm("big"), max_concurrent=18, window_tokens=3072), "admin")
    first.registry.add(replace(vllm("small"), max_concurrent=2), "admin")
    await first.memory.close()
    worker = Process(path, workers=4)
    await worker.memory.open()
    parts = {entry.instance.id: entry.instance for entry in worker.registry.instances}
    assert (parts["big"].max_concurrent, parts["big"].window_tokens) == (4, 768)
    assert (parts["small"].max_concurrent, parts["small"].window_tokens) == (1, None)
    await worker.memory.close()
    second = await opened(path)
    assert second.registry.instances == first.registry.instances
    await second.memory.close()


async def test_the_configuration_wins_and_what_clashes_with_it_is_forgotten(tmp_path: Path) -> None:
    """It is logged, and not there in the run after, either."""
    path = tmp_path / "state.db"
    first = await opened(path)
    first.registry.add(vllm("a", address="http://old"), "admin")
    await first.memory.close()
    with capture_logs() as logs:
        second = await opened(path, vllm("a"))
    assert [line["instance"] for line in logs] == ["a"]
    assert second.registry.instances[0].instance.address == "http://a"
    await second.memory.close()
    third = await opened(path)
    assert third.ids == []
    await third.memory.close()


async def test_two_gateways_with_one_file_leave_each_others_rows_alone(tmp_path: Path) -> None:
    """Each writes and deletes only what it changed itself; both sets are there in the next run."""
    path = tmp_path / "state.db"
    first, second = await opened(path), await opened(path)
    first.registry.add(vllm("one"), "admin")
    first.registry.drain("one")
    await first.memory.flush()
    second.registry.add(vllm("two"), "admin")
    await second.memory.flush()
    first.registry.undrain("one")
    for process in (first, second):
        await process.memory.close()
    third = await opened(path)
    assert sorted(third.ids) == ["one", "two"]
    assert third.registry.drained == set()
    await third.memory.close()


@pytest.mark.parametrize("damage", ["garbage", "newer", "directory"])
async def test_a_file_that_cannot_be_used_is_a_flag_and_one_line(tmp_path: Path, damage: str) -> None:
    """The gateway starts with what is configured and takes what is registered; nothing raises."""
    path = tmp_path / "state.db"
    if damage == "garbage":
        path.write_bytes(b"no database at all" * 100)
    elif damage == "newer":
        with closing(sqlite3.connect(path)) as conn, conn:
            conn.execute("CREATE TABLE schema_versions (part VARCHAR PRIMARY KEY, version INTEGER)")
            conn.execute("INSERT INTO schema_versions VALUES ('instances', 99)")
    else:
        path = tmp_path / "missing" / "state.db"
    with capture_logs() as logs:
        process = await opened(path, vllm("a"))
        process.registry.add(vllm("b"), "admin")
        assert not await process.memory.flush()
    assert process.memory.degraded
    assert process.ids == ["a", "b"]
    assert [line["event"] for line in logs] == ["what is known of the instances cannot be kept"]
    await process.memory.close()


async def test_a_file_that_can_be_used_later_is_read_and_written_then(tmp_path: Path) -> None:
    """What an earlier process registered is there as soon as it can be read; what came meanwhile is written."""
    path, aside = tmp_path / "state.db", tmp_path / "aside.db"
    first = await opened(path)
    first.registry.add(vllm("kept"), "admin")
    await first.memory.close()
    path.rename(aside)
    path.write_bytes(b"not yet" * 1000)
    second = await opened(path, vllm("a"))
    second.registry.add(vllm("new"), "admin")
    assert second.memory.degraded
    aside.rename(path)
    assert await second.memory.flush()
    assert second.ids == ["a", "new", "kept"]
    assert second.recalled == ()
    await second.memory.close()
    third = await opened(path)
    assert sorted(third.ids) == ["kept", "new"]
    await third.memory.close()


@pytest.mark.parametrize(
    "damage",
    [
        "noted_at = 'long ago'",
        "speed = 'fast'",
        "speed = 9e999",
        "reliability = -3.0",
        "open_wait = x'00ff'",
        "cooldown_until = 'soon'",
        'prefill_seconds = 0.0, "limit" = -1.0',
        "address = 7.5, open_until = -9e999",
    ],
)
async def test_a_note_that_makes_no_sense_costs_that_note_only(tmp_path: Path, damage: str) -> None:
    """Somebody's hand or a bad sector: the gateway starts, and knows what the other rows say."""
    path = tmp_path / "state.db"
    first = await opened(path, vllm("a"), vllm("b"))
    first.learned = (BUSY, replace(BUSY, instance="b"))
    await first.memory.close()
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute(f"UPDATE learned_of_instances SET {damage} WHERE id = 'a'")
    with capture_logs() as logs:
        second = await opened(path, vllm("a"), vllm("b"))
    assert [one.instance for one in second.recalled] == ["b"]
    assert [line["instance"] for line in logs] == ["a"]
    await second.memory.close()


@pytest.mark.parametrize(
    "change", [{"max_concurrent": 0}, {"capacity": 0.0}, {"weight": -1.0}, {"models": ()}, {"window_tokens": 0}]
)
async def test_an_instance_that_no_configuration_would_allow_is_left_alone(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """The scheduler divides by what it is: such a row is logged and not used."""
    path = tmp_path / "state.db"
    first = await opened(path)
    first.registry.add(replace(vllm("odd"), **change), "admin")  # type: ignore[arg-type]  # one field of any type
    first.registry.add(vllm("good"), "admin")
    await first.memory.close()
    with capture_logs() as logs:
        second = await opened(path)
    assert second.ids == ["good"]
    assert [line["instance"] for line in logs if line["log_level"] == "warning"] == ["odd"]
    await second.memory.close()


async def test_a_row_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    """A later version knows an engine that this one does not: logged, and there for that version again."""
    path = tmp_path / "state.db"
    first = await opened(path)
    first.registry.add(vllm("good"), "admin")
    await first.memory.close()
    row = '{"id": "odd", "engine": "abacus", "models": []}'
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("INSERT INTO registered_instances VALUES ('odd', 1.0, 'admin', ?)", (row.encode(),))
    with capture_logs() as logs:
        second = await opened(path)
    assert second.ids == ["good"]
    assert [line["instance"] for line in logs if line["log_level"] == "warning"] == ["odd"]
    await second.memory.close()
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("SELECT count(*) FROM registered_instances").fetchone() == (2,)
