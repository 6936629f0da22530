"""One connection, several requests: order, framing, and what ends it. On both doors."""

from __future__ import annotations

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from headrace import errors
from headrace.model import AnswerForm, Ending
from headrace.server.settings import ServerSettings
from headrace.testing import guarded
from headrace.wire.openai import OpenAICall
from tests.patience import GUARD
from tests.server.fakes import CHAT, DONE, WHOLE, FakeGateway, FakeReply, RawClient, chunk, front_door

PATH = "/v1/chat/completions"
STREAM = {**CHAT, "stream": True}
BODY = json.dumps(CHAT).encode()
WISH = {"connection": "upgrade, http2-settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}


def answer(reply: FakeReply) -> None:
    """The engine's whole answer."""
    reply.begin(AnswerForm.WHOLE)
    reply.write(WHOLE)
    reply.end()


def raw(client: RawClient, version: str, *headers: str, body: bytes = BODY) -> None:
    """Write a request line by line."""
    lines = [f"POST {PATH} HTTP/{version}", "host: gateway", f"content-length: {len(body)}", *headers, "", ""]
    client.writer.write("\r\n".join(lines).encode() + body)


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    """The second of two is not begun before the first is answered, on whichever lane each of them is."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.post(PATH, STREAM)
        client.send("GET", "/live")
        client.post(PATH, CHAT)
        client.send("GET", "/nothing")
        first = await gateway.arrived(1)
        first.begin()
        first.write(chunk("one"))
        await client.head()
        assert await client.piece() == chunk("one")
        assert len(gateway.replies) == 1
        first.write(DONE)
        first.end()
        assert await client.rest() == DONE
        assert (await client.answer()).body == b'{"status":"ok"}'
        answer(await gateway.arrived(2))
        assert (await client.answer()).body == WHOLE
        assert (await client.answer()).status == 404


async def test_answers_that_leave_together_stay_in_order_and_whole() -> None:
    """Callers answered in one turn of the loop each have the answer first, then what was sent ahead, or the end."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as one, front.client() as two:
        for client in (one, two):
            client.post(PATH, CHAT)
            client.send("POST", PATH, {"content-length": "3", "connection": "close"}, b"{]}")
        await gateway.arrived(2)
        for reply in list(gateway.replies):
            answer(reply)
        for client in (one, two):
            assert (await client.answer()).body == WHOLE
            assert (await client.answer()).status == 400
            assert await client.closed() == b""
        async with front.client() as three, front.client() as four:
            for client in (three, four):
                client.post(PATH, CHAT)
            await gateway.arrived(4)
            for reply in gateway.replies[2:]:
                answer(reply)
            for connection in list(front.state.connections):
                connection.shutdown()
            for client in (three, four):
                assert (await client.answer()).body == WHOLE
                assert await client.closed() == b""


async def test_what_is_no_http_is_told_in_the_form_of_every_error() -> None:
    """A head that cannot be read gets 400 with all four fields, and the connection ends; the log says why."""
    for sent in (b"FOO BAR\r\n\r\n", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -2\r\n\r\n{}"):
        with capture_logs() as lines:
            async with front_door(FakeGateway()) as front, front.client() as client:
                client.writer.write(sent)
                answer = await client.answer()
                assert (answer.status, set(answer.error)) == (400, {"message", "type", "param", "code"})
                assert await client.closed() == b""
        (line,) = lines
        assert (line["event"], line["status"]) == ("no request", 400)
        assert "Invalid" in line["reason"]


async def test_thousands_sent_ahead_are_all_answered() -> None:
    """Answers that are complete at once do not pile up on each other."""
    gateway = FakeGateway(refusal=(Ending.NO_INSTANCE, errors.no_instance(1.0)))
    count = 3000
    async with front_door(gateway) as front, front.client() as client:
        for _ in range(count):
            client.writer.write(b"POST /completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        assert [(await client.answer()).status for _ in range(count)] == [400] * count


async def test_a_caller_who_leaves_is_not_served_what_he_sent_ahead() -> None:
    """Those who wait in line behind the answer under way are never begun."""
    gateway = FakeGateway()
    async with front_door(gateway) as front:
        async with front.client() as client:
            client.post(PATH, STREAM)
            reply = await gateway.arrived()
            reply.begin()
            client.post(PATH, CHAT)
            reply.write(chunk("one"))
            await client.head()
            client.leave()
        reply.write(b"x" * 1_000_000)  # reading stopped for the second request: writing finds out
        await gateway.until_cancelled(reply)
        async with front.client() as other:
            assert (await other.get("/live")).status == 200
        assert len(gateway.replies) == 1


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_connection_is_closed_when_the_caller_asks_for_it(version: str) -> None:
    """HTTP/1.0 and `connection: close` get their answer, and then the end."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        raw(client, version, "connection: close")
        answer(await gateway.arrived())
        status, headers = await client.head()
        assert (status, headers["content-length"]) == (200, str(len(WHOLE)))
        assert headers["connection"] == "close"
        assert await client.closed() == WHOLE


async def test_a_stream_to_an_old_client_ends_with_the_connection() -> None:
    """HTTP/1.0 knows no chunks."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        raw(client, "1.0", body=json.dumps(STREAM).encode())
        reply = await gateway.arrived()
        reply.begin()
        reply.write(chunk("one"))
        reply.write(DONE)
        reply.end()
        _, headers = await client.head()
        assert "content-length" not in headers
        if headers.get("transfer-encoding") != "chunked":  # ASGI servers may answer 1.0 in chunks
            assert await client.closed() == chunk("one") + DONE


@pytest.mark.parametrize("query", ["?api-version=1", "?"])
async def test_a_query_changes_nothing(query: str) -> None:
    """Some clients add a version to the URL."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.post(PATH + query, CHAT)
        await gateway.arrived()


async def test_a_body_in_pieces_is_put_together() -> None:
    """Chunked, and cut anywhere."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.send("POST", PATH, {"transfer-encoding": "chunked"})
        for part in (BODY[:1], BODY[1:20], BODY[20:]):
            client.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await client.writer.drain()
        client.writer.write(b"0\r\n\r\n")
        reply = await gateway.arrived()
        assert isinstance(reply.request.payload, OpenAICall)
        assert reply.request.payload.body == BODY


@pytest.mark.parametrize(
    "headers",
    [
        ("transfer-encoding: chunked",),
        ("content-length: 3",),
        ("transfer-encoding : chunked",),
        ("content-length : 1",),
        ("x y: 1",),
    ],
)
async def test_heads_that_could_be_read_in_two_ways_are_refused(headers: tuple[str, ...]) -> None:
    """400 and the end of the connection: nothing behind it is taken for a request."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        raw(client, "1.1", *headers)
        assert (await client.head())[0] == 400
        await client.closed()
        assert not gateway.replies


async def test_nonsense_in_the_middle_of_an_answer_is_not_answered_into_it() -> None:
    """A stream that is under way ends without a word that is not part of it, and the request is cancelled."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.post(PATH, STREAM)
        reply = await gateway.arrived()
        reply.begin()
        reply.write(chunk("one"))
        await client.head()
        assert await client.piece() == chunk("one")
        client.writer.write(b"\x00\x01nonsense\r\n\r\n")
        await gateway.until_cancelled(reply)
        assert await client.closed() == b""


async def test_a_go_ahead_is_not_given_for_what_is_refused() -> None:
    """A client that asks before it sends too much is told so, and sends nothing."""
    gateway = FakeGateway()
    async with front_door(gateway, ServerSettings(body_limit=10)) as front, front.client() as client:
        client.send("POST", PATH, {"expect": "100-continue", "content-length": "5000"})
        assert (await client.head())[0] == 413


async def test_every_answer_has_a_date() -> None:
    """RFC 9110, 6.6.1: an origin server with a clock says when."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        front.state.default_headers = [(b"date", b"Sun, 06 Nov 1994 08:49:37 GMT")]
        client.post(PATH, CHAT)
        answer(await gateway.arrived())
        assert (await client.answer()).headers["date"] == "Sun, 06 Nov 1994 08:49:37 GMT"


async def test_shutting_down_lets_the_answer_end_and_then_closes() -> None:
    """The last answer of a connection is whole."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.post(PATH, STREAM)
        reply = await gateway.arrived()
        reply.begin()
        reply.write(chunk("one"))
        await client.head()
        for connection in list(front.state.connections):
            connection.shutdown()
        reply.write(DONE)
        reply.end()
        assert await client.piece() == chunk("one")
        assert await client.closed() == b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)


@pytest.mark.parametrize("path", [PATH, "/nothing"])
async def test_a_refusal_reaches_who_is_still_sending(path: str) -> None:
    """Nonsense behind a request, and then megabytes that nobody reads: the answer is not lost to a reset."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        assert isinstance(client.writer.transport, asyncio.Transport)
        client.writer.transport.pause_reading()
        client.send("POST", path, {"transfer-encoding": "chunked"}, b"no chunk\r\n")
        for _ in range(64):
            client.writer.write(b"x" * 65536)
            await guarded(client.writer.drain(), GUARD, "what is sent is taken")
        client.writer.transport.resume_reading()
        assert (await client.answer()).status in (400, 404)
        assert await client.closed() == b""


async def test_shutting_down_does_not_wait_for_half_a_request() -> None:
    """Who is still sending a body hears at once that the server stops."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        client.send("POST", PATH, {"content-length": "1000", "expect": "100-continue"})
        assert await client.head() == (100, {})
        client.writer.write(b"{")
        for connection in list(front.state.connections):
            connection.shutdown()
        refused = await client.answer()
        assert (refused.status, refused.error["code"]) == (503, "draining")
        assert await client.closed() == b""


@pytest.mark.parametrize("sent", [0, 7, len(BODY)])
async def test_a_wish_for_another_protocol_is_passed_over(sent: int) -> None:
    """Nothing else is spoken here: the request is answered as it is, with its body, however that comes."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.send("GET", "/live", WISH)
        client.send("GET", "/live", WISH)
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
        client.send("POST", PATH, {**WISH, "content-length": str(len(BODY))}, BODY[:sent])
        await client.writer.drain()
        client.writer.write(BODY[sent:])
        answer(await gateway.arrived())
        assert (await client.answer()).body == WHOLE
        assert (await client.get("/live")).status == 200


async def test_a_body_behind_such_a_wish_is_never_taken_for_a_request() -> None:
    """Who passes requests on to this server takes it for a body as well."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        hidden = b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"
        client.send("POST", PATH, {**WISH, "content-length": str(len(hidden))})
        await client.writer.drain()
        client.writer.write(hidden)
        client.send("GET", "/live")
        assert [(await client.answer()).status for _ in range(2)] == [400, 200]


async def test_a_chunked_body_behind_such_a_wish_is_read() -> None:
    """However the body is framed."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.send("POST", PATH, {**WISH, "transfer-encoding": "chunked"})
        client.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
        answer(await gateway.arrived())
        assert (await client.answer()).body == WHOLE


async def test_trailers_are_no_headers() -> None:
    """What comes behind a chunked body says nothing of who asks."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.send("POST", PATH, {"transfer-encoding": "chunked", "x-headrace-user": "alice"})
        client.writer.write(b"%x\r\n%b\r\n0\r\nx-headrace-user: bob\r\n\r\n" % (len(BODY), BODY))
        answer(await gateway.arrived())
        assert gateway.replies[0].request.flow.user == "alice"
        assert (await client.answer()).body == WHOLE
