"""Metrics: what is counted, once, and that no caller can make a series."""

from __future__ import annotations

import re
from random import Random

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.settings import RecoverySettings, Settings
from headrace.model import AnswerForm, Cause, Flow, Instance, Outcome, Reconfigured, ServedModel, ServiceClass, Usage
from headrace.runtime.gauges import Gauges
from headrace.runtime.observe import Metrics
from headrace.testing import on_virtual_time
from tests.runtime.engines import DOWN, OK, Attempt, Bench
from tests.runtime.virtual import later

SAME = b"f" * 32


class Observed:
    """A bench whose metrics can be read."""

    def __init__(self, bench: Bench, users: int = 0) -> None:
        self.bench = bench
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, ["m"])
        bench.gateway.observe(self.metrics)
        self.registry.register(
            Gauges(bench.gateway.snapshot, bench.letters, lambda: [("queue", 1, 512)], lambda: 3, users)
        )

    def value(self, name: str, **labels: str) -> float:
        """One sample; 0 when there is none."""
        found = self.registry.get_sample_value(f"headrace_{name}", labels)
        return 0.0 if found is None else found

    def total(self, name: str) -> float:
        """All samples of a name together."""
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"headrace_{name}"
        )

    @property
    def series(self) -> int:
        """How many there are."""
        return sum(len(family.samples) for family in self.registry.collect())


def busy() -> Observed:
    """A gateway to which a little of everything has happened."""
    observed = Observed(Bench(instances=2, settings=Settings(recovery=RecoverySettings(max_attempts=2))))
    bench = observed.bench
    bench.ask("answered", fingerprint=SAME)
    bench.ask("joined", fingerprint=SAME)
    bench.engines.attempts[-1].answer(b"x")
    bench.ask("retried")
    bench.engines.attempts[-1].finish(outcome=DOWN)
    bench.engines.attempts[-1].answer(b"x")
    bench.ask("cancelled")[1].cancel()
    bench.ask("other", model="not-named-in-the-configuration", flow=Flow(ServiceClass.BATCH))
    bench.engines.attempts[-1].answer(b"x")
    return observed


@on_virtual_time
async def test_the_pace_is_that_of_complete_streams() -> None:
    """Time per token after the first; a whole answer, whose tokens come all at once, says nothing about it."""
    observed = Observed(Bench())
    for name, form in (("streamed", AnswerForm.STREAM), ("whole", AnswerForm.WHOLE)):
        observed.bench.ask(name, form=form)
        attempt = observed.bench.engines.attempts[-1]
        attempt.say(b"a")
        await later(2.0)
        attempt.finish(b"b", outcome=Outcome(Cause.OK, usage=Usage(1, 5), committed=True, status=200))

    labels = {"model": "m", "class": "normal"}
    assert observed.value("time_per_output_token_seconds_count", **labels) == 1
    assert observed.value("time_per_output_token_seconds_sum", **labels) == pytest.approx(0.5)
    assert observed.metrics.open == 0


@on_virtual_time
async def test_what_happened_is_counted_once() -> None:
    """Each request by its ending, each attempt by its outcome, each call's tokens however many shared it."""
    observed = busy()
    assert observed.value("requests_total", model="m", ending="answered", **{"class": "normal"}) == 3
    assert observed.value("requests_total", model="m", ending="cancelled", **{"class": "normal"}) == 1
    assert observed.value("dedup_total", result="joined") == 1
    assert observed.value("dedup_total", result="miss") == 4
    assert observed.value("attempts_total", cause="ok", kind="success") == 3
    assert observed.value("attempts_total", cause="connect", kind="failure") == 1
    assert observed.value("attempts_total", cause="aborted", kind="neutral") == 1
    assert observed.value("retries_total", cause="connect") == 1
    assert observed.total("model_calls_total") == 5
    assert observed.value("tokens_total", kind="completion") == 6
    assert observed.value("time_to_first_token_seconds_count", model="m", **{"class": "normal"}) == 2
    assert observed.value("queue_wait_seconds_count", **{"class": "normal"}) == 3


@on_virtual_time
async def test_every_arrival_ends_in_the_counts() -> None:
    """Requests counted by ending are all requests that came; nothing of them is remembered after their end."""
    observed = busy()
    assert observed.total("requests_total") == 5
    assert observed.total("request_duration_seconds_count") == 5
    assert observed.metrics.open == 0
    observed.bench.assert_empty()


