"""How long somebody new waits at most, under any workload: the delay that `docs/scheduling.md` states.

He stands at the floor, so he waits for one charge of each sibling that is active, for what hints may take before their
turn, for what others get back of charges made in advance, and then for a place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.settings import FairnessSettings, QueueSettings, Settings
from headrace.core.share import Charge, Hint, Node
from headrace.model import ServiceClass
from tests.core.script import Stage, arrive, done, engine
from tests.core.test_fairness import Path, Tree, anywhere, finish, tree

LARGEST = (1.0, 10.0, 60.0)
"""Charges of a user are at most one of these."""


@dataclass
class Crowd:
    """Users who always want more, in one tree, and what they were charged."""

    share: Tree
    chance: Random
    largest: dict[Path, float]
    """By their path."""
    open: deque[tuple[Node[str], Charge[str]]] = field(default_factory=deque)
    returned: float = 0.0
    """What was charged in advance and came back."""
    clock: float = 0.0

    def ask(self) -> None:
        """Everybody has something waiting, and some more than one."""
        for path, largest in self.largest.items():
            node = self._account(path)
            while node is None or not node.queued or self.chance.random() < 0.2:
                size = self.chance.uniform(0.1, largest)
                late = self.clock + self.chance.uniform(0.0, 20.0) if self.chance.random() < 0.3 else None
                self.share.push("others", (*path, ""), hint=Hint(size, self.chance.random() < 0.7, late))
                node = self._account(path)

    def serve(self) -> tuple[str, float]:
        """Dispatch who is next, end some that run; returns who it was and his charge."""
        self.clock += 1.0
        pick = self.share.pick(anywhere, self.clock, 10.0)
        assert pick is not None
        cost = pick[0].hint.size
        charge = self.share.grant(pick[0], cost)
        assert charge is not None
        self.open.append((pick[0].leaf, charge))
        while len(self.open) > 4 or (self.open and self.chance.random() < 0.5):
            _, ended = self.open.popleft()
            true = ended.cost * self.chance.choice([0.3, 1.0, 1.0])
            self.returned += ended.cost - true
            finish(self.share, ended, true)
        return pick[0].item, cost

    def _account(self, path: Path) -> Node[str] | None:
        node: Node[str] | None = self.share.root
        for key in path:
            node = None if node is None else node.children.get(key)
        return node

    def behind(self, parent: Path) -> float:
        """How far siblings stand below the floor, to which advances that came back took them, in charged units."""
        node = self._account(parent)
        assert node is not None
        return sum(child.weight * max(0.0, node.floor - child.vt) for child in node.children.values() if child.turn)


def _wait(crowd: Crowd, parent: Path, path: Path, slack: float) -> None:
    """Somebody new under `parent` asks at `path`; hold what is served before him against the bound."""
    advance = sum(charge.advance for _, charge in crowd.open)
    crowd.share.push("new", (*path, ""), hint=Hint(1.0))
    siblings: dict[str, float] = {}
    for other, largest in crowd.largest.items():
        key = other[len(parent)]
        siblings[key] = max(siblings.get(key, 0.0), largest)
    bound = sum(siblings.values()) + crowd.behind(parent)
    before = crowd.returned
    hints = max(slack, slack / 2 + max(crowd.largest.values())) if slack else 0.0
    served = 0.0
    while True:
        crowd.ask()
        who, cost = crowd.serve()
        if who == "new":
            break
        served += cost
        assert served <= bound + hints + advance + crowd.returned - before + 1e-6


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=8),
    slack=st.sampled_from([0.0, 20.0, 100.0]),
    arrivals=st.integers(1, 4),
)
def test_a_new_user_waits_for_one_charge_of_each_at_most(
    seed: int, weights: list[float], slack: float, arrivals: int
) -> None:
    """Users of one tenant with any weights, sizes, deadlines and corrections; new ones come at any time."""
    chance = Random(seed)
    paths: dict[Path, float] = {("normal", "acme", f"u{n}"): chance.choice(LARGEST) for n in range(len(weights))}
    weight_of = dict(zip(paths, weights, strict=True))
    crowd = Crowd(tree(lambda path: weight_of.get(path, 1.0), slack=slack), chance, paths)
    for number in range(arrivals):
        for _ in range(chance.randrange(1, 60)):
            crowd.ask()
            crowd.serve()
        _wait(crowd, ("normal", "acme"), ("normal", "acme", f"new-{number}"), slack)


@settings(max_examples=100, deadline=None)
@example(seed=1721, users=[1, 2, 2, 4, 1], slack=0.0)
@given(
    seed=st.integers(0, 100_000),
    users=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    slack=st.sampled_from([0.0, 50.0]),
)
def test_a_new_tenant_waits_for_one_charge_of_each_tenant_at_most(seed: int, users: list[int], slack: float) -> None:
    """However many users the others have."""
    chance = Random(seed)
    paths: dict[Path, float] = {
        ("normal", f"t{tenant}", f"u{number}"): chance.choice(LARGEST)
        for tenant, count in enumerate(users)
        for number in range(count)
    }
    crowd = Crowd(tree(slack=slack), chance, paths)
    for _ in range(chance.randrange(1, 120)):
        crowd.ask()
        crowd.serve()
    # Hints are bounded on each level: among tenants, among the users of each, among the sessions.
    _wait(crowd, ("normal",), ("normal", "late", "new"), slack)


# --------------------------------------------------------------------------------------------------- in seconds

PLACES, RATE, OUTPUT = 3, 1000.0, 50
"""An engine that works on three at a time and at 1,000 charged tokens a second in all."""


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 100_000), flooders=st.integers(1, 10), slack=st.sampled_from([0.0, 2048.0]))
def test_a_new_user_waits_no_longer_than_stated(seed: int, flooders: int, slack: float) -> None:
    """Floods of any prompts before an engine of known rate: seconds until somebody new is sent."""
    chance = Random(seed)
    queue = QueueSettings(size=10**6, per_user=10**6, timeouts=dict.fromkeys(ServiceClass, 1e6))
    stage = Stage(engine("a", PLACES), settings=Settings(queue=queue, fairness=FairnessSettings(slack=slack)))
    prompts: dict[str, int] = {}
    ends: dict[str, float] = {}
    for number in range(40):
        for user in range(flooders):
            name = f"{user}-{number}"
            prompts[name] = chance.randrange(10, 3000)
            stage.do(0.0, arrive(name, f"u{user}", prompt_tokens=prompts[name], output_cap=OUTPUT))
    largest = [max(prompts[f"{user}-{number}"] for number in range(40)) + 2 * OUTPUT for user in range(flooders)]
    bound = (sum(largest) + (max(slack, slack / 2 + max(largest)) if slack else 0.0) + PLACES * max(largest)) / RATE
    for number in range(3):
        _run(stage, prompts, ends, chance.randrange(1, 10))
        name, asked = f"new-{number}", stage.now
        prompts[name] = 10
        stage.do(asked, arrive(name, name, prompt_tokens=10, output_cap=OUTPUT))
        while (name, "a") not in stage.sent:
            _run(stage, prompts, ends, 1)
        assert stage.now - asked <= bound + 1e-6


def _run(stage: Stage, prompts: dict[str, int], ends: dict[str, float], count: int) -> None:
    """Let so many answers end, each after the time its charge takes at a third of the rate."""
    for _ in range(count):
        for name in stage.running:
            ends.setdefault(name, stage.now + (prompts[name] + 2 * OUTPUT) * PLACES / RATE)
        name = min(stage.running, key=lambda running: ends[running])
        stage.wait(ends[name])
        stage.do(ends[name], done(name, prompt=prompts[name], completion=OUTPUT))
