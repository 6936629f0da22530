"""What is kept in memory: answers by their rules of age and size, letters by theirs of worth."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.model import AnswerForm, AttemptRecord, Cause, DeadLetter, Ending, Flow, Request, ServiceClass, Usage
from headrace.runtime.stores import Answer, Cache, DeadLetters, LetterFilter, letter_of
from headrace.runtime.stores.memory import MemoryCache, MemoryDeadLetters
from headrace.runtime.stores.ring import LetterRing
from headrace.wire.frames import Frame
from headrace.wire.openai import parse
from tests.runtime.letters import letter, names, shed

EVERYTHING = LetterFilter(limit=10_000)


def answer(size: int = 10) -> Answer:
    """An answer of one frame."""
    return Answer(AnswerForm.WHOLE, (Frame(b"x" * size),), Usage(1, 2), "m", "gpu-1")


# -------------------------------------------------------------------------------------------------------------- answers


def test_an_answer_is_found_until_it_expires() -> None:
    """An entry is given out for its lifetime and not a moment longer."""
    cache: Cache = MemoryCache(Random(1), ttl=10.0, jitter=0.0)
    cache.put(b"a", answer(), 100.0)
    assert cache.get(b"a", 109.9) == answer()
    assert cache.get(b"b", 109.9) is None
    assert cache.get(b"a", 110.0) is None


def test_no_lifetime_means_no_entry() -> None:
    """With a ttl of 0 nothing is ever stored."""
    cache = MemoryCache(Random(1), ttl=0.0)
    cache.put(b"a", answer(), 0.0)
    assert cache.get(b"a", 0.0) is None
    assert len(cache) == cache.bytes == 0


def test_lifetimes_differ() -> None:
    """Entries stored together expire one after the other, none later than the ttl, none before nine tenths of it."""
    cache = MemoryCache(Random(1), ttl=100.0, jitter=0.1)
    for number in range(100):
        cache.put(b"%d" % number, answer(), 0.0)
    alive = [sum(cache.get(b"%d" % number, now) is not None for number in range(100)) for now in (89.9, 95.0, 100.0)]
    assert alive[0] == 100
    assert 20 < alive[1] < 80
    assert alive[2] == 0


def test_the_least_recently_used_answer_goes_first() -> None:
    """Beyond the number of entries the one asked for longest ago makes room."""
    cache = MemoryCache(Random(1), max_entries=2)
    cache.put(b"a", answer(), 0.0)
    cache.put(b"b", answer(), 1.0)
    assert cache.get(b"a", 2.0) is not None
    cache.put(b"c", answer(), 3.0)
    assert cache.get(b"b", 4.0) is None
    assert cache.get(b"a", 4.0) is not None
    assert cache.evicted == 1


@given(st.lists(st.tuples(st.sampled_from(b"abcdef"), st.integers(0, 4000)), max_size=60))
def test_the_bytes_are_bounded_and_counted(puts: list[tuple[int, int]]) -> None:
    """Whatever is stored, the sum of sizes is known and within the bound; a giant is declined."""
    cache = MemoryCache(Random(1), max_bytes=8000)
    for now, (key, size) in enumerate(puts):
        cache.put(bytes([key]), answer(size), float(now))
        kept = [entry for entry in (cache.get(bytes([each]), float(now)) for each in b"abcdef") if entry]
        assert cache.bytes == sum(each.size for each in kept) <= 8000
    cache.put(b"giant", answer(9000), 100.0)
    assert cache.get(b"giant", 100.0) is None


# ----------------------------------------------------------------------------------------------------- the ring's rule


def test_the_oldest_letter_goes_first_and_is_counted() -> None:
    """A full ring lets its oldest letter go."""
    ring = LetterRing(3)
    for number in range(5):
        ring.add(letter(f"r{number}"))
    assert names(ring.list(EVERYTHING)) == ["r4", "r3", "r2"]
    assert ring.evicted == 2


def test_a_flood_of_refusals_pushes_out_no_failure() -> None:
    """Refusals fill at most half of the ring, and of a full ring they go first."""
    ring = LetterRing(10)
    for number in range(4):
        ring.add(letter(f"failed{number}"))
    for number in range(1000):
        ring.add(shed(f"shed{number}"))
    assert names(ring.list(EVERYTHING))[5:] == ["failed3", "failed2", "failed1", "failed0"]
    assert len(ring) == 9
    for number in range(4, 10):
        ring.add(letter(f"failed{number}"))
    assert len(ring) == 10
    assert not ring.list(LetterFilter(reason="backpressure"))
    ring.add(shed("late"))
    assert ring.get(ring.list(EVERYTHING)[0].id) is not None
    assert len(ring.list(LetterFilter(reason="inference_failure"))) == 10


def test_bytes_are_bounded_too() -> None:
    """Large requests make room for each other; one larger than everything is kept without its body."""
    ring = LetterRing(100, max_bytes=10_000)
    for number in range(10):
        ring.add(letter(f"r{number}", body=b"x" * 3000))
    assert names(ring.list(EVERYTHING)) == ["r9", "r8"]
    ring.add(letter("giant", body=b"x" * 20_000))
    (kept,) = ring.list(LetterFilter(limit=1))
    assert (kept.request_id, kept.body) == ("giant", None)
    assert ring.bytes == sum(each.size for each in ring.list(EVERYTHING)) <= 10_000


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.booleans(), st.floats(0, 10), st.sampled_from(["", "claim", "drain", "delete"]))),
)
def test_the_ring_keeps_its_bounds(capacity: int, steps: list[tuple[bool, float, str]]) -> None:
    """In any order of deeds: within the capacity, refusals within half, ids grow, nothing is lost uncounted."""
    ring = LetterRing(capacity)
    last = removed = 0
    for number, (full, died_at, deed) in enumerate(steps):
        added = ring.add(shed("s", died_at) if full else letter("f", died_at=died_at))
        assert added.id > last
        last = added.id
        match deed:
            case "claim":
                ring.claim(added.id)
            case "drain":
                removed += len(ring.drain())
            case "delete":
                removed += ring.delete([added.id, added.id])
        kept = ring.list(EVERYTHING)
        assert len(kept) == len(ring) <= capacity
        assert sum(each.shed for each in kept) <= (capacity + 1) // 2
        assert number + 1 == len(ring) + removed + ring.evicted
        assert ring.bytes == sum(each.size for each in kept)


# -------------------------------------------------------------------------------------------------- letters in memory


async def test_letters_are_found_by_what_is_known_of_them() -> None:
    """Each filter alone, and pages from the youngest to the oldest."""
    store: DeadLetters = MemoryDeadLetters()
    store.add(letter("a", tenant="x", died_at=1.0))
    store.add(letter("b", user="y", died_at=2.0))
    store.add(letter("c", model="z", died_at=3.0))
    store.add(shed("d", died_at=4.0))
    for which, found in (
        (LetterFilter(), ["d", "c", "b", "a"]),
        (LetterFilter(tenant="x"), ["a"]),
        (LetterFilter(user="y"), ["b"]),
        (LetterFilter(model="z"), ["c"]),
        (LetterFilter(reason="backpressure"), ["d"]),
        (LetterFilter(reason="backpressure:inference"), ["d"]),
        (LetterFilter(reason="backpressure:in"), []),
        (LetterFilter(since=2.0, until=4.0), ["c", "b"]),
        (LetterFilter(limit=1), ["d"]),
    ):
        assert names(await store.list(which)) == found
    (youngest,) = await store.list(LetterFilter(limit=1))
    assert names(await store.list(LetterFilter(before=youngest.id, limit=2))) == ["c", "b"]
    assert await store.age_out(3.0) == 2
    assert store.count == 2


async def test_a_letter_is_replayed_once() -> None:
    """Of two replays at the same moment one gets the letter; what is claimed is not drained."""
    store: DeadLetters = MemoryDeadLetters()
    store.add(letter("a"))
    store.add(letter("b"))
    first = (await store.list(LetterFilter(limit=1)))[0].id
    taken = await store.claim(first)
    assert taken is not None
    assert await store.claim(first) is None
    assert names(await store.drain()) == ["a"]
    await store.release(first)
    assert await store.claim(first) is not None
    await store.done(first)
    assert await store.get(first) is None
    assert (store.count, store.degraded) == (0, False)
    await store.close()


def test_what_is_kept_of_a_dead_request() -> None:
    """The store's letter has the identity, the wall-clock time, and attempts told from the arrival on."""
    call = parse("chat", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    request = Request(id="r", flow=Flow(ServiceClass.BATCH, "t", "u", "s"), model="m", payload=call)
    dead = DeadLetter(
        request=request,
        ending=Ending.INFERENCE_FAILURE,
        reason="inference_failure",
        arrived=50.0,
        died=53.0,
        attempts=(AttemptRecord(1, "gpu-1", 51.0, 52.0, Cause.CONNECT),),
    )
    kept = letter_of(dead, 1.7e9, b"asked")
    assert (kept.request_id, kept.tenant, kept.user, kept.session) == ("r", "t", "u", "s")
    assert (kept.died_at, kept.waited, kept.service_class) == (1.7e9, 3.0, ServiceClass.BATCH)
    assert (kept.attempts[0].started, kept.attempts[0].ended) == (1.0, 2.0)
    assert kept.body == b"asked"
    assert letter_of(dead, 1.7e9, None).body is None