@on_virtual_time
async def test_tokens_count_although_the_leader_left() -> None:
    """A shared call's tokens are counted for whoever stayed."""
    observed = Observed(Bench())
    leader = observed.bench.ask("a", fingerprint=SAME)[1]
    observed.bench.ask("b", fingerprint=SAME)
    observed.bench.ask("c", fingerprint=SAME)
    leader.cancel()
    observed.bench.engines.attempts[0].answer(b"x")
    assert observed.value("tokens_total", kind="completion") == 2
    assert observed.metrics.open == 0


@on_virtual_time
async def test_no_caller_makes_a_series() -> None:
    """Ten thousand invented models, users, sessions and ids: not one series more than for the first of them."""
    observed = busy()
    observed.bench.engines.script = lambda attempt: attempt.answer(b"x")
    before, random = observed.series, Random(0)
    for number in range(10_000):
        name = f"{random.getrandbits(64):x}"
        flow = Flow(ServiceClass.BATCH, "default", f"user-{name}", f"session-{name}")
        observed.bench.ask(f"id-{number}", model=f"model-{name}", flow=flow)
    assert observed.series == before
    assert observed.value("requests_total", model="other", ending="answered", **{"class": "batch"}) == 10_001
    observed.bench.assert_empty()
    text = generate_latest(observed.registry).decode()
    assert "user-" not in text
    assert "model-" not in text
    assert "id-" not in text


@on_virtual_time
async def test_an_instance_that_is_gone_leaves_no_series() -> None:
    """However many come and go, only those that are there are shown, and those that stay keep their counts."""
    observed = busy()
    assert observed.value("model_calls_total", instance="gpu-1") > 0
    before = observed.value("model_calls_total", instance="gpu-2")
    stays = Instance(id="gpu-2", max_concurrent=10)
    for number in range(100):
        gone = Instance(id=f"gone-{number}", max_concurrent=10)
        observed.bench.gateway.step(Reconfigured((stays, gone)))
        observed.bench.ask(f"at {number}", only=gone.id)
        observed.bench.engines.attempts[-1].finish(outcome=DOWN)
        observed.bench.gateway.step(Reconfigured((stays,)))
    named = {
        sample.labels["instance"]
        for family in observed.registry.collect()
        for sample in family.samples
        if "instance" in sample.labels
    }
    assert named == {"gpu-2"}
    assert observed.value("model_calls_total", instance="gpu-2") == before
    observed.bench.assert_empty()


@on_virtual_time
async def test_a_model_that_is_gone_leaves_no_series() -> None:
    """Models come and go with instances; what was under way for one that went is counted as `other`."""
    observed = busy()
    stays = Instance(id="gpu-2", max_concurrent=10)
    for number in range(100):
        name = f"gone-{number}"
        gone = Instance(id=name, max_concurrent=10, models=(ServedModel(name=name),))
        observed.bench.gateway.step(Reconfigured((stays, gone)))
        for which in ("answered", "under way"):
            observed.bench.ask(f"{which} {number}", model=name, only=name)
        first, second = observed.bench.engines.attempts[-2:]
        first.answer(b"x")
        observed.bench.gateway.step(Reconfigured((stays,)))
        second.answer(b"x")
    shown = {
        sample.labels["model"]
        for family in observed.registry.collect()
        for sample in family.samples
        if "model" in sample.labels
    }
    assert shown == {"other"}
    assert observed.value("requests_total", model="other", ending="answered", **{"class": "normal"}) == 100
    observed.bench.assert_empty()


@on_virtual_time
async def test_gauges_show_the_moment() -> None:
    """What is held is read when it is asked for: in flight, health, breaker, depth and bounds."""
    observed = Observed(Bench())
    observed.bench.ask("a")
    assert observed.value("inflight", instance="gpu-1") == 1
    observed.bench.engines.attempts[0].answer(b"x")
    assert observed.value("inflight", instance="gpu-1") == 0
    assert observed.value("instance_up", instance="gpu-1") == 1
    assert observed.value("breaker_state", instance="gpu-1") == 0
    assert observed.value("stage_capacity", stage="queue") == 512
    assert observed.value("dead_letter_depth") == 0


