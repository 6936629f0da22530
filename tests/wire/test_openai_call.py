"""Requests: what is read of them, what is refused, and when two are the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequest
from headrace.wire.json_text import DEPTH_LIMIT, NEST_LIMIT, repeated_key, repeats_a_key, skeleton, too_deep
from headrace.wire.openai import fingerprint, parse
from headrace.wire.prompt_size import ATTACHMENT_TOKENS
from tests.wire.answers import chat_call, completion_call

MESSAGES = [{"role": "user", "content": "hi"}]


def body(**fields: object) -> bytes:
    """A chat body with more fields, or others."""
    return json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()


def refused(raw: bytes, endpoint: str = "chat") -> InvalidRequest:
    """The refusal of `raw`, which is a 400 in whole sentences."""
    with pytest.raises(InvalidRequest) as caught:
        parse(endpoint, raw)
    assert caught.value.fault.status == 400
    assert caught.value.fault.type == "invalid_request_error"
    assert caught.value.fault.message.endswith(".")
    return caught.value


def test_what_deciding_needs_is_read() -> None:
    """Model, stream, usage wish, cap, determinism, user and an estimate come out; the body stays the client's bytes."""
    raw = body(
        model="org/m:7b",
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
        temperature=0,
        user="u",
        x=1,
    )
    call = parse("chat", raw)
    assert (call.model, call.stream, call.include_usage, call.output_cap) == ("org/m:7b", True, True, 5)
    assert (call.deterministic, call.user, call.prompt_tokens) == (True, "u", 1)
    assert call.body is raw


def test_what_is_absent_or_null_is_not_asked_for() -> None:
    """Null reads like an absent field, and a missing temperature is not 0."""
    call = parse("chat", body(stream=None, max_tokens=None, temperature=None, user=None, stream_options=None))
    assert (call.stream, call.include_usage, call.output_cap, call.deterministic, call.user) == (
        False,
        False,
        None,
        False,
        None,
    )


def test_the_newer_name_of_the_cap_wins() -> None:
    """`max_completion_tokens` counts as the cap, also beside `max_tokens`."""
    assert parse("chat", body(max_completion_tokens=7)).output_cap == 7
    assert parse("chat", body(max_completion_tokens=7, max_tokens=9)).output_cap == 7


def test_embeddings_are_deterministic_and_never_streamed() -> None:
    """An embeddings call may always be shared; a streamed one is refused."""
    assert parse("embeddings", b'{"model":"m","input":"x"}').deterministic
    assert refused(b'{"model":"m","input":"x","stream":true}', "embeddings").fault.param == "stream"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"  \n",
        b"\xef\xbb\xbf{}",
        b"[]",
        b"null",
        b'"x"',
        b'{"model":"m"',
        b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"m","x":"\xff","messages":[{"role":"user"}]}',
        b'{"model":NaN}',
        b'{"model":"m","x":Infinity}',
        b'{"model":"m","x":' + b"1" * 5000 + b"}",
        b'{"model":"m","x":1e999}',
        b"[" * 20_000,
        b"[" * 20_000 + b"]" * 20_000,
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        b'{"model":"m","tools":' + b'[{"a":' * 500 + b"1" + b"}]" * 500 + b"}",
        b'{"model":"a","model":"b","messages":[{"role":"user"}]}',
        b'{"model":"a","mod\\u0065l":"b","messages":[{"role":"user"}]}',
        b'{"model":"a","messages":[{"role":"user","role":"system"}]}',
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_a_hostile_body_is_a_400(raw: bytes) -> None:
    """Nothing a client sends gets further than a refusal in words; no parser's own error comes through."""
    assert "Traceback" not in refused(raw).fault.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"model": " "}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [*MESSAGES, {"content": "x"}]}, "messages[1].role"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_completion_tokens": 2**31}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"user": 5}, "user"),
        ({"api_base": "http://10.0.0.1"}, "api_base"),
        ({"base_url": "http://10.0.0.1"}, "base_url"),
        ({"api_key": "sk-1"}, "api_key"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], param: str) -> None:
    """A field that cannot be used is a 400 with `param`, so that it never counts as an engine's failure."""
    assert refused(body(**fields)).fault.param == param


def test_prompts_and_inputs_may_be_texts_or_lists() -> None:
    """Completions and embeddings take what their APIs take, and nothing else."""
    for prompt in ("x", ["x", "y"], [1, 2], [[1], [2]]):
        assert parse("completions", json.dumps({"model": "m", "prompt": prompt}).encode()).endpoint == "completions"
        assert parse("embeddings", json.dumps({"model": "m", "input": prompt}).encode()).endpoint == "embeddings"
    assert refused(b'{"model":"m","prompt":5}', "completions").fault.param == "prompt"
    assert refused(b'{"model":"m"}', "embeddings").fault.param == "input"


