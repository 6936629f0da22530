"""What happened in one run: every request, and each user's service second by second. The raw material of measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model import Ending, Flow
from headrace.sim.scenario import Scenario


@dataclass(slots=True)
class Visit:
    """One caller's request, over all the tries it took. Times are None until they come."""

    flow: Flow
    group: str
    arrived: float
    prompt: int
    output: int
    """Tokens the whole answer has."""
    dispatched: float | None = None
    """When it was sent to an engine the last time."""
    waited: float = 0.0
    """Seconds in the gateway's queue."""
    first: float | None = None
    finished: float | None = None
    ending: Ending | None = None
    cached: int = 0
    made: int = 0
    instance: str = ""
    attempts: int = 0
    """Times it was sent to an engine."""
    tries: int = 1
    """Times the caller asked."""


class UserLedger:
    """One user's service, second by second.

    Args:
        group: of its requests.
        seconds: length of the run, rounded up.
    """

    __slots__ = ("_second", "_waiting", "gpu", "group", "least_waiting", "output", "prompt")

    def __init__(self, group: str, seconds: int) -> None:
        self.group = group
        self.prompt = [0] * seconds
        """Prompt tokens computed, without those found in a cache; counted when the first token comes."""
        self.output = [0] * seconds
        """Output tokens."""
        self.gpu = [0.0] * seconds
        """Seconds of engine time."""
        self.least_waiting = [0] * seconds
        """Least number of requests that waited for their first token, anywhere, in each second."""
        self._waiting = 0
        self._second = 0

    def serve(self, second: int, prompt: int, output: int, gpu: float) -> None:
        """Something was done for the user."""
        self.prompt[second] += prompt
        self.output[second] += output
        self.gpu[second] += gpu

    def wait(self, second: int, change: int) -> None:
        """A request began (+1) or ceased (-1) to wait."""
        for passed in range(self._second + 1, second + 1):
            self.least_waiting[passed] = self._waiting
        self._second = second
        self._waiting += change
        self.least_waiting[second] = min(self.least_waiting[second], self._waiting)

    def close(self) -> None:
        """The run is over."""
        self.wait(len(self.least_waiting) - 1, 0)


@dataclass(slots=True)
class InstanceLedger:
    """One engine's work, second by second."""

    busy: float = 0.0
    """Seconds in which it made steps."""
    work: list[float] = field(default_factory=list[float])
    """Seconds that what was done takes in a full batch: its sum over the run's length is the utilisation."""
    in_flight: list[int] = field(default_factory=list[int])
    """Running and waiting inside it, at the end of each second."""
    waiting: list[int] = field(default_factory=list[int])
    """Waiting inside it, at the end of each second."""
    preemptions: int = 0
    refusals: int = 0
    """Attempts it turned away while unwell."""
    limits: list[int] = field(default_factory=list[int])
    """In-flight limit every 5 s, where the policy has one."""


@dataclass(slots=True)
class Record:
    """One run."""

    scenario: Scenario
    policy: str
    seed: int
    visits: list[Visit] = field(default_factory=list[Visit])
    users: dict[str, UserLedger] = field(default_factory=dict[str, UserLedger])
    instances: dict[str, InstanceLedger] = field(default_factory=dict[str, InstanceLedger])
    events: int = 0
    """Facts told to the policy."""

    @property
    def groups(self) -> Mapping[str, list[Visit]]:
        """The measured visits by group: those that arrived after the warm-up."""
        found: dict[str, list[Visit]] = {}
        for visit in self.visits:
            if visit.arrived >= self.scenario.warm_up:
                found.setdefault(visit.group, []).append(visit)
        return found
