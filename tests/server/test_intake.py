"""Bodies: how large, how many, how slow, and of what kind."""

from __future__ import annotations

import json

import pytest

from headrace.model import AnswerForm
from headrace.server.settings import ServerSettings
from tests.server.fakes import CHAT, WHOLE, FakeGateway, front_door

SMALL = ServerSettings(body_limit=1000, bodies_limit=1500)
PATH = "/v1/chat/completions"


async def test_a_body_announced_too_large_is_refused_before_it_is_sent() -> None:
    """413 comes at once, in the API's error form, with `connection: close`."""
    gateway = FakeGateway()
    async with front_door(gateway, SMALL) as front, front.client() as client:
        client.send("POST", PATH, {"content-type": "application/json", "content-length": "60000000"})
        answer = await client.answer()
        assert (answer.status, answer.error["type"]) == (413, "invalid_request_error")
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-should-retry"] == "false"
        assert not gateway.replies


async def test_a_body_that_grows_too_large_is_refused_at_the_limit() -> None:
    """Without a length the count of what came decides; the client can read the answer while it still sends."""
    gateway = FakeGateway()
    async with front_door(gateway, SMALL) as front, front.client() as client:
        client.send("POST", PATH, {"content-type": "application/json", "transfer-encoding": "chunked"})
        client.writer.write(b"258\r\n" + b"x" * 600 + b"\r\n")
        client.writer.write(b"258\r\n" + b"x" * 600 + b"\r\n")
        answer = await client.answer()
        assert answer.status == 413
        client.writer.write(b"0\r\n\r\n")
        assert await client.closed() == b""


async def test_a_slow_body_is_given_up() -> None:
    """A byte now and then does not hold a place for ever: 408."""
    gateway = FakeGateway()
    async with front_door(gateway, ServerSettings(body_timeout=0.05)) as front, front.client() as client:
        client.send("POST", PATH, {"content-type": "application/json", "content-length": "100"}, b"{")
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert not gateway.replies


async def test_the_sum_of_all_bodies_is_bounded_until_they_are_answered() -> None:
    """Beyond the sum 503 with Retry-After; an answered request makes room."""
    gateway = FakeGateway()
    long = {**CHAT, "messages": [{"role": "user", "content": "x" * 800}]}
    async with front_door(gateway, SMALL) as front, front.client() as first, front.client() as second:
        first.post(PATH, long)
        reply = await gateway.arrived()
        second.post(PATH, long)
        answer = await second.answer()
        assert (answer.status, answer.error["code"]) == (503, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        reply.begin(AnswerForm.WHOLE)
        reply.write(WHOLE)
        reply.end()
        assert (await first.answer()).status == 200
        async with front.client() as third:
            third.post(PATH, long)
            await gateway.arrived(2)


async def test_bodies_of_callers_who_left_do_not_count() -> None:
    """A disconnect gives the bytes back, in the middle of the upload and after it."""
    gateway = FakeGateway()
    long = {**CHAT, "messages": [{"role": "user", "content": "x" * 800}]}
    async with front_door(gateway, SMALL) as front:
        for number in range(1, 5):
            async with front.client() as client:
                client.post(PATH, long)
                reply = await gateway.arrived(number)
                client.leave()
                await gateway.until_cancelled(reply)


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_another_content_type_is_415(media: str) -> None:
    """What is not JSON is refused with a word on what to send."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        client.send("POST", PATH, {"content-type": media}, b"a=b")
        answer = await client.answer()
        assert answer.status == 415
        assert "application/json" in str(answer.error["message"])


@pytest.mark.parametrize("media", [None, "application/json; charset=utf-8", "Application/JSON", "application/ld+json"])
async def test_json_by_any_name_is_read(media: str | None) -> None:
    """A missing type is taken as JSON, and parameters do not matter."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.send("POST", PATH, {} if media is None else {"content-type": media}, json.dumps(CHAT).encode())
        await gateway.arrived()


async def test_compressed_bodies_are_415() -> None:
    """A small upload cannot become a large one."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        client.send("POST", PATH, {"content-encoding": "gzip"}, b"\x1f\x8b")
        assert (await client.answer()).status == 415


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"\xef\xbb\xbf{",
        b"[" * 20_000,
        b'{"model":"m","messages":"hello"}',
        b'{"model":"m","messages":[],"stream":"true"}',
        b'{"model":"m","messages":[],"n":' + b"1" * 5000 + b"}",
        b'{"model":"m","messages":[],"temperature":NaN}',
    ],
)
async def test_hostile_bodies_are_400_and_harm_nobody(body: bytes) -> None:
    """Never 500, never a trace, and the next request on the connection is answered."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.send("POST", PATH, {"content-length": str(len(body))}, body)
        answer = await client.answer()
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        client.post(PATH, CHAT)
        await gateway.arrived()


async def test_a_head_without_end_is_cut() -> None:
    """Headers are bounded too: 431, and the connection is closed."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        client.writer.write(b"GET /live HTTP/1.1\r\nx-filler: ")
        client.writer.write(b"x" * 100_000)
        status, _ = await client.head()
        assert status == 431


async def test_expect_continue_is_answered() -> None:
    """Clients that ask before they send get their go-ahead."""
    gateway = FakeGateway()
    body = json.dumps(CHAT).encode()
    async with front_door(gateway) as front, front.client() as client:
        client.send("POST", PATH, {"expect": "100-continue", "content-length": str(len(body))})
        assert (await client.head())[0] == 100
        client.writer.write(body)
        await gateway.arrived()
