"""Calls that several requests share, and answers that are kept: one engine call, everybody whole."""

from __future__ import annotations

from headrace.model import CacheResult, Ending
from headrace.runtime.relay import KEEP_BYTES
from headrace.testing import on_virtual_time
from headrace.wire.frames import Frame
from tests.runtime.engines import Bench
from tests.runtime.meddler import Meddler

SAME = b"f" * 32
"""A fingerprint."""


@on_virtual_time
async def test_a_late_joiner_gets_all_of_it() -> None:
    """Who joins when half is produced gets the first half at once, then the rest; the engine was asked once."""
    bench = Bench()
    first, _ = bench.ask("a", fingerprint=SAME)
    (attempt,) = bench.engines.attempts
    attempt.say(b"one", b"two")
    late, _ = bench.ask("b", fingerprint=SAME)
    assert late.got == [b"one", b"two"]
    attempt.finish(b"three")
    assert first.got == late.got == [b"one", b"two", b"three"]
    assert (first.heads[0].cache, late.heads[0].cache) == (CacheResult.MISS, CacheResult.JOINED)
    assert first.endings == late.endings == [(Ending.ANSWERED, None)]
    assert len(bench.engines.attempts) == 1
    bench.assert_empty()


@on_virtual_time
async def test_the_leader_may_leave_the_others_stay() -> None:
    """The call goes on for whoever is left; the last one to leave breaks it off."""
    bench = Bench()
    leader, leading = bench.ask("a", fingerprint=SAME)
    follower, following = bench.ask("b", fingerprint=SAME)
    (attempt,) = bench.engines.attempts
    attempt.say(b"one")
    leading.cancel()
    attempt.port.feed(Frame(b"two"))
    assert (leader.got, follower.got) == ([b"one"], [b"one", b"two"])
    assert attempt.calls == []
    following.cancel()
    assert attempt.calls == ["abort"]
    assert leader.endings == follower.endings == []
    bench.assert_empty()


@on_virtual_time
async def test_an_answer_that_outgrew_its_bound_is_not_joined() -> None:
    """Past what is kept nobody joins: the next identical request makes a call of its own, and both are whole."""
    bench = Bench()
    first, _ = bench.ask("a", fingerprint=SAME, remember=True)
    bench.engines.attempts[0].say(b"x" * (KEEP_BYTES + 1))
    second, _ = bench.ask("b", fingerprint=SAME)
    assert "Sealed" in bench.facts
    assert len(bench.engines.attempts) == 2
    bench.engines.attempts[0].finish()
    bench.engines.attempts[1].answer(b"y")
    assert (len(first.got[0]), second.got) == (KEEP_BYTES + 1, [b"y"])
    assert len(bench.cache) == 0, "an answer that was not kept cannot be remembered"
    bench.assert_empty()


@on_virtual_time
async def test_a_remembered_answer_is_given_to_several_at_once() -> None:
    """From the cache each gets the same bytes, HIT, without a call; also one that asks while it is being handed out."""
    bench = Bench()
    bench.ask("a", fingerprint=SAME, remember=True)
    bench.engines.attempts[0].answer(b"one", b"two")
    callers = [bench.ask(name, fingerprint=SAME, look_up=True)[0] for name in "bc"]
    meddler = Meddler("open in write")
    meddler.bench = bench
    bench.ask("d", meddler, fingerprint=SAME, look_up=True)
    for caller in [*callers, meddler, *meddler.opened]:
        assert caller.got == [b"one", b"two"]
        assert caller.endings == [(Ending.ANSWERED, None)]
        assert caller.heads[0].cache is CacheResult.HIT
    assert len(bench.engines.attempts) == 1
    assert bench.gateway.snapshot().totals["hits"] == 4
    bench.assert_empty()


@on_virtual_time
async def test_a_miss_is_asked_of_an_engine() -> None:
    """A look-up that finds nothing costs nothing: the call goes on to the queue."""
    bench = Bench()
    caller, _ = bench.ask("a", fingerprint=SAME, look_up=True)
    bench.engines.attempts[0].answer(b"x")
    assert caller.heads[0].cache is CacheResult.MISS
    assert bench.facts == ["Arrived", "Looked", "Started", "Finished"]
    bench.assert_empty()
