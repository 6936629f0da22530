"""The gateway carries out every order once, in order, whoever calls back from wherever."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.settings import QueueSettings, RecoverySettings, Settings
from headrace.errors import Fault
from headrace.model import AnswerForm, Arrived, CacheResult, Cause, Ending, Flow, Outcome, ServiceClass
from headrace.runtime.backend import Port
from headrace.runtime.gateway import Reply
from headrace.runtime.relay import KEEP_BYTES, AnswerHead
from headrace.runtime.stores import LetterFilter
from headrace.testing import on_virtual_time
from headrace.wire.frames import Frame
from tests.runtime.caller import Caller
from tests.runtime.engines import DOWN, Attempt, Bench, Payload

SAME = b"f" * 32
"""A fingerprint."""


class Meddler(Caller):
    """A caller that does something of its own whenever it is told something."""

    def __init__(self, deed: str) -> None:
        super().__init__()
        self.deed = deed
        self.reply: Reply | None = None
        self.bench: Bench | None = None
        self.opened: list[Caller] = []

    def begin(self, head: AnswerHead) -> None:
        super().begin(head)
        self.act("begin")

    def write(self, data: bytes) -> bool:
        took = super().write(data)
        self.act("write")
        return took

    def end(self, ending: Ending, fault: Fault | None) -> None:
        super().end(ending, fault)
        self.act("end")

    def act(self, moment: str) -> None:
        if self.deed == f"cancel in {moment}" and self.reply is not None:
            self.reply.cancel()
        if self.deed == f"open in {moment}" and self.bench is not None and not self.opened:
            self.opened.append(Caller())
            shared = self.bench.seen[0][0]
            assert isinstance(shared, Arrived)
            self.bench.ask("second", self.opened[0], fingerprint=shared.request.fingerprint)


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
    await asyncio.sleep(1.0)
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


# ------------------------------------------------------------------------------------------------ shared calls


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


# ------------------------------------------------------------------------------------------------ time and the end


@on_virtual_time
async def test_the_gateway_wakes_by_itself() -> None:
    """A wait in the queue ends when it should although nothing else happens, and is buried with its request."""
    bench = Bench(settings=Settings(queue=QueueSettings(timeouts={ServiceClass.NORMAL: 60.0})), limit=1)
    bench.ask("runs")
    waits, _ = bench.ask("waits", payload=Payload(b"what was asked"))
    await asyncio.sleep(59.0)
    assert not waits.endings
    await asyncio.sleep(1.5)
    assert [ending for ending, _ in waits.endings] == [Ending.QUEUE_TIMEOUT]
    (letter,) = await bench.letters.list(LetterFilter())
    assert (letter.reason, letter.body) == ("queue_timeout", b"what was asked")
    assert letter.waited == pytest.approx(60.0, abs=0.1)
    bench.engines.attempts[0].answer(b"x")
    bench.assert_empty()


@on_virtual_time
async def test_prompts_are_not_kept_unless_wanted() -> None:
    """Without `keep_prompts` a dead letter says what happened to a request, but not what it asked."""
    bench = Bench(keep_prompts=False, settings=Settings(recovery=RecoverySettings(max_attempts=1)))
    bench.ask("a", payload=Payload(b"a secret"))
    bench.engines.attempts[0].finish(outcome=DOWN)
    (letter,) = await bench.letters.list(LetterFilter())
    assert letter.body is None
    assert [record.cause for record in letter.attempts] == [Cause.CONNECT]


@on_virtual_time
async def test_draining_lets_the_running_end() -> None:
    """The queued are told at once, new ones are refused, the running finish; every drain returns when all is done."""
    bench = Bench(limit=1)
    runs, _ = bench.ask("runs")
    waits, _ = bench.ask("waits")
    drains = [asyncio.ensure_future(bench.gateway.drain(30.0)) for _ in range(2)]
    await asyncio.sleep(1.0)
    assert [ending for ending, _ in waits.endings] == [Ending.SHUTTING_DOWN]
    assert [ending for ending, _ in bench.ask("new")[0].endings] == [Ending.DRAINING]
    assert not any(drain.done() for drain in drains)
    bench.engines.attempts[0].answer(b"x")
    await asyncio.gather(*drains)
    assert runs.endings == [(Ending.ANSWERED, None)]
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)
    bench.assert_empty()


@on_virtual_time
async def test_draining_ends_with_its_grace() -> None:
    """What still runs when the grace is over is broken off and told so."""
    bench = Bench()
    caller, _ = bench.ask("a")
    await bench.gateway.drain(30.0)
    assert asyncio.get_running_loop().time() == pytest.approx(30.0)
    assert bench.engines.attempts[0].aborted
    assert [ending for ending, _ in caller.endings] == [Ending.SHUTTING_DOWN]
    bench.assert_empty()


@on_virtual_time
async def test_closing_ends_everything_at_once() -> None:
    """Closed while a drain waits, all are told, both return without delay, and no timer is left behind."""
    bench = Bench(limit=1)
    callers = [bench.ask(name)[0] for name in "abc"]
    drain = asyncio.ensure_future(bench.gateway.drain(30.0))
    await asyncio.sleep(0)
    await bench.gateway.close()
    await drain
    assert [caller.endings[0][0] for caller in callers] == [Ending.SHUTTING_DOWN] * 3
    assert asyncio.get_running_loop().time() == 0.0
    bench.assert_empty()


@on_virtual_time
async def test_places_in_the_queue_can_be_asked_for() -> None:
    """A waiting user sees his own requests, and nobody else's."""
    bench = Bench(limit=1)
    bench.ask("runs")
    bench.ask("mine", flow=Flow(user="bob"))
    bench.ask("other")
    assert [name for name, _, _ in bench.gateway.positions(Flow(user="bob"))] == ["mine"]
    assert not bench.gateway.positions(Flow(user="carol"))
    await bench.gateway.close()
