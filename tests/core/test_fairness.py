"""The promises of `headrace.core.fairness`: the bound, weights, lift, caps, no starvation, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headrace.core.fairness import ShareTree
from headrace.core.share import Charge, Node
from headrace.core.share_view import Ranks, spread

Path = tuple[str, ...]
Tree = ShareTree[str]


def tree(
    weight_of: Callable[[Path], float] = lambda _: 1.0,
    cap_of: Callable[[Path], int | None] = lambda _: None,
    slack: float = 0.0,
) -> Tree:
    """An empty tree."""
    return ShareTree(weight_of, cap_of, slack)


def anywhere(item: str) -> str:
    """A place for everything."""
    return item


def take(share: Tree, cost: float = 1.0) -> tuple[str, Charge[str]]:
    """Dispatch who goes next at `cost`."""
    pick = share.pick(anywhere)
    assert pick is not None
    charge = share.grant(pick[0], cost)
    assert charge is not None
    return pick[0].item, charge


def finish(share: Tree, charge: Charge[str], cost: float) -> None:
    """End a dispatched item at its true cost."""
    share.end(charge.leaf)
    share.close(charge, cost)


def nodes(node: Node[str]) -> list[Node[str]]:
    """A node and all below it."""
    return [node] + [below for child in node.children.values() for below in nodes(child)]


# ---------------------------------------------------------------------------------------------------- order


def test_equal_flows_take_turns() -> None:
    """Three users with equal costs are served round and round."""
    share = tree()
    for number in range(4):
        for user in "abc":
            share.push(f"{user}{number}", (user,))
    served = "".join(take(share)[0][0] for _ in range(12))
    assert served == "abc" * 4


def test_weights_divide_the_service() -> None:
    """Three times the weight, three times the service."""
    share = tree(weight_of=lambda path: 3.0 if path == ("a",) else 1.0)
    for number in range(40):
        share.push(f"a{number}", ("a",))
        share.push(f"b{number}", ("b",))
    served = Counter(take(share, 7.0)[0][0] for _ in range(40))
    assert served == {"a": 30, "b": 10}


def test_within_a_leaf_the_least_order_goes_first_then_the_first_come() -> None:
    """The order key decides, equal keys keep the order of arrival."""
    share = tree()
    for item, order in (("late", (2.0, 0.0)), ("one", (1.0, 0.0)), ("two", (1.0, 0.0)), ("soon", (0.0, 9.0))):
        share.push(item, ("a",), order)
    assert [take(share)[0] for _ in range(4)] == ["soon", "one", "two", "late"]


def test_no_levels_is_first_come_first_served() -> None:
    """With an empty path the tree is one queue."""
    share = tree()
    for number in range(9):
        share.push(str(number), ())
    assert [take(share)[0] for _ in range(9)] == [str(number) for number in range(9)]


def test_a_user_cannot_gain_by_opening_sessions() -> None:
    """Sessions share what their user gets."""
    share = tree()
    for number in range(20):
        share.push(f"m{number}", ("many", str(number)))
        share.push(f"o{number}", ("one", "0"))
    served = Counter(take(share)[0][0] for _ in range(20))
    assert served == {"m": 10, "o": 10}


def test_removed_entries_are_not_served() -> None:
    """What was taken out of turn neither comes up nor counts; removing twice changes nothing."""
    share = tree()
    entries = [share.push(str(number), ("a",)) for number in range(10)]
    for entry in entries[:9]:
        share.remove(entry)
        share.remove(entry)
    assert len(share) == 1
    assert take(share)[0] == "9"
    assert share.pick(anywhere) is None


# ---------------------------------------------------------------------------------------------------- lift


def test_absence_earns_no_credit() -> None:
    """Who comes after another was served for long shares evenly from then on."""
    share = tree()
    for number in range(200):
        share.push(f"a{number}", ("a",))
    for _ in range(100):
        finish(share, take(share)[1], 1.0)
    for number in range(50):
        share.push(f"b{number}", ("b",))
    served = Counter(take(share)[0][0] for _ in range(50))
    assert abs(served["a"] - served["b"]) <= 1


def test_a_debt_survives_an_absence() -> None:
    """Who used far more than his estimate and left still owes it when he returns at once."""
    share = tree()
    for number in range(60):
        share.push(f"b{number}", ("b",))
    share.push("a0", ("a",))
    first = [take(share)[1] for _ in range(2)]
    for charge in first:
        finish(share, charge, 30.0 if charge.leaf.key == "a" else 1.0)
    for number in range(60):
        share.push(f"a{number}", ("a",))
    served = [take(share)[0][0] for _ in range(28)]
    assert set(served) == {"b"}


def test_a_refund_does_not_put_newcomers_behind() -> None:
    """Charges that will mostly be refunded do not lift a newcomer: she goes next."""
    share = tree()
    for number in range(100):
        share.push(f"a{number}", ("a",))
    charges = [take(share, 1000.0)[1] for _ in range(4)]
    share.push("b", ("b",))
    for charge in charges[:2]:
        finish(share, charge, 10.0)
    assert take(share)[0] == "b"


def test_tokens_beyond_the_estimate_lift_newcomers() -> None:
    """What a running request has really used counts at once: a newcomer does not get the difference for free."""
    share = tree()
    for number in range(50):
        share.push(f"a{number}", ("a",))
    _, charge = take(share, 10.0)
    share.amend(charge, 5000.0)
    for number in range(50):
        share.push(f"b{number}", ("b",))
    served = Counter(take(share, 10.0)[0][0] for _ in range(20))
    assert abs(served["a"] - served["b"]) <= 2


def test_an_idle_moment_gives_nobody_an_advantage() -> None:
    """After everybody left, the first to return starts even with those who come after him."""
    share = tree()
    for _ in range(50):
        share.push("a", ("a",))
        finish(share, take(share)[1], 1.0)
    for number in range(20):
        share.push(f"b{number}", ("b",))
    for number in range(20):
        share.push(f"a{number}", ("a",))
    served = Counter(take(share)[0][0] for _ in range(20))
    assert abs(served["a"] - served["b"]) <= 1


# ---------------------------------------------------------------------------------------------------- what fits


def test_others_go_while_the_poorest_fits_nowhere_but_only_within_the_slack() -> None:
    """Overtaking ends at V + T; then the tree waits for the blocked head."""
    share = tree(slack=10.0)
    share.push("big", ("a",))
    for number in range(100):
        share.push(f"s{number}", ("b",))
    overtaken = 0
    while (pick := share.pick(lambda item: None if item == "big" else item)) is not None:
        share.grant(pick[0], 3.0)
        overtaken += 1
    assert overtaken == 4
    assert take(share)[0] == "big"


def test_within_a_leaf_a_head_is_overtaken_a_bounded_number_of_times() -> None:
    """The smaller ones behind it go first for a while, then the leaf waits."""
    share = tree()
    share.push("big", ("a",))
    for number in range(100):
        share.push(f"s{number}", ("a",))
    overtaken = 0
    while (pick := share.pick(lambda item: None if item == "big" else item)) is not None:
        share.grant(pick[0], 1.0)
        overtaken += 1
    assert overtaken == 16
    assert take(share)[0] == "big"


def test_a_pick_asks_for_a_bounded_number_of_places() -> None:
    """However many users are blocked, one decision asks at most sixteen times."""
    share = tree(slack=1e9)
    for number in range(500):
        share.push(str(number), (str(number % 2), str(number)))
    asked: list[str] = []
    assert share.pick(asked.append) is None
    assert len(asked) <= 16


def test_a_cap_holds_and_passes_the_turn() -> None:
    """A user at the cap is passed over; an end makes room again."""
    share = tree(cap_of=lambda path: 2 if path == ("a",) else None)
    for number in range(5):
        share.push(f"a{number}", ("a",))
    _, charge = take(share)
    take(share)
    assert share.pick(anywhere) is None
    share.push("b0", ("b",))
    assert take(share)[0] == "b0"
    finish(share, charge, 1.0)
    assert take(share)[0] == "a2"
    assert share.pick(anywhere) is None


# ---------------------------------------------------------------------------------------------------- memory


def test_users_who_come_and_go_are_forgotten() -> None:
    """Ten thousand users, one request each: what remains does not grow with their number."""
    share = tree()
    for number in range(10_000):
        share.push("x", ("normal", f"tenant-{number % 97}", f"user-{number}", ""))
        finish(share, take(share)[1], 3.0)
    assert len(nodes(share.root)) < 200
    assert share.idle


def test_heaps_and_queues_do_not_grow_with_what_was_taken_out() -> None:
    """Entries that were pushed and removed, and refunds, leave no lasting garbage."""
    share = tree()
    keep = [share.push("keep", (user,)) for user in "abc"]
    for number in range(5000):
        share.remove(share.push(str(number), ("abc"[number % 3],)))
        share.close(share.open(("abc"[number % 3],), 100.0), 1.0)
    root = share.root
    assert len(root.heap) <= 2 * root.ready + 16
    assert all(len(entry.leaf.queue) <= 3 for entry in keep)


def test_debts_are_kept_for_a_bounded_number_of_users() -> None:
    """More debtors than the bound: the longest idle are forgiven."""
    share = tree()
    share.push("x", ("poor",))
    for number in range(12_000):
        share.close(share.open((f"debtor-{number}",), 5.0), 5.0)
    assert len(nodes(share.root)) <= 10_100


def test_positions_count_those_who_go_before() -> None:
    """With equal turns the third of a user with a competitor stands sixth."""
    share = tree()
    mine = [share.push(f"a{number}", ("a",)) for number in range(3)]
    for number in range(9):
        share.push(f"b{number}", ("b",))
    ranks = Ranks(share.root)
    assert [ranks.position(entry) for entry in mine] == [2, 4, 6]
    assert spread(share.root) == 0.0
