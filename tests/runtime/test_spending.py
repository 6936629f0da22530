"""What answers cost: every attempt once, by the model that was asked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from headrace.core.settings import RecoverySettings, Settings
from headrace.model import Cause, Outcome, Usage
from headrace.runtime.spending import Spending
from headrace.testing import on_virtual_time
from tests.runtime.engines import DOWN, OK, Bench

SAME = b"f" * 32
PRICES = {"m": (2.0, 10.0)}
"""For a million tokens: a prompt of 500,000 costs 1, an answer of 100,000 costs 1."""
BIG = replace(OK, usage=Usage(500_000, 100_000))


class Paid:
    """A bench whose costs can be read."""

    def __init__(self, instances: int = 1) -> None:
        self.bench = Bench(instances=instances, settings=Settings(recovery=RecoverySettings(max_attempts=2)))
        self.registry = CollectorRegistry()
        self.spending = Spending(self.registry, PRICES)
        self.bench.gateway.observe(self.spending)

    @property
    def cost(self) -> float | None:
        """What was counted; None: nothing was."""
        return self.registry.get_sample_value("headrace_cost_total", {"model": "m"})

    @property
    def attempts(self) -> int:
        """Sent so far."""
        return len(self.bench.engines.attempts)


@on_virtual_time
async def test_an_answer_costs_what_its_tokens_do_however_many_share_it() -> None:
    """Three callers, one call: it is paid once; and an answer from the cache costs nothing."""
    paid = Paid()
    for name in ("a", "b", "c"):
        paid.bench.ask(name, fingerprint=SAME, remember=True)
    paid.bench.engines.attempts[0].say(b"x")
    paid.bench.engines.attempts[0].finish(outcome=BIG)
    paid.bench.ask("hit", fingerprint=SAME, look_up=True)

    assert paid.cost == pytest.approx(2.0)
    assert (paid.attempts, paid.spending.open) == (1, 0)


@on_virtual_time
async def test_a_failed_attempt_costs_what_its_engine_reported() -> None:
    """Nothing where it never got there; what it had used where it said so."""
    paid = Paid(instances=2)
    paid.bench.ask("retried")
    paid.bench.engines.attempts[-1].finish(outcome=DOWN)
    nothing = paid.cost
    paid.bench.engines.attempts[-1].finish(outcome=Outcome(Cause.SERVER_ERROR, Usage(500_000, 0), status=500))

    assert nothing is None
    assert paid.cost == pytest.approx(1.0)
    assert paid.spending.open == 0


@on_virtual_time
async def test_who_leaves_has_paid_for_what_was_made_until_then() -> None:
    """The prompt and the tokens he got; one who leaves others behind pays nothing, for the answer goes on."""
    paid = Paid()
    reply = paid.bench.ask("a", fingerprint=SAME, prompt_tokens=500_000)[1]
    other = paid.bench.ask("b", fingerprint=SAME, prompt_tokens=500_000)[1]
    attempt = paid.bench.engines.attempts[0]
    attempt.say(b"x")
    attempt.port.progressed(100_000)
    reply.cancel()
    first = paid.cost
    other.cancel()

    assert first is None
    assert paid.cost == pytest.approx(2.0)
    assert paid.spending.open == 0


@on_virtual_time
async def test_a_model_without_a_price_makes_no_series() -> None:
    """Names that callers invent neither cost nor count."""
    paid = Paid()
    for number in range(5):
        paid.bench.ask(f"r{number}", model=f"invented-{number}")
        paid.bench.engines.attempts[-1].finish(outcome=BIG)
    paid.bench.ask("leaves")[1].cancel()

    samples = [sample for family in paid.registry.collect() for sample in family.samples]
    assert [sample.labels for sample in samples if sample.value] == []
    assert paid.spending.open == 0
    paid.bench.assert_empty()
