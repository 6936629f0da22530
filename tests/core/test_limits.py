"""The promises of `headrace.core.limits`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.limits import Denied, Lease, Limiter, LimitKind, LimitRule, SlidingWindow, TokenBucket

TEN = LimitRule(requests_per_minute=10)


def admitted(answer: Lease | Denied) -> Lease:
    """The lease of an answer that must be one."""
    assert isinstance(answer, Lease)
    return answer


def refused(answer: Lease | Denied) -> Denied:
    """The refusal of an answer that must be one."""
    assert isinstance(answer, Denied)
    return answer


def test_the_eleventh_of_ten_a_minute_is_refused_with_the_exact_wait() -> None:
    """At 10/min the 11th request is told to the millisecond when the next one fits."""
    limiter = Limiter()
    for _ in range(10):
        admitted(limiter.take([("u", TEN)], 1, 100.0))
    denied = refused(limiter.take([("u", TEN)], 1, 100.0))
    assert denied.message == "sliding window limit exceeded; window resets in 60000 ms"
    assert (denied.retry_after, denied.key, denied.kind) == (60.0, "u", LimitKind.REQUESTS)
    assert refused(limiter.take([("u", TEN)], 1, 142.5)).retry_after == 17.5
    admitted(limiter.take([("u", TEN)], 1, 160.0))


def test_steady_traffic_at_the_limit_is_never_refused() -> None:
    """A hit does not renew the others' expiry: one call every 2 s under 60/min passes for ever."""
    limiter, rule = Limiter(), LimitRule(requests_per_minute=60)
    for tick in range(300):
        admitted(limiter.take([("u", rule)], 1, tick * 2.0))


def test_yesterday_does_not_count() -> None:
    """A limit used up at one time of day is whole again at the same time on the next."""
    limiter = Limiter()
    for day in (0.0, 86_400.0):
        for _ in range(10):
            admitted(limiter.take([("u", TEN)], 1, day))
        refused(limiter.take([("u", TEN)], 1, day))


def test_a_clock_that_steps_back_neither_locks_out_nor_refills() -> None:
    """A `now` older than the last one counts as the last one."""
    limiter, rule = Limiter(), LimitRule(requests_per_minute=30, tokens_per_minute=60)
    for _ in range(3):
        admitted(limiter.take([("u", rule)], 10, 1000.0))
    admitted(limiter.take([("u", rule)], 10, 989.0))
    denied = refused(limiter.take([("u", rule)], 30, 900.0))
    assert denied.kind is LimitKind.TOKENS
    assert denied.retry_after == pytest.approx(10.0)


def test_an_empty_bucket_stays_empty_while_its_clock_stands() -> None:
    """Without monotonic time passing nothing refills, and the wait is at most the window."""
    limiter, rule = Limiter(), LimitRule(tokens_per_minute=600)
    admitted(limiter.take([("u", rule)], 600, 5.0))
    denied = refused(limiter.take([("u", rule)], 600, 5.0))
    assert denied.message == "token limit exceeded; enough tokens are back in 60000 ms"
    assert denied.retry_after == 60.0
    admitted(limiter.take([("u", rule)], 600, 65.0))


def test_a_request_larger_than_the_bucket_runs_when_it_is_full_and_leaves_a_debt() -> None:
    """No request waits for ever, and none is free."""
    limiter, rule = Limiter(), LimitRule(tokens_per_minute=60)
    admitted(limiter.take([("u", rule)], 180, 0.0))
    assert refused(limiter.take([("u", rule)], 1, 0.0)).retry_after == 121.0


def test_burst_widens_the_bucket_but_not_the_rate() -> None:
    """Two minutes' worth of tokens at once, then one token a second."""
    limiter, rule = Limiter(), LimitRule(tokens_per_minute=60, burst=2.0)
    admitted(limiter.take([("u", rule)], 120, 0.0))
    assert refused(limiter.take([("u", rule)], 30, 0.0)).retry_after == 30.0


def test_a_refusal_takes_nothing_from_any_key() -> None:
    """Check all, then take all: the tenant pays nothing for what the user was refused."""
    limiter = Limiter()
    user, tenant = LimitRule(requests_per_minute=1), LimitRule(requests_per_minute=2, concurrency=9)
    admitted(limiter.take([("t", tenant), ("u", user)], 1, 0.0))
    for _ in range(5):
        assert refused(limiter.take([("t", tenant), ("u", user)], 1, 0.0)).key == "u"
    assert limiter.running("t") == 1
    admitted(limiter.take([("t", tenant), ("v", user)], 1, 0.0))


