"""Which path leads where, and what the service says of itself."""

from __future__ import annotations

import json

import pytest
from prometheus_client import Counter

from headrace import __version__
from tests.server.fakes import CHAT, FakeGateway, front_door, instance_view


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/nothing",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/V1/models",
        "/v1/../live",
        "/health/%2e%2e/metrics",
        "/health/..%2fmetrics",
        "/health/metrics",
        "/metrics/",
        "/metrics;x",
        "/%6cive%00",
    ],
)
async def test_a_path_that_only_looks_like_another_leads_nowhere(path: str) -> None:
    """404 in the API's error form, for every way of writing it."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        answer = await client.get(path)
        assert (answer.status, answer.error["type"]) == (404, "invalid_request_error")
        assert answer.headers["x-request-id"]
        assert "the base URL ends in /v1" in str(answer.error["message"]), "the usual reason"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/embeddings", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", "/ready", "GET, HEAD"),
        ("OPTIONS", "/v1/completions", "POST"),
    ],
)
async def test_a_wrong_method_is_405_with_the_right_ones(method: str, path: str, allowed: str) -> None:
    """The answer names what is possible, and the connection can be used again."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        client.send(method, path, {"x-http-method-override": "POST"})
        answer = await client.answer()
        assert answer.status == 405
        assert answer.headers["allow"] == allowed
        assert answer.headers["x-request-id"]
        assert answer.error["type"] == "invalid_request_error"
        assert (await client.get("/live")).status == 200


async def test_no_answer_names_the_server_software() -> None:
    """No `Server` header."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        assert "server" not in (await client.get("/live")).headers


@pytest.mark.parametrize(
    "path", ["/live", "/livez", "/ready", "/readyz", "/health", "/healthz", "/version", "/metrics"]
)
async def test_each_health_path_answers_get_and_head(path: str) -> None:
    """Probes use either; HEAD has the headers and no body."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        answer = await client.get(path)
        assert answer.status == 200
        client.send("HEAD", path)
        status, headers = await client.head()
        assert (status, headers["content-length"]) == (200, answer.headers["content-length"])
        assert (await client.get("/live")).status == 200


async def test_ready_means_that_work_would_be_taken() -> None:
    """503 while draining, while stopping, and while no instance is healthy; live all the same."""
    gateway = FakeGateway(instances=(instance_view("a"), instance_view("b", healthy=False)))
    async with front_door(gateway) as front, front.client() as client:
        assert (await client.get("/ready")).status == 200
        assert json.loads((await client.get("/health")).body)["status"] == "degraded"
        gateway.instances = (instance_view("a", healthy=False),)
        answer = await client.get("/ready")
        assert (answer.status, json.loads(answer.body)) == (503, {"status": "down"})
        gateway.instances = (instance_view("a"),)
        front.health.stopping = True
        assert (await client.get("/ready")).status == 503
        front.health.stopping, gateway.draining = False, True
        answer = await client.get("/ready")
        assert (answer.status, json.loads(answer.body)) == (503, {"status": "draining"})
        assert (await client.get("/live")).status == 200
        assert (await client.get("/health")).status == 200


async def test_health_shows_instances_and_queue_but_no_users() -> None:
    """Anybody may ask it, so it holds nothing that belongs to somebody."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        answer = await client.get("/health")
        health = json.loads(answer.body)
        assert health["status"] == "ok"
        assert health["version"] == __version__
        assert health["queue"] == {"waiting": 1, "size": 512, "by_class": {"batch": 1}}
        assert health["instances"][0]["id"] == "a"
        assert health["instances"][0]["breaker"] == "closed"
        assert health["instances"][0]["gate_closed_seconds"] == {"window": 1.5}
        assert health["fairness"] == {
            "jain": 0.987,
            "spread_tokens": 512.0,
            "spread_seconds": 0.25,
            "refunded_tokens": 64.0,
            "output_estimate_error": None,
        }
        assert b"secret-user" not in answer.body


async def test_metrics_come_from_the_registry_that_was_handed_in() -> None:
    """Prometheus text by default, OpenMetrics on request; nothing of any global registry."""
    async with front_door(FakeGateway()) as front, front.client() as client:
        Counter("headrace_things", "Things.", registry=front.registry).inc(3)
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert b"headrace_things_total 3.0" in answer.body
        assert b"python_info" not in answer.body
        answer = await client.get("/metrics", {"accept": "application/openmetrics-text; version=1.0.0"})
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.body.endswith(b"# EOF\n")


async def test_health_is_answered_while_requests_wait() -> None:
    """Nothing of the data path stands in its way."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as waiting, front.client() as client:
        waiting.post("/v1/chat/completions", CHAT)
        await gateway.arrived()
        assert (await client.get("/ready")).status == 200
