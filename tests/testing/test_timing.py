"""The timing model: what a scheduler in front of a continuous-batching server can rely on."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.timing import ContinuousBatch, Produced, QueueFull, Timing, TooLong

_PLAIN = Timing(slots=2, queue=2, prefill_tps=100.0, decode_tps=10.0, batch_slowdown=0.0, step_tokens=1000)


def _play(batch: ContinuousBatch) -> list[Produced]:
    """Everything the batch will still produce, with nobody interfering."""
    produced: list[Produced] = []
    while (due := batch.next_at) is not None:
        produced += batch.advance(due)
    return produced


def _times(produced: list[Produced], job: int) -> list[float]:
    return [round(token.at, 9) for token in produced if token.job == job]


def test_a_lone_request_has_the_times_of_the_formula() -> None:
    """First token after prompt / prefill rate, then one per step; the last one is marked."""
    batch = ContinuousBatch(_PLAIN)
    batch.submit(1, prompt=50, output=3, now=10.0)
    produced = _play(batch)

    assert _times(produced, 1) == [10.5, 10.6, 10.7]
    assert [(token.number, token.last) for token in produced] == [(1, False), (2, False), (3, True)]
    assert (batch.running, batch.waiting, batch.kv_use) == (0, 0, 0.0)


def test_the_first_come_gets_the_slot() -> None:
    """With both slots taken a third waits; it starts when the first ends, and its wait is seen in its first token."""
    batch = ContinuousBatch(_PLAIN)
    for job in (1, 2, 3):
        batch.submit(job, prompt=10, output=2, now=0.0)
    assert (batch.running, batch.waiting) == (2, 1)
    assert batch.take_admitted() == [1, 2]
    produced = _play(batch)

    assert batch.take_admitted() == [3]
    assert _times(produced, 3)[0] > _times(produced, 1)[-1]


@pytest.mark.parametrize(("by_priority", "order"), [(False, [1, 2, 3, 4]), (True, [1, 3, 2, 4])])
def test_lower_priority_values_go_first_where_the_server_looks_at_them(by_priority: bool, order: list[int]) -> None:
    """The urgent one overtakes those that wait, equals keep their order, and whoever runs stays."""
    batch = ContinuousBatch(Timing(slots=1, queue=4, by_priority=by_priority))
    for job, priority in ((1, 5), (2, 0), (3, -1), (4, 0)):
        batch.submit(job, prompt=1, output=2, now=0.0, priority=priority)
    _play(batch)

    assert batch.take_admitted() == order


def test_a_long_prompt_slows_the_others() -> None:
    """A prompt worked on in a step makes that step longer for everyone in it."""
    batch = ContinuousBatch(_PLAIN)
    batch.submit(1, prompt=1, output=3, now=0.0)
    batch.advance(0.01)
    batch.submit(2, prompt=100, output=1, now=0.05)

    assert _times(_play(batch), 1) == [0.11, 1.21]


def test_a_prompt_longer_than_a_step_is_taken_in_chunks() -> None:
    """Between the chunks of a long prompt the others get a token each."""
    batch = ContinuousBatch(Timing(prefill_tps=100.0, decode_tps=10.0, batch_slowdown=0.0, step_tokens=10))
    batch.submit(1, prompt=1, output=5, now=0.0)
    batch.submit(2, prompt=30, output=1, now=0.0)

    assert _times(_play(batch), 1) == [0.01, 0.21, 0.41, 0.61, 0.71]


def test_more_sequences_make_each_slower() -> None:
    """A step with n producing sequences takes (1 + slowdown * (n - 1)) times as long."""
    batch = ContinuousBatch(Timing(prefill_tps=math.inf, decode_tps=10.0, batch_slowdown=0.5))
    for job in (1, 2):
        batch.submit(job, prompt=1, output=3, now=0.0)

    assert _times(_play(batch), 1) == [0.0, 0.1, 0.25]


def test_speed_divides_every_duration() -> None:
    """Ten times the speed is a tenth of the time."""
    batch = ContinuousBatch(Timing(prefill_tps=100.0, decode_tps=10.0, speed=10.0))
    batch.submit(1, prompt=50, output=2, now=0.0)

    assert _times(_play(batch), 1) == [0.05, 0.06]


def test_infinite_rates_take_no_time() -> None:
    """A server without delay gives its whole answer at once."""
    batch = ContinuousBatch(Timing(prefill_tps=math.inf, decode_tps=math.inf))
    batch.submit(1, prompt=50, output=100, now=7.0)

    assert _times(batch.advance(7.0), 1) == [7.0] * 100


def test_jitter_is_the_same_for_the_same_seed() -> None:
    """Two servers with one seed have the same times, another seed has others."""

    def times(seed: int) -> list[float]:
        batch = ContinuousBatch(Timing(jitter=0.5, seed=seed))
        batch.submit(1, prompt=50, output=10, now=0.0)
        return _times(_play(batch), 1)

    assert times(1) == times(1)
    assert times(1) != times(2)


def test_the_bounds_refuse() -> None:
    """A full queue and a request that can never fit are refused, and nothing of them stays behind."""
    batch = ContinuousBatch(_PLAIN)
    for job in range(4):
        batch.submit(job, prompt=1, output=1, now=0.0)
    with pytest.raises(QueueFull):
        batch.submit(4, prompt=1, output=1, now=0.0)
    with pytest.raises(TooLong):
        batch.submit(5, prompt=65536, output=1, now=0.0)
    assert (batch.running, batch.waiting) == (2, 2)

    assert sum(token.last for token in _play(batch)) == 4


def test_a_full_cache_holds_the_queue_in_order() -> None:
    """With free slots but no room in the cache the head waits, and nobody overtakes it."""
    batch = ContinuousBatch(Timing(slots=8, kv_tokens=100))
    batch.submit(1, prompt=50, output=30, now=0.0)
    batch.submit(2, prompt=20, output=20, now=0.0)
    batch.submit(3, prompt=1, output=1, now=0.0)
    assert (batch.running, batch.waiting) == (1, 2)
    batch.take_admitted()
    _play(batch)

    assert batch.take_admitted() == [2, 3]


def test_cancelling_frees_slot_and_place_at_once() -> None:
    """A cancelled runner's slot goes to the head of the queue in the same moment; a waiter's place is gone."""
    batch = ContinuousBatch(_PLAIN)
    for job in (1, 2, 3, 4):
        batch.submit(job, prompt=10, output=5, now=0.0)
    batch.cancel(3, now=0.01)
    assert (batch.running, batch.waiting) == (2, 1)
    batch.cancel(1, now=0.02)
    assert (batch.running, batch.waiting) == (2, 0)
    assert batch.take_admitted() == [1, 2, 4]
    batch.cancel(1, now=0.03)

    assert {token.job for token in _play(batch)} == {2, 4}


def test_cancelling_the_only_one_in_a_step_ends_the_step() -> None:
    """The next request does not wait for work that nobody needs any more."""
    batch = ContinuousBatch(_PLAIN)
    batch.submit(1, prompt=500, output=1, now=0.0)
    batch.cancel(1, now=1.0)
    assert batch.next_at is None
    batch.submit(2, prompt=10, output=1, now=1.0)

    assert _times(_play(batch), 2) == [1.1]


def test_a_stall_keeps_the_slot_and_stops_the_tokens() -> None:
    """A stalled sequence holds its slot, others go on; an endless stall never asks to be woken."""
    batch = ContinuousBatch(_PLAIN)
    batch.submit(1, prompt=10, output=3, now=0.0, stall_after=1, stall=5.0)
    assert _times(_play(batch), 1) == [0.1, 5.2, 5.3]

    batch.submit(2, prompt=10, output=3, now=6.0, stall_after=0, stall=math.inf)
    batch.submit(3, prompt=10, output=1, now=6.0)
    assert {token.job for token in _play(batch)} == {3}
    assert (batch.running, batch.next_at) == (1, None)


def test_a_job_without_an_answer_ends_with_its_prompt() -> None:
    """Embeddings hold a slot for their prompt and give one mark at its end."""
    batch = ContinuousBatch(_PLAIN)
    batch.submit(1, prompt=10, output=0, now=0.0)

    assert _play(batch) == [Produced(1, 0.1, 0, last=True)]


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"decode_tps": 0.0}, {"queue": -1}, {"jitter": 1.0}, {"speed": -1.0}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    """A server without slots, with negative rates or full jitter cannot be made."""
    with pytest.raises(ValueError, match="above 0"):
        Timing(**wrong)  # type: ignore[arg-type]


_DEED = st.tuples(st.sampled_from(["submit", "cancel", "pass"]), st.integers(0, 30), st.integers(0, 40))


@settings(deadline=None)
@given(st.lists(_DEED, max_size=60))
def test_whatever_happens_the_bounds_hold_and_everyone_is_served(deeds: list[tuple[str, int, int]]) -> None:
    """Slots, queue and cache are never exceeded; who was let in and not cancelled gets exactly its tokens, in order."""
    timing = Timing(slots=3, queue=4, kv_tokens=120, prefill_tps=100.0, decode_tps=10.0, step_tokens=16)
    batch, now = ContinuousBatch(timing), 0.0
    wanted: dict[int, int] = {}
    produced: list[Produced] = []
    for job, (deed, first, second) in enumerate(deeds):
        if deed == "submit":
            try:
                batch.submit(job, prompt=first + 1, output=second, now=now)
                wanted[job] = second
            except QueueFull:
                assert batch.waiting == timing.queue
        elif deed == "cancel":
            batch.cancel(first, now)
            if not any(token.job == first and token.last for token in produced):
                wanted.pop(first, None)
        else:
            now += second / 20
            produced += batch.advance(now)
        assert batch.running <= timing.slots
        assert batch.waiting <= timing.queue
        assert 0.0 <= batch.kv_use <= 1.0
    produced += _play(batch)

    assert (batch.running, batch.waiting, batch.kv_use) == (0, 0, 0.0)
    for job, output in wanted.items():
        numbers = [token.number for token in produced if token.job == job]
        assert numbers == (list(range(1, output + 1)) or [0])
    assert [token.at for token in produced] == sorted(token.at for token in produced)
