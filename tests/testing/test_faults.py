"""Faults: what may be asked for, and how often each strikes."""

import math

import pytest

from headrace.testing.faults import Fault, FaultBox, FaultName, Scope, from_header, from_json


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("fail", Fault(name=FaultName.FAIL, status=500, count=1)),
        ("fail=503", Fault(name=FaultName.FAIL, status=503, count=1)),
        ("hang", Fault(name=FaultName.HANG, seconds=math.inf, count=1)),
        ("slow=2.5", Fault(name=FaultName.SLOW, seconds=2.5, count=1)),
        ("stall=2; seconds=5", Fault(name=FaultName.STALL, after=2, seconds=5.0, count=1)),
        ("cut", Fault(name=FaultName.CUT, after=1, count=1)),
        ("reset=3", Fault(name=FaultName.RESET, after=3, count=1)),
        ("garbage=html", Fault(name=FaultName.GARBAGE, form="html", count=1)),
        (
            "error_event=1;type=overloaded_error",
            Fault(name=FaultName.ERROR_EVENT, after=1, type="overloaded_error", count=1),
        ),
        (
            "rate_limit=Wed, 21 Oct 2026 07:28:00 GMT",
            Fault(
                name=FaultName.RATE_LIMIT,
                status=429,
                type="rate_limit_error",
                retry_after="Wed, 21 Oct 2026 07:28:00 GMT",
                count=1,
            ),
        ),
    ],
)
def test_a_header_names_one_fault_for_one_request(text: str, fault: Fault) -> None:
    """`name[=argument][;key=value]` is read as documented."""
    assert from_header(text) == fault


@pytest.mark.parametrize(
    "text",
    ["", "melt", "hang=1", "fail=200", "fail=x", "cut=-1", "cut=inf", "garbage=xml", "slow=nan", "cut=1;colour=red"],
)
def test_what_is_no_fault_is_refused(text: str) -> None:
    """Unknown names and keys, arguments where none belong and impossible numbers raise ValueError."""
    with pytest.raises(ValueError, match=r"\w"):
        from_header(text)


def test_a_count_is_used_up() -> None:
    """A fault with a count strikes that often and then no more."""
    box = FaultBox()
    box.add(from_json({"fault": "fail", "count": 2}), now=0.0)

    assert [box.take(Scope.INFERENCE, 0.0) is not None for _ in range(3)] == [True, True, False]


def test_a_time_runs_out() -> None:
    """A fault with `for_seconds` strikes until then, and shows what is left."""
    box = FaultBox()
    box.add(from_json({"fault": "fail", "for_seconds": 10}), now=5.0)
    assert box.armed(8.0)[0].for_seconds == 7.0
    assert box.take(Scope.INFERENCE, 14.9) is not None
    assert box.take(Scope.INFERENCE, 15.0) is None


def test_without_either_it_lasts_until_cleared() -> None:
    """Neither count nor time: it strikes until `clear`."""
    box = FaultBox()
    box.add(from_json({"fault": "hang"}), now=0.0)
    assert all(box.take(Scope.INFERENCE, now) for now in (0.0, 1e9))
    box.clear()
    assert box.take(Scope.INFERENCE, 0.0) is None


def test_the_oldest_of_the_scope_strikes() -> None:
    """Faults queue up; one for health checks never hits an answer, one for all hits both."""
    box = FaultBox()
    for fields in (
        {"fault": "hang", "scope": "health"},
        {"fault": "cut", "count": 1},
        {"fault": "fail", "scope": "all"},
    ):
        box.add(from_json(fields), now=0.0)
    taken = [box.take(Scope.INFERENCE, 0.0), box.take(Scope.INFERENCE, 0.0), box.take(Scope.HEALTH, 0.0)]

    assert [fault.name.value for fault in taken if fault] == ["cut", "fail", "hang"]


def test_the_box_is_bounded() -> None:
    """A 65th armed fault is refused; spent ones make room."""
    box = FaultBox()
    for _ in range(FaultBox.CAPACITY):
        box.add(from_json({"fault": "fail", "count": 1}), now=0.0)
    with pytest.raises(ValueError, match="armed already"):
        box.add(from_json({"fault": "fail"}), now=0.0)
    box.take(Scope.INFERENCE, 0.0)
    box.add(from_json({"fault": "fail"}), now=0.0)
