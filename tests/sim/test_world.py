"""The world: everything happens once, again for the same seed, and as the gateway would do it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from headrace.core.settings import PolicyName, QueueSettings, Settings
from headrace.model import Ending, ServiceClass
from headrace.sim.baselines import PassThrough, RequestsPerMinute
from headrace.sim.policy import Headrace, Policy, instances_of
from headrace.sim.record import Record
from headrace.sim.scenario import Machine, Outage, Scenario, Trouble
from headrace.sim.suite import POLICIES
from headrace.sim.workload import Burst, Client, ClosedLoop, Fixed, Poisson, Session, Uniform
from headrace.sim.world import World

SHORT = Fixed(tokens=50)


def scenario(
    *clients: Client, machines: tuple[Machine, ...] = (Machine(name="m"),), duration: float = 60.0
) -> Scenario:
    """A small scenario."""
    return Scenario(name="t", title="", machines=machines, clients=clients, duration=duration)


def run(what: Scenario, policy: str = "fair", seed: int = 1) -> Record:
    """Run it once."""
    return World(what, POLICIES[policy](what, Random(seed)), policy, seed).run()


MIXED = scenario(
    Client(name="a", arrivals=Poisson(rate=3), output=SHORT),
    Client(name="b", arrivals=Burst(count=20, at=5), output=SHORT),
    Client(name="c", arrivals=ClosedLoop(sessions=4, think=1), prompt=SHORT, output=SHORT, session=Session(shared=128)),
    machines=(Machine(name="m", prefix_tokens=50_000), Machine(name="n", limit=4)),
)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_repeats_a_run_exactly(policy: str) -> None:
    """Two runs of a seed have the same visits to the last digit; another seed has others."""
    assert run(MIXED, policy).visits == run(MIXED, policy).visits
    assert run(MIXED, policy).visits != run(MIXED, policy, seed=2).visits


@pytest.mark.parametrize("policy", POLICIES)
def test_everyone_is_answered_once_and_in_full(policy: str) -> None:
    """Where nothing fails, each visit that had time enough ends answered with all of its tokens, after its first."""
    record = run(MIXED, policy)
    early = [visit for visit in record.visits if visit.arrived < 40]
    refused = [visit for visit in early if visit.ending is Ending.RATE_LIMITED]
    answered = [visit for visit in early if visit.ending is Ending.ANSWERED]
    assert len(answered) + len(refused) == len(early) > 100
    assert not refused or policy == "rpm"
    for visit in answered:
        assert visit.made == visit.output
        assert visit.first is not None
        assert visit.finished is not None
        assert visit.arrived + visit.waited <= visit.first <= visit.finished


def test_service_in_the_ledgers_is_what_the_visits_got() -> None:
    """Output tokens by user and second add up to those of the user's visits, prompts to those that were read."""
    record = run(MIXED)
    for user, ledger in record.users.items():
        visits = [visit for visit in record.visits if visit.flow.user == user]
        assert sum(ledger.output) == sum(visit.made for visit in visits)
        read = sum(visit.prompt - visit.cached for visit in visits if visit.first is not None)
        assert sum(ledger.prompt) == read


def test_a_session_waits_for_its_answer_and_carries_its_past() -> None:
    """A turn begins after the answer before it, with all that was said so far in its prompt, until it is too long."""
    client = Client(
        name="a",
        arrivals=ClosedLoop(sessions=1, think=2),
        prompt=SHORT,
        output=SHORT,
        session=Session(shared=128, most=600),
    )
    visits = run(scenario(client, machines=(Machine(name="m", prefix_tokens=10_000),))).visits
    assert [visit.prompt for visit in visits][:6] == [178, 278, 378, 478, 178, 278]
    assert visits[1].cached >= 192
    for before, after in pairwise(visits):
        assert before.finished is not None
        assert after.arrived > before.finished


