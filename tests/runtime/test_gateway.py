"""The gateway carries out every order once, in order, whoever calls back from wherever."""

from __future__ import annotations

import pytest

from headrace.core.settings import QueueSettings, RecoverySettings, Settings
from headrace.errors import InvalidRequest, invalid_request
from headrace.model import (
    AnswerForm,
    Arrived,
    CacheResult,
    Cause,
    Ending,
    Event,
    Finished,
    Outcome,
    Progressed,
    Started,
)
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.backend import Port
from headrace.testing import on_virtual_time
from headrace.wire.frames import Frame
from tests.runtime.caller import Caller
from tests.runtime.engines import DOWN, Attempt, Bench
from tests.runtime.meddler import Meddler
from tests.runtime.virtual import later

# ------------------------------------------------------------------------------------------------ the usual way


@on_virtual_time
async def test_an_answer_goes_straight_to_its_reader() -> None:
    """Each frame is with the reader before the engine's call returns, the head before it, the end after it."""
    bench = Bench()
    caller, _ = bench.ask("a")
    (attempt,) = bench.engines.attempts
    attempt.say(b"one")
    assert caller.got == [b"one"]
    assert caller.heads == [AnswerHead("gpu-1", "m", 1, 0.0, AnswerForm.STREAM, CacheResult.MISS)]
    attempt.finish(b"two")
    assert (caller.got, caller.endings) == ([b"one", b"two"], [(Ending.ANSWERED, None)])
    assert bench.facts == ["Arrived", "Started", "Finished"]
    bench.assert_empty()


@on_virtual_time
async def test_a_refusal_is_told_before_open_returns() -> None:
    """Who is turned away at the door knows it at once, and nothing is held for him."""
    bench = Bench(settings=Settings(queue=QueueSettings(per_user=1)), limit=1)
    bench.ask("runs")
    bench.ask("waits")
    refused, reply = bench.ask("too many")
    ((ending, fault),) = refused.endings
    assert ending is Ending.BACKPRESSURE
    assert fault is not None
    assert fault.status == 429
    assert not refused.heads
    assert bench.gateway.alive == 2
    reply.cancel()
    reply.resume()
    assert len(refused.endings) == 1


@on_virtual_time
async def test_a_request_is_cancelled_by_its_id() -> None:
    """Waiting or running, alone or with others: its caller is told, its place is free. Only its own user can do it."""
    bench = Bench(limit=1)
    running, _ = bench.ask("runs", fingerprint=b"r" * 32)
    waiting, reply = bench.ask("waits", fingerprint=b"w" * 32)
    joined, _ = bench.ask("joins", fingerprint=b"w" * 32)
    bench.engines.attempts[0].say(b"half")
    own = reply.request.flow
    assert not bench.gateway.cancel("waits", own._replace(user="somebody else"))
    assert not bench.gateway.cancel("waits", own._replace(tenant="other"))
    assert not bench.gateway.cancel("never heard of", own)
    assert bench.gateway.cancel("waits", own._replace(session="another conversation"))
    assert waiting.endings == [(Ending.CANCELLED, None)]
    assert not bench.gateway.cancel("waits", own)
    reply.cancel()
    assert bench.gateway.cancel("runs", own)
    assert (running.got, running.endings) == ([b"half"], [(Ending.CANCELLED, None)])
    assert bench.engines.attempts[0].aborted
    bench.engines.attempts[1].answer(b"x")
    assert joined.endings == [(Ending.ANSWERED, None)]
    bench.assert_empty()


@on_virtual_time
async def test_a_failed_attempt_is_never_seen() -> None:
    """The next instance's answer is the only one the reader hears of; the head counts the attempts."""
    bench = Bench(instances=2)
    caller, _ = bench.ask("a")
    bench.engines.attempts[0].finish(outcome=DOWN)
    bench.engines.attempts[1].answer(b"x")
    assert (caller.heads[0].attempts, caller.heads[0].instance) == (2, bench.engines.attempts[1].dispatch.instance.id)
    assert caller.endings == [(Ending.ANSWERED, None)]
    bench.assert_empty()


@on_virtual_time
async def test_progress_reaches_the_scheduler() -> None:
    """What an engine produced is accounted while it runs, so that a long answer cannot hide."""
    bench = Bench()
    bench.ask("a")
    (attempt,) = bench.engines.attempts
    attempt.say(b"x")
    attempt.port.progressed(32)
    attempt.finish()
    assert bench.facts == ["Arrived", "Started", "Progressed", "Finished"]


