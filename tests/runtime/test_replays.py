"""Replays: letters go through the same queue, paced, at most so often, and are removed only once they are answered."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from msgspec.structs import replace

from headrace import errors
from headrace.model import Cause, Ending, Outcome, ServiceClass
from headrace.runtime.replays import IN_FLIGHT, KEPT, MOST_LETTERS, RUNNING, Standing, Status
from headrace.runtime.replays import TooManyReplays as TooMany
from headrace.runtime.stores import LetterFilter
from headrace.testing import ScriptedEngine, on_virtual_time, steps
from tests.runtime.engines import DOWN, Attempt
from tests.runtime.letters import letter
from tests.runtime.replay_desk import ANSWER, BODY, always, desk, standing
from tests.runtime.virtual import later, virtually

REFUSED = Outcome(Cause.REJECTED, status=400, fault=errors.invalid_request("The engine refused the request."))


@on_virtual_time
async def test_a_letter_goes_as_its_caller_would_but_whole_and_at_class_batch() -> None:
    """Under its own tenant, user and session, to the model asked for; its answer is kept and it is gone."""
    async with desk() as at:
        (number,) = at.keep(1)
        replay = at.begin(number)
        await later(1.0)
        request = at.attempts[0].dispatch.request
        assert request.flow == (ServiceClass.BATCH, "t", "u", "s")
        assert (request.model, request.endpoint, request.letter, request.only) == ("m", "chat", number, None)
        sent = json.loads(request.payload.body)  # type: ignore[attr-defined]
        assert sent == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert (standing(replay), (await at.get(number)).claimed) == ([Standing.SENDING], True)
        at.attempts[0].answer(ANSWER)
        await later(1.0)
        result = replay.results[number]
        assert (result.standing, result.answer, result.instance, result.tries) == ("answered", ANSWER, "gpu-1", 1)
        assert (replay.status, at.letters.count) == (Status.DONE, 0)
        assert replay.finished is not None


@on_virtual_time
async def test_another_model_and_another_instance_if_asked() -> None:
    """The model is written into the request, the instance binds it."""
    async with desk() as at:
        at.bench.engines.script = always()
        at.begin(*at.keep(1), model="other", instance="gpu-1")
        await later(1.0)
        request = at.attempts[0].dispatch.request
        assert (request.model, request.only) == ("other", "gpu-1")
        assert json.loads(request.payload.body)["model"] == "other"  # type: ignore[attr-defined]


@on_virtual_time
async def test_letters_are_paced_and_few_are_under_way() -> None:
    """Not faster than asked, in the order asked, and never more than the bound at the engines."""
    async with desk() as at:
        ids = at.keep(5)
        begun: list[tuple[float, int | None]] = []

        def note(attempt: Attempt) -> None:
            begun.append((asyncio.get_running_loop().time(), attempt.dispatch.request.letter))
            attempt.answer(ANSWER)

        at.bench.engines.script = note
        start = asyncio.get_running_loop().time()
        at.begin(*reversed(ids), pace=0.5)
        await later(20.0)
        assert [round(when - start) for when, _ in begun] == [0, 2, 4, 6, 8]
        assert [number for _, number in begun] == ids[::-1]

        at.bench.engines.script = None
        replay = at.begin(*at.keep(IN_FLIGHT + 5))
        await later(5.0)
        assert standing(replay).count(Standing.SENDING) == IN_FLIGHT
        at.attempts[-1].answer(ANSWER)
        await later(1.0)
        assert replay.counts == {Standing.ANSWERED: 1, Standing.SENDING: IN_FLIGHT, Standing.WAITING: 4}


@on_virtual_time
async def test_a_letter_that_fails_again_is_tried_after_longer_and_longer_pauses() -> None:
    """1, 2, 4, 8 seconds; one letter all the while, with every attempt and the last error, free in the end."""
    async with desk() as at:
        (number,) = at.keep(1)
        before = await at.get(number)
        times: list[float] = []

        def fail(attempt: Attempt) -> None:
            times.append(asyncio.get_running_loop().time())
            attempt.finish(outcome=replace(DOWN, detail=f"refused {len(times)}"))

        at.bench.engines.script = fail
        replay = at.begin(number, tries=5)
        await later(1.5)
        between = await at.get(number)
        assert (between.claimed, between.replays, standing(replay)) == (False, 2, [Standing.WAITING])
        await later(60.0)
        assert [round(second - first) for first, second in pairwise(times)] == [1, 2, 4, 8]
        assert (replay.status, standing(replay)) == (Status.DONE, [Standing.FAILED])
        after = await at.get(number)
        assert at.letters.count == 1
        assert (after.replays, after.detail, after.claimed) == (5, "refused 5", False)
        assert [attempt.detail for attempt in after.attempts[1:]] == [f"refused {n}" for n in range(1, 6)]
        assert after.attempts[0] == before.attempts[0]
        # Its attempts are told in seconds since the first arrival: years after it, here.
        assert after.attempts[1].started == pytest.approx(1_000_000.0 - (before.died_at - before.waited), abs=0.1)
        assert at.replays.totals == {Standing.FAILED: 1}


@on_virtual_time
async def test_no_pause_is_longer_than_a_minute_and_what_the_gateway_asks_counts() -> None:
    """Pauses double up to 60 s, however often it is tried."""
    async with desk() as at:
        at.bench.engines.script = always(DOWN)
        (number,) = at.keep(1)
        replay = at.begin(number, tries=20)
        await later(1 + 2 + 4 + 8 + 16 + 32 + 13 * 60 + 1)
        assert (replay.results[number].tries, replay.status) == (20, Status.DONE)


@on_virtual_time
async def test_what_no_further_try_would_mend_is_tried_once() -> None:
    """The engine's refusal of the request, a model that nobody serves: the letter stays and says so."""
    async with desk() as at:
        (number,) = at.keep(1)
        at.bench.engines.script = always(REFUSED)
        replay = at.begin(number)
        await later(100.0)
        assert (len(at.attempts), standing(replay)) == (1, [Standing.FAILED])
        assert replay.results[number].detail == "The engine refused the request."
        assert (await at.get(number)).detail == "The engine refused the request."


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"body": None}, "the request was not kept"),
        ({"redacted": True}, "the request was kept without its texts"),
        ({"endpoint": "prompt"}, "requests of the kind prompt cannot be sent again"),
        ({"body": b"\xff"}, "the request cannot be read: it is no JSON"),
        ({"body": b"[]"}, "the request cannot be read: it is no JSON object"),
        ({"body": b"[" * 300}, "the request cannot be read: it nests too deep"),
        ({"body": b'{"model":"m"}'}, "'messages' is missing."),
    ],
)
@on_virtual_time
async def test_what_cannot_be_sent_is_told_and_stays(change: dict[str, object], trouble: str) -> None:
    """Nothing goes to an engine, and the others of the replay do."""
    async with desk() as at:
        at.bench.engines.script = always()
        at.letters.add(replace(letter("odd", body=BODY), **change))
        (odd,) = [kept.id for kept in at.letters.ring.oldest(1)]
        (fine,) = at.keep(1)
        replay = at.begin(odd, fine)
        await later(1.0)
        assert standing(replay) == [Standing.FAILED, Standing.ANSWERED]
        assert replay.results[odd].detail == trouble
        assert at.letters.count == 1


