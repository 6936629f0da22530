"""What those who wait can see and do: their place while a stream waits, and an end to it."""

from __future__ import annotations

import json

import pytest

from headrace import errors
from headrace.model import AnswerForm, Ending
from headrace.server.settings import ServerSettings
from tests.server.fakes import CHAT, DONE, FINISH, WHOLE, FakeGateway, chunk, front_door

STREAM = {**CHAT, "stream": True}
SOON = ServerSettings(queue_note_after=0.01, queue_note_every=0.01)
NAMED = {"x-request-id": "r-1"}


async def test_a_stream_that_waits_is_told_its_place() -> None:
    """It begins with what is known; places follow as they change; then what is learned late, and the answer."""
    gateway = FakeGateway(standing={"r-1": (3, 4.2)})
    async with front_door(gateway, SOON) as front, front.client() as client:
        client.post("/v1/chat/completions", STREAM, {**NAMED, "x-headrace-class": "batch"})
        reply = await gateway.arrived()
        status, headers = await client.head()
        assert status == 200
        assert headers["content-type"].startswith("text/event-stream")
        assert (headers["x-headrace-queue-position"], headers["x-request-id"]) == ("3", "r-1")
        assert headers["x-headrace-class"] == "batch"
        assert "x-headrace-instance" not in headers
        assert await client.piece() == b": queued position=3 expected_start=4.2s\n\n"
        gateway.standing["r-1"] = (1, 1.0)
        while (note := await client.piece()) != b": queued position=1 expected_start=1.0s\n\n":
            assert note == b": queued position=3 expected_start=4.2s\n\n"
        gateway.standing.clear()
        while (note := await client.piece()) != b": waiting\n\n":
            assert note == b": queued position=1 expected_start=1.0s\n\n"
        reply.begin()
        reply.write(chunk("one"))
        reply.write(FINISH + DONE)
        reply.end()
        late = (
            b": x-headrace-instance: gpu-1\n: x-headrace-model: real-model\n: x-headrace-attempts: 2\n"
            b": x-headrace-queue-ms: 250\n: x-headrace-cache: miss\n\n"
        )
        assert (await client.rest()).replace(b": waiting\n\n", b"") == late + chunk("one") + FINISH + DONE


async def test_a_failure_after_the_place_was_told_is_one_error_event() -> None:
    """The status has gone out: as in mid-stream there is an error event, no `[DONE]`, and a proper end."""
    gateway = FakeGateway(standing={"r-1": (3, 4.2)})
    async with front_door(gateway, SOON) as front, front.client() as client:
        client.post("/v1/chat/completions", STREAM, NAMED)
        reply = await gateway.arrived()
        await client.head()
        reply.end(Ending.QUEUE_TIMEOUT, errors.queue_timeout(60.0, 2.0))
        body = await client.rest()
        events = [line for line in body.split(b"\n") if line.startswith(b"data:")]
        assert [json.loads(event[5:])["error"]["code"] for event in events] == ["queue_timeout"]
        assert b"[DONE]" not in body
        assert (await client.get("/live")).status == 200


async def test_a_whole_answer_to_a_stream_that_was_told_its_place() -> None:
    """An answer that comes in the other form is cut into events as ever, behind what is learned late."""
    gateway = FakeGateway(standing={"r-1": (1, 1.0)})
    async with front_door(gateway, SOON) as front, front.client() as client:
        client.post("/v1/chat/completions", STREAM, NAMED)
        reply = await gateway.arrived()
        await client.head()
        reply.begin(AnswerForm.WHOLE)
        reply.write(WHOLE)
        reply.end()
        body = await client.rest()
        assert b": x-headrace-instance: gpu-1\n" in body
        assert b"hello back" in body
        assert body.endswith(DONE)


