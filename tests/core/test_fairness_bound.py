"""The bound of `headrace.core.fairness`, and that its books agree, under any sequence of moves."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.share import Charge, Entry, Hint
from tests.core.test_fairness import Tree, anywhere, finish, nodes, take, tree


@dataclass
class Flow:
    """A user who always has something queued, and what he was charged in the end."""

    name: str
    weight: float
    largest: float
    open: deque[Charge[str]] = field(default_factory=deque)
    entries: list[Entry[str]] = field(default_factory=list)
    charged: float = 0.0
    corrected: float = 0.0


def keep_two_queued(share: Tree, flow: Flow, chance: Random) -> None:
    """A backlogged flow never runs out; some of what it asks is said to be short, or urgent."""
    while sum(entry.queued for entry in flow.entries) < 2:
        flow.entries = [entry for entry in flow.entries if entry.queued]
        late = chance.choice([None, chance.uniform(0.0, 10.0)])
        hint = Hint(chance.uniform(0.0, flow.largest), chance.random() < 0.7, late)
        flow.entries.append(share.push(flow.name, ("normal", flow.name), hint=hint))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=2, max_size=5),
    slack=st.sampled_from([0.0, 5.0, 40.0]),
    slots=st.integers(1, 6),
)
def test_flows_that_stay_backlogged_differ_by_the_bound(
    seed: int, weights: list[float], slack: float, slots: int
) -> None:
    """Charges, corrections, removals, hints, other users coming and going: the difference stays below the bound."""
    chance = Random(seed)
    flows = {f"f{n}": Flow(f"f{n}", weight, chance.choice([1.0, 10.0, 30.0])) for n, weight in enumerate(weights)}
    share = tree(lambda path: flows[path[-1]].weight if path[-1] in flows else 1.0, slack=slack)
    guests: list[Charge[str]] = []
    for _ in range(400):
        for flow in flows.values():
            keep_two_queued(share, flow, chance)
        if chance.random() < 0.1:
            share.push("guest", ("normal", f"g{chance.randrange(5)}"))
        if chance.random() < 0.1:
            flow = chance.choice(list(flows.values()))
            share.remove(chance.choice(flow.entries))
            keep_two_queued(share, flow, chance)
        blocked = chance.random() < 0.2 and chance.choice(list(flows))
        pick = share.pick(lambda item, blocked=blocked: None if item == blocked else item, 0.0, 5.0)  # type: ignore[misc]
        if pick is not None:
            name = pick[0].item
            cost = chance.uniform(0.0, flows[name].largest) if name in flows else 5.0
            charge = share.grant(pick[0], cost)
            assert charge is not None
            (flows[name].open if name in flows else guests).append(charge)
            if name in flows:
                flows[name].charged += cost
        _end_some(share, flows, guests, slots, chance)
        _check(flows, slack)


def _end_some(share: Tree, flows: dict[str, Flow], guests: list[Charge[str]], slots: int, chance: Random) -> None:
    while guests:
        finish(share, guests.pop(), chance.uniform(0.0, 9.0))
    for flow in flows.values():
        while len(flow.open) > slots:
            charge = flow.open.popleft()
            if chance.random() < 0.5:
                more = charge.cost + chance.uniform(0.0, flow.largest)
                flow.charged += more - charge.cost
                flow.corrected += more - charge.cost
                share.amend(charge, more)
            true = chance.uniform(0.0, charge.cost)
            flow.charged -= charge.cost - true
            flow.corrected += charge.cost - true
            finish(share, charge, true)


def _check(flows: dict[str, Flow], slack: float) -> None:
    for one in flows.values():
        for other in flows.values():
            gap = abs(one.charged / one.weight - other.charged / other.weight)
            bound = 2 * slack + (one.largest + one.corrected) / one.weight
            bound += (other.largest + other.corrected) / other.weight
            assert gap <= bound + 1e-6


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), slack=st.sampled_from([0.0, 20.0]), true=st.sampled_from([0.2, 1.0, 3.0]))
def test_the_difference_does_not_grow_with_time(seed: int, slack: float, true: float) -> None:
    """Whatever estimates are wrong by, after thousands of requests two backlogged flows differ by a few requests."""
    chance = Random(seed)
    share, got = tree(slack=slack), Counter[str]()
    running: deque[tuple[str, Charge[str], float]] = deque()
    for _ in range(1500):
        for name in "ab":
            share.push(name, ("normal", "t", name))
        cost = chance.uniform(1.0, 40.0)
        running.append((*take(share, cost), cost * true))
        if len(running) > 4:
            name, charge, used = running.popleft()
            finish(share, charge, used)
            got[name] += round(used)
    assert abs(got["a"] - got["b"]) <= 2 * slack + 2 * 5 * 40 * max(true, 1.0)


@settings(max_examples=100, deadline=None)
@given(moves=st.lists(st.tuples(st.sampled_from("prgfx"), st.integers(0, 30)), max_size=120))
def test_nobody_starves_and_the_books_agree(moves: list[tuple[str, int]]) -> None:
    """After any moves all that is queued can be served, every count returns to zero and nothing is left."""
    share = tree(cap_of=lambda path: 2 if len(path) == 3 else None, slack=5.0)
    entries: list[Entry[str]] = []
    running: list[Charge[str]] = []
    pushed = removed = 0
    for kind, number in moves:
        if kind in "px":
            entries.append(share.push("x", ("normal", f"t{number % 2}", f"u{number % 7}", f"s{number % 3}")))
            pushed += 1
        elif kind == "r" and entries:
            entry = entries[number % len(entries)]
            removed += entry.queued
            share.remove(entry)
        elif kind == "g" and (pick := share.pick(anywhere)) is not None:
            charge = share.grant(pick[0], float(number))
            assert charge is not None
            running.append(charge)
        elif kind == "f" and running:
            finish(share, running.pop(number % len(running)), float(number))
    served = sum(not entry.queued for entry in entries) - removed
    while True:
        while (pick := share.pick(anywhere)) is not None:
            charge = share.grant(pick[0], 1.0)
            assert charge is not None
            running.append(charge)
            served += 1
        if not running:
            break
        finish(share, running.pop(), 2.0)
    assert served == pushed - removed
    assert len(share) == 0
    for node in nodes(share.root):
        assert (node.queued, node.in_flight, node.holds, node.ready, node.turn) == (0, 0, 0, 0, 0)
        assert node.unsure == pytest.approx(0.0)
        assert node.vt >= 0.0