@on_virtual_time
async def test_two_replays_of_one_letter_make_one_call() -> None:
    """The second one skips it and says why; so it does with one that is gone."""
    async with desk() as at:
        (number,) = at.keep(1)
        first = at.begin(number)
        second = at.begin(number, 4711)
        await later(1.0)
        assert standing(second) == [Standing.SKIPPED, Standing.SKIPPED]
        assert [result.detail for result in second.results.values()] == ["another replay has it", "it is gone"]
        at.attempts[0].answer(ANSWER)
        await later(1.0)
        assert (standing(first), len(at.attempts)) == ([Standing.ANSWERED], 1)


@on_virtual_time
async def test_a_cancelled_replay_gives_everything_back() -> None:
    """What is under way is broken off at the engine, nothing more is sent, all letters stay as they were."""
    async with desk() as at:
        ids = at.keep(3)
        replay = at.begin(*ids, pace=1.0)
        await later(1.5)
        assert len(at.attempts) == 2
        await at.replays.cancel(replay)
        await later(100.0)
        assert [attempt.aborted for attempt in at.attempts] == [True, True]
        assert (replay.status, standing(replay)) == (Status.CANCELLED, [Standing.WAITING] * 3)
        assert [(kept.claimed, kept.replays) for kept in at.letters.ring.oldest(9)] == [(False, 0)] * 3
        await at.replays.cancel(replay)
        assert at.replays.all == ()


@on_virtual_time
async def test_a_gateway_that_stops_ends_replays_without_harm() -> None:
    """Nothing more is sent, what runs may end, what waits stays a letter that was not tried in vain."""
    async with desk(limit=1) as at:
        ids = at.keep(4)
        replay = at.begin(*ids, pace=1.0)
        await later(1.5)
        assert at.bench.gateway.snapshot().queued == 1
        at.replays.stop()
        draining = asyncio.ensure_future(at.bench.gateway.drain(30.0))
        await later(1.0)
        at.attempts[0].answer(ANSWER)
        await draining
        await later(1.0)
        assert (replay.status, len(at.attempts)) == (Status.CANCELLED, 1)
        assert standing(replay) == [Standing.ANSWERED, *[Standing.WAITING] * 3]
        assert [(kept.claimed, kept.replays) for kept in at.letters.ring.oldest(9)] == [(False, 0)] * 3
        with pytest.raises(TooMany):
            at.begin(*ids)


