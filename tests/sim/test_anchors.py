"""The engine model against numbers that another, independent model of the same engine gave.

The numbers stand for behaviour that real engines show: throughput that rises with requests in flight up to a knee, a
pace that falls with each of them, and what today's gateways do to single users in a flood.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from headrace.sim.record import Record
from headrace.sim.scenario import Machine
from headrace.sim.scenarios import SCENARIOS
from headrace.sim.suite import Result, Suite

# In flight -> output tokens per second, milliseconds per token.
KNEE = {8: (585, 13), 32: (1471, 22), 64: (1905, 30), 96: (2095, 42), 128: (2098, 55)}


@cache
def result(scenario: str, policy: str) -> Result:
    """One run of a built-in scenario."""
    parts = {part.name: part for parts in SCENARIOS.values() for part in parts}
    return Suite().result(parts[scenario], policy, [1])


@pytest.mark.parametrize("limit", KNEE)
def test_throughput_and_pace_by_requests_in_flight(limit: int) -> None:
    """A flood in order of arrival: within a tenth of the known rates, and 15 % (or 2 ms) of the known paces."""
    rate, pace = KNEE[limit]
    found = result(f"S9-{limit}", "fifo").metrics
    assert found["output_rate"] == pytest.approx(rate, rel=0.1)
    assert found["tpot_p50"] * 1000 == pytest.approx(pace, rel=0.15, abs=2)


def test_a_flood_starves_single_users_of_simple_gateways() -> None:
    """Pass-through and the gate that polls serve none of nine; the limit by the minute serves all and wastes the
    machine."""
    for policy, served in (("pass_through", 0), ("poll_gate", 0), ("rpm", 9)):
        record: Record = result("S1", policy).records[0]
        heard = [visit for visit in record.visits if visit.group == "single" and visit.first is not None]
        assert len(heard) == served
    assert result("S1", "rpm").metrics["output_rate"] == pytest.approx(178, rel=0.15)
    assert result("S1", "rpm").metrics["ttft_p50[single]"] == pytest.approx(0.04, abs=0.01)


def test_pass_through_shares_by_demand() -> None:
    """Four users above their share: Jain 0.93, and a difference of service that grows with time to about 260,000."""
    found = result("S2", "pass_through").metrics
    assert found["jain"] == pytest.approx(0.927, abs=0.02)
    assert found["service_difference"] == pytest.approx(264_167, rel=0.15)
    assert found["ttft_p50[below]"] > 30


def test_long_prompts_take_the_machine_from_long_answers() -> None:
    """Of GPU time, in order of arrival, 0.87 to 0.13 (Jain 0.65); by turns 0.81 to 0.19 (0.72)."""
    crowded = replace(SCENARIOS["S4"][0], machines=(Machine(name="a100", limit=256),))
    for policy, share, jain in (("pass_through", 0.87, 0.65), ("round_robin", 0.81, 0.72)):
        found = Suite().result(crowded, policy, [1]).metrics
        spent = found["gpu_seconds[prefill]"] / (found["gpu_seconds[prefill]"] + found["gpu_seconds[decode]"])
        assert spent == pytest.approx(share, abs=0.05)
        assert found["jain_gpu"] == pytest.approx(jain, abs=0.06)


def test_a_fast_failure_looks_idle() -> None:
    """Least connections sends nearly everything to the engine that refuses; round robin a quarter."""
    assert result("S7", "pass_through").metrics["errors_in_outage"] > 0.8
    assert result("S7", "pass_through_rr").metrics["errors_in_outage"] == pytest.approx(0.25, abs=0.02)


def test_a_real_trace_in_order_of_arrival() -> None:
    """Light users wait as long as everybody: half of them 17.7 s or more, the last 57.6 s."""
    found = result("S8", "pass_through").metrics
    assert found["ttft_p50[light]"] == pytest.approx(17.7, rel=0.2)
    assert found["ttft_p99[light]"] == pytest.approx(57.6, rel=0.2)
    assert result("S8", "poll_gate").metrics["ttft_p50[light]"] == pytest.approx(10.5, rel=0.3)
