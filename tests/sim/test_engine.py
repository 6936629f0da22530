"""The modelled engine: the short cuts change nothing, and what it does is what its formula says."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sim.engine import Fact, Kind, SimEngine
from headrace.sim.profile import A100, EngineProfile
from headrace.sim.sequence import Sequence
from tests.sim.stepwise import Job, play

SMALL = EngineProfile(
    name="small",
    step=0.01,
    token=1e-4,
    free_tokens=8,
    kv_read=1e-6,
    kv_tokens=960,
    budget=64,
    max_seqs=6,
)


def run(engine: SimEngine, arrivals: list[tuple[float, Sequence]]) -> list[tuple[float, Fact]]:
    """Submit at the given times and let the engine end; facts with their times."""
    facts: list[tuple[float, Fact]] = []
    pending = sorted(arrivals, key=lambda pair: pair[0])
    while pending or engine.next_at is not None:
        soonest = engine.next_at
        if pending and (soonest is None or pending[0][0] < soonest):
            at, sequence = pending.pop(0)
            facts += ((at, fact) for fact in engine.advance(at))
            engine.submit(sequence, at)
        elif soonest is not None:
            facts += ((soonest, fact) for fact in engine.advance(soonest))
    return facts


def times(facts: list[tuple[float, Fact]], kind: Kind) -> dict[str, float]:
    """When each sequence had its fact of that kind."""
    return {fact.key: at for at, fact in facts if fact.kind is kind}


JOBS = st.lists(
    st.tuples(st.floats(0, 2, allow_nan=False), st.integers(1, 300), st.integers(1, 120)), min_size=1, max_size=14
)


@settings(max_examples=60, deadline=None)
@given(JOBS)
def test_taking_many_steps_at_once_changes_nothing(jobs: list[tuple[float, int, int]]) -> None:
    """First tokens, ends and preemptions are those of an engine that looks at each sequence in each step."""
    engine = SimEngine(SMALL)
    facts = run(engine, [(at, Sequence(f"s{n}", prompt, output)) for n, (at, prompt, output) in enumerate(jobs)])
    expected, preemptions = play(SMALL, [(at, Job(f"s{n}", p, o)) for n, (at, p, o) in enumerate(jobs)])
    assert engine.preemptions == preemptions
    firsts, ends = times(facts, Kind.FIRST), times(facts, Kind.DONE)
    assert firsts == pytest.approx({key: job.first for key, job in expected.items()})
    assert ends == pytest.approx({key: job.finished for key, job in expected.items()})


@settings(max_examples=40, deadline=None)
@given(JOBS, st.lists(st.floats(0, 3, allow_nan=False), max_size=5))
def test_every_token_is_reported_once(jobs: list[tuple[float, int, int]], looks: list[float]) -> None:
    """However often progress is asked for, the reports of a sequence add up to its answer."""
    engine = SimEngine(SMALL)
    told: dict[str, int] = {}
    agenda: list[tuple[float, Sequence | None]] = [
        (at, Sequence(f"s{n}", prompt, output)) for n, (at, prompt, output) in enumerate(jobs)
    ]
    agenda += [(at, None) for at in looks]
    for at, sequence in sorted(agenda, key=lambda pair: pair[0]):
        facts = engine.advance(at)
        if sequence is None:
            facts += engine.sweep(at)
        else:
            engine.submit(sequence, at)
        for fact in facts:
            told[fact.key] = told.get(fact.key, 0) + fact.tokens
    for fact in engine.advance(float("inf")):
        told[fact.key] = told.get(fact.key, 0) + fact.tokens
    assert told == {f"s{n}": output for n, (_, _, output) in enumerate(jobs)}


def test_a_lone_request_takes_what_the_formula_says() -> None:
    """500 prompt tokens on an idle A100: one step of 11 ms and 400 tokens of 68 us, then one step per token."""
    facts = run(SimEngine(A100), [(0.0, Sequence("a", 500, 3))])
    first = 0.011 + 400 * 68e-6
    assert times(facts, Kind.FIRST)["a"] == pytest.approx(first)
    assert times(facts, Kind.DONE)["a"] == pytest.approx(first + 2 * 0.011 + (500 + 501) * 8.2e-8)


def test_a_long_prompt_is_read_in_chunks() -> None:
    """A prompt of three budgets takes three steps, and what decodes meanwhile gets a token in each of them."""
    engine = SimEngine(A100)
    facts = run(engine, [(0.0, Sequence("a", 10, 5)), (0.001, Sequence("b", 3 * 2047, 1))])
    first, end = times(facts, Kind.FIRST), times(facts, Kind.DONE)
    full = 0.011 + 68e-6 * (2048 - 100)
    assert first["b"] - first["a"] == pytest.approx(3 * full, rel=0.01)
    assert end["a"] > first["b"]


def test_a_submission_in_the_middle_waits_for_the_step_under_way() -> None:
    """A stretch of many equal steps is cut where a request comes, at the end of the step that runs then."""
    engine = SimEngine(A100)
    engine.submit(Sequence("a", 100, 1000), 0.0)
    engine.advance(engine.next_at or 0.0)
    engine.submit(Sequence("b", 100, 1), 1.0)
    cut = engine.next_at
    assert cut is not None
    assert 1.0 <= cut < 1.012
    engine.advance(cut)
    assert times(run(engine, []), Kind.FIRST)["b"] == pytest.approx(cut + 0.011, abs=2e-4)


def test_places_of_the_aborted_are_free_again() -> None:
    """Whether it waits, reads or writes, an aborted request leaves no trace and makes no further facts but one
    step's."""
    engine = SimEngine(msgspec.structs.replace(SMALL, max_seqs=2))
    for key in ("writes", "reads", "waits"):
        engine.submit(Sequence(key, 100, 50), 0.0)
    engine.advance(0.05)
    for key in ("writes", "reads", "waits", "unknown"):
        engine.abort(key, 0.05)
    run(engine, [])
    reading = engine.reading(10.0)
    assert (reading.running, reading.waiting, reading.kv_use) == (0, 0, 0.0)
    assert times(run(engine, [(11.0, Sequence("next", 10, 2))]), Kind.DONE) != {}