@pytest.mark.parametrize("trouble", [Trouble.LIMITED, Trouble.OVERLOADED, Trouble.CRASHED])
def test_an_outage_is_seen_by_clients_of_a_pass_through_and_not_by_headrace_s(trouble: Trouble) -> None:
    """With a second machine that works, headrace answers all but the streams that a crash cut off."""
    sick = Machine(name="m", outages=(Outage(start=20, stop=30, trouble=trouble, retry_after=1),))
    what = scenario(Client(name="a", arrivals=Poisson(rate=3), output=SHORT), machines=(sick, Machine(name="n")))

    def failed(policy: str) -> set[Ending | None]:
        visits = run(what, policy).visits
        return {visit.ending for visit in visits if visit.arrived < 50} - {Ending.ANSWERED}

    assert failed("fair") <= {Ending.STREAM_BROKEN}
    assert failed("pass_through") == {Ending.INFERENCE_FAILURE}


def test_clients_try_again_after_429_and_wait_as_they_are_told() -> None:
    """A client that retries comes back after Retry-After, twice at most; its waiting counts from its first try."""
    eager = Client(name="a", arrivals=Burst(count=62), prompt=SHORT, output=SHORT, retries=2)
    what = scenario(eager, duration=130)
    record = World(what, RequestsPerMinute(instances_of(what)), "rpm", 1).run()
    late = [visit for visit in record.visits if visit.tries > 1]
    assert len(late) == 2
    for visit in late:
        assert visit.ending is Ending.ANSWERED
        assert visit.first is not None
        assert visit.first - visit.arrived >= 60


def test_a_full_queue_refuses_at_once() -> None:
    """The bounds of the scheduler's queue hold in the simulator too, and the refused are counted as such."""
    what = scenario(Client(name="a", arrivals=Burst(count=50), output=SHORT), machines=(Machine(name="m", limit=1),))
    what = replace(what, settings=Settings(queue=QueueSettings(size=10)))
    endings = [visit.ending for visit in run(what).visits]
    assert endings.count(Ending.BACKPRESSURE) == 39


def test_a_prompt_that_no_engine_can_hold_is_the_caller_s_fault() -> None:
    """It is refused by the engine like a 400, and harms nobody else."""
    what = scenario(Client(name="a", arrivals=Burst(count=1), prompt=Fixed(tokens=500_000), output=SHORT))
    assert [visit.ending for visit in run(what).visits] == [Ending.REJECTED]


def test_deadlines_pass_in_virtual_time() -> None:
    """A request whose deadline passes while it waits ends then, and is never sent."""
    hopeless = Client(name="a", arrivals=Burst(count=5), output=Uniform(low=200, high=300), deadline=1.0)
    what = scenario(hopeless, machines=(Machine(name="m", limit=1),))
    visits = run(what).visits
    assert [visit.ending for visit in visits].count(Ending.DEADLINE_EXPIRED) == 5
    assert all(visit.finished == pytest.approx(visit.arrived + 1.0) for visit in visits)
    assert sum(visit.attempts for visit in visits) == 1


def test_metrics_reach_the_scheduler_as_old_as_their_poll() -> None:
    """Reports come four times a second with what the engine had then."""
    what = scenario(Client(name="a", arrivals=Burst(count=8), prompt=SHORT, output=Fixed(tokens=400)), duration=3.0)
    seen: list[tuple[float, float | None]] = []

    class Listener:
        """A pass-through that notes what it is told."""

        poll: float | None = 0.25

        def __init__(self) -> None:
            self._inner: Policy = PassThrough(instances_of(what))

        def handle(self, event: object, now: float) -> list[object]:
            report = getattr(event, "report", None)
            if report is not None:
                seen.append((now, report.running))
            return self._inner.handle(event, now)  # type: ignore[arg-type, return-value]

        def limits(self, now: float) -> dict[str, int]:
            return self._inner.limits(now)

    World(what, Listener(), "listener", 1).run()  # type: ignore[arg-type]
    assert [at for at, _ in seen] == pytest.approx([0.25 * (number + 1) for number in range(12)])
    assert {running for _, running in seen} == {8}


def test_batch_and_interactive_are_known_as_such() -> None:
    """The class of a client is that of its requests: the flow says so."""
    what = scenario(Client(name="a", arrivals=Burst(count=1), service_class=ServiceClass.BATCH))
    assert run(what).visits[0].flow.service_class is ServiceClass.BATCH
    assert Headrace(what, PolicyName.FAIR, Random(1)).limits(0.0).keys() == {"m"}
