"""What headers say about a caller, and how hostile ones are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequest
from headrace.model import Flow, ServiceClass
from headrace.server.identity import NAME_LIMIT, clean, deadline_of, flow_of, new_id, request_id_of


class Headers:
    """An exchange of which only the headers matter."""

    method = "POST"
    path = "/"
    params: Mapping[str, str] = {}
    body = b""
    peer = ""
    on_disconnect: Callable[[], None] | None = None
    on_drain: Callable[[], None] | None = None

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self.headers: Mapping[bytes, bytes] = {
            name.encode(): _encoded(value) for name, value in (headers or {}).items()
        }

    def answer(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        raise AssertionError("nothing is answered here")

    def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        raise AssertionError("nothing is answered here")

    def write(self, data: bytes) -> bool:
        raise AssertionError("nothing is answered here")

    def finish(self, data: bytes = b"") -> None:
        raise AssertionError("nothing is answered here")

    def abort(self) -> None:
        raise AssertionError("nothing is answered here")


def _encoded(value: str) -> bytes:
    """As clients do it: in Latin-1 where that is possible."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode()


def test_a_caller_without_headers_is_anonymous_and_normal() -> None:
    """Defaults: tenant `default`, user `anonymous`, class normal, no session."""
    assert flow_of(Headers()) == Flow(ServiceClass.NORMAL, "default", "anonymous", "")


@pytest.mark.parametrize(
    ("headers", "priority", "expected"),
    [
        ({}, None, "normal"),
        ({}, 0, "normal"),
        ({}, -5, "interactive"),
        ({}, 2**63, "batch"),
        ({"x-headrace-priority": "1"}, None, "interactive"),
        ({"x-headrace-priority": "3"}, 9, "interactive"),
        ({"x-headrace-priority": "4"}, None, "normal"),
        ({"x-headrace-priority": " 7 "}, -1, "normal"),
        ({"x-headrace-priority": "8"}, None, "batch"),
        ({"x-headrace-priority": "10"}, -1, "batch"),
        ({"x-headrace-priority": "1", "x-headrace-class": "batch"}, -1, "batch"),
        ({"x-headrace-class": "normal"}, 3, "normal"),
    ],
)
def test_numbers_say_the_class_too(headers: dict[str, str], priority: int | None, expected: str) -> None:
    """1 to 3, 4 to 7, 8 to 10 in the header; below, at and above 0 in the body; the class itself counts first."""
    assert flow_of(Headers(headers), None, priority).service_class.value == expected


@pytest.mark.parametrize("value", ["0", "11", "-1", "1.5", "high", "", "٣", "9" * 30])
def test_a_priority_that_does_not_exist_is_refused(value: str) -> None:
    """The message says what can be chosen."""
    with pytest.raises(InvalidRequest, match="from 1") as refused:
        flow_of(Headers({"x-headrace-priority": value}))
    assert refused.value.fault.param == "x-headrace-priority"


@pytest.mark.parametrize(
    "name", ["x-headrace-user", "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"]
)
def test_each_user_header_counts_before_the_body(name: str) -> None:
    """The gateway's own name and the two of inference gateways are read; the body's `user` comes after them."""
    assert flow_of(Headers({name: "alice"}), "bob").user == "alice"
    assert flow_of(Headers({name: "  "}), "bob").user == "bob"


def test_the_own_header_wins() -> None:
    """`x-headrace-user` comes first."""
    headers = {"x-headrace-user": "alice", "x-llm-d-inference-fairness-id": "bob"}
    assert flow_of(Headers(headers)).user == "alice"


@pytest.mark.parametrize("name", ["x-session-id", "x-claude-code-session-id"])
def test_session_hints_are_read(name: str) -> None:
    """A session narrows the flow."""
    assert flow_of(Headers({name: "s-1"})).session == "s-1"