def test_of_several_refusals_the_longest_wait_is_told() -> None:
    """A caller that obeys the answer is not refused by the next limit."""
    limiter = Limiter()
    fast, slow = LimitRule(tokens_per_minute=60), LimitRule(requests_per_minute=1)
    admitted(limiter.take([("a", fast), ("b", slow)], 60, 0.0))
    denied = refused(limiter.take([("a", fast), ("b", slow)], 10, 0.0))
    assert (denied.key, denied.retry_after) == ("b", 60.0)


def test_concurrency_is_a_lease_given_back_once() -> None:
    """However a request ends and however often that is reported, exactly one slot comes back."""
    limiter, rule = Limiter(), LimitRule(concurrency=2)
    first, second = (admitted(limiter.take([("u", rule)], 1, 0.0)) for _ in range(2))
    denied = refused(limiter.take([("u", rule)], 1, 0.0))
    assert (denied.kind, denied.retry_after) == (LimitKind.CONCURRENCY, 1.0)
    for _ in range(3):
        limiter.settle(first, 1, 0.0)
        limiter.refund(first, 0.0)
    assert limiter.running("u") == 1
    assert not first.open
    assert second.open
    admitted(limiter.take([("u", rule)], 1, 0.0))


def test_settling_replaces_the_estimate_by_what_was_used() -> None:
    """Too much reserved comes back; too little is owed."""
    limiter, rule = Limiter(), LimitRule(tokens_per_minute=600)
    limiter.settle(admitted(limiter.take([("u", rule)], 600, 0.0)), 100, 0.0)
    lease = admitted(limiter.take([("u", rule)], 500, 0.0))
    limiter.settle(lease, 700, 0.0)
    assert refused(limiter.take([("u", rule)], 1, 0.0)).retry_after == pytest.approx(20.1)


def test_a_refund_gives_the_place_in_the_window_back() -> None:
    """A request that was never served counts nowhere, even if others came after it."""
    limiter, rule = Limiter(), LimitRule(requests_per_minute=2, tokens_per_minute=10)
    lease = admitted(limiter.take([("u", rule)], 5, 0.0))
    admitted(limiter.take([("u", rule)], 5, 1.0))
    limiter.refund(lease, 2.0)
    admitted(limiter.take([("u", rule)], 5, 2.0))
    assert refused(limiter.take([("u", rule)], 1, 2.0)).retry_after == 59.0


def test_a_changed_rule_keeps_what_was_used() -> None:
    """A reload neither forgives nor charges twice."""
    limiter = Limiter()
    wide = LimitRule(requests_per_minute=4, tokens_per_minute=600)
    for at in range(4):
        admitted(limiter.take([("u", wide)], 100, float(at)))
    narrow = LimitRule(requests_per_minute=2, tokens_per_minute=1200)
    assert refused(limiter.take([("u", narrow)], 1, 4.0)).retry_after == 58.0
    admitted(limiter.take([("u", narrow)], 760, 62.0))
    admitted(limiter.take([("u", LimitRule())], 10**9, 62.0))


def test_only_idle_keys_are_forgotten_while_there_are_any() -> None:
    """A flood of names does not wash away the count of a key in use."""
    limiter = Limiter(max_keys=8)
    for _ in range(10):
        admitted(limiter.take([("busy", TEN)], 1, 0.0))
    for at in range(1, 50):
        lease = admitted(limiter.take([(f"name-{at}", LimitRule())], 1, float(at)))
        limiter.settle(lease, 1, float(at))
        assert len(limiter) <= 8
    refused(limiter.take([("busy", TEN)], 1, 50.0))


def test_the_map_of_keys_is_bounded_even_if_all_are_in_use() -> None:
    """The oldest goes, and its open lease can still be given back."""
    limiter, rule = Limiter(max_keys=3), LimitRule(concurrency=1)
    leases = [admitted(limiter.take([(f"k{n}", rule)], 1, 0.0)) for n in range(10)]
    assert len(limiter) == 3
    for lease in leases:
        limiter.settle(lease, 1, 0.0)
    assert [limiter.running(f"k{n}") for n in range(10)] == [0] * 10


