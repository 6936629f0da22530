"""Webhooks arrive signed, are tried again for a while, and lead nowhere they should not."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac

import pytest

from headrace.runtime.client import Client, new_client
from headrace.runtime.webhooks import Delivery, Hook, Webhooks
from headrace.testing import ScriptedEngine, steps
from tests.runtime.virtual import virtually

BODY = b'{"type":"test"}'
FINE = steps.json(200, {})


class Pauses:
    """Waits for nothing and remembers how long it should have."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)


def signed(key: bytes, name: str, stamp: str, body: bytes) -> str:
    """The signature as its specification describes it, worked out another way."""
    digest = hmac.new(key, f"{name}.{stamp}.{body.decode()}".encode(), hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


@pytest.mark.parametrize(("secret", "key"), [("plain", b"plain"), ("whsec_MfKQ9r8G", base64.b64decode("MfKQ9r8G"))])
async def test_a_message_arrives_with_a_signature_that_can_be_checked(
    upstream: Client, engine: ScriptedEngine, secret: str, key: bytes
) -> None:
    """At the path and query that were named, as JSON, signed over id, time and body."""
    engine.default = FINE
    hooks = Webhooks(upstream, wall=lambda: 1_700_000_000.9)
    assert await hooks.deliver(Hook(f"{engine.url}/hook?team=a", secret), BODY) == Delivery(delivered=True, tries=1)
    (request,) = engine.requests
    name = request.header("webhook-id") or ""
    assert (request.method, request.path, request.body) == ("POST", "/hook?team=a", BODY)
    assert request.header("content-type") == "application/json"
    assert request.header("webhook-timestamp") == "1700000000"
    assert request.header("webhook-signature") == signed(key, name, "1700000000", BODY)


async def test_without_a_secret_nothing_pretends_to_be_signed(upstream: Client, engine: ScriptedEngine) -> None:
    """No header rather than an empty one."""
    engine.default = FINE
    await Webhooks(upstream).deliver(Hook(engine.url), BODY)
    assert engine.requests[0].header("webhook-signature") is None
    assert engine.requests[0].path == "/"


async def test_a_receiver_that_is_away_gets_it_later_under_the_same_id(
    upstream: Client, engine: ScriptedEngine
) -> None:
    """Errors of the receiver and of the connection are waited out, each wait twice the one before."""
    engine.once(steps.cut(), steps.json(500, {}), steps.json(429, {}), steps.json(302, {}))
    engine.default = FINE
    pauses = Pauses()
    sent = await Webhooks(upstream, pause=pauses).deliver(Hook(engine.url), BODY)
    assert sent == Delivery(delivered=True, tries=5)
    assert pauses.asked == [1.0, 2.0, 4.0, 8.0]
    assert len({request.header("webhook-id") for request in engine.requests}) == 1


async def test_a_receiver_that_stays_away_is_given_up(upstream: Client) -> None:
    """After so many tries, with pauses of a minute at most; the reason names no address."""
    pauses = Pauses()
    sent = await Webhooks(upstream, pause=pauses, tries=9).deliver(Hook("http://127.0.0.1:1/hook"), BODY)
    assert (sent.delivered, sent.tries) == (False, 9)
    assert max(pauses.asked) == 60.0
    assert sent.detail
    assert "127.0.0.1" not in sent.detail


async def test_gone_ends_it_at_once(upstream: Client, engine: ScriptedEngine) -> None:
    """410 means that nobody wants it."""
    engine.default = steps.json(410, {})
    sent = await Webhooks(upstream, pause=Pauses()).deliver(Hook(engine.url), BODY)
    assert sent == Delivery(delivered=False, tries=1, detail="HTTP 410")


async def test_a_redirect_is_not_followed(upstream: Client, engine: ScriptedEngine) -> None:
    """It would lead where nobody looked."""
    engine.default = steps.json(302, {}, [("location", engine.url + "/elsewhere")])
    sent = await Webhooks(upstream, pause=Pauses(), tries=2).deliver(Hook(engine.url + "/hook"), BODY)
    assert not sent.delivered
    assert {request.path for request in engine.requests} == {"/hook"}


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "http://[fe80::1]/", "http://100.100.100.200/"])
async def test_no_message_reaches_a_machine_s_credentials(upstream: Client, url: str) -> None:
    """Whoever named the address: no connection is made."""
    sent = await Webhooks(upstream, pause=Pauses(), tries=1).deliver(Hook(url), BODY)
    assert not sent.delivered


@virtually
async def test_a_receiver_that_hangs_costs_its_time_and_no_more() -> None:
    """Ten seconds a try."""
    client = new_client()
    async with ScriptedEngine(steps.hang(), guard=60) as engine:
        began = asyncio.get_running_loop().time()
        sent = await Webhooks(client, tries=2).deliver(Hook(engine.url), BODY)
        took = asyncio.get_running_loop().time() - began
    await client.close()
    assert not sent.delivered
    assert took == pytest.approx(21.0, abs=0.5)
