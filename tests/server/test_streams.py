"""Answers on the wire: when bytes leave, what ends a stream, who notices a caller that has gone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from headrace import errors
from headrace.model import AnswerForm, CacheResult, Ending
from headrace.server.exchange import HIGH_WATER
from headrace.server.settings import ServerSettings
from tests.server.fakes import CHAT, DONE, FINISH, WHOLE, FakeGateway, FakeReply, RawClient, chunk, front_door

STREAM = {**CHAT, "stream": True}


@asynccontextmanager
async def asked(
    body: Mapping[str, object], headers: Mapping[str, str] | None = None, settings: ServerSettings | None = None
) -> AsyncIterator[tuple[RawClient, FakeReply]]:
    """A caller who has asked for a chat, and the gateway's side of it."""
    gateway = FakeGateway()
    async with front_door(gateway, settings) as front, front.client() as client:
        client.post("/v1/chat/completions", body, headers)
        yield client, await gateway.arrived()


async def test_the_first_frame_reaches_the_client_before_the_second_exists() -> None:
    """Streaming is real: nothing waits for more."""
    async with asked(STREAM) as (client, reply):
        reply.begin()
        reply.write(chunk("one"))
        status, _ = await client.head()
        assert status == 200
        assert await client.piece() == chunk("one")
        reply.write(chunk("two"))
        assert await client.piece() == chunk("two")
        reply.write(FINISH)
        reply.write(DONE)
        reply.end()
        assert await client.rest() == FINISH + DONE


async def test_a_streams_headers_say_who_answered_and_how() -> None:
    """Proxies must not buffer, and the caller learns instance, model, attempts, wait, cache and class."""
    async with asked(STREAM, {"x-request-id": "abc-1", "x-headrace-class": "batch"}) as (client, reply):
        reply.begin(cache=CacheResult.JOINED)
        reply.write(DONE)
        reply.end()
        _, headers = await client.head()
        expected = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "x-request-id": "abc-1",
            "x-headrace-instance": "gpu-1",
            "x-headrace-model": "real-model",
            "x-headrace-attempts": "2",
            "x-headrace-queue-ms": "250",
            "x-headrace-cache": "joined",
            "x-headrace-class": "batch",
        }
        assert {name: headers.get(name) for name in expected} == expected
        assert "content-length" not in headers
        assert await client.rest() == DONE


async def test_bytes_that_come_together_leave_together() -> None:
    """What is pushed in one turn of the loop is one message, not one each."""
    async with asked(STREAM) as (client, reply):
        reply.begin()
        for text in "abc":
            reply.write(chunk(text))
        reply.write(DONE)
        reply.end()
        await client.head()
        assert await client.piece() == chunk("a") + chunk("b") + chunk("c") + DONE
        assert await client.piece() == b""


async def test_a_failure_in_mid_stream_is_one_error_event_and_a_proper_end() -> None:
    """No `[DONE]`, no invented finish, and the connection can be used again."""
    async with asked(STREAM) as (client, reply):
        reply.begin()
        reply.write(chunk("half"))
        reply.end(Ending.STREAM_BROKEN, errors.stream_incomplete())
        answer = await client.answer()
        assert answer.body.startswith(chunk("half") + b'data: {"error":')
        event = answer.body.removeprefix(chunk("half"))
        assert event.count(b"data:") == 1
        assert event.endswith(b"\n\n")
        assert json.loads(event.removeprefix(b"data:"))["error"]["code"] == "stream_incomplete"
        assert b"[DONE]" not in answer.body
        assert (await client.get("/live")).status == 200


async def test_a_failure_before_the_first_byte_is_an_http_error() -> None:
    """A stream that has not begun fails with a status and with headers that say when to come back."""
    gateway = FakeGateway(refusal=(Ending.QUEUE_TIMEOUT, errors.queue_timeout(30.0, 2.3)))
    async with front_door(gateway) as front, front.client() as client:
        client.post("/v1/chat/completions", STREAM)
        answer = await client.answer()
        assert answer.status == 503
        assert answer.error["code"] == "queue_timeout"
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["retry-after"] == "3"
        assert answer.headers["retry-after-ms"] == "2300"
        assert answer.headers["x-headrace-drop-reason"] == "queue_timeout"
        assert answer.headers["x-request-id"].startswith("req-")
        assert "x-should-retry" not in answer.headers


