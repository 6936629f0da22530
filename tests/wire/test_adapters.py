"""The dialects of engines: what goes to them, and that what comes back fits every engine the gateway speaks to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headrace.model import Cause, Engine, Instance, ServiceClass, Usage
from headrace.wire.adapters import EngineRequest, adapter_for
from headrace.wire.openai import OpenAICall, parse
from tests.wire.answers import chat_call, completion_call, recorded

WIRED = tuple(engine for engine in Engine if engine not in (Engine.ECHO, Engine.WORKER))
RAW = b'{ "model" : "alias", "messages" : [ {"role":"assistant","content":null,"x":1.10} ], "temperature":1.0, "s":7 }'


def instance(engine: Engine = Engine.OPENAI, address: str = "http://127.0.0.1:8000") -> Instance:
    """An instance of `engine`."""
    return Instance(id="i", engine=engine, address=address)


def encode(call: OpenAICall, upstream: str, key: str | None = None, address: str = "http://h:1") -> EngineRequest:
    """What the OpenAI adapter sends for `call`."""
    return adapter_for(Engine.OPENAI).encode(call, instance(address=address), upstream, key)


def test_engines_in_the_process_have_no_dialect() -> None:
    """Asking for one is a mistake that is named; all others have an adapter."""
    for engine in Engine:
        if engine in WIRED:
            assert adapter_for(engine) is adapter_for(engine)
        else:
            with pytest.raises(ValueError, match=engine.value):
                adapter_for(engine)


def test_a_body_that_needs_no_change_is_sent_as_it_came() -> None:
    """Without another name and without a wish for usage the client's own bytes object goes out."""
    whole = parse("chat", RAW)
    assert encode(whole, "alias").body is whole.body
    asked = chat_call(stream_options={"include_usage": True})
    assert encode(asked, "smollm2").body is asked.body


@pytest.mark.parametrize("upstream", ["m", "a/much/longer:name", 'quo"ted'])
def test_only_the_model_is_changed(upstream: str) -> None:
    """Every other value keeps the very bytes the client wrote: numbers, nulls, blanks, unknown fields, their order."""
    body = encode(parse("chat", RAW), upstream).body
    assert json.loads(body) == {**json.loads(RAW), "model": upstream}
    assert b'[ {"role":"assistant","content":null,"x":1.10} ]' in body
    assert b"1.0" in body
    assert list(json.loads(body)) == list(json.loads(RAW))


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {"include_usage": True}),
        ({"stream_options": None}, {"include_usage": True}),
        ({"stream_options": {"include_usage": False, "x": 1}}, {"include_usage": True, "x": 1}),
        ({"stream_options": {"include_usage": True, "x": 1}}, {"include_usage": True, "x": 1}),
    ],
)
def test_usage_is_asked_for_on_every_stream(given: dict[str, Any], sent: dict[str, Any]) -> None:
    """Whether or not the client wants to see it, the gateway needs it; the client's other options stay."""
    for call in (chat_call(**given), completion_call(**given)):
        assert json.loads(encode(call, "smollm2").body)["stream_options"] == sent
    assert "stream_options" not in json.loads(encode(parse("chat", RAW), "m").body)


@pytest.mark.parametrize(
    "given",
    [
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}',
        b' \n{ "stream" : true , "model":"m", "messages":[{"role":"user","content":"stream_options"}], "x":1.10}',
        b'{"model":"m","messages":[{"role":"user","content":"caf\\u00e9"}],"stream":true}',
        b'{"model":"m","stream\\u005foptions":{"x":1},"messages":[{"role":"user","content":"hi"}],"stream":true}',
    ],
    ids=["as most write it", "in the text", "an escape", "spelled otherwise"],
)
def test_the_wish_for_usage_is_added_once_and_changes_nothing_else(given: bytes) -> None:
    """However the body is written, the engine reads one wish for usage, and the caller's values as they were."""
    sent = encode(parse("chat", given), "m").body
    pairs: list[tuple[str, object]] = json.loads(sent, object_pairs_hook=lambda pairs: pairs)
    wished = {"include_usage": True, **(json.loads(given).get("stream_options") or {})}
    assert [dict(value) for name, value in pairs if name == "stream_options"] == [wished]  # type: ignore[call-overload]
    assert json.loads(sent) == {**json.loads(given), "stream_options": wished}
    assert b"1.10" not in given or b"1.10" in sent


@pytest.mark.parametrize("engine", WIRED)
def test_a_clients_priority_reaches_only_engines_that_know_it(engine: Engine) -> None:
    """vLLM and SGLang get the very number; servers that refuse unknown fields never see it."""
    known = engine in (Engine.VLLM, Engine.SGLANG)
    for stream in (False, True):
        call = chat_call(priority=-7, stream=stream)
        sent = json.loads(adapter_for(engine).encode(call, instance(engine), call.model, None).body)
        assert sent.get("priority") == (-7 if known else None)


@pytest.mark.parametrize(
    ("engine", "sent"),
    [(Engine.VLLM, (-1, 0, 1)), (Engine.SGLANG, (1, 0, -1)), (Engine.OPENAI, (None, None, None))],
)
def test_a_class_is_told_in_the_engines_own_polarity(engine: Engine, sent: tuple[int | None, ...]) -> None:
    """Interactive, normal, batch: vLLM: lowest first, SGLang: highest. The client's own gives way."""
    told = replace(instance(engine), forward_priority=True)
    for call in (chat_call(), chat_call(priority=5)):
        bodies = [adapter_for(engine).encode(call, told, "m", None, service).body for service in ServiceClass]
        assert tuple(json.loads(body).get("priority") for body in bodies) == sent


