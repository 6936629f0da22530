"""The promises of `headrace.core.dedup`."""

from __future__ import annotations

from headrace.core.dedup import FlightIndex
from tests.core.calls import call, pool
from tests.core.script import engine


def test_a_call_is_found_by_its_fingerprint_until_it_is_dropped() -> None:
    """Only requests with a fingerprint share; dropping twice is fine."""
    flights, to = FlightIndex(), pool(engine("a"))
    shared, lone = call(to, "r1", key="k"), call(to, "r2")
    for made in (shared, lone):
        flights.add(made)
    assert len(flights) == 1
    assert flights.find(b"k") is shared
    assert flights.find(b"other") is None
    assert flights.find(None) is None
    for made in (shared, shared, lone):
        flights.drop(made)
    assert len(flights) == 0


def test_a_second_call_of_the_same_fingerprint_does_not_hide_the_first() -> None:
    """The one that can be joined longest stays; the end of the other does not remove it."""
    flights, to = FlightIndex(), pool(engine("a"))
    first, second = call(to, "r1", key="k"), call(to, "r2", key="k")
    flights.add(first)
    flights.add(second)
    assert flights.find(b"k") is first
    flights.drop(second)
    assert flights.find(b"k") is first


def test_a_call_that_cannot_be_joined_is_not_listed() -> None:
    """Its answer grew past what is kept."""
    flights, made = FlightIndex(), call(pool(engine("a")), key="k")
    made.joinable = False
    flights.add(made)
    assert flights.find(b"k") is None
