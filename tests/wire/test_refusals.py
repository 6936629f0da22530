"""Answers other than 2xx: whose fault they are, how long to stay away, and what a caller may read."""

from __future__ import annotations

import json
from email.utils import formatdate

import pytest

from headrace.errors import upstream_auth
from headrace.model import Cause, Outcome
from headrace.wire.openai import error_body
from headrace.wire.refusals import refused, retry_after
from headrace.wire.scrub import MESSAGE_LIMIT, scrub
from tests.wire.answers import recorded

NOW = 1_800_000_000.0


def judge(status: int, body: bytes = b"", secrets: tuple[str, ...] = (), **headers: str) -> Outcome:
    """The outcome of an answer with `status`; underscores in header names stand for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return refused(status, named, body, NOW, secrets)


def openai_error(message: str, **fields: object) -> bytes:
    """An error body as OpenAI writes it."""
    return json.dumps({"error": {"message": message, **fields}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "cause"),
    [
        (302, b"", Cause.PROTOCOL),
        (400, b"", Cause.REJECTED),
        (404, b'{"error":"model not found"}', Cause.REJECTED),
        (413, b"", Cause.REJECTED),
        (422, b'{"detail":[]}', Cause.REJECTED),
        (501, openai_error("This server does not support embeddings."), Cause.REJECTED),
        (401, b"", Cause.UPSTREAM_AUTH),
        (402, b"", Cause.UPSTREAM_AUTH),
        (403, b"", Cause.UPSTREAM_AUTH),
        (408, b"", Cause.TIMEOUT),
        (429, b"", Cause.RATE_LIMITED),
        (429, b'{"error":"Model is overloaded","error_type":"overloaded"}', Cause.RATE_LIMITED),
        (529, b"", Cause.RATE_LIMITED),
        (503, b"", Cause.SERVER_ERROR),
        (503, openai_error("Loading model", type="unavailable_error", code=503), Cause.SERVER_ERROR),
        (503, b'{"error":"server busy, please try again.  maximum pending requests exceeded"}', Cause.RATE_LIMITED),
        (503, openai_error("The queue is full.", type="ServiceUnavailableError"), Cause.RATE_LIMITED),
        (503, openai_error("x", type="overloaded_error"), Cause.RATE_LIMITED),
        (424, b'{"error":"Request failed during generation","error_type":"generation"}', Cause.SERVER_ERROR),
        (500, b"Internal Server Error", Cause.SERVER_ERROR),
        (502, b"<html>bad gateway</html>", Cause.SERVER_ERROR),
        (504, b"", Cause.SERVER_ERROR),
    ],
)
def test_whose_fault_a_status_is(status: int, body: bytes, cause: Cause) -> None:
    """4xx is the caller's, a bad key the operator's, overload nobody's, the rest the engine's."""
    outcome = judge(status, body)
    assert (outcome.cause, outcome.status, outcome.committed) == (cause, status, False)
    assert outcome.detail.startswith(f"HTTP {status}")
    assert (outcome.fault is not None) is (cause in (Cause.REJECTED, Cause.UPSTREAM_AUTH))


def test_a_503_that_says_when_to_come_back_is_overload() -> None:
    """With `Retry-After` a 503 is a matter of time, not a failure."""
    outcome = judge(503, retry_after="7")
    assert (outcome.cause, outcome.retry_after) == (Cause.RATE_LIMITED, 7.0)


def test_the_operators_bad_key_is_not_shown() -> None:
    """401 and 403 of an engine become a general 502; nothing of its text goes on."""
    outcome = judge(401, openai_error("Incorrect API key provided: sk-op-12345"), ("sk-op-12345",))
    assert outcome.fault == upstream_auth()
    assert "sk-op" not in outcome.detail


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("2", 2.0),
        (" 2 ", 2.0),
        ("1.5", 1.5),
        ("0", 0.0),
        ("-5", 0.0),
        ("99999999", 99999999.0),
        ("1900000000", 1900000000.0),
        (formatdate(NOW + 2, usegmt=True), 2.0),
        (formatdate(NOW - 60, usegmt=True), 0.0),
        ("Friday, 15-Jan-27 08:00:30 GMT", 30.0),
        ("2, 5", 5.0),
        (formatdate(NOW + 2, usegmt=True) + ", 1", 2.0),
        ("1, " + formatdate(NOW + 2, usegmt=True), 2.0),
        ("abc, 3", 3.0),
        ("abc", None),
        ("NaN", None),
        ("inf", None),
        ("1e3", None),
        ("", None),
        ("Fri, 99 Foo 2026 99:99:99 GMT", None),
        ("Fri", None),
        ("9" * 400, None),
        ("," * 2000, None),
    ],
)
def test_retry_after_in_all_its_forms(value: str, wait: float | None) -> None:
    """Seconds, fractions, dates, several values: the longest wait; the past is 0; nonsense is ignored."""
    assert retry_after({"retry-after": value}, NOW) == wait


def test_retry_after_in_milliseconds_counts_too() -> None:
    """`retry-after-ms` is read beside `retry-after`; the longer one wins; without either there is no wait."""
    assert retry_after({"retry-after-ms": "1500"}, NOW) == 1.5
    assert retry_after({"retry-after-ms": "1500", "retry-after": "1"}, NOW) == 1.5
    assert retry_after({"retry-after-ms": "abc", "retry-after": "1"}, NOW) == 1.0
    assert retry_after({}, NOW) is None


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (openai_error("bad", type="invalid_request_error", param="top_p", code=None), "bad", "top_p"),
        (b'{"error":"bad"}', "bad", None),
        (b'{"detail":"bad"}', "bad", None),
        (
            b'{"detail":[{"type":"x","loc":["body","messages",0],"msg":"bad","input":"secret prompt"}]}',
            "bad",
            "messages.0",
        ),
        (b'{"object":"error","message":"bad","type":"BadRequestError","param":null,"code":400}', "bad", None),
        (b"bad", "bad", None),
        (b"<html><h1>bad</h1></html>", "The engine refused the request with status 400.", None),
        (b"", "The engine refused the request with status 400.", None),
        (b"[" * 5000, "The engine refused the request with status 400.", None),
        (b"\xff\xfe bad", "\ufffd\ufffd bad", None),
        (b'{"error":{"message":5,"code":true}}', "5", None),
    ],
)
def test_a_refusal_is_told_in_one_form(body: bytes, message: str, param: str | None) -> None:
    """Whatever shape an engine's error has, the caller reads OpenAI's, with the engine's words."""
    fault = judge(400, body).fault
    assert fault is not None
    error = json.loads(error_body(fault))["error"]
    assert (error["message"], error["param"], error["code"]) == (message, param, None)
    assert isinstance(error["type"], str)
    assert (fault.status, fault.retryable) == (400, False)


