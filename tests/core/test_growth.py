"""What a request costs hardly grows with what waits, who asks, and what runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import growth

pytestmark = pytest.mark.slow

FEW, MANY = 10, 10_000
ROUNDS = 300


@pytest.mark.parametrize("cost", [growth.queued, growth.users, growth.streams], ids=lambda cost: cost.__name__)
def test_a_thousand_times_as_much_costs_little_more(cost: Callable[[int, int], float]) -> None:
    """With 10,000 queued requests, users or open streams a request costs less than two and a half times what it costs
    with ten, by the deciding thread's own time."""
    assert cost(MANY, ROUNDS) / cost(FEW, ROUNDS) < 2.5


def test_instances_cost_much_less_than_their_number() -> None:
    """While something waits a decision asks only the instances at which something happened: ten times as many, and ten
    times the queue, cost at most a few times as much."""
    assert growth.instances(100, ROUNDS) / growth.instances(10, ROUNDS) < 4