@on_virtual_time
async def test_somebody_else_may_end_a_letter_under_way() -> None:
    """As its user can: `DELETE /v1/queue/ID`. It counts as failed and stays."""
    async with desk() as at:
        (number,) = at.keep(1)
        replay = at.begin(number)
        await later(1.0)
        assert at.bench.gateway.cancel(f"replay-{number}", at.attempts[0].dispatch.request.flow)
        await later(100.0)
        assert (standing(replay), len(at.attempts)) == ([Standing.FAILED], 1)
        assert at.letters.count == 1


@on_virtual_time
async def test_an_answer_that_is_no_json_or_too_long_is_none() -> None:
    """Nonsense is tried again, an endless answer is not; neither removes the letter."""
    async with desk() as at:
        nonsense, endless = at.keep(2)
        replay = at.begin(nonsense, endless, tries=2)
        await later(1.0)
        at.attempts[0].answer(b"<html>")
        at.attempts[1].say(*[b"x" * 1_000_000] * 9)
        await later(0.1)
        assert at.attempts[1].aborted
        await later(2.0)
        at.attempts[2].answer(b"<html>")
        await later(10.0)
        assert standing(replay) == [Standing.FAILED, Standing.FAILED]
        assert len(at.attempts) == 3
        assert at.letters.count == 2


@on_virtual_time
async def test_answers_are_bounded_and_the_first_go_first() -> None:
    """Their letters are answered all the same; how long they were is still told."""
    async with desk(answer_bytes=2 * len(ANSWER)) as at:
        at.bench.engines.script = always()
        replay = at.begin(*at.keep(3), pace=10.0)
        await later(1.0)
        answers = [result.answer for result in replay.results.values()]
        assert answers == [None, ANSWER, ANSWER]
        assert [result.answer_bytes for result in replay.results.values()] == [len(ANSWER)] * 3
        await at.replays.cancel(replay)
        again = at.begin(*at.keep(2))
        await later(1.0)
        assert [result.answer for result in again.results.values()] == [ANSWER, ANSWER]


@on_virtual_time
async def test_replays_are_bounded() -> None:
    """So many run, so many are remembered, so many letters have they: beyond it is refused or forgotten."""
    async with desk() as at:
        (number,) = at.keep(1)
        with pytest.raises(ValueError, match="at most"):
            at.begin(*range(MOST_LETTERS + 1))
        first = at.begin(number)
        for _ in range(KEPT + 5):
            at.begin(4711)
            await later(0.01)
        assert len(at.replays.all) == KEPT
        assert at.replays.get(first.id) is first
        for _ in range(RUNNING - 1):
            at.begin(4711)
        with pytest.raises(TooMany):
            at.begin(4711)


@on_virtual_time
async def test_an_empty_replay_is_done_at_once() -> None:
    """As of a filter that nothing fits."""
    async with desk() as at:
        replay = at.begin()
        await later(0.01)
        assert replay.status is Status.DONE


@virtually
async def test_the_result_is_told_to_a_webhook() -> None:
    """All letters and answers, signed; whether it was taken can be asked for."""
    async with ScriptedEngine(steps.json(200, {})) as hook, desk() as at:
        at.bench.engines.script = always()
        (number,) = at.keep(1)
        replay = at.begin(number, webhook=hook.url + "/done")
        await hook.got(1)
        await later(1.0)
        told = json.loads(hook.requests[0].body)
        assert (hook.requests[0].path, told["type"], told["replay"]["id"]) == ("/done", "replay", replay.id)
        assert told["replay"]["counts"]["answered"] == 1
        assert told["replay"]["letters"][0]["answer"] == json.loads(ANSWER)
        assert (hook.requests[0].header("webhook-signature") or "").startswith("v1,")
        assert replay.delivery is not None
        assert replay.delivery.delivered


@on_virtual_time
async def test_replays_share_the_queue_with_everybody() -> None:
    """At class batch: a user who asks now goes first, and a limit that is used up is waited out."""
    async with desk(limit=1) as at:
        at.begin(*at.keep(3), pace=10.0)
        await later(1.0)
        caller, _ = at.bench.ask("live")
        at.attempts[0].answer(ANSWER)
        await later(0.1)
        assert at.attempts[1].dispatch.request.id == "live"
        at.attempts[1].answer(b"x")
        assert caller.endings == [(Ending.ANSWERED, None)]
        for place in (2, 3):
            at.attempts[place].answer(ANSWER)
            await later(0.1)
        assert len(await at.letters.list(LetterFilter())) == 0
