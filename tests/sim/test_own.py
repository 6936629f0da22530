"""Users' own scenarios: what is written is what runs, and a mistake is named with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.model import ServiceClass
from headrace.sim.own import from_journal, load
from headrace.sim.profile import H100
from headrace.sim.scenario import Sense
from headrace.sim.suite import Suite

WHOLE = """
title: a crawler and people
duration: 20
gateways: 2
machines:
  - {name: gpu, profile: h100, count: 2, limit: 8}
  - {name: old, profile: {step: 0.03, token: 0.0002, kv_read: 2.4e-7}}
clients:
  - name: people
    users: 3
    gateways: 1
    service_class: interactive
    arrivals: {type: poisson, rate: 0.5}
    prompt: {type: lognormal, mean: 300, sigma: 0.5}
    output: {type: exponential, mean: 100}
  - {name: crawler, service_class: batch, arrivals: {type: burst, count: 40, at: 1}, output: {type: fixed, tokens: 60}}
targets:
  - {metric: "ttft_p99[people]", at_most: 2}
  - {metric: answered, at_least: 10}
user_weights: {crawler: 0.5}
"""


def write(tmp_path: Path, text: str) -> Path:
    """The text as a file."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_a_whole_file_runs(tmp_path: Path) -> None:
    """Machines are multiplied, profiles named or given, users numbered, weights, targets and gateways taken over."""
    scenario = load(write(tmp_path, WHOLE))
    assert (scenario.gateways, [client.gateways for client in scenario.clients]) == (2, [1, None])
    assert [machine.name for machine in scenario.machines] == ["gpu-1", "gpu-2", "old"]
    assert scenario.machines[0].profile == H100
    assert scenario.machines[2].profile.budget == 2048
    assert scenario.clients[0].service_class is ServiceClass.INTERACTIVE
    assert scenario.settings.fairness.user_weights == {"crawler": 0.5}
    assert [target.sense for target in scenario.targets] == [Sense.AT_MOST, Sense.AT_LEAST]
    result = Suite().result(scenario, "fair", [1, 2])
    assert [verdict.ok for verdict in result.verdicts] == [True, True]
    assert {visit.flow.user for visit in result.records[0].visits} == {"people-1", "people-2", "people-3", "crawler"}


def test_a_trace_is_found_beside_the_file(tmp_path: Path) -> None:
    """Relative names begin where the scenario is; requests without a user are dealt out."""
    lines = [{"timestamp": 100 * n, "input_length": 600, "output_length": 9, "hash_ids": [1]} for n in range(50)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arrivals = "{type: trace, file: t.jsonl, format: mooncake, users: 4, zipf: 1, speed: 2}"
    text = f"duration: 10\nmachines: [{{name: m}}]\nclients: [{{name: t, arrivals: {arrivals}}}]"
    record = Suite().result(load(write(tmp_path, text)), "fair", [1]).records[0]
    assert len(record.visits) == 50
    assert record.visits[-1].arrived == pytest.approx(2.45)
    assert {visit.flow.user for visit in record.visits} <= {"t-1", "t-2", "t-3", "t-4"}


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("limit: 8", "limits: 8", "did you mean `limit`"),
        ("count: 40", "count: none", r"Expected `int`, got `str` at `clients\[1\]\.arrivals\.count`"),
        ("count: 40", "count: 0", "Expected `int` >= 1"),
        ("profile: h100", "profile: tpu", "no profile 'tpu', only a100, h100, slow"),
        ("type: burst", "type: flood", "Invalid value 'flood'"),
        ("at_most: 2", "at_most: 2, at_least: 1", "either at_most or at_least"),
        ("name: crawler", "name: old", "'old' is used twice"),
        ("service_class: batch", "gateways: 3", r"'crawler' enters through more gateways than there are \(2\)"),
        ("machines:", "machines", "mine.yaml"),
        ("service_class: batch", "service_class: lazy", "Invalid enum value 'lazy'"),
    ],
)
def test_mistakes_are_named_with_their_place(wrong: str, right: str, message: str, tmp_path: Path) -> None:
    """One sentence that a person can act on."""
    assert wrong in WHOLE
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, WHOLE.replace(wrong, right, 1)))