@pytest.mark.parametrize("engine", WIRED)
def test_nothing_of_the_client_but_the_body_goes_to_an_engine(engine: Engine) -> None:
    """Only these headers, with the instance's own key if there is one; answers are asked for uncompressed."""
    adapter = adapter_for(engine)
    request = adapter.encode(chat_call(), instance(engine), "m", "sk-own")
    names = dict(request.headers)
    assert set(names) == {"content-type", "accept", "accept-encoding", "authorization"}
    assert names["authorization"] == "Bearer sk-own"
    assert names["accept-encoding"] == "identity"
    assert "authorization" not in dict(adapter.encode(chat_call(), instance(engine), "m", None).headers)
    assert "sk-own" not in repr(request)


@pytest.mark.parametrize(
    ("address", "path", "models"),
    [
        ("http://gpu:8000", "/v1/chat/completions", "/v1/models"),
        ("http://gpu:8000/", "/v1/chat/completions", "/v1/models"),
        ("https://host/prefix", "/v1/chat/completions", "/v1/models"),
        ("https://api.example.com/v1", "/chat/completions", "/models"),
        ("https://api.example.com/v1/", "/chat/completions", "/models"),
        ("https://host/v1beta/openai", "/chat/completions", "/models"),
    ],
)
def test_the_api_is_found_behind_both_kinds_of_address(address: str, path: str, models: str) -> None:
    """A server's address gets `/v1`, an API root as the official clients write it does not get a second one."""
    assert encode(chat_call(), "m", address=address).path == path
    probe = adapter_for(Engine.OPENAI).health(instance(address=address), None)
    assert (probe.method, probe.path) == ("GET", models)


def test_each_endpoint_has_its_path() -> None:
    """Chat, completions and embeddings."""
    embeddings = parse("embeddings", b'{"model":"m","input":"x"}')
    assert encode(completion_call(), "m").path == "/v1/completions"
    assert encode(embeddings, "m").path == "/v1/embeddings"


@pytest.mark.parametrize(
    ("engine", "path"),
    [
        (Engine.OPENAI, "/v1/models"),
        (Engine.VLLM, "/health"),
        (Engine.LLAMACPP, "/health"),
        (Engine.SGLANG, "/health"),
        (Engine.TGI, "/health"),
        (Engine.TENSORRT, "/health"),
        (Engine.OLLAMA, "/api/version"),
        (Engine.LMSTUDIO, "/v1/models"),
    ],
)
def test_a_health_check_costs_no_tokens_and_has_the_key(engine: Engine, path: str) -> None:
    """Each engine is asked in its own way; engines that guard everything get the key here too."""
    probe = adapter_for(engine).health(instance(engine), "sk-own")
    assert (probe.method, probe.path, probe.body) == ("GET", path, b"")
    assert ("authorization", "Bearer sk-own") in probe.headers


def test_behind_an_api_root_the_models_stand_in_for_health() -> None:
    """Where only the API can be reached, there is no `/health`."""
    assert adapter_for(Engine.VLLM).health(instance(address="https://h/v1"), None).path == "/models"


# ------------------------------------------------------------------------------------------------- whole answers


def whole(body: bytes, call: OpenAICall | None = None) -> tuple[bytes, Cause, Usage | None]:
    """What the OpenAI adapter makes of a whole 200 body."""
    out, outcome = adapter_for(Engine.OPENAI).whole(call or chat_call(), body)
    return out, outcome.cause, outcome.usage


def test_a_whole_answer_is_the_engines_own_body() -> None:
    """Not decoded and encoded again unless the model's name differs; usage is read with its details."""
    body = recorded("llamacpp-chat.json")
    assert whole(body)[0] is body
    out, cause, usage = whole(body, chat_call("asked"))
    assert json.loads(out) == {**json.loads(body), "model": "asked"}
    assert cause is Cause.OK
    assert usage is not None
    assert usage.cached > 0
    assert not usage.estimated


def test_a_whole_answer_cut_by_its_length_is_not_to_be_kept() -> None:
    """It is a success, but not what the cache wants."""
    _, outcome = adapter_for(Engine.OPENAI).whole(chat_call(), recorded("llamacpp-logprobs-n2.json"))
    assert (outcome.cause, outcome.cacheable) == (Cause.OK, False)


def test_embeddings_are_an_answer_to_embeddings_only() -> None:
    """The kind of the answer has to fit the kind of the call."""
    vectors = b'{"object":"list","model":"smollm2","data":[{"index":0,"embedding":[0.1]}],"usage":{"prompt_tokens":2}}'
    call = msgspec.structs.replace(chat_call(), endpoint="embeddings")
    assert whole(vectors, call) == (vectors, Cause.OK, Usage(prompt=2))
    assert whole(vectors)[1] is Cause.PROTOCOL
    assert whole(recorded("llamacpp-chat.json"), call)[1] is Cause.PROTOCOL


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"", Cause.PROTOCOL),
        (b"<html>", Cause.PROTOCOL),
        (b"[]", Cause.PROTOCOL),
        (b"{}", Cause.PROTOCOL),
        (b'{"choices":[]}', Cause.PROTOCOL),
        (b'{"choices":[{"index":0,"message":{"con', Cause.PROTOCOL),
        (b'{"choices":' + b"[" * 5000, Cause.PROTOCOL),
        (b'{"error":{"message":"x","type":"server_error"}}', Cause.SERVER_ERROR),
        (b'{"error":{"message":"x","type":"rate_limit_error"}}', Cause.RATE_LIMITED),
    ],
)
def test_what_is_no_answer_is_not_passed_on(body: bytes, cause: Cause) -> None:
    """Half a body, another page, an error inside a 200: nothing for the client, and another attempt may be made."""
    assert whole(body) == (b"", cause, None)
