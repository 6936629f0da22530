"""The promises of `headrace.core.accounts`: what a call costs, whom, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.accounts import Accounts
from headrace.core.planting import PlantTree
from headrace.core.pool import Pool
from headrace.core.settings import FairnessSettings, PolicyName
from headrace.core.ticket import Call
from headrace.model import ServiceClass, Usage
from tests.core.calls import call, join, pool
from tests.core.script import engine

_FAIR = FairnessSettings(prompt_price=1.0, output_price=2.0)


def running(accounts: Accounts, to: Pool, **asked: Any) -> Call:
    """A call of 100 prompt tokens that was just dispatched, 50 output tokens expected."""
    made = call(to, prompt_tokens=100, **asked)
    made.expected = 50
    made.entry = to.tree.push(made, made.flow)
    pick = to.tree.pick(lambda _: to.members[0])
    assert pick is not None
    made.charge = to.tree.grant(pick[0], accounts.price(made, pick[1], 0.0))
    return made


def service(to: Pool, user: str) -> float:
    """What a user was charged, in tokens."""
    node = to.tree.root.children["normal"].children["acme"].children.get(user)
    return 0.0 if node is None else node.vt


def test_at_dispatch_prompt_and_expected_output_are_charged() -> None:
    """100 + 2 x 50."""
    to = pool(engine("a"))
    running(Accounts(_FAIR), to)
    assert service(to, "ann") == 200.0


def test_each_token_beyond_the_estimate_is_charged_as_it_comes() -> None:
    """Within it nothing changes."""
    accounts, to = Accounts(_FAIR), pool(engine("a"))
    made = running(accounts, to)
    for produced, charged in ((40, 200.0), (50, 200.0), (80, 260.0)):
        made.produced = produced
        accounts.progress(made, 0.0)
        assert service(to, "ann") == charged


def test_at_the_end_the_usage_is_the_truth() -> None:
    """Tokens found in the engine's cache are free; the rest of the estimate comes back; the length is learned."""
    accounts, to = Accounts(_FAIR), pool(engine("a"))
    made = running(accounts, to)
    accounts.settle(made, Usage(prompt=100, completion=10, cached=60), 0.0)
    assert service(to, "ann") == 60.0
    assert made.charge is None
    assert accounts.expect(made.request) == 16


@pytest.mark.parametrize(
    ("begun", "produced", "elapsed", "kept"), [(False, 0, 0.01, 50.0), (False, 0, 9.0, 100.0), (True, 20, 9.0, 140.0)]
)
def test_who_leaves_pays_for_what_was_done(begun: bool, produced: int, elapsed: float, kept: float) -> None:
    """Before the first token the part of the prompt that can have been read; later prompt and tokens made."""
    accounts, to = Accounts(_FAIR), pool(engine("a"))
    made = running(accounts, to)
    made.first = 1.0 if begun else None
    made.produced = produced
    accounts.abandon(made, 0.0, elapsed, prefill_seconds=2e-4)
    assert service(to, "ann") == pytest.approx(kept)


def test_a_failed_call_costs_what_the_engine_reported_or_nothing() -> None:
    """No usage, no charge."""
    accounts, to = Accounts(_FAIR), pool(engine("a"))
    accounts.drop(running(accounts, to), None, 0.0)
    assert service(to, "ann") == 0.0
    accounts.drop(running(accounts, to), Usage(100, 5), 0.0)
    assert service(to, "ann") == 110.0


def test_those_who_share_an_answer_share_its_cost() -> None:
    """Three tickets, a third each."""
    accounts, to = Accounts(_FAIR), pool(engine("a"))
    made = running(accounts, to)
    join(made, "s", "bob")
    join(made, "t", "cid")
    accounts.settle(made, Usage(60, 0), 0.0)
    assert [service(to, user) for user in ("ann", "bob", "cid")] == [20.0, 20.0, 20.0]


def test_a_new_leader_takes_the_charge_over() -> None:
    """The first one is charged nothing any more."""
    accounts, to = Accounts(_FAIR), pool(engine("a"))
    made = running(accounts, to)
    join(made, "s", "bob")
    before = made.flow
    made.drop(made.leader)
    accounts.hand_over(made, before, 0.0)
    assert (service(to, "ann"), service(to, "bob")) == (0.0, 200.0)
    assert accounts.received.top(5, 0.0) == {"acme/bob": 200.0}


def test_what_comes_back_and_how_wrong_the_guess_was_is_told() -> None:
    """50 tokens were expected and 25 came: off by all of the real length, 50 of 200 given back."""
    accounts, to = Accounts(_FAIR), pool(engine("a"))
    accounts.settle(running(accounts, to), Usage(100, 25), 0.0)
    assert accounts.refunded == 50.0
    assert accounts.estimate_error == 1.0
    assert accounts.received.top(5, 0.0) == {"acme/ann": 150.0}


def test_turns_cost_one_each() -> None:
    """Under `round_robin` nothing but the number of requests counts."""
    accounts, to = Accounts(FairnessSettings(policy=PolicyName.ROUND_ROBIN)), pool(engine("a"))
    made = running(accounts, to)
    made.produced = 5000
    accounts.progress(made, 0.0)
    accounts.settle(made, Usage(100, 5000), 0.0)
    assert service(to, "ann") == 1.0


def test_first_come_first_served_knows_no_accounts() -> None:
    """One queue, ordered by arrival alone."""
    settings = FairnessSettings(policy=PolicyName.FIFO)
    accounts, tree = Accounts(settings), PlantTree(settings)()
    made = call(pool(engine("a")), deadline=1.0, service_class=ServiceClass.BATCH)
    assert tree.leaf(made.flow) is tree.root
    assert accounts.order(made, 5.0, 60.0) == (0.0, 0.0)