def test_lengths_that_run_backwards_are_refused(tmp_path: Path) -> None:
    """`low` is not above `high`."""
    text = WHOLE.replace("{type: fixed, tokens: 60}", "{type: uniform, low: 9, high: 3}")
    with pytest.raises(ConfigError, match=r"low \(9\) is above high \(3\)"):
        load(write(tmp_path, text))


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    """With its name, not a traceback."""
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "gone.yaml")


def test_a_journal_replays_on_the_machines_of_a_file(tmp_path: Path) -> None:
    """Everyone asks again what he asked when it was recorded, at the same distance in time."""
    requests = [
        {"at": 3.0 + n, "user": f"u{n % 2}", "class": "interactive", "prompt_tokens": 100, "output_tokens": 20}
        for n in range(10)
    ]
    journal = tmp_path / "day.jsonl"
    journal.write_text("\n".join(json.dumps({"ending": "answered", **request}) for request in requests))
    machines = load(write(tmp_path, "machines: [{name: m, limit: 2}]"))
    scenario = from_journal(journal, machines)
    assert scenario.machines == machines.machines
    record = Suite().result(scenario, "fair", [1]).records[0]
    assert [visit.arrived for visit in record.visits] == pytest.approx([float(n) for n in range(10)])
    assert record.visits[0].flow.service_class is ServiceClass.INTERACTIVE
    assert from_journal(journal, None).machines[0].profile.name == "a100"


def test_a_replay_lasts_as_long_as_the_recorded_traffic_did(tmp_path: Path) -> None:
    """Of a flood that came within a second and kept a machine busy for a minute, all is seen, not the first second."""
    flood = [
        {"at": n / 100, "took": n + 1.0, "user": "u", "prompt_tokens": 100, "output_tokens": 200} for n in range(60)
    ]
    journal = tmp_path / "day.jsonl"
    journal.write_text("\n".join(json.dumps(request) for request in flood))
    scenario = from_journal(journal, None)
    assert scenario.duration == pytest.approx(1.1 * 60.59)
    assert Suite().result(scenario, "fair", [1]).metrics["answered"] == 60


def test_the_example_runs() -> None:
    """The scenario that the documents point to is one, with a service for everybody."""
    scenario = load(Path(__file__).parents[2] / "examples" / "simulate.yaml").shorter(30)
    result = Suite().result(scenario, "fair", [1])
    for group in ("people", "assistant", "night-job"):
        assert result.metrics[f"answered[{group}]"] > 0


def test_the_example_of_shares_gives_what_the_weights_say() -> None:
    """ann twice as much as ben or cleo, who asks three times as much; batch one part where normal gets three."""
    scenario = load(Path(__file__).parents[2] / "examples" / "shares.yaml").shorter(60)
    found = Suite().result(scenario, "fair", [1]).metrics
    wanted = {"ann": 0.75 * 0.5, "ben": 0.75 * 0.25, "cleo": 0.75 * 0.25, "job": 0.25}
    assert {name: found[f"least_share[{name}]"] for name in wanted} == pytest.approx(wanted, rel=0.1)


def test_hashed_prefixes_count_in_the_blocks_of_their_trace(tmp_path: Path) -> None:
    """Mooncake hashes 512 tokens at a time: a second request with the first block of the first has 512 cached."""
    rows = [
        {"timestamp": at, "input_length": 1300, "output_length": 5, "hash_ids": [1, end]}
        for at, end in ((0, 2), (5000, 3))
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = """
        duration: 10
        machines: [{name: gpu, prefix_tokens: 100000}]
        clients: [{name: all, arrivals: {type: trace, file: t.jsonl, format: mooncake}}]
    """

    visits = Suite().result(load(write(tmp_path, text)), "fair", [1]).records[0].visits

    assert [visit.cached for visit in visits] == [0, 512]
    with pytest.raises(ConfigError, match="different blocks"):
        load(
            write(
                tmp_path,
                text.replace(
                    "clients: [", "clients: [{name: talk, arrivals: {type: closed_loop, sessions: 1}, session: {}}, "
                ),
            )
        )
