"""The mock engine over real sockets: answers, timing as seen from outside, leaving clients, faults, metrics."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.testing import MockEngine, guarded, run_virtual
from tests.patience import GUARD


@pytest.fixture
async def engine() -> AsyncIterator[MockEngine]:
    """A quick engine with two slots and one place to wait."""
    async with MockEngine(model="m", slots=2, queue=1, speed=1000) as engine:
        yield engine


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client without a bound on connections."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


def _chat(words: str = "one two three", **fields: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": words}], **fields}


async def _post(
    http: aiohttp.ClientSession, engine: MockEngine, body: object, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    async with http.post(f"{engine.url}/v1/chat/completions", json=body, headers=headers) as response:
        return response.status, await response.text()


def _events(text: str) -> list[str]:
    return [event.removeprefix("data: ") for event in text.split("\n\n") if event]


async def test_the_official_client_gets_along_with_it() -> None:
    """Models, chat, a stream with usage, completions, embeddings and an unknown model through the `openai` package."""
    async with (
        MockEngine(model="m", speed=1000, api_key="k") as engine,
        openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="k", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["m"]

        chat = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello there"}], max_tokens=3
        )
        assert chat.choices[0].message.content == "hello there hello"
        assert chat.usage is not None
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (2, 3)

        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hello there"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert len(text.split()) == 16
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 16

        done = await client.completions.create(model="m", prompt="a b", max_tokens=2)
        assert (done.choices[0].text, done.choices[0].finish_reason) == ("a b", "length")
        vectors = await client.embeddings.create(model="m", input=["a", "b"])
        assert len(vectors.data[1].embedding) == 8
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="a")

    assert engine.stats.finished == 4


async def test_a_wrong_key_is_refused_where_one_is_needed(http: aiohttp.ClientSession) -> None:
    """With an `api_key` everything under /v1 needs it; /health does not."""
    async with MockEngine(model="m", api_key="k") as engine:
        assert (await _post(http, engine, _chat()))[0] == 401
        async with http.get(f"{engine.url}/v1/models") as response:
            assert response.status == 401
        async with http.get(f"{engine.url}/health") as response:
            assert response.status == 200


async def test_slots_queue_and_order_are_as_configured(http: aiohttp.ClientSession) -> None:
    """Two run, one waits, the fourth gets 503; they start in the order of arrival under their own ids."""
    async with MockEngine(model="m", slots=2, queue=1, decode_tps=1e-3) as engine:
        calls = []
        for number in range(3):
            headers = {"x-request-id": f"r{number}"}
            calls.append(asyncio.create_task(_post(http, engine, _chat(max_tokens=2), headers)))
            await engine.until(lambda stats, wanted=number + 1: stats.running + stats.waiting == wanted)  # type: ignore[misc]
        assert (engine.stats.running, engine.stats.waiting, engine.stats.max_running) == (2, 1, 2)
        status, body = await _post(http, engine, _chat())
        assert (status, json.loads(body)["error"]["code"]) == (503, 503)

        calls[0].cancel()
        await engine.until(lambda stats: stats.cancelled == 1)
        assert engine.stats.started == ("r0", "r1", "r2")
        calls[2].cancel()
        calls[1].cancel()
        await engine.until(lambda stats: stats.cancelled == 3)
        assert (engine.stats.running, engine.stats.waiting, engine.stats.refused) == (0, 0, 1)
        await asyncio.gather(*calls, return_exceptions=True)


async def test_a_waiting_client_that_leaves_frees_its_place(http: aiohttp.ClientSession) -> None:
    """A client that gives up in the engine's queue never gets a slot."""
    async with MockEngine(model="m", slots=1, queue=4, decode_tps=1e-3) as engine:
        first = asyncio.create_task(_post(http, engine, _chat(), {"x-request-id": "first"}))
        await engine.until(lambda stats: stats.running == 1)
        second = asyncio.create_task(_post(http, engine, _chat(stream=True), {"x-request-id": "second"}))
        await engine.until(lambda stats: stats.waiting == 1)
        second.cancel()
        await engine.until(lambda stats: stats.waiting == 0)
        first.cancel()
        await engine.until(lambda stats: stats.running == 0)
        await asyncio.gather(first, second, return_exceptions=True)

        assert engine.stats.started == ("first",)


