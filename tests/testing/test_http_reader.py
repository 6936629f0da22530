"""The reader of requests: whole requests come out however the bytes come in."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing import ReceivedRequest
from headrace.testing.http_reader import MalformedRequest, RequestReader

_STREAM = (
    b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{"stream":true}'
    b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(_STREAM)), max_size=8))
def test_every_split_gives_the_same_requests(cuts: list[int]) -> None:
    """Head, counted body and chunked body are found at any split of the bytes."""
    reader, found = RequestReader(), list[ReceivedRequest]()
    edges = [0, *sorted(cuts), len(_STREAM)]
    for start, end in itertools.pairwise(edges):
        found += reader.feed(_STREAM[start:end])

    assert [(request.method, request.path, request.body) for request in found] == [
        ("GET", "/health", b""),
        ("POST", "/v1/chat/completions", b'{"stream":true}'),
        ("POST", "/a", b"abcde"),
    ]
    assert [request.streams for request in found] == [False, True, False]
    assert [request.keeps_alive for request in found] == [True, True, False]


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 999999999999\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    """Bytes that are no HTTP/1.1, or go beyond the bounds, raise instead of waiting for more."""
    with pytest.raises(MalformedRequest):
        RequestReader().feed(data)
