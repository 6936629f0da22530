"""The gateway wakes by itself, drains, and ends."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.settings import QueueSettings, RecoverySettings, Settings
from headrace.model import Bury, Cause, Ending, Flow, ServiceClass
from headrace.runtime.stores import LetterFilter
from headrace.runtime.stores.keeping import Keeping
from headrace.testing import on_virtual_time
from tests.runtime.engines import DOWN, Bench, Payload
from tests.runtime.virtual import later


@on_virtual_time
async def test_the_gateway_wakes_by_itself() -> None:
    """A wait in the queue ends when it should although nothing else happens, and is buried with its request."""
    bench = Bench(settings=Settings(queue=QueueSettings(timeouts={ServiceClass.NORMAL: 60.0})), limit=1)
    bench.ask("runs")
    waits, _ = bench.ask("waits", payload=Payload(b"what was asked"))
    await later(59.0)
    assert not waits.endings
    await later(1.5)
    assert [ending for ending, _ in waits.endings] == [Ending.QUEUE_TIMEOUT]
    (letter,) = await bench.letters.list(LetterFilter())
    assert (letter.reason, letter.body) == ("queue_timeout", b"what was asked")
    assert letter.waited == pytest.approx(60.0, abs=0.1)
    bench.engines.attempts[0].answer(b"x")
    bench.assert_empty()


@on_virtual_time
async def test_prompts_are_not_kept_unless_wanted() -> None:
    """With `Keeping.NOTHING` a dead letter says what happened to a request, but not what it asked."""
    bench = Bench(keeping=Keeping.NOTHING, settings=Settings(recovery=RecoverySettings(max_attempts=1)))
    bench.ask("a", payload=Payload(b"a secret"))
    bench.engines.attempts[0].finish(outcome=DOWN)
    (letter,) = await bench.letters.list(LetterFilter())
    assert (letter.body, letter.redacted) == (None, False)
    assert [record.cause for record in letter.attempts] == [Cause.CONNECT]


@on_virtual_time
async def test_prompts_can_be_kept_without_their_texts() -> None:
    """With `Keeping.REDACTED` the letter shows the shape of what was asked, and says that it is no more than that."""
    bench = Bench(keeping=Keeping.REDACTED, settings=Settings(recovery=RecoverySettings(max_attempts=1)))
    bench.ask("a", payload=Payload(b'{"model": "m", "prompt": "a secret", "max_tokens": 5}'))
    bench.engines.attempts[0].finish(outcome=DOWN)
    (letter,) = await bench.letters.list(LetterFilter())
    assert letter.redacted
    assert letter.body == b'{"model":"m","prompt":"[8 characters]","max_tokens":5}'


@on_virtual_time
async def test_a_letter_that_is_sent_again_in_vain_makes_no_second_one() -> None:
    """Its attempts are in the order to bury it, for whoever sent it; the store gets nothing."""
    bench = Bench(settings=Settings(recovery=RecoverySettings(max_attempts=1)))
    caller, _ = bench.ask("a", payload=Payload(), letter=17)
    bench.engines.attempts[0].finish(outcome=DOWN)
    assert [ending for ending, _ in caller.endings] == [Ending.INFERENCE_FAILURE]
    assert bench.letters.count == 0
    buried = [decision.letter for _, decisions in bench.seen for decision in decisions if isinstance(decision, Bury)]
    assert [(letter.request.letter, len(letter.attempts)) for letter in buried] == [(17, 1)]


@on_virtual_time
async def test_draining_lets_the_running_end() -> None:
    """The queued are told at once, new ones are refused, the running finish; every drain returns when all is done."""
    bench = Bench(limit=1)
    runs, _ = bench.ask("runs")
    waits, _ = bench.ask("waits")
    drains = [asyncio.ensure_future(bench.gateway.drain(30.0)) for _ in range(2)]
    await later(1.0)
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
