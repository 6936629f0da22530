"""Runs on virtual time against an endpoint in memory: who asks when, what is counted, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.bench.endpoint import Answered, Asker
from headrace.bench.lengths import Fixed
from headrace.bench.patterns import User, read_users
from headrace.bench.questions import Question
from headrace.bench.report import Report, UserReport, report
from headrace.bench.run import Plan, Run
from headrace.model import Usage
from headrace.testing import run_virtual
from tests.bench.world import Slots

SHORT = "prompt=10,output=10"


def ran(asker: Asker, *users: str, duration: float = 20.0, grace: float = 60.0, stop: float | None = None) -> Report:
    """A whole run's report; `stop` interrupts it after so many seconds."""

    async def main() -> Report:
        plan = Plan(users=read_users(users), model="m", duration=duration, grace=grace, seed=1)
        run = Run(plan, asker)
        if stop is not None:
            asyncio.get_running_loop().call_later(stop, run.interrupt)
        window = await run.go()
        return report(plan, run.tallies, window=window, url="u", started=0.0, interrupted=run.interrupted)

    return run_virtual(main())


def of(result: Report, name: str) -> UserReport:
    """One user's part."""
    return next(user for user in result.users if user.name == name)


def test_callers_keep_as_many_under_way_as_they_are() -> None:
    """Each waits for his answer before he asks again: 3 callers, one second each, ten seconds."""
    asker = Slots(8)
    result = ran(asker, f"ann:concurrency=3,{SHORT}", duration=9.95)
    ann = of(result, "ann")
    assert asker.most_at_once == 3
    assert (ann.asked, ann.served, ann.unfinished, ann.errors) == (30, 30, 0, {})
    assert ann.requests_per_second == pytest.approx(27 / 9.95), "the last three ended after the window"
    assert ann.ttft is not None
    assert ann.tpot is not None
    assert ann.ttft.p99 == pytest.approx(0.1)
    assert ann.tpot.p50 == pytest.approx(0.1)
    assert ann.whole is not None
    assert ann.whole.p50 == pytest.approx(1.0)
    assert not ann.wanted_more


def test_thinking_makes_pauses() -> None:
    """A caller who thinks three seconds on average asks about every four."""
    asker = Slots(8)
    result = ran(asker, f"ann:think=3,{SHORT}", duration=4000)
    assert of(result, "ann").asked == pytest.approx(1000, rel=0.1)


def test_arrivals_come_at_their_rate_whatever_is_answered() -> None:
    """An open loop does not slow down for a slow endpoint, and its waits count from when requests were due."""
    asker = Slots(1)
    result = ran(asker, f"ann:rate=2,{SHORT}", duration=100, grace=1000)
    ann = of(result, "ann")
    assert ann.asked == pytest.approx(200, rel=0.2)
    assert ann.served == ann.asked
    assert ann.ttft is not None
    assert ann.ttft.longest > 60, "half of them can be served while they arrive"
    assert ann.wanted_more


def test_the_same_seed_asks_at_the_same_times() -> None:
    """A run can be repeated exactly."""
    one, two = Slots(2), Slots(2)
    for asker in (one, two):
        ran(asker, f"ann:rate=1,{SHORT}", f"ben:rate=1,{SHORT}")
    assert one.asked == two.asked
    assert one.bodies == two.bodies


def test_a_burst_begins_when_it_should_and_keeps_its_bound() -> None:
    """Nothing before `at`, then as many as may be; what could not be sent any more has waited too."""
    asker = Slots(100)
    result = ran(asker, f"ann:burst=20,concurrency=4,at=5,{SHORT}", duration=7.5, grace=0)
    ann = of(result, "ann")
    assert asker.asked[0][0] == 5.0
    assert asker.most_at_once == 4
    assert (ann.asked, ann.served, ann.unfinished, ann.held) == (12, 8, 4, 8)
    assert ann.ttft is not None
    assert (ann.ttft.count, ann.ttft.longest, ann.ttft.floor) == (20, 2.5, 2.5)


def test_an_end_to_asking_is_kept() -> None:
    """After `until`, and after so many requests, there are no new ones; the run ends when nobody has anything left."""
    asker = Slots(100)
    users = (f"a:rate=5,until=4,{SHORT}", f"b:burst=9,concurrency=1,until=2.5,{SHORT}", f"c:requests=3,{SHORT}")
    result = ran(asker, *users, duration=100)
    assert max(when for when, user in asker.asked if user == "a") <= 4
    assert of(result, "b").asked == of(result, "c").asked == 3
    assert result.window < 6


def test_fifo_s_unfairness_is_seen() -> None:
    """Behind a flood in one queue the light user waits as long as the flood does, and both measures say so."""
    result = ran(Slots(2), f"flood:concurrency=20,{SHORT}", f"light:rate=0.5,{SHORT}", duration=60)
    flood, light = of(result, "flood"), of(result, "light")
    assert flood.ttft is not None
    assert light.ttft is not None
    assert light.ttft.p50 == pytest.approx(flood.ttft.p50, rel=0.2)
    assert light.wanted_more
    assert result.jain is not None
    assert result.jain < 0.8
    assert result.jain_max_min is not None
    assert result.jain_max_min < 0.99
    assert flood.share + light.share == pytest.approx(1.0)


def test_who_wants_little_and_gets_it_is_not_compared() -> None:
    """Jain's index is over those who wanted more than they got: with one such user there is none."""
    result = ran(Slots(100), f"flood:concurrency=50,{SHORT}", f"light:rate=0.2,{SHORT}", duration=60)
    assert [user.wanted_more for user in result.users] == [False, False]
    assert result.jain is None


