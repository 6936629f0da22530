"""The engine's rules again, without any short cut: each step looks at each sequence. Slow, and easy to check by eye."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from headrace.sim.profile import EngineProfile


@dataclass
class Job:
    """One request."""

    key: str
    prompt: int
    output: int
    computed: int = 0
    made: int = 0
    first: float = 0.0
    finished: float = 0.0

    @property
    def goal(self) -> int:
        """Tokens to compute before it can write (again)."""
        return self.prompt + self.made

    @property
    def blocks(self) -> int:
        """KV blocks of 16 tokens it holds: the whole prompt from the start."""
        return ceil(max(self.computed, self.goal if not self.writes else 0) / 16)

    writes: bool = False


def play(profile: EngineProfile, arrivals: list[tuple[float, Job]]) -> tuple[dict[str, Job], int]:
    """Run until all are done; returns the jobs by key and how often one was preempted."""
    arrivals = sorted(arrivals, key=lambda pair: pair[0])
    waiting: list[Job] = []
    running: list[Job] = []
    done: dict[str, Job] = {}
    now, preemptions = 0.0, 0
    most = profile.kv_tokens // 16
    while arrivals or waiting or running:
        if not waiting and not running:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            waiting.append(arrivals.pop(0)[1])
        held = sum(job.blocks for job in running)
        grow = sum(1 for job in running if job.writes and job.computed % 16 == 0)
        preempted = False
        while any(job.writes for job in running) and grow > most - held:
            last = running.pop()
            preemptions, preempted = preemptions + 1, True
            last.computed, last.writes = 0, False
            waiting.insert(0, last)
            held = sum(job.blocks for job in running)
            grow = sum(1 for job in running if job.writes and job.computed % 16 == 0)
        writers = [job for job in running if job.writes]
        room = profile.budget - len(writers)
        chunks: list[tuple[Job, int]] = []
        for job in [job for job in running if not job.writes]:
            if room > 0:
                chunks.append((job, min(room, job.goal - job.computed)))
                room -= chunks[-1][1]
        while waiting and not preempted and room > 0 and len(running) < profile.max_seqs:
            need = ceil(waiting[0].goal / 16)
            if need + grow > most - held:
                break
            job = waiting.pop(0)
            held += need
            running.append(job)
            chunks.append((job, min(room, job.goal)))
            room -= chunks[-1][1]
        reads = sum(job.computed for job in writers) + sum(job.computed for job, _ in chunks)
        batch = len(writers) + sum(tokens for _, tokens in chunks)
        now += profile.step + profile.token * max(0, batch - profile.free_tokens) + profile.kv_read * reads
        for job in writers:
            job.computed += 1
            job.made += 1
        for job, tokens in chunks:
            job.computed += tokens
            if job.computed == job.goal:
                job.writes = True
                job.first = job.first or now
                job.made += 1
        for job in [job for job in running if job.writes and job.made >= job.output]:
            job.finished = now
            running.remove(job)
            done[job.key] = job
    return done, preemptions
