"""Several gateways before the same machines: a scheduler each, a fixed part of every machine each, and no word between.

So `serve --workers` runs, and so does anybody who starts headrace twice before one fleet. What a user gets is fair at
each gateway by itself: a user who enters through many of them competes at each, and one who enters through one only
has what is there. With G gateways the first may get up to 2 G - 1 times as much as the second.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from msgspec import structs

from headrace.core.settings import PolicyName
from headrace.model import Abort, Arrived, Decision, Dispatch, Event, Finished, Progressed, Started, WakeAt, Woke
from headrace.sim.callers import Ask
from headrace.sim.policy import POLL_SECONDS, Headrace
from headrace.sim.scenario import Scenario


class Gateways:
    """As many of headrace's schedulers as the scenario has gateways.

    A caller enters through as many of them as its client names, by turns.
    """

    poll: float | None = POLL_SECONDS

    def __init__(self, scenario: Scenario, policy: PolicyName, random: Random) -> None:
        self._gateways = [
            Headrace(scenario, policy, Random(random.random()), gateway=number) for number in range(scenario.gateways)
        ]
        self._wakes: list[float | None] = [None] * scenario.gateways
        self._wake: float | None = None
        self._asked = Counter[str]()

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take one fact to the gateway that it is about, or to all."""
        orders: list[Decision] = []
        match event:
            case Arrived():
                self._take(self._door(event), event, now, orders)
            case Started() | Progressed() | Finished():
                door, _, call = event.call.partition("/")
                self._take(int(door), structs.replace(event, call=call), now, orders)
            case Woke():
                self._wake = None
                due = [number for number, wake in enumerate(self._wakes) if wake is not None and wake <= now]
                for number in due:
                    self._wakes[number] = None
                    self._take(number, event, now, orders)
            case _:
                for number in range(len(self._gateways)):
                    self._take(number, event, now, orders)
        soonest = min((wake for wake in self._wakes if wake is not None), default=None)
        if soonest != self._wake:
            self._wake = soonest
            orders.append(WakeAt(soonest))
        return orders

    def limits(self, now: float) -> dict[str, int]:
        """The present limits of each instance, those of all gateways together."""
        found = Counter[str]()
        for gateway in self._gateways:
            found.update(gateway.limits(now))
        return dict(found)

    def _door(self, event: Arrived) -> int:
        """The gateway that a request enters through."""
        ask = event.request.payload
        doors = ask.client.gateways if isinstance(ask, Ask) else None
        user = event.request.flow.user
        number = self._asked[user] % (doors or len(self._gateways))
        self._asked[user] += 1
        return number

    def _take(self, number: int, event: Event, now: float, orders: list[Decision]) -> None:
        """Let one gateway decide. The world knows its calls by names that no other gateway's have."""
        for order in self._gateways[number].handle(event, now):
            match order:
                case WakeAt():
                    self._wakes[number] = order.when
                case Dispatch() | Abort():
                    orders.append(structs.replace(order, call=f"{number}/{order.call}"))
                case _:
                    orders.append(order)