@pytest.mark.parametrize(
    ("body", "headers"),
    [(STREAM, {"x-headrace-keepalive": "off"}), (STREAM, {"x-headrace-keepalive": " OFF "}), (CHAT, {})],
)
async def test_who_does_not_want_it_keeps_his_status(body: dict[str, object], headers: dict[str, str]) -> None:
    """Somebody else is told twice meanwhile; this one's failure is a proper status with all its headers."""
    gateway = FakeGateway(standing={"r-1": (1, 1.0), "other": (2, 2.0)})
    async with front_door(gateway, SOON) as front, front.client() as client, front.client() as other:
        client.post("/v1/chat/completions", body, {**NAMED, **headers})
        reply = await gateway.arrived()
        other.post("/v1/chat/completions", STREAM, {"x-request-id": "other"})
        await other.head()
        await other.piece()
        await other.piece()
        reply.end(Ending.QUEUE_TIMEOUT, errors.queue_timeout(60.0, 2.0))
        answer = await client.answer()
        assert (answer.status, answer.headers["x-headrace-drop-reason"]) == (503, "queue_timeout")
        assert answer.headers["retry-after"] == "2"


async def test_a_stream_that_is_running_is_not_begun_for_it() -> None:
    """Only who stands in the queue is told so: what an engine works on can still fail with a status of its own."""
    gateway = FakeGateway(standing={"other": (2, 2.0)})
    async with front_door(gateway, SOON) as front, front.client() as client, front.client() as other:
        client.post("/v1/chat/completions", STREAM, NAMED)
        reply = await gateway.arrived()
        other.post("/v1/chat/completions", STREAM, {"x-request-id": "other"})
        await other.head()
        await other.piece()
        await other.piece()
        reply.end(Ending.INFERENCE_FAILURE, errors.upstream_error())
        assert (await client.answer()).status == 502


async def test_a_caller_that_leaves_while_he_is_told_is_noticed() -> None:
    """The gateway hears of it as in any other stream."""
    gateway = FakeGateway(standing={"r-1": (1, 1.0)})
    async with front_door(gateway, SOON) as front, front.client() as client:
        client.post("/v1/chat/completions", STREAM, NAMED)
        reply = await gateway.arrived()
        await client.head()
        client.leave()
        await gateway.until_cancelled(reply)


@pytest.mark.parametrize("path", ["/v1/queue/r-1", "/queue/r-1"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_can_be_cancelled_by_its_id(path: str, stream: bool) -> None:
    """The one who cancels gets 200; the one who waits is told so, and that a retry makes no sense."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client, front.client() as other:
        client.post("/v1/chat/completions", {**CHAT, "stream": stream}, {**NAMED, "x-headrace-user": "alice"})
        await gateway.arrived()
        other.send("DELETE", path, {"x-headrace-user": "alice"})
        answer = await other.answer()
        assert (answer.status, json.loads(answer.body)) == (200, {"id": "r-1", "object": "request", "cancelled": True})
        told = await client.answer()
        assert (told.status, told.error["code"]) == (499, "cancelled")
        assert told.headers["x-should-retry"] == "false"
        assert told.headers["x-headrace-drop-reason"] == "cancelled"


async def test_nobody_cancels_for_others() -> None:
    """Somebody else's request, one that does not exist and one that is over look alike."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client, front.client() as other:
        client.post("/v1/chat/completions", CHAT, {**NAMED, "x-headrace-user": "alice"})
        reply = await gateway.arrived()
        for request_id, user in (("r-1", "bob"), ("r-2", "alice")):
            other.send("DELETE", f"/v1/queue/{request_id}", {"x-headrace-user": user})
            answer = await other.answer()
            assert (answer.status, answer.error["param"]) == (404, None)
        reply.begin(AnswerForm.WHOLE)
        reply.write(WHOLE)
        reply.end()
        assert (await client.answer()).status == 200


async def test_an_id_may_hold_slashes_and_only_delete_cancels() -> None:
    """Ids are the callers' own; other methods are told what is possible here."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client, front.client() as other:
        client.post("/v1/chat/completions", CHAT, {"x-request-id": "team/eval/7"})
        await gateway.arrived()
        answer = await other.get("/v1/queue/team/eval/7")
        assert (answer.status, answer.headers["allow"]) == (405, "DELETE")
        other.send("DELETE", "/v1/queue/team/eval/7")
        assert (await other.answer()).status == 200
        assert (await client.answer()).status == 499