async def test_who_would_come_back_too_soon_is_told_not_to() -> None:
    """The official clients ignore a `retry-after` over a minute and repeat at once: `x-should-retry` stops that."""
    for seconds, told in ((60.0, None), (61.0, "false")):
        gateway = FakeGateway(refusal=(Ending.CIRCUIT_OPEN, errors.circuit_open(seconds)))
        async with front_door(gateway) as front, front.client() as client:
            client.post("/v1/chat/completions", CHAT)
            answer = await client.answer()
            assert answer.headers["retry-after"] == str(int(seconds))
            assert answer.headers.get("x-should-retry") == told


async def test_what_will_fail_again_says_so() -> None:
    """`x-should-retry: false` keeps the official clients from trying twice more."""
    gateway = FakeGateway(refusal=(Ending.MODEL_NOT_FOUND, errors.model_not_found("m")))
    async with front_door(gateway) as front, front.client() as client:
        client.post("/v1/chat/completions", CHAT)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert answer.headers["x-should-retry"] == "false"


async def test_a_whole_answer_is_one_body_with_its_length() -> None:
    """The engine's JSON arrives byte for byte, with the same headers a stream has."""
    async with asked(CHAT) as (client, reply):
        reply.begin(AnswerForm.WHOLE)
        reply.write(WHOLE)
        reply.end()
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, WHOLE)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-headrace-instance"] == "gpu-1"


async def test_a_caller_without_a_stream_joins_a_stream() -> None:
    """Frames become one JSON object of the same text."""
    async with asked(CHAT) as (client, reply):
        assert reply.reader.wants_usage
        reply.begin(AnswerForm.STREAM, CacheResult.HIT)
        for frame in (chunk("hel"), chunk("lo"), FINISH, DONE):
            assert reply.write(frame)
        reply.end()
        answer = await client.answer()
        choice = json.loads(answer.body)["choices"][0]
        assert choice["message"]["content"] == "hello"
        assert choice["finish_reason"] == "stop"
        assert answer.headers["x-headrace-cache"] == "hit"


@pytest.mark.parametrize("nonsense", [b"{broken", b"[]", b"1"])
@pytest.mark.parametrize("stream", [True, False])
async def test_nonsense_that_only_translation_discovers_is_502(nonsense: bytes, stream: bool) -> None:
    """What passed unread and cannot be translated is the engine's failure, told as such."""
    async with asked({**CHAT, "stream": stream}) as (client, reply):
        reply.begin(AnswerForm.WHOLE if stream else AnswerForm.STREAM)
        reply.write(nonsense if stream else b"data: " + nonsense + b"\n\n")
        reply.end()
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")


@pytest.mark.parametrize("include_usage", [True, False])
async def test_a_streaming_caller_gets_a_whole_answer_as_a_stream(include_usage: bool) -> None:
    """One JSON body becomes events, with a usage chunk only for those who asked for one."""
    async with asked({**STREAM, "stream_options": {"include_usage": include_usage}}) as (client, reply):
        assert reply.reader.wants_usage is include_usage
        reply.begin(AnswerForm.WHOLE)
        reply.write(WHOLE)
        reply.end()
        answer = await client.answer()
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [event.removeprefix(b"data: ") for event in answer.body.split(b"\n\n") if event]
        assert events.pop() == b"[DONE]"
        parsed = [json.loads(event) for event in events]
        text = "".join(choice["delta"].get("content") or "" for event in parsed for choice in event["choices"])
        assert text == "hello back"
        assert any(not event["choices"] for event in parsed) is include_usage


async def test_a_caller_who_leaves_a_stream_is_reported() -> None:
    """Closing in mid-stream cancels the request; what is written later goes nowhere."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.post("/v1/chat/completions", STREAM)
        reply = await gateway.arrived()
        reply.begin()
        reply.write(chunk("one"))
        await client.head()
        client.leave()
        await gateway.until_cancelled(reply)
        assert reply.write(chunk("two"))
        reply.end(Ending.CANCELLED)
        assert reply.cancelled == 1


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_caller_who_leaves_before_the_first_byte_is_reported(body: dict[str, object]) -> None:
    """While the engine still thinks, streamed or not, a close is noticed."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.post("/v1/chat/completions", body)
        reply = await gateway.arrived()
        client.leave()
        await gateway.until_cancelled(reply)