def test_a_crash_loses_everything_and_the_engine_starts_empty() -> None:
    """What was there is named, the cache is cold, and new work is done as on the first day."""
    engine = SimEngine(A100, prefix_tokens=10_000)
    chain = tuple(range(20))
    run(engine, [(0.0, Sequence("a", 640, 2, chain))])
    engine.submit(Sequence("b", 640, 2, chain), 5.0)
    assert engine.crash(5.01) == ["b"]
    facts = run(engine, [(6.0, Sequence("c", 640, 2, chain))])
    assert [fact.cached for _, fact in facts if fact.kind is Kind.FIRST] == [0]


def test_known_prefixes_are_not_computed_again() -> None:
    """The second turn of a conversation reads only what is new, in whole blocks of the cache."""
    engine = SimEngine(A100, prefix_tokens=100_000)
    chain = tuple(range(100))
    facts = run(engine, [(0.0, Sequence("a", 1000, 100, chain)), (20.0, Sequence("b", 1200, 1, chain))])
    first = times(facts, Kind.FIRST)
    cached = {fact.key: fact.cached for _, fact in facts if fact.kind is Kind.FIRST}
    assert cached == {"a": 0, "b": 1088}
    assert first["b"] - 20.0 == pytest.approx(0.011 + 68e-6 * 12 + 8.2e-8 * 1088, rel=0.01)


def test_priority_lets_the_urgent_overtake_in_the_engine_s_own_queue() -> None:
    """With priority scheduling the lower number is admitted first; without it the first come."""
    profile = msgspec.structs.replace(SMALL, max_seqs=1)
    for by_priority, expected in ((True, ["a", "c", "b"]), (False, ["a", "b", "c"])):
        engine = SimEngine(profile, by_priority=by_priority)
        queue = [Sequence("a", 10, 3), Sequence("b", 10, 3, priority=2), Sequence("c", 10, 3, priority=1)]
        facts = run(engine, [(0.001 * number, sequence) for number, sequence in enumerate(queue)])
        assert list(times(facts, Kind.DONE)) == expected


def test_gpu_time_is_billed_for_prompt_share_and_context() -> None:
    """Two sequences that decode together share a step's fixed part; each pays for its prompt and its own context."""
    engine = SimEngine(A100)
    facts = run(engine, [(0.0, Sequence("a", 1000, 101)), (0.0, Sequence("b", 500, 101))])
    billed: dict[str, float] = {}
    for _, fact in facts:
        billed[fact.key] = billed.get(fact.key, 0.0) + fact.gpu
    shared = 100 * 0.011 / 2
    context = 8.2e-8 * (100 * 1000 + 100 * 99 / 2)
    assert billed["a"] == pytest.approx(1000 * 68e-6 + shared + context)
    assert billed["a"] - billed["b"] == pytest.approx(500 * 68e-6 + 8.2e-8 * 100 * 500)


def test_metrics_count_the_mean_time_per_token() -> None:
    """The histogram's sum and count, read at any moment, give the mean step time of those that decode."""
    engine = SimEngine(A100)
    engine.submit(Sequence("a", 100, 400), 0.0)
    engine.advance(0.02)
    before, after = engine.reading(1.0), engine.reading(2.0)
    mean = (after.tpot_sum - before.tpot_sum) / (after.tpot_count - before.tpot_count)
    assert mean == pytest.approx(0.011, rel=0.01)
    assert after.running == 1


def test_what_can_never_fit_is_refused() -> None:
    """A request larger than the KV cache is a mistake of whoever submits it."""
    engine = SimEngine(SMALL)
    assert not engine.fits(900, 100)
    with pytest.raises(ValueError, match="cannot be taken"):
        engine.submit(Sequence("a", 900, 100), 0.0)