async def test_the_first_token_is_sent_before_the_second_is_made(http: aiohttp.ClientSession) -> None:
    """A stream is really one: its first content arrives while the engine stands still before the next token."""
    async with MockEngine(model="m", speed=1000) as engine:
        engine.inject("stall", after=1, seconds=1e6)
        async with http.post(f"{engine.url}/v1/chat/completions", json=_chat(stream=True)) as response:
            role = await guarded(response.content.readuntil(b"\n\n"), GUARD, "the role chunk")
            first = await guarded(response.content.readuntil(b"\n\n"), GUARD, "the first content")
            assert b'"role":"assistant"' in role
            assert b'"content":"one"' in first
            assert engine.stats.running == 1
        await engine.until(lambda stats: stats.running == 0)


def test_an_hour_of_work_takes_no_time_on_a_virtual_clock() -> None:
    """Time is the loop's: a thousand tokens at one per hour, over loopback, in a moment."""

    async def main() -> tuple[str, float]:
        async with (
            MockEngine(model="m", prefill_tps=float("inf"), decode_tps=1 / 3600) as engine,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
        ):
            _, text = await _post(http, engine, _chat(max_tokens=25))
            return json.loads(text)["choices"][0]["finish_reason"], asyncio.get_running_loop().time()

    assert run_virtual(main(), settle=0.02) == ("length", 24 * 3600.0)


