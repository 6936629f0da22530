"""The admin API on real sockets: who gets in, and what is refused and how."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest

from headrace.config import schema_json
from headrace.config.wording import FORMS, INSTANCE_ID
from tests.server.administered import ELSEWHERE, KEY, LOCKED, administered, routes, send

# ------------------------------------------------------------------------------------------------------------ access


async def test_no_route_works_without_the_key() -> None:
    """Each route of the document, health checks' methods and all: 401 without it, and nothing has changed."""
    async with administered(LOCKED) as (gateway, front), front.client() as client:
        before = gateway.registry.instances
        known = await routes(client)
        assert len(known) >= 20
        for method, path in [*known, ("GET", "/admin"), ("GET", "/admin/nothing"), ("OPTIONS", "/admin/instances")]:
            answer = await send(client, method, path, {} if method in ("POST", "PATCH") else None)
            assert (answer.status, answer.error["code"]) == (401, "missing_api_key"), (method, path)
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert gateway.registry.instances == before
        for header in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert (await send(client, "GET", "/admin/instances", headers=header)).status == 200
        wrong = await send(client, "GET", "/admin/instances", headers={"x-api-key": "caf\xe9"})
        assert (wrong.status, wrong.error["code"]) == (401, "invalid_api_key")


async def test_without_a_key_nothing_is_open_to_others() -> None:
    """Through a proxy each route is 403 and the answer says how to open it; the page and the document as well."""
    async with administered() as (_, front), front.client() as client:
        for method, path in [*await routes(client), ("GET", "/docs"), ("GET", "/openapi.json")]:
            answer = await send(client, method, path, {} if method in ("POST", "PATCH") else None, ELSEWHERE)
            assert (answer.status, answer.error["code"]) == (403, "admin_closed"), (method, path)
            assert "admin.api_key_env" in str(answer.error["message"])


async def test_a_page_from_elsewhere_changes_nothing() -> None:
    """A form that is posted across sites, and a name that was rebound to this machine, are refused before anything."""
    async with administered() as (gateway, front), front.client() as client:
        path = "/admin/instances/a/drain"
        for headers in ({"origin": "https://elsewhere.example"}, {"host": "rebound.example"}):
            assert (await send(client, "POST", path, headers=headers)).status == 403
        form = {"content-type": "text/plain"}
        assert (await send(client, "POST", "/admin/instances", {"address": "http://10.0.0.1"}, form)).status == 415
        assert [(entry.instance.id, entry.draining) for entry in gateway.registry.instances] == [("a", False)]
        assert (await send(client, "POST", path, headers={"origin": "http://127.0.0.1"})).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/health/%2e%2e/admin/instances",
        "//admin/instances",
        "/health/../admin/instances",
        "/health/..%2fadmin/instances",
        "/ADMIN/instances",
        "/admin%2finstances",
        "/admin;x/instances",
        "/health/admin/instances",
        "/docs/../admin/instances",
        "/docs/%2e%2e/admin/instances",
        "/docs/..%2fadmin%2finstances",
        "/openapi.json/../admin/instances",
        "/admin/instances%00",
        "/v1/models/../../admin/instances",
    ],
)
async def test_no_way_of_writing_a_path_leads_around_the_key(path: str) -> None:
    """What only looks like an open path, or like an admin path, is 401 or 404."""
    async with administered(LOCKED) as (_, front), front.client() as client:
        for method in ("GET", "POST", "HEAD"):
            client.send(method, path, {"host": "127.0.0.1", "x-http-method-override": "GET"})
            status, headers = await client.head()
            assert status in (401, 404, 405), method
            await client.reader.readexactly(0 if method == "HEAD" else int(headers["content-length"]))


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    """It is shown without the key, which it asks for; all it loads lies here, and its policy forbids the rest."""
    async with administered(LOCKED) as (_, front), front.client() as client:
        page = await send(client, "GET", "/docs")
        assert page.status == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http" not in page.body.decode().replace("http-equiv", "")
        for path in ("/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/start.js", "/docs/favicon-32x32.png"):
            asset = await send(client, "GET", path)
            assert (asset.status, asset.headers["x-content-type-options"]) == (200, "nosniff")
            assert len(asset.body) > 100
        assert (await send(client, "GET", "/docs/other.js")).status == 404
        document = json.loads((await send(client, "GET", "/openapi.json")).body)
        assert document["security"] == [{"key": []}, {"bearer": []}]
        assert set(document["components"]["securitySchemes"]) == {"key", "bearer"}


# ------------------------------------------------------------------------------------------------------------- errors


