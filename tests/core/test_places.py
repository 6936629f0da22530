"""Where everybody waits, seen in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.settings import RoutingSettings, Settings, Strategy
from headrace.core.share import Entry, Node
from headrace.core.share_view import Ranks, places
from tests.core.script import Stage, arrive, done, engine
from tests.core.test_fairness import tree


@given(st.lists(st.sampled_from("abcdef"), max_size=60), st.randoms(use_true_random=False))
def test_one_pass_sees_what_asking_for_each_sees(users: list[str], random: Random) -> None:
    """Also after some have left out of turn, and with orders that differ from those of arrival."""
    share = tree()
    entries: dict[str, Entry[str]] = {}
    for number, user in enumerate(users):
        name = f"{user}{number}"
        entries[name] = share.push(name, (user, str(number % 2)), (float(random.randrange(4)), 0.0))
    for name in random.sample(sorted(entries), len(entries) // 3):
        share.remove(entries.pop(name))
    ranks = Ranks(share.root)
    assert dict(places(share.root)) == {name: ranks.position(entry) for name, entry in entries.items()}
    assert dict(places(share.root)) == {name: _counted(entry, entries.values()) for name, entry in entries.items()}


def _counted(entry: Entry[str], everybody: Iterable[Entry[str]]) -> int:
    """The same counted one by one: all flows take turns, each begins with its first."""
    flows: dict[Node[str], list[Entry[str]]] = {}
    for other in sorted(everybody, key=lambda other: other.order):
        flows.setdefault(other.leaf, []).append(other)
    turn = flows[entry.leaf].index(entry) + 1
    return sum(min(turn, len(flow)) for flow in flows.values())


def test_every_waiting_request_has_its_place() -> None:
    """The same as each user is shown; joined ones stand where their call stands; what runs has no place."""
    stage = Stage(engine("a"), engine("b", 1, "other"))
    stage.do(0.0, arrive("r0"))
    for number in range(3):
        stage.do(0.0, arrive(f"x{number}", "x", key=f"k{number}"))
        stage.do(0.0, arrive(f"y{number}", "y"))
    stage.do(0.0, arrive("z", "z", key="k1"))
    seen = stage.scheduler.places()
    shown = [entry for user in ("ann", "x", "y", "z") for entry in stage.scheduler.positions("acme", user)]
    assert seen == {name: (place, seconds) for name, place, seconds in shown}
    assert seen["z"] == seen["x1"]
    assert "r0" not in seen
    stage.do(1.0, done("r0"))
    assert len(stage.scheduler.places()) == len(seen) - 1


def test_who_read_a_prompt_matters_where_there_is_a_choice() -> None:
    """With two instances and a strategy that looks at it; not with one, another strategy, or an unknown model."""
    stage = Stage(engine("a", 1, "m"), engine("b", 1, "m", "single"))
    assert stage.scheduler.weighs_prefix("m")
    assert not stage.scheduler.weighs_prefix("single")
    assert not stage.scheduler.weighs_prefix("unknown")
    turns = Settings(routing=RoutingSettings(strategy=Strategy.ROUND_ROBIN))
    assert not Stage(engine("a"), engine("b"), settings=turns).scheduler.weighs_prefix("m")
