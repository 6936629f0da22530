"""Several gateways before the same machines: each decides by itself, and the world cannot tell them from one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from headrace.core.settings import PolicyName
from headrace.model import Arrived, Decision, Dispatch, Flow, Request
from headrace.sim.callers import Ask
from headrace.sim.gateways import Gateways
from headrace.sim.measures import measure
from headrace.sim.policy import Headrace
from headrace.sim.record import Record
from headrace.sim.scenario import Machine, Outage, Scenario, Trouble
from headrace.sim.suite import POLICIES
from headrace.sim.workload import Burst, Client, Fixed, Poisson
from headrace.sim.world import World

SHORT = Fixed(tokens=50)


def scenario(*clients: Client, gateways: int = 3, limit: int = 7) -> Scenario:
    """Some gateways before two machines."""
    machines = (Machine(name="m", limit=limit), Machine(name="n", limit=limit))
    return Scenario(name="t", title="", machines=machines, clients=clients, duration=60.0, gateways=gateways)


def run(what: Scenario, policy: str = "fair") -> Record:
    """Run it once."""
    return World(what, POLICIES[policy](what, Random(1)), policy, 1).run()


def client(name: str, doors: int | None = None) -> Client:
    """A caller who floods."""
    return Client(name=name, arrivals=Burst(count=2000), prompt=SHORT, output=SHORT, gateways=doors)


def arrival(number: int, whose: Client) -> Arrived:
    """A request of that client."""
    ask = Ask(at=0.0, flow=Flow(user=whose.name), group="", client=whose, prompt=50, output=50)
    return Arrived(Request(id=f"r{number}", flow=ask.flow, model="model", prompt_tokens=50, payload=ask))


def sent(orders: Iterable[Decision]) -> list[str]:
    """The calls that are dispatched."""
    return [order.call for order in orders if isinstance(order, Dispatch)]


@pytest.mark.parametrize(
    ("doors", "entered"), [(None, ["0", "1", "2", "0"]), (2, ["0", "1", "0", "1"]), (1, ["0"] * 4)]
)
def test_a_caller_enters_by_turns(doors: int | None, entered: list[str]) -> None:
    """Through all gateways or through the first few; each user begins at the first."""
    whose = client("a", doors)
    gateways = Gateways(scenario(whose), PolicyName.FAIR, Random(1))
    calls = [call for number in range(4) for call in sent(gateways.handle(arrival(number, whose), 0.0))]
    assert [call.partition("/")[0] for call in calls] == entered
    assert len(set(calls)) == len(calls)


def test_everything_is_answered_once() -> None:
    """With refusals, a crash, retries and waits each request ends, and what is in flight stays within the parts."""
    doors = {"a": 1, "b": 2, "c": None}
    callers = [
        Client(name=name, arrivals=Poisson(rate=2), output=SHORT, gateways=number) for name, number in doors.items()
    ]
    mixed = scenario(*callers)
    outages = (Outage(start=5, stop=9, trouble=Trouble.CRASHED), Outage(start=20, stop=25))
    record = run(replace(mixed, machines=(replace(mixed.machines[0], outages=outages), mixed.machines[1])))
    assert len(record.visits) > 250
    assert sum(visit.ending is None for visit in record.visits) <= 2 * 7, "only what runs at the end has no ending"
    assert max(most for ledger in record.instances.values() for most in ledger.in_flight) <= 7
    assert {limit for ledger in record.instances.values() for limit in ledger.limits} == {7}


def test_one_gateway_is_what_it_always_was() -> None:
    """Through the same steps as the scheduler alone, to the same end."""
    what = scenario(client("a"), client("b"), gateways=1)
    alone = World(what, Headrace(what, PolicyName.FAIR, Random(1)), "fair", 1).run()
    several = World(what, Gateways(what, PolicyName.FAIR, Random(1)), "fair", 1).run()
    assert several.visits == alone.visits
    assert several.events == alone.events


def test_a_place_at_each_gateway_is_worth_a_share_at_each() -> None:
    """Who enters everywhere has five times what he has who enters at one of three; who does as he does has the same."""
    uneven, even = (run(scenario(client("wide"), client("narrow", doors), limit=6)) for doors in (1, None))
    assert measure(uneven)["most_to_least"] == pytest.approx(5.0, rel=0.1)
    assert measure(even)["most_to_least"] == pytest.approx(1.0, rel=0.1)