@pytest.mark.parametrize("value", ["interactive", "normal", "batch", " Batch "])
def test_the_class_may_be_chosen(value: str) -> None:
    """All three classes, in any case."""
    assert flow_of(Headers({"x-headrace-class": value})).service_class == value.strip().lower()


@pytest.mark.parametrize("value", ["", "urgent", "interactive, batch"])
def test_another_class_is_400_and_names_the_header(value: str) -> None:
    """A wrong class is not quietly a normal one."""
    with pytest.raises(InvalidRequest) as caught:
        flow_of(Headers({"x-headrace-class": value}))
    assert (caught.value.fault.status, caught.value.fault.param) == (400, "x-headrace-class")


def test_a_name_sent_as_utf8_is_the_same_as_in_the_body() -> None:
    """Header bytes are read as UTF-8 where they are."""
    header = "josé".encode().decode("latin-1")
    assert flow_of(Headers({"x-headrace-user": header})) == flow_of(Headers(), "josé")


@given(st.text(max_size=2000))
def test_names_are_short_and_printable(name: str) -> None:
    """Whatever comes in, what goes into maps and logs is bounded, has no control characters, and cleaning is final."""
    cleaned = clean(name)
    assert len(cleaned) <= NAME_LIMIT
    assert cleaned.isprintable()
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize("name", ["x-request-id", "x-correlation-id", "x-trace-id", "request-id"])
def test_a_callers_request_id_is_kept(name: str) -> None:
    """Logs on both sides can be matched."""
    assert request_id_of(Headers({name: "abc-123.4:x"})) == "abc-123.4:x"


@pytest.mark.parametrize("value", ["", "with blank", "x" * 129, "é", "a\x00b", "<script>"])
def test_an_unusable_request_id_is_replaced(value: str) -> None:
    """What is too long or has other characters never reaches a log or a header."""
    assert re.fullmatch(r"req-[0-9a-f]{24}", request_id_of(Headers({"x-request-id": value})))


def test_new_ids_differ() -> None:
    """A thousand ids are a thousand."""
    assert len({new_id() for _ in range(1000)}) == 1000


def test_a_deadline_counts_from_now() -> None:
    """Small numbers are seconds from now; 0 is now."""
    assert deadline_of(Headers({"x-headrace-deadline": "2.5"}), False, 100.0, 2e9) == 102.5
    assert deadline_of(Headers({"x-headrace-deadline": "0"}), True, 100.0, 2e9) == 100.0


def test_a_deadline_may_be_a_unix_time() -> None:
    """The wall clock is read once; a time in the past is a deadline in the past."""
    assert deadline_of(Headers({"x-headrace-deadline": "2000000030"}), False, 100.0, 2e9) == 130.0
    assert deadline_of(Headers({"x-headrace-deadline": "1999999990"}), False, 100.0, 2e9) == 90.0


@pytest.mark.parametrize("value", ["", "soon", "-1", "nan", "inf", "1e999"])
def test_a_deadline_that_is_none_is_400(value: str) -> None:
    """A mistyped deadline is not quietly none."""
    with pytest.raises(InvalidRequest):
        deadline_of(Headers({"x-headrace-deadline": value}), False, 0.0, 0.0)


def test_the_sdks_read_timeout_is_a_deadline_for_whole_answers_only() -> None:
    """On a stream it bounds the gap between two chunks, and a long answer must not be cut for it."""
    headers = Headers({"x-stainless-read-timeout": "600.0"})
    assert deadline_of(headers, False, 5.0, 0.0) == 605.0
    assert deadline_of(headers, True, 5.0, 0.0) is None


@pytest.mark.parametrize("value", ["", "NOT_GIVEN", "0", "-3", "nan"])
def test_a_read_timeout_nobody_meant_is_ignored(value: str) -> None:
    """That header is written by libraries, not by people."""
    assert deadline_of(Headers({"x-stainless-read-timeout": value}), False, 0.0, 0.0) is None