@on_virtual_time
async def test_a_slow_reader_slows_its_engine() -> None:
    """Enough for now pauses the attempt, room again resumes it, and so for the attempt that follows a failed one."""
    bench = Bench()
    caller, _ = bench.ask("a", Caller(room=1))
    (attempt,) = bench.engines.attempts
    attempt.say(b"x")
    assert attempt.calls == ["pause"]
    caller.take(None)
    assert attempt.calls == ["pause", "resume"]
    attempt.finish()
    bench.assert_empty()


# ------------------------------------------------------------------------------------------------ re-entrancy


@on_virtual_time
async def test_a_backend_may_finish_before_it_has_started() -> None:
    """An attempt that ends inside `start` is answered, decided in the order of its facts, and holds nothing."""
    bench = Bench()
    bench.engines.script = lambda attempt: attempt.answer(b"at once")
    caller, _ = bench.ask("a")
    assert caller.got == [b"at once"]
    assert caller.endings == [(Ending.ANSWERED, None)]
    assert bench.facts == ["Arrived", "Started", "Finished"]
    assert bench.engines.attempts[0].calls == []
    bench.assert_empty()


@on_virtual_time
async def test_every_attempt_may_fail_inside_start() -> None:
    """Failures that come back at once are taken one after the other: each instance is asked once, then all is told."""
    bench = Bench(instances=3, settings=Settings(recovery=RecoverySettings(longest_wait=0.1)))
    bench.engines.script = lambda attempt: attempt.finish(outcome=DOWN)
    caller, _ = bench.ask("a")
    assert len({attempt.dispatch.instance.id for attempt in bench.engines.attempts}) == 3
    assert [ending for ending, _ in caller.endings] == [Ending.INFERENCE_FAILURE]
    assert bench.letters.count == 1
    bench.assert_empty()


@on_virtual_time
async def test_what_a_backend_cannot_be_asked_is_the_callers_fault() -> None:
    """One attempt, told in the backend's words, blamed on nobody else and no dead letter."""
    bench = Bench(instances=2)
    refusal = invalid_request("This engine cannot do 'logprobs'.", param="logprobs")

    def unable(_: Attempt) -> None:
        raise InvalidRequest(refusal)

    bench.engines.script = unable
    caller, _ = bench.ask("a")

    assert caller.endings == [(Ending.REJECTED, refusal.after(1))]
    assert len(bench.engines.attempts) == 1
    assert bench.letters.count == 0
    bench.assert_empty()


@on_virtual_time
async def test_a_backend_that_raises_ends_its_attempt_only() -> None:
    """A mistake in a backend is told as an internal error, without its words, and the next request is served."""
    bench = Bench(settings=Settings(recovery=RecoverySettings(max_attempts=1, cooldown=0.001)))

    def broken(_: Attempt) -> None:
        raise RuntimeError("a secret")

    bench.engines.script = broken
    caller, _ = bench.ask("a")
    ((ending, fault),) = caller.endings
    assert ending is Ending.INFERENCE_FAILURE
    assert fault is not None
    assert (fault.status, fault.code) == (500, "internal_error")
    assert "secret" not in fault.message
    bench.engines.script = None
    await later(1.0)
    after, _ = bench.ask("b")
    bench.engines.attempts[-1].answer(b"fine")
    assert after.endings == [(Ending.ANSWERED, None)]
    bench.assert_empty()


@pytest.mark.parametrize("moment", ["begin", "write"])
@on_virtual_time
async def test_a_reader_may_leave_while_it_is_being_told(moment: str) -> None:
    """Cancelled from its own callback, the attempt is broken off, and the reader hears nothing more."""
    bench = Bench()
    caller = Meddler(f"cancel in {moment}")
    caller.reply = bench.ask("a", caller)[1]
    (attempt,) = bench.engines.attempts
    attempt.say(b"one", b"two")
    attempt.finish(b"three")
    assert attempt.aborted
    assert caller.got == ([] if moment == "begin" else [b"one"])
    assert caller.endings == []
    bench.assert_empty()


