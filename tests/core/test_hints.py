"""The promises of `headrace.core.hints`: who may go before his turn, and what that costs others at most."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.settings import FairnessSettings, PolicyName, QueueSettings, Settings
from headrace.core.share import Charge, Entry, Hint, Node
from headrace.model import Ending, ServiceClass
from tests.core.script import Stage, arrive, done, engine
from tests.core.test_fairness import Tree, anywhere, finish, tree

T = 100.0


def ask(share: Tree, name: str, size: float, latest: float | None = None, user: str = "", known: bool = True) -> None:
    """Queue something of a user of the usual class and tenant; its size is also what it will be charged."""
    share.push(name, ("normal", "acme", user or name, ""), hint=Hint(size, known, latest))


def serve(share: Tree, count: int, now: float = 0.0, wait: float = 0.0) -> list[str]:
    """Dispatch so many, each charged its expected size."""
    order: list[str] = []
    for _ in range(count):
        pick = share.pick(anywhere, now, wait)
        assert pick is not None
        share.grant(pick[0], pick[0].hint.size)
        order.append(pick[0].item)
    return order


def crowd(slack: float = T, behind: float = 0.0, names: str = "") -> Tree:
    """A tree in which four users, first come first, want 60 each; those named stand `behind` them by so much."""
    share = tree(slack=slack)
    for name in names.split():
        ask(share, name, behind)
    for name in "abcd":
        ask(share, name, 60.0, known=False)
    serve(share, len(names.split()))
    for node in share.root.children["normal"].children["acme"].children.values():
        assert node.vt == (behind if node.key in names.split() else 0.0)
    return share


# ------------------------------------------------------------------------------------------------ deadlines


def test_a_deadline_that_the_queue_would_miss_goes_first() -> None:
    """His turn comes in ten seconds, he has to start within five: he goes now."""
    share = crowd()
    ask(share, "urgent", 60.0, latest=5.0)
    assert serve(share, 1, wait=10.0) == ["urgent"]


def test_a_deadline_that_the_queue_keeps_changes_nothing() -> None:
    """He has twenty seconds, his turn comes in ten."""
    share = crowd()
    ask(share, "calm", 60.0, latest=20.0)
    assert serve(share, 5, wait=10.0) == ["a", "b", "c", "d", "calm"]


def test_a_deadline_that_cannot_be_kept_any_more_passes_nobody() -> None:
    """Who is late anyway would only make others late."""
    share = crowd()
    ask(share, "late", 60.0, latest=5.0)
    assert serve(share, 5, now=6.0, wait=10.0) == ["a", "b", "c", "d", "late"]


def test_of_several_the_earliest_goes_first() -> None:
    """By their latest start, whatever the order in which they came."""
    share = crowd()
    for name, latest in (("third", 9.0), ("first", 3.0), ("second", 6.0)):
        ask(share, name, 20.0, latest)
    assert serve(share, 3, wait=10.0) == ["first", "second", "third"]


def test_deadlines_pass_up_to_the_slack_in_all() -> None:
    """Of six with 30 each the slack of 100 lets three pass; the rest keep their turns behind the four before them."""
    names = [f"u{number}" for number in range(6)]
    share = crowd(behind=50.0, names=" ".join(names))
    for name in names:
        ask(share, name, 30.0, latest=5.0)
    assert serve(share, 8, wait=10.0) == ["u0", "u1", "u2", "a", "b", "c", "d", "u3"]


def test_one_of_any_length_may_pass_alone() -> None:
    """A long one with a deadline goes although it is longer than the slack, but no second one with it."""
    share = crowd(behind=50.0, names="long other")
    ask(share, "long", 500.0, latest=5.0)
    ask(share, "other", 500.0, latest=5.0)
    assert serve(share, 5, wait=10.0) == ["long", "a", "b", "c", "d"]


def test_who_has_had_more_than_the_slack_passes_nobody() -> None:
    """A deadline is no way to a greater share."""
    share = crowd(behind=T + 1.0, names="rich")
    ask(share, "rich", 10.0, latest=5.0)
    assert serve(share, 5, wait=10.0) == ["a", "b", "c", "d", "rich"]


def test_a_deadline_counts_between_classes_too() -> None:
    """A batch request with a deadline within the slack passes normal ones."""
    share = crowd()
    share.push("job", ("batch", "acme", "job", ""), hint=Hint(50.0, True, 5.0))
    assert serve(share, 1, wait=10.0) == ["job"]


def test_a_deadline_waits_for_a_place_like_all() -> None:
    """It fits nowhere: the others go on."""
    share = crowd()
    ask(share, "urgent", 60.0, latest=5.0)
    pick = share.pick(lambda item: None if item == "urgent" else item, 0.0, 10.0)
    assert pick is not None
    assert pick[0].item == "a"


def test_a_user_at_his_cap_passes_nobody() -> None:
    """The cap of requests in flight holds for deadlines too."""
    share = tree(cap_of=lambda path: 1 if len(path) == 3 else None, slack=T)
    ask(share, "x1", 10.0, user="x")
    assert serve(share, 1) == ["x1"]
    ask(share, "y", 10.0)
    ask(share, "x2", 10.0, latest=5.0, user="x")
    assert serve(share, 1, wait=10.0) == ["y"]


# ------------------------------------------------------------------------------------------------ short jobs


def test_a_much_shorter_job_goes_first() -> None:
    """Half as long or less, among users of equal standing."""
    share = tree(slack=T)
    for name in "ab":
        ask(share, name, 60.0)
    ask(share, "short", 30.0)
    assert serve(share, 3) == ["short", "a", "b"]


def test_a_little_shorter_is_no_reason() -> None:
    """A turn is not worth a few tokens."""
    share = tree(slack=T)
    ask(share, "a", 60.0)
    ask(share, "similar", 31.0)
    assert serve(share, 1) == ["a"]


def test_an_unknown_length_is_neither_short_nor_long() -> None:
    """A first guess passes nobody and is passed by nobody."""
    share = tree(slack=T)
    ask(share, "a", 60.0)
    ask(share, "guess", 1.0, known=False)
    assert serve(share, 1) == ["a"]
    other = tree(slack=T)
    ask(other, "guess", 60.0, known=False)
    ask(other, "short", 1.0)
    assert serve(other, 1) == ["guess"]


def test_short_jobs_leave_half_of_the_slack() -> None:
    """Of four with 20 each, two pass; one with a deadline still may then, as long as the sum is within the slack."""
    names = [f"s{number}" for number in range(4)]
    share = crowd(behind=50.0, names=" ".join([*names, "urgent"]))
    ask(share, "long", 60.0)
    for name in names:
        ask(share, name, 20.0)
    assert serve(share, 4) == ["a", "b", "c", "d"]
    served = serve(share, 3)
    assert {*served[:2]} < {*names}
    assert served[2] == "long"
    ask(share, "longer", 90.0)
    ask(share, "urgent", 60.0, latest=5.0)
    assert serve(share, 1, wait=10.0) == ["urgent"]


def test_a_small_job_does_not_wait_for_many_smaller_ones() -> None:
    """However large the slack: what is ahead of it is no more than itself, four of 5 before one of 20, not a flood."""
    names = [f"s{number}" for number in range(12)]
    share = crowd(slack=10_000.0, behind=50.0, names=" ".join(names))
    ask(share, "small", 20.0)
    for name in names:
        ask(share, name, 5.0)
    served = serve(share, 10)
    assert served[:4] == ["a", "b", "c", "d"]
    assert served.index("small") == 8


def test_short_jobs_pass_nobody_of_another_class() -> None:
    """Between classes shares and the head start decide."""
    share = tree(slack=T)
    ask(share, "a", 60.0)
    share.push("job", ("batch", "acme", "job", ""), hint=Hint(1.0, True))
    assert serve(share, 1) == ["a"]


def test_without_slack_nobody_goes_before_his_turn() -> None:
    """`slack_tokens: 0` means turns, whatever is said."""
    share = crowd(slack=0.0)
    ask(share, "urgent", 1.0, latest=5.0)
    assert serve(share, 5, wait=10.0) == ["a", "b", "c", "d", "urgent"]


# ------------------------------------------------------------------------------------------------ what it costs


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    users=st.integers(2, 14),
    slack=st.sampled_from([0.0, 30.0, 100.0]),
    dues=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_hints_cost_nobody_more_than_the_bound(seed: int, users: int, slack: float, dues: float) -> None:
    """Whoever waits is passed by at most T, or T / 2 and one request, in all and on each level, however long he waits,
    and nobody runs ahead of the poorest by more than T: random users, sizes, deadlines and corrected charges."""
    chance = Random(seed)
    share, witness = tree(slack=slack), Witness(slack)
    open_charges: list[Charge[str]] = []
    for number in range(250):
        now = float(number)
        for _ in range(chance.randrange(3)):
            _ask_something(share, f"r{number}", users, now, dues, chance)
        witness.look(share)
        pick = share.pick(anywhere, now, 20.0)
        if pick is None:
            continue
        witness.see(pick[0], now)
        charge = share.grant(pick[0], pick[0].hint.size)
        assert charge is not None
        open_charges.append(charge)
        if len(open_charges) > 3:
            ended = open_charges.pop(chance.randrange(3))
            finish(share, ended, ended.cost * chance.choice([0.5, 1.0, 1.5]))


def _ask_something(share: Tree, name: str, users: int, now: float, dues: float, chance: Random) -> None:
    latest = now + chance.uniform(0.0, 40.0) if chance.random() < dues else None
    path = ("normal", f"t{chance.randrange(2)}", f"u{chance.randrange(users)}", f"s{chance.randrange(2)}")
    share.push(name, path, hint=Hint(chance.choice([1.0, 5.0, 20.0, 60.0]), chance.random() < 0.8, latest))


def _ready(node: Node[str]) -> list[Node[str]]:
    """Every account that has something waiting."""
    ready = [child for child in node.children.values() if child.turn]
    return ready + [below for child in ready for below in _ready(child)]


def _way(leaf: Node[str]) -> list[Node[str]]:
    """The accounts of a request, from its leaf upwards, without that of all."""
    way = []
    node = leaf
    while node.parent is not None:
        way.append(node)
        node = node.parent
    return way


def _in_turn(share: Tree) -> Entry[str] | None:
    """Whose turn it is, by the rule and by looking at everybody."""
    node = share.root
    while node.children:
        ready = [child for child in node.children.values() if child.turn]
        if not ready:
            return None
        node = min(ready, key=lambda child: (child.vt - child.lead, child.turn))
    return min((pair for pair in node.queue if pair[1].queued), default=(None, None))[1]


class Witness:
    """Counts for everybody who waits what was taken before him by those who stood behind him."""

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self._passed: defaultdict[Node[str], list[tuple[float, float, bool]]] = defaultdict(list)
        self._standing: dict[Node[str], float] = {}
        self._turn: Entry[str] | None = None

    def look(self, share: Tree) -> None:
        """Note where everybody stands before something is taken."""
        self._turn = _in_turn(share)
        self._standing = {node: node.vt - node.lead for node in _ready(share.root)}
        for node in [*self._passed]:
            # What costs him more by himself than was thought moves him back: he was passed by nobody for that.
            here = self._standing.get(node)
            left = [] if here is None else [taken for taken in self._passed[node] if taken[0] > here]
            self._passed[node] = left

    def see(self, entry: Entry[str], now: float) -> None:
        """Hold what was taken against the bound."""
        for node in _way(entry.leaf):
            self._passed.pop(node, None)
        if self._turn is entry:
            return
        due = entry.hint.latest is not None and entry.hint.latest >= now
        for node in _way(entry.leaf):
            start = self._standing[node]
            siblings = [other for other in self._standing if other.parent is node.parent and other is not node]
            assert start <= min((self._standing[other] for other in siblings), default=start) + self._slack + 1e-6
            for other in siblings:
                if self._standing[other] < start:
                    self._passed[other].append((start, entry.hint.size, due))
                    self._hold(self._passed[other])

    def _hold(self, taken: list[tuple[float, float, bool]]) -> None:
        short = sum(size for _, size, due in taken if not due)
        dues = [size for _, size, due in taken if due]
        assert short <= self._slack / 2 + 1e-6
        assert short + sum(dues) <= max(self._slack, self._slack / 2 + max(dues, default=0.0)) + 1e-6


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000), others=st.integers(1, 20))
def test_hints_starve_nobody(seed: int, others: int) -> None:
    """All others always have something short and urgent waiting: who has neither waits for one charge of each of them
    and for the slack, no longer."""
    chance = Random(seed)
    share = tree(slack=T)
    ask(share, "long", 500.0)
    served, name = 0.0, ""
    for number in range(2000):
        for user in range(others):
            account = share.root.children["normal"].children["acme"].children.get(f"u{user}")
            if account is None or not account.queued:
                size = chance.uniform(5.0, 20.0)
                ask(share, f"{size}", size, latest=number + 3.0, user=f"u{user}")
        name = serve(share, 1, now=float(number), wait=10.0)[0]
        if name == "long":
            break
        served += float(name)
    assert name == "long"
    assert served <= T + others * 20.0


# ------------------------------------------------------------------------------------------------ seen from outside

_LARGE = QueueSettings(size=5000, per_user=5000, timeouts=dict.fromkeys(ServiceClass, 1e6))


def _finish_all(stage: Stage, seconds: float = 1.0) -> None:
    """One engine, one after the other, each for so many seconds."""
    while stage.running:
        name = next(iter(stage.running))
        stage.wait(stage.now + seconds)
        if name in stage.running:
            stage.do(stage.now, done(name, prompt=100, completion=50))


def _queue(deadline: float | None, **fairness: object) -> Stage:
    """Ten users with three requests each before one engine, then one with a deadline."""
    settings = Settings(queue=_LARGE, fairness=FairnessSettings(**fairness))  # type: ignore[arg-type]
    stage = Stage(engine("a"), settings=settings)
    for number in range(3):
        for user in range(10):
            stage.do(0.0, arrive(f"u{user}-{number}", f"u{user}", prompt_tokens=100, output_cap=50))
    stage.do(0.0, arrive("due", "dora", prompt_tokens=100, output_cap=50, deadline=deadline))
    _finish_all(stage)
    return stage


def test_a_deadline_is_kept_where_that_is_possible() -> None:
    """In turn the newcomer would be answered after eleven seconds; told that he has six, he is answered in time, and of
    the others nobody is served later than one place."""
    turns, hinted = _queue(deadline=None), _queue(deadline=6.0)
    assert turns.sent.index(("due", "a")) > 6
    assert hinted.ending("due") is Ending.ANSWERED
    for place, sent in enumerate(turns.sent):
        if sent[0] != "due":
            assert hinted.sent.index(sent) <= place + 1


@pytest.mark.parametrize("fairness", [{"slack": 0.0}, {"policy": PolicyName.FIFO}])
def test_without_slack_or_by_arrival_the_deadline_passes(fairness: dict[str, object]) -> None:
    """The same request expires: nobody went before his turn."""
    assert _queue(6.0, **fairness).ending("due") is Ending.DEADLINE_EXPIRED


def test_a_short_job_passes_a_long_one_of_another_user() -> None:
    """Told lengths: 40 tokens go before 2,000, and equal ones take turns."""
    stage = Stage(engine("a"), settings=Settings(queue=_LARGE))
    stage.do(0.0, arrive("first", "zoe"))
    for name, cap in (("long", 250), ("longer", 251), ("short", 20)):
        stage.do(0.0, arrive(name, name, prompt_tokens=10, output_cap=cap))
    _finish_all(stage)
    assert [name for name, _ in stage.sent] == ["first", "short", "long", "longer"]