async def test_failing_stops_after_its_count(engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """`fail` with a count strikes that often; the answers after it are good."""
    engine.inject("fail", status=503, count=2)
    answers = [(await _post(http, engine, _chat()))[0] for _ in range(3)]

    assert answers == [503, 503, 200]
    assert (engine.stats.faulted, engine.stats.finished) == (2, 1)


async def test_rate_limits_carry_retry_after_as_given(engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """429 with any form of the header."""
    headers = {"x-mock-fault": "rate_limit=1.5"}
    async with http.post(f"{engine.url}/v1/chat/completions", json=_chat(), headers=headers) as response:
        assert (response.status, response.headers["retry-after"]) == (429, "1.5")
        assert (await response.json())["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("fault", ["cut=2", "reset=2"])
async def test_a_cut_comes_after_its_chunks(fault: str, engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """So many chunks with content arrive, then the body breaks off without its end."""
    received = b""
    with pytest.raises((aiohttp.ClientPayloadError, ConnectionResetError)):  # noqa: PT012 - what came before matters
        headers = {"x-mock-fault": fault}
        async with http.post(f"{engine.url}/v1/chat/completions", json=_chat(stream=True), headers=headers) as response:
            async for data in response.content.iter_any():
                received += data

    assert received.count(b'"content":"one"') + received.count(b'"content":" two"') == 2
    assert b"three" not in received
    assert (engine.stats.running, engine.stats.finished, engine.stats.faulted) == (0, 0, 1)


@pytest.mark.parametrize("fault", ["cut", "reset=1"])
async def test_a_whole_answer_is_cut_in_half(fault: str, engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """Head and half a body, then nothing."""
    with pytest.raises((aiohttp.ClientPayloadError, ConnectionResetError)):
        await _post(http, engine, _chat(), {"x-mock-fault": fault})


async def test_a_reset_at_once_has_no_head(engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """`reset` without an argument resets before anything is sent."""
    with pytest.raises(aiohttp.ClientOSError):
        await _post(http, engine, _chat(), {"x-mock-fault": "reset"})


@pytest.mark.parametrize(("after", "contents"), [(0, 0), (2, 2)])
async def test_an_error_event_stands_inside_a_good_body(
    after: int, contents: int, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    """200, so many chunks, one error event, and the proper end of the body without [DONE]."""
    fault = f"error_event={after};type=overloaded_error;message=busy"
    status, text = await _post(http, engine, _chat(stream=True), {"x-mock-fault": fault})
    events = _events(text)

    assert status == 200
    assert json.loads(events[-1])["error"]["type"] == "overloaded_error"
    assert sum('"content":"' in event and '"role"' not in event for event in events) == contents
    assert "[DONE]" not in events


@pytest.mark.parametrize("form", ["json", "html"])
@pytest.mark.parametrize("stream", [True, False])
async def test_garbage_is_no_answer(form: str, stream: bool, engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """200 with a body that is no JSON."""
    status, text = await _post(http, engine, _chat(stream=stream), {"x-mock-fault": f"garbage={form}"})

    assert status == 200
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(_events(text)[0])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_hang_ends_with_its_client(stream: bool, engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """A hanging request holds its slot until the client leaves."""
    call = asyncio.create_task(_post(http, engine, _chat(stream=stream), {"x-mock-fault": "hang"}))
    await engine.until(lambda stats: stats.running == 1)
    call.cancel()
    await engine.until(lambda stats: stats.running == 0 and stats.cancelled == 1)
    await asyncio.gather(call, return_exceptions=True)


def test_a_slow_first_token_is_late_by_its_seconds() -> None:
    """`slow` delays the first token; the metrics say by how much."""

    async def main() -> float:
        async with MockEngine(model="m", prefill_tps=3.0) as engine, aiohttp.ClientSession() as http:
            await _post(http, engine, _chat(), {"x-mock-fault": "slow=90"})
            return (await _metrics(http, engine))["vllm:time_to_first_token_seconds_sum"]

    assert run_virtual(main(), settle=0.02) == 91.0


async def _metrics(http: aiohttp.ClientSession, engine: MockEngine) -> dict[str, float]:
    async with http.get(f"{engine.url}/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels.get("model_name") for sample in samples} == {"m"}
    return {sample.name: sample.value for sample in samples}


async def test_metrics_have_the_names_and_counts_of_vllm(engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """Running, waiting, cache, token counts and both histograms, while one request stands still and after another."""
    await _post(http, engine, _chat(max_tokens=4))
    call = asyncio.create_task(_post(http, engine, _chat(stream=True), {"x-mock-fault": "hang"}))
    await engine.until(lambda stats: stats.running == 1)
    metrics = await _metrics(http, engine)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    assert metrics["vllm:num_requests_running"] == 1
    assert metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:kv_cache_usage_perc"] == 0
    assert metrics["vllm:prompt_tokens_total"] == 6
    assert metrics["vllm:generation_tokens_total"] == 4
    assert metrics["vllm:time_to_first_token_seconds_count"] == 1
    assert metrics["vllm:inter_token_latency_seconds_count"] == 3
    assert metrics["vllm:request_success_total"] == 1


async def test_faults_are_set_shown_and_cleared_by_admin_calls(engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """POST arms, GET shows what is left, DELETE clears; a wrong call is told what is wrong."""
    url = f"{engine.url}/admin/faults"
    async with http.post(url, json=[{"fault": "fail", "count": 2}, {"fault": "hang", "scope": "health"}]) as response:
        assert response.status == 200
    await _post(http, engine, _chat())
    async with http.get(url) as response:
        shown = (await response.json())["faults"]
    assert [(fault["fault"], fault["count"]) for fault in shown] == [("fail", 1), ("hang", None)]

    async with http.post(url, json={"fault": "melt"}) as response:
        assert response.status == 400
        assert "known are fail" in await response.text()
    async with http.delete(url) as response:
        assert (await response.json()) == {"faults": []}
    assert (await _post(http, engine, _chat()))[0] == 200


async def test_health_has_faults_of_its_own(engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """A fault with scope health spoils the check while answers go on."""
    engine.inject("fail", status=503, count=1, scope="health")
    assert (await _post(http, engine, _chat()))[0] == 200
    statuses = []
    for _ in range(2):
        async with http.get(f"{engine.url}/health") as response:
            statuses.append(response.status)

    assert statuses == [503, 200]


async def test_stats_are_told_by_http_too(engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """GET /admin/stats is what `stats` says."""
    await _post(http, engine, _chat(), {"x-request-id": "r1"})
    await _post(http, engine, {"model": "m"})
    async with http.get(f"{engine.url}/admin/stats") as response:
        told = await response.json()

    assert told == json.loads(json.dumps(engine.stats.to_json()))
    assert (told["seen"], told["finished"], told["refused"], told["started"]) == (2, 1, 1, ["r1"])


async def test_a_request_longer_than_the_cache_is_refused(http: aiohttp.ClientSession) -> None:
    """Prompt and answer beyond the context give 400, as at vLLM."""
    async with MockEngine(model="m", kv_tokens=10) as engine:
        assert (await _post(http, engine, _chat(max_tokens=20)))[0] == 400


async def test_a_wrong_fault_header_is_refused(engine: MockEngine, http: aiohttp.ClientSession) -> None:
    """A typo in a fault does not pass as a good answer."""
    status, text = await _post(http, engine, _chat(), {"x-mock-fault": "cutt=2"})

    assert (status, "unknown fault" in text) == (400, True)