@on_virtual_time
async def test_every_change_of_a_breaker_is_counted() -> None:
    """Five failures open it, a minute later a probe finds out: three changes, each once."""
    observed = Observed(Bench(settings=Settings(recovery=RecoverySettings(max_attempts=1, cooldown=0.0))))
    for number in range(5):
        observed.bench.ask(f"r{number}")
        observed.bench.engines.attempts[-1].finish(outcome=DOWN)
    await later(61.0)
    observed.bench.ask("probe")
    observed.bench.engines.attempts[-1].answer(b"x")

    counts = [
        observed.value("breaker_transitions_total", instance="gpu-1", to=to) for to in ("open", "half_open", "closed")
    ]
    assert counts == [1, 1, 1]


@on_virtual_time
async def test_fairness_can_be_read() -> None:
    """Spread and Jain's index of those who wait, closed gates with their reasons, refunds, errors of estimates."""
    observed = Observed(Bench(limit=1))
    assert observed.registry.get_sample_value("headrace_fairness_jain") is None, "nobody waits: nothing is known"
    bench = observed.bench
    for number in range(4):
        for user, expected in (("ann", 500), ("bob", 10)):
            flow = Flow(ServiceClass.NORMAL, "default", user)
            bench.ask(f"{user}{number}", flow=flow, prompt_tokens=expected)
    for attempt in range(4):
        await later(1.0)
        bench.engines.attempts[attempt].answer(b"x")
    index = observed.registry.get_sample_value("headrace_fairness_jain")
    assert index is not None
    assert 0.5 <= index < 0.99
    assert observed.value("fairness_spread_tokens") > 0
    assert observed.value("gate_closed_seconds_total", instance="gpu-1", reason="in_flight") == 4.0
    assert observed.value("refunded_tokens_total") > 0
    assert observed.value("output_estimate_error") > 0
    assert "ann" not in generate_latest(observed.registry).decode()


@on_virtual_time
async def test_the_largest_users_are_named_where_that_is_wanted() -> None:
    """So many of them and no more; what the others had is one number."""
    observed = Observed(Bench(), users=2)

    def answer(attempt: Attempt) -> None:
        attempt.say(b"x")
        attempt.finish(outcome=replace(OK, usage=Usage(attempt.dispatch.request.prompt_tokens, 2)))

    observed.bench.engines.script = answer
    for number in range(6):
        flow = Flow(ServiceClass.NORMAL, "lab", f"user-{number}")
        observed.bench.ask(f"r{number}", flow=flow, prompt_tokens=100 * (number + 1))
    shown = {
        sample.labels["user"]: sample.value
        for family in observed.registry.collect()
        for sample in family.samples
        if sample.name == "headrace_user_service_tokens"
    }
    assert list(shown) == ["lab/user-5", "lab/user-4", "other"]
    assert shown["lab/user-5"] > shown["lab/user-4"] > 0
    assert shown["other"] > 0


@on_virtual_time
async def test_the_text_is_as_prometheus_wants_it() -> None:
    """Every family has help and a type, counters and only they end in `_total`, names are in snake case."""
    observed = busy()
    text = generate_latest(observed.registry).decode()
    families = [family for family in text_string_to_metric_families(text) if not family.name.endswith("_created")]
    assert families
    for family in families:
        assert re.fullmatch(r"headrace_[a-z][a-z0-9_]*", family.name), family.name
        assert family.documentation.endswith("."), family.name
        assert family.type in {"counter", "gauge", "histogram"}, family.name
        assert not re.search(r"_(milliseconds|ms|minutes|kb|count|sum|bucket|gauge|counter|total)$", family.name)
        assert not re.search(r"_(counter|gauge|histogram|summary)(_|$)", family.name)
        labels = {label for sample in family.samples for label in sample.labels}
        known = {"model", "class", "ending", "instance", "cause", "kind", "result", "reason", "stage", "to", "le"}
        assert labels <= known
    counters = re.findall(r"^# TYPE (\S+) counter$", text, re.MULTILINE)
    assert counters
    assert all(name.endswith("_total") for name in counters)
    assert len(re.findall(r"^# TYPE ", text, re.MULTILINE)) == len(re.findall(r"^# HELP ", text, re.MULTILINE))
    names = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert len(names) == len(set(names)), "no family twice"