def test_more_keys_in_one_request_than_are_remembered_is_no_fault() -> None:
    """The tightest bound still answers."""
    limiter = Limiter(max_keys=1)
    keys = [("a", LimitRule(concurrency=1)), ("b", LimitRule(concurrency=1))]
    admitted(limiter.take(keys, 1, 0.0))
    refused(limiter.take([keys[1], keys[0]], 1, 0.0))


@pytest.mark.parametrize(
    "build",
    [
        lambda: LimitRule(requests_per_minute=0),
        lambda: LimitRule(tokens_per_minute=-1),
        lambda: LimitRule(concurrency=0),
        lambda: LimitRule(burst=0.0),
        lambda: LimitRule(burst=float("nan")),
        lambda: LimitRule(burst=float("inf")),
    ],
)
def test_a_rule_that_could_admit_nothing_is_refused(build: object) -> None:
    """Zero and nonsense are configuration errors, not silent lock-outs."""
    assert callable(build)
    with pytest.raises(ValueError, match="must be"):
        build()


steps = st.lists(st.floats(0.0, 30.0, allow_nan=False, width=32), min_size=1, max_size=80)


@given(limit=st.integers(1, 6), gaps=steps)
def test_no_window_of_a_minute_holds_more_than_the_limit(limit: int, gaps: list[float]) -> None:
    """Any minute holds at most `limit` admissions, and what was refused fits after its wait, not before."""
    window, now, passed = SlidingWindow(limit), 0.0, list[float]()
    for gap in gaps:
        now += gap
        wait = window.peek(now)
        expected = sum(1 for at in passed if at > now - 60.0)
        assert (wait == 0.0) == (expected < limit)
        if wait == 0.0:
            window.take(now)
            passed.append(now)
        else:
            assert sum(1 for at in passed if at > now + wait - 60.0 + 1e-6) < limit
            assert sum(1 for at in passed if at > now + wait - 60.0 - 1e-6) >= limit


@given(
    rate=st.integers(1, 1000),
    requests=st.lists(st.tuples(st.floats(0.0, 20.0, width=32), st.integers(1, 500), st.integers(0, 800)), max_size=60),
)
def test_over_time_nobody_gets_more_than_the_rate(rate: int, requests: list[tuple[float, int, int]]) -> None:
    """What was really used never exceeds one bucket, the rate since the start, and the last request's own overdraft."""
    rule = LimitRule(tokens_per_minute=rate)
    limiter, now, used = Limiter(), 0.0, 0
    for gap, estimate, real in requests:
        now += gap
        answer = limiter.take([("u", rule)], estimate, now)
        if isinstance(answer, Lease):
            assert used <= rate + now * rate / 60.0 + 1e-6
            limiter.settle(answer, real, now)
            used += real


@given(st.lists(st.tuples(st.sampled_from(["take", "settle", "refund", "wait"]), st.integers(0, 5)), max_size=100))
def test_what_is_taken_is_what_is_given_back(moves: list[tuple[str, int]]) -> None:
    """After doubled and disordered reports, running equals the open leases, and all idle means full."""
    rule = LimitRule(requests_per_minute=5, tokens_per_minute=100, concurrency=3)
    limiter, now, leases = Limiter(), 0.0, list[Lease]()
    for move, number in moves:
        if move == "take":
            answer = limiter.take([("t", rule), ("u", rule)], number, now)
            if isinstance(answer, Lease):
                leases.append(answer)
        elif move == "wait":
            now += number * 7.0
        elif leases:
            lease = leases[number % len(leases)]
            limiter.settle(lease, number * 9, now) if move == "settle" else limiter.refund(lease, now)
        still_open = sum(lease.open for lease in leases)
        assert limiter.running("t") == limiter.running("u") == still_open <= 3
    for lease in leases:
        limiter.refund(lease, now)
    admitted(limiter.take([("t", rule), ("u", rule)], 100, now + 3600.0))


def test_a_bucket_reports_its_level() -> None:
    """The level is what may be taken, below zero in debt, never above capacity."""
    bucket = TokenBucket(rate=1.0, capacity=10.0, now=0.0)
    bucket.take(12, 0.0)
    assert bucket.level(1.0) == -1.0
    assert bucket.peek(5, 1.0) == 6.0
    bucket.give_back(100, 1.0)
    assert bucket.level(1.0) == 10.0
    assert bucket.idle(1.0)