def test_the_limit_of_depth_is_exact() -> None:
    """100 levels pass, 101 do not, also with brackets of both kinds and in strings."""
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        assert not too_deep(opening * DEPTH_LIMIT + b"1" + closing * DEPTH_LIMIT)
        assert too_deep(opening * (DEPTH_LIMIT + 1) + b"1" + closing * (DEPTH_LIMIT + 1))
    assert not too_deep(json.dumps(["[{" * 500, '"]' * 500, "\\" * 7]).encode())
    assert not too_deep(b"[" + b"[]," * 500 + b"1]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.booleans())
def test_texts_without_repeated_keys_are_told_from_those_with(value: object, ascii_only: bool) -> None:
    """The count of keys in the text equals the count of keys built, whatever strings say; one more is noticed."""
    text = json.dumps({"k": value}, ensure_ascii=ascii_only).encode()
    keys = _keys({"k": value})
    assert not repeats_a_key(text, keys)
    assert repeats_a_key(text[:-1] + b', "k": 1}', keys)
    assert repeated_key(text[:-1] + b', "k": 1}') == "k"
    assert b'"' not in skeleton(text)


def _keys(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list) else 0


def test_the_estimate_counts_text_tokens_and_attachments() -> None:
    """Text counts by its bytes, token numbers each, a picture flat however large; tools are part of the prompt."""
    assert completion_call(prompt="x" * 400).prompt_tokens == 100
    assert completion_call(prompt=[1] * 50).prompt_tokens == 50
    assert completion_call(prompt=[[1] * 50, [2] * 10]).prompt_tokens == 60
    assert chat_call(messages=[{"role": "user", "content": "字" * 40}]).prompt_tokens == 31
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    with_picture = chat_call(messages=[{"role": "user", "content": [picture]}])
    assert ATTACHMENT_TOKENS <= with_picture.prompt_tokens < ATTACHMENT_TOKENS + 10
    schema = {"type": ["object", "null"], "description": "d" * 400}
    assert chat_call(tools=[{"type": "function", "function": {"parameters": schema}}]).prompt_tokens > 100


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"top_p": 0.5},
        {"stop": ["x"]},
        {"n": 2},
        {"seed": 1},
        {"tools": []},
        {"tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
        {"presence_penalty": 1},
        {"reasoning_effort": "low"},
        {"guided_json": {}},
        {"temperature": 0.5},
        {"model": "other"},
        {"messages": [{"role": "system", "content": "x"}, *MESSAGES]},
    ],
    ids=str,
)
def test_one_different_thing_is_a_different_request(change: dict[str, object]) -> None:
    """Every field counts, known or not: nobody gets an answer made for other settings."""
    plain = parse("chat", body(temperature=0))
    assert fingerprint(parse("chat", body(**{"temperature": 0, **change})), "t") != fingerprint(plain, "t")


def test_what_does_not_change_the_words_does_not_count() -> None:
    """Order of keys, blanks, escapes, stream, user, metadata, priority do not count; scope and endpoint do."""
    call = parse("chat", b'{"model":"m","messages":[{"role":"user","content":"h\\u0069"}],"seed":1}')
    same = parse(
        "chat",
        b'{ "seed": 1, "stream": true, "stream_options": {"include_usage": true}, "user": "u", "metadata": {"a": 1},\n'
        b' "priority": -1,'
        b' "messages": [ {"content": "hi", "role": "user"} ], "model": "m"}',
    )
    assert fingerprint(call, "t") == fingerprint(same, "t")
    assert len(fingerprint(call, "t")) == 32
    assert fingerprint(call, "t") != fingerprint(call, "other")
    plain = parse("completions", b'{"model":"m","prompt":"x","input":"x"}')
    vectors = parse("embeddings", b'{"model":"m","prompt":"x","input":"x"}')
    assert fingerprint(plain, "t") != fingerprint(vectors, "t")


@pytest.mark.parametrize(("given", "read"), [(0, 0), (-3, -3), (True, None), ("high", None), (1.5, None), (None, None)])
def test_a_priority_is_read_where_it_is_a_whole_number(given: object, read: int | None) -> None:
    """Anything else is some engine's own field and none of the gateway's business."""
    assert parse("chat", body(priority=given)).priority == read
    assert parse("chat", body()).priority is None


def test_lists_of_all_kinds_are_looked_into() -> None:
    """What begins like a list of numbers may hold objects: their keys count, and so do their levels."""
    assert parse("chat", body(x=[1, {"a": 1, "b": [2.5, "s"]}, {"a": 1}])).model == "m"
    assert refused(b'{"model":"m","messages":[{"role":"user"}],"x":[1,{"a":1,"a":2}]}').fault.param == "a"
    deep = b"[1," * DEPTH_LIMIT + b"1" + b"]" * DEPTH_LIMIT
    assert "levels" in refused(b'{"model":"m","messages":[{"role":"user"}],"x":' + deep + b"}").fault.message


def test_large_seeds_stay_apart() -> None:
    """Whole numbers are compared exactly, also where a float could not tell them apart."""
    one, two = (parse("chat", body(seed=2**60 + extra)) for extra in (0, 1))
    assert fingerprint(one, "t") != fingerprint(two, "t")


@pytest.mark.parametrize("nest", [b"[]", b"{}", b'{"a":"\\"["}'])
def test_millions_of_lists_and_objects_are_refused_before_they_are_built(nest: bytes) -> None:
    """One body keeps nobody else waiting for seconds; brackets in texts, and numbers in one list, are no such thing."""
    head = b'{"model":"m","messages":[{"role":"user"}],"x":['
    assert parse("chat", head + b",".join([nest] * (NEST_LIMIT - 5)) + b"]}").model == "m"
    assert "lists and objects" in refused(head + b",".join([nest] * NEST_LIMIT) + b"]}").fault.message
    assert parse("chat", body(x="[{" * NEST_LIMIT, y=[1] * NEST_LIMIT)).model == "m"
