"""An engine where it stands: its outages, and what can be read of it from outside."""

from __future__ import annotations

from headrace.model import EngineReport
from headrace.sim.engine import Reading, SimEngine
from headrace.sim.record import Visit
from headrace.sim.scenario import Machine, Outage


class Plant:
    """One machine of the fleet with its engine."""

    def __init__(self, machine: Machine, prefix_block: int) -> None:
        self.machine = machine
        self.engine = SimEngine(
            machine.profile,
            prefix_tokens=machine.prefix_tokens,
            prefix_block=prefix_block,
            by_priority=machine.by_priority,
        )
        self.watched: float | None = None
        """When the world will look at it next."""
        self._last: Reading | None = None

    def outage(self, now: float) -> Outage | None:
        """Why it does not work at `now`, if it does not."""
        for outage in self.machine.outages:
            if outage.start <= now < outage.stop:
                return outage
        return None

    def decode_seconds(self, visit: Visit) -> float:
        """Engine time of one of the visit's tokens in a full batch."""
        profile = self.machine.profile
        return profile.step / profile.knee + profile.kv_read * (visit.prompt + visit.output / 2)

    def report(self, now: float) -> EngineReport:
        """Its metrics, with means since the report before."""
        reading, last = self.engine.reading(now), self._last
        self._last = reading
        tokens = reading.tpot_count - (last.tpot_count if last else 0)
        seconds = reading.tpot_sum - (last.tpot_sum if last else 0.0)
        return EngineReport(
            running=reading.running,
            waiting=reading.waiting,
            kv=reading.kv_use,
            tpot=seconds / tokens if tokens > 0 else None,
            preemptions=reading.preemptions - (last.preemptions if last else 0),
            kv_tokens=self.machine.prefix_tokens or self.machine.profile.kv_tokens,
        )