def test_what_never_began_counts_as_waiting() -> None:
    """An endpoint that answers nobody has no served requests, and waits that are marked as lower bounds."""
    asker = Slots(1)
    asker.hang = True
    result = ran(asker, f"ann:concurrency=3,{SHORT}", duration=10, grace=5)
    ann = of(result, "ann")
    assert (ann.asked, ann.served, ann.unfinished, ann.service, ann.errors) == (3, 0, 3, 0.0, {})
    assert ann.ttft is not None
    assert (ann.ttft.p50, ann.ttft.floor) == (15.0, 15.0)
    assert (ann.backlogged, ann.wanted_more) == (1.0, True)


def test_refusals_are_never_service_and_slow_callers_down() -> None:
    """A refused caller stays away as long as he was told, between a quarter of a second and ten."""
    asker = Slots(8)
    asker.refuse = {
        "ann": Answered(result="429 rate_limit_exceeded", retry_after=2.0),
        "ben": Answered(result="503 queue_full"),
        "cleo": Answered(result="503 queue_full", retry_after=3600.0),
    }
    result = ran(asker, f"ann:{SHORT}", f"ben:{SHORT}", f"cleo:{SHORT}", duration=19.9)
    assert [user.asked for user in result.users] == [10, 80, 2]
    assert of(result, "ann").errors == {"429 rate_limit_exceeded": 10}
    assert [(user.served, user.service, user.requests_per_second) for user in result.users] == [(0, 0.0, 0.0)] * 3
    assert [user.ttft for user in result.users] == [None, None, None]
    assert result.jain_max_min is None


class Breaks:
    """Gives three tokens, then breaks the answer off."""

    async def ask(self, question: Question, seen: Callable[[int], None]) -> Answered:
        """See `bench.endpoint.Asker`."""
        seen(3)
        await asyncio.sleep(1)
        return Answered(result="cut")


def test_a_broken_answer_is_no_service() -> None:
    """What it had brought is taken back, and it is in no distribution."""
    ann = of(ran(Breaks(), f"ann:requests=4,{SHORT}"), "ann")
    assert (ann.served, ann.errors) == (0, {"cut": 4})
    assert (ann.service, ann.prompt_tokens, ann.output_tokens) == (0.0, 0, 0)
    assert ann.ttft is ann.tpot is ann.whole is None


class Chunky:
    """Ten tokens in two chunks, as usage tells; the prompt was longer than guessed."""

    async def ask(self, question: Question, seen: Callable[[int], None]) -> Answered:
        """See `bench.endpoint.Asker`."""
        seen(1)
        await asyncio.sleep(0.9)
        seen(1)
        return Answered(result="served", usage=Usage(15, 10), waited=0.25)


def test_reported_usage_replaces_what_was_counted() -> None:
    """Service and the time per token follow the engine's own counts; the gateway's queue is told."""
    ann = of(ran(Chunky(), f"ann:requests=1,{SHORT}"), "ann")
    assert (ann.prompt_tokens, ann.output_tokens, ann.service, ann.estimated) == (15, 10, 35.0, False)
    assert ann.tpot is not None
    assert ann.tpot.p50 == pytest.approx(0.1)
    assert ann.queued is not None
    assert ann.queued.p50 == 0.25


def test_without_usage_chunks_are_counted_and_marked() -> None:
    """Where the endpoint reports nothing, the counts are estimates and say so."""
    ann = of(ran(Slots(1, usage=False), f"ann:requests=2,{SHORT}"), "ann")
    assert (ann.prompt_tokens, ann.output_tokens, ann.estimated) == (20, 20, True)


def test_an_interruption_ends_it_at_once() -> None:
    """The result so far is there, for the seconds that were measured; what was under way is let go of."""
    asker = Slots(1)
    result = ran(asker, f"ann:concurrency=5,{SHORT}", f"ben:rate=1,{SHORT}", duration=100, stop=7.5)
    assert (result.interrupted, asker.at_once) == (True, 0)
    assert result.window == pytest.approx(7.5)
    assert of(result, "ann").served + of(result, "ben").served == 7
    assert sum(user.unfinished for user in result.users) > 0


def test_conversations_carry_what_was_said() -> None:
    """A caller's second turn holds his first and the answer; after a failure he begins a new one."""
    asker = Slots(1)
    ran(asker, f"ann:session=40,requests=3,{SHORT}")
    assert [len(turns) for body in asker.bodies if isinstance(turns := body["messages"], list)] == [1, 3, 1]


def test_a_fault_of_the_bench_itself_is_raised() -> None:
    """A bug does not look like a bad endpoint."""

    class Faulty:
        async def ask(self, question: Question, seen: Callable[[int], None]) -> Answered:
            raise KeyError("bug")

    with pytest.raises(KeyError, match="bug"):
        ran(Faulty(), f"ann:{SHORT}", f"ben:rate=1,{SHORT}", duration=1000)


def test_one_request_alone_says_how_fast_it_could_be() -> None:
    """Before the others begin, the user who asks least asks once."""

    async def main() -> tuple[Answered, float | None]:
        users = (User(name="flood"), User(name="light", rate=0.5, output=Fixed(5)))
        answer, alone = await Run(Plan(users=users, model="m"), Slots(1)).alone()
        return answer, alone.first if alone is not None else None

    answer, first = run_virtual(main())
    assert answer.served
    assert first == pytest.approx(0.1)


def test_a_million_waits_do_not_make_a_million_points() -> None:
    """What a report carries for plots is bounded."""
    result = ran(Slots(64, tokens=1, pace=0.01), f"ann:concurrency=60,{SHORT}", duration=2)
    ann = of(result, "ann")
    assert ann.served > 6000
    assert 1000 < len(ann.waits) <= 2000
    assert b'"jain_max_min"' in result.to_json()
