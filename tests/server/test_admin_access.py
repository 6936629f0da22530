"""Who may use the admin API: the whole table of callers, with and without a key."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace.server.admin.access import Asking, is_loopback, refusal

KEY = "k-0123456789abcdef"
HERE = {"host": "127.0.0.1:8080"}


def judged(key: str | None, headers: Mapping[str, str], peer: str = "127.0.0.1", method: str = "POST") -> str:
    """The code of the refusal, or "" for a caller that is let in."""
    fault = refusal(key, Asking(method, peer, headers.get))
    if fault is None:
        return ""
    assert fault.status == (403 if fault.code == "admin_closed" else 401)
    assert KEY not in fault.message
    return fault.code or "?"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x-api-key": KEY}, ""),
        ({"authorization": f"Bearer {KEY}"}, ""),
        ({"authorization": f"bearer {KEY} "}, ""),
        ({"authorization": f"Bearer {KEY}", "x-api-key": KEY}, ""),
        ({"x-api-key": KEY, "origin": "https://elsewhere.example", "x-forwarded-for": "203.0.113.9"}, ""),
        ({}, "missing_api_key"),
        (HERE, "missing_api_key"),
        ({"authorization": "Basic dTpw"}, "missing_api_key"),
        ({"cookie": f"key={KEY}"}, "missing_api_key"),
        ({"api-key": KEY}, "missing_api_key"),
        ({"x-api-key": ""}, "invalid_api_key"),
        ({"x-api-key": KEY[:-1]}, "invalid_api_key"),
        ({"x-api-key": KEY + "x"}, "invalid_api_key"),
        ({"x-api-key": f"{KEY}, {KEY}"}, "invalid_api_key"),
        ({"x-api-key": "caf\xe9"}, "invalid_api_key"),
        ({"x-api-key": "\xf0\x9f\x94\x91"}, "invalid_api_key"),
        ({"x-api-key": "x" * 100_000}, "invalid_api_key"),
        ({"authorization": "Bearer"}, "invalid_api_key"),
        ({"authorization": "Bearer wrong", "x-api-key": KEY}, "invalid_api_key"),
        ({"authorization": f"Bearer {KEY}", "x-api-key": "wrong"}, "invalid_api_key"),
    ],
)
@pytest.mark.parametrize("peer", ["127.0.0.1", "203.0.113.9", ""])
def test_with_a_key_only_the_key_counts(headers: Mapping[str, str], code: str, peer: str) -> None:
    """Wherever the caller is; two headers must not disagree; no characters make it stumble."""
    assert judged(KEY, headers, peer) == code


@pytest.mark.parametrize(
    ("peer", "open_to"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("172.17.0.1", False),
        ("10.0.0.1", False),
        ("203.0.113.9", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_without_a_key_only_this_machine_is_let_in(peer: str, open_to: bool) -> None:
    """A container's published port, a neighbour, a peer that is not known: all of them are somebody else."""
    assert is_loopback(peer) == open_to
    assert judged(None, HERE, peer) == ("" if open_to else "admin_closed")


@pytest.mark.parametrize(
    "header", ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via", "cf-connecting-ip"]
)
def test_what_comes_through_a_proxy_is_not_this_machine(header: str) -> None:
    """A reverse proxy beside the gateway has a loopback address, its callers do not; claiming to be local is no use."""
    assert judged(None, {**HERE, header: "127.0.0.1"}) == "admin_closed"


@pytest.mark.parametrize(
    ("host", "open_to"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("[::1]:8080", True),
        ("rebound.example:8080", False),
        ("localhost.rebound.example", False),
        ("127.0.0.1.rebound.example", False),
        ("10.0.0.1:8080", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(host: str, open_to: bool) -> None:
    """The Host header still holds the name of the page that a browser believes to talk to."""
    assert judged(None, {"host": host}) == ("" if open_to else "admin_closed")


@pytest.mark.parametrize(
    ("headers", "method", "open_to"),
    [
        ({"origin": "http://127.0.0.1:8080"}, "POST", True),
        ({"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}, "POST", True),
        ({"origin": "https://elsewhere.example"}, "POST", False),
        ({"origin": "http://localhost:3000"}, "POST", False),
        ({"origin": "http://127.0.0.1:8081"}, "GET", False),
        ({"origin": "http://127.0.0.1"}, "POST", False),
        ({"origin": "null"}, "POST", False),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, "GET", True),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, "GET", True),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, "POST", False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, "GET", False),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, "POST", False),
    ],
)
def test_a_page_from_elsewhere_cannot_use_a_browser_s_place(
    headers: Mapping[str, str], method: str, open_to: bool
) -> None:
    """Forms, images and scripts of other origins are refused; following a link to a page is not their doing."""
    assert judged(None, {**HERE, **headers}, method=method) == ("" if open_to else "admin_closed")