@pytest.mark.parametrize(
    "body",
    [
        recorded("llamacpp-error-too-long-context.json"),
        recorded("llamacpp-python-error-too-long-context.json"),
        openai_error("This model's maximum context length is 4096 tokens.", type="BadRequestError", code=400),
        openai_error("The input (5 tokens) is longer than the model's context length (4 tokens).", code=400),
        b'{"error":"the input length exceeds the context length"}',
    ],
)
def test_a_prompt_that_is_too_long_has_its_code(body: bytes) -> None:
    """However an engine says it, clients find `context_length_exceeded` and can shorten the prompt."""
    fault = judge(400, body).fault
    assert fault is not None
    assert (fault.type, fault.code) == ("invalid_request_error", "context_length_exceeded")


def test_recorded_refusals_keep_their_words() -> None:
    """The numeric code of one engine and the list of another become the same four fields."""
    for name, words in (
        ("llamacpp-error-bad-json.json", "parse error"),
        ("transformers-error-bad-json.json", "JSON decode error"),
    ):
        fault = judge(422, recorded(name)).fault
        assert fault is not None
        assert words in fault.message
        assert fault.code is None


def test_an_unknown_model_has_its_code() -> None:
    """A 404 that speaks of the model says `model_not_found`; another 404 does not."""
    fault = judge(404, openai_error("The model `x` does not exist.", type="NotFoundError", code=404)).fault
    assert fault is not None
    assert (fault.type, fault.code) == ("not_found_error", "model_not_found")
    other = judge(404, b'{"detail":"Not Found"}').fault
    assert other is not None
    assert (other.type, other.code) == ("not_found_error", None)


@pytest.mark.parametrize(
    "leak",
    [
        "http://10.0.0.7:8000/v1?key=abc",
        "https://user:pw@engine.internal/x",
        "10.0.0.7:8000",
        "10.0.0.7",
        "localhost:8000",
        "gpu-node-7:8000",
        "engine.example.com:443",
        "[::1]:8000",
        "/usr/lib/python3/site.py",
        "C:\\Users\\x\\app.py",
        "Bearer abcdefgh",
        "sk-proj-abcdef123",
    ],
)
def test_addresses_paths_and_keys_are_taken_out(leak: str) -> None:
    """What an engine blurts out does not reach the caller; the words around it do."""
    fault = judge(400, openai_error(f"cannot do it at {leak} today", param=leak, code=leak)).fault
    assert fault is not None
    told = error_body(fault).decode()
    assert "cannot do it at" in told
    assert "today" in told
    assert leak not in told
    assert "10.0.0.7" not in told
    assert "pw@" not in told


def test_no_piece_of_a_secret_is_told() -> None:
    """Keys quoted in part are taken out in part: nothing of them longer than four characters stays."""
    secret = "Zx81-QQ-secret-key-7"
    told = scrub("you sent Zx81-QQ...key-7, that is Zx81-QQ-secret-key-7!", [secret, ""])
    assert not any(secret[start : start + 5] in told for start in range(len(secret) - 4))
    assert told.startswith("you sent ")
    assert told.endswith("!")


def test_plain_words_stay_as_they_are() -> None:
    """Messages without anything to hide are not touched, and an endless one is shortened."""
    message = "'messages' must be a list: got 3 items at position 1.5 for org/model:7b"
    assert scrub(message, ["sk-unrelated-key"]) == message
    assert len(scrub("word " * 5000)) == MESSAGE_LIMIT