@pytest.mark.parametrize("moment", ["begin", "write", "end"])
@on_virtual_time
async def test_a_reader_may_ask_again_while_it_is_being_told(moment: str) -> None:
    """A request opened from a reader's callback waits in line and is served like any other."""
    bench = Bench()
    caller = Meddler(f"open in {moment}")
    caller.bench = bench
    bench.ask("first", caller)
    bench.engines.attempts[0].answer(b"x")
    assert [attempt.dispatch.request.id for attempt in bench.engines.attempts] == ["first", "second"]
    bench.engines.attempts[1].answer(b"y")
    assert caller.endings == caller.opened[0].endings == [(Ending.ANSWERED, None)]
    bench.assert_empty()


@on_virtual_time
async def test_facts_that_come_up_meanwhile_wait_in_line() -> None:
    """What a reader causes while orders are carried out is decided after them, never inside them."""
    bench = Bench()
    caller = Meddler("open in end")
    caller.bench = bench
    bench.ask("first", caller)
    bench.ask("other")
    bench.engines.attempts[0].answer(b"x")
    assert bench.facts == ["Arrived", "Arrived", "Started", "Finished", "Arrived"]
    assert [type(order).__name__ for _, orders in bench.seen[3:] for order in orders][:1] == ["Settle"]
    assert bench.engines.attempts[2].dispatch.request.id == "second"


# ------------------------------------------------------------------------------------------------ ids and leaving


@on_virtual_time
async def test_an_id_in_use_gets_an_addition() -> None:
    """Two living requests of one name are two: each is answered by its own attempt and cancelled by its own handle."""
    bench = Bench()
    first, one = bench.ask("same")
    second, other = bench.ask("same")
    assert (one.id, other.id == one.id) == ("same", False)
    other.cancel()
    assert [attempt.aborted for attempt in bench.engines.attempts] == [False, True]
    bench.engines.attempts[0].answer(b"x")
    assert (first.got, second.got) == ([b"x"], [])
    bench.assert_empty()


@on_virtual_time
async def test_a_late_goodbye_hurts_nobody() -> None:
    """Cancelling what has ended does not touch a later request that happens to bear the same id."""
    bench = Bench()
    _, old = bench.ask("same")
    bench.engines.attempts[0].answer(b"x")
    new, _ = bench.ask("same")
    old.cancel()
    assert not bench.engines.attempts[1].aborted
    bench.engines.attempts[1].answer(b"y")
    assert new.endings == [(Ending.ANSWERED, None)]
    bench.assert_empty()


@on_virtual_time
async def test_leaving_with_bytes_still_to_come() -> None:
    """A slow reader whose answer is complete may leave: it is told nothing more, and nothing stays behind."""
    bench = Bench()
    caller, reply = bench.ask("a", Caller(room=1))
    bench.engines.attempts[0].answer(b"one", b"two")
    bench.assert_empty()
    reply.cancel()
    caller.take(None)
    assert (caller.got, caller.endings) == ([b"one"], [])


@on_virtual_time
async def test_an_attempt_that_was_broken_off_is_not_heard() -> None:
    """Whatever an aborted or failed attempt still says changes nothing and reaches nobody."""
    bench = Bench(instances=2)
    caller, reply = bench.ask("a")
    stale = bench.engines.attempts[0]
    stale.finish(outcome=DOWN)
    bench.engines.attempts[1].say(b"good")
    stale.port.feed(Frame(b"bad"))
    stale.port.started()
    stale.port.progressed(1000)
    stale.port.finished(DOWN)
    assert caller.got == [b"good"]
    assert caller.heads[0].attempts == 2
    assert not caller.endings
    reply.cancel()
    _misbehave(bench.engines.attempts[1].port)
    assert (caller.got, caller.endings) == ([b"good"], [])
    bench.assert_empty()


def _misbehave(port: Port) -> None:
    port.started()
    port.feed(Frame(b"too late"))
    port.progressed(5)
    port.finished(Outcome(Cause.OK))


@on_virtual_time
async def test_who_does_not_care_how_answers_go_on_is_not_told_of_it() -> None:
    """Such a fact is told to the others alone, unless an order follows from it; every other fact is told to all."""
    bench, all_of_it, the_rest = Bench(), list[Event](), list[Event]()
    bench.gateway.observe(lambda event, *_: all_of_it.append(event))
    bench.gateway.observe(lambda event, *_: the_rest.append(event), progress=False)
    bench.ask("a", form=AnswerForm.STREAM)
    attempt = bench.engines.attempts[0]
    attempt.say(b"x")
    attempt.port.progressed(32)
    attempt.finish()
    assert [type(event) for event in all_of_it] == [Arrived, Started, Progressed, Finished]
    assert [type(event) for event in the_rest] == [Arrived, Started, Finished]