async def test_a_slow_reader_is_told_to_the_gateway_and_asked_for_again() -> None:
    """Unread bytes make `write` return False; reading makes `resume` come; nothing is lost and nothing doubled."""
    gateway = FakeGateway()
    pieces = [chunk(f"{number:06}" + "x" * 16_000) for number in range(600)]
    async with front_door(gateway) as front, front.client() as client:
        client.post("/v1/chat/completions", STREAM)
        reply = await gateway.arrived()
        reply.begin()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        room = [reply.write(piece) for piece in pieces]
        assert not all(room)
        assert reply.resumed == 0
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await client.head()
        expected, received = b"".join(pieces), b""
        while len(received) < len(expected):
            received += await client.piece()
        assert received == expected
        await gateway.changes.until(lambda: reply.resumed == 1, 10.0, "the reader asks for more")
        reply.end()
        assert await client.rest() == b""


async def test_one_write_over_the_mark_says_enough() -> None:
    """The mark is `HIGH_WATER`; a socket that takes the bytes makes room again."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.post("/v1/chat/completions", STREAM)
        reply = await gateway.arrived()
        reply.begin()
        assert reply.write(b"x" * HIGH_WATER)
        assert not reply.write(b"y")
        await gateway.changes.until(lambda: reply.resumed == 1, 10.0, "the reader asks for more")
        reply.end()
        assert (await client.answer()).status == 200


async def test_a_caller_who_takes_nothing_for_too_long_is_cut_off() -> None:
    """A stalled reader does not hold an engine for ever."""
    gateway = FakeGateway()
    async with front_door(gateway, ServerSettings(stall_timeout=0.05)) as front, front.client() as client:
        client.post("/v1/chat/completions", STREAM)
        reply = await gateway.arrived()
        reply.begin()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not reply.cancelled:
            if not reply.write(b"x" * HIGH_WATER):
                resumed = reply.resumed
                await gateway.changes.until(
                    lambda resumed=resumed: reply.resumed > resumed or reply.cancelled > 0,  # type: ignore[misc]
                    10.0,
                    "room or a cut",
                )
        assert reply.cancelled == 1


async def test_an_answer_too_large_to_collect_is_refused_and_not_waited_for() -> None:
    """Collecting is bounded: past the limit the caller gets 502 and the engine is let go."""
    async with asked(CHAT, settings=ServerSettings(answer_limit=1000)) as (client, reply):
        reply.begin(AnswerForm.WHOLE)
        reply.write(b"x" * 1001)
        assert reply.cancelled == 1
        reply.end(Ending.CANCELLED)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")


async def test_a_request_cancelled_by_somebody_else_is_answered() -> None:
    """An operator's cancel reaches a caller who still waits, and tells him not to try again."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.post("/v1/chat/completions", CHAT)
        (await gateway.arrived()).end(Ending.CANCELLED)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (499, "cancelled")
        assert answer.headers["x-should-retry"] == "false"


async def test_a_mistake_of_ours_is_500_without_a_word_of_it() -> None:
    """The caller gets a general text, and the next request works."""
    gateway = FakeGateway(broken=True)
    async with front_door(gateway) as front, front.client() as client:
        client.post("/v1/chat/completions", CHAT)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert b"secret" not in answer.body
        assert (await client.get("/live")).status == 200


async def test_a_connection_serves_many_requests() -> None:
    """Keep-alive works for streams, whole answers and errors in turn."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        for number in range(1, 7):
            client.post("/v1/chat/completions", STREAM if number % 2 else CHAT)
            reply = await gateway.arrived(number)
            if number % 3 == 0:
                reply.end(Ending.NO_INSTANCE, errors.no_instance(1.0))
            else:
                reply.begin(AnswerForm.STREAM if number % 2 else AnswerForm.WHOLE)
                reply.write(DONE if number % 2 else WHOLE)
                reply.end()
            assert (await client.answer()).status == (503 if number % 3 == 0 else 200)