async def test_every_form_that_is_asked_for_has_words() -> None:
    """A text of a wrong form is refused in words, and not with the expression that it does not match."""
    async with administered() as (_, front), front.client() as client:
        document = (await send(client, "GET", "/openapi.json")).body.decode()
    for schema in (document, schema_json()):
        assert {json.loads(found) for found in re.findall(r'"pattern": ?("[^"]*")', schema)} <= FORMS.keys()


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"address": "http://10.0.0.1", "modles": ["m"]}, 422, "modles"),
        ({"address": "http://10.0.0.1", "models": ["ok", ""]}, 422, "models[1]"),
        ({"address": "http://10.0.0.1", "capacity": -1}, 422, "capacity"),
        ({"address": "http://10.0.0.1", "max_concurrent": 0}, 422, "max_concurrent"),
        ({"address": "http://10.0.0.1", "engine": "nothing"}, 422, "engine"),
        ({"address": "http://10.0.0.1", "source": "config"}, 422, "source"),
        ({"address": "http://10.0.0.1", "id": "a b"}, 422, "id"),
        ({"address": "ftp://10.0.0.1"}, 422, "address"),
        ({"address": "http://user:pw@10.0.0.1"}, 422, "address"),
        ({}, 422, None),
        ([], 422, None),
        ({"address": "http://169.254.169.254"}, 400, "address"),
        ({"address": "http://[::ffff:a9fe:a9fe]"}, 400, "address"),
        ({"address": "http://2852039166"}, 400, "address"),
        ({"address": "http://metadata.google.internal"}, 400, "address"),
        ({"address": "http://10.0.0.1", "metrics": "http://169.254.169.254/metrics"}, 400, "metrics"),
        ({"address": "http://10.0.0.1", "api_key_env": "AWS_SECRET_ACCESS_KEY"}, 400, "api_key_env"),
        ({"address": "http://10.0.0.1", "api_key_env": "HEADRACE_ADMIN_API_KEY"}, 400, "api_key_env"),
        ({"address": "http://127.0.0.1:9", "models": ["m"]}, 409, None),
        ({"address": "http://LOCALHOST:80", "id": "a"}, 409, None),
    ],
)
async def test_what_cannot_be_registered_is_told_with_its_field(body: object, status: int, param: str | None) -> None:
    """In the one error shape, without the value; nothing is registered and nothing is connected to."""
    async with administered() as (gateway, front), front.client() as client:
        answer = await send(client, "POST", "/admin/instances", body)
        assert answer.status == status, answer.body
        assert param is None or answer.error["param"] == param
        assert "pw" not in str(answer.error["message"])
        assert [entry.instance.id for entry in gateway.registry.instances] == ["a"]


@pytest.mark.parametrize(
    ("method", "path", "body", "message", "param"),
    [
        ("POST", "/admin/instances", None, "The body is missing. Send a JSON object.", None),
        ("POST", "/admin/instances", [], "The body must be a JSON object.", None),
        ("POST", "/admin/instances", {"id": ""}, f"id: {FORMS[INSTANCE_ID]}", "id"),
        (
            "POST",
            "/admin/instances",
            {"address": "http://10.0.0.1/a b"},
            "address: the address must not hold spaces or control characters",
            "address",
        ),
        ("PATCH", "/admin/instances/a", {"tier": None}, "tier: should be 'local' or 'remote'", "tier"),
        ("PATCH", "/admin/instances/a", {"models": None}, "models: should be a list", "models"),
        ("PATCH", "/admin/instances/a", {"models": []}, "models: must not be empty", "models"),
        (
            "PATCH",
            "/admin/instances/a",
            {"window_tokens": {}},
            "window_tokens: should be a whole number",
            "window_tokens",
        ),
        ("GET", "/admin/dlq/one", None, "id: should be a whole number", "id"),
        ("GET", "/admin/balancer/debug?model=", None, "model: must not be empty", "model"),
    ],
)
async def test_what_is_wrong_is_said_in_plain_words(
    method: str, path: str, body: object, message: str, param: str | None
) -> None:
    """Not in those of the validation, and with its field, also where a change does not fit what is there."""
    async with administered() as (_, front), front.client() as client:
        answer = await send(client, method, path, body)
        assert answer.status == 422
        assert str(answer.error["message"]).startswith(message)
        assert answer.error["param"] == param


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"\xff", {}, 400),
        (b"[" * 40_000, {}, 400),
        (b'{"capacity": ' + b"1" * 5_000 + b"}", {}, 400),
        (b"{}" + b" " * 100_000, {}, 413),
        (b"a=1", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b"a", {"content-encoding": "gzip"}, 415),
    ],
    ids=["cut", "no text", "deep", "long number", "large", "form", "packed"],
)
async def test_a_body_that_is_no_json_is_refused(data: bytes, headers: Mapping[str, str], status: int) -> None:
    """Whatever is wrong with it, the answer is an error of the caller in the one shape, and the next request works."""
    async with administered() as (_, front):
        async with front.client() as client:
            fields = {"host": "127.0.0.1", "content-type": "application/json", **headers}
            client.send("POST", "/admin/instances", fields, data)
            answer = await client.answer()
            assert answer.status == status
            assert answer.error["message"]
        async with front.client() as client:
            assert (await send(client, "GET", "/admin/instances")).status == 200


async def test_unknown_things_are_404_and_wrong_methods_405() -> None:
    """In the one shape, with what is possible."""
    async with administered() as (_, front), front.client() as client:
        for method, path in [
            ("GET", "/admin/instances/nobody"),
            ("PATCH", "/admin/instances/nobody"),
            ("DELETE", "/admin/instances/nobody"),
            ("POST", "/admin/instances/nobody/drain"),
            ("POST", "/admin/instances/nobody/undrain"),
            ("POST", "/admin/circuit-breakers/nobody/trip"),
            ("POST", "/admin/circuit-breakers/nobody/reset"),
            ("GET", "/admin/balancer/debug?model=nothing"),
            ("GET", "/admin/nothing"),
            ("GET", "/admin/instances/"),
        ]:
            answer = await send(client, method, path, {} if method == "PATCH" else None)
            assert (answer.status, bool(answer.error["message"])) == (404, True), (method, path)
        answer = await send(client, "PUT", "/admin/instances", {})
        assert (answer.status, answer.error["type"]) == (405, "invalid_request_error")
        assert answer.headers["allow"]
