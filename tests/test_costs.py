"""What a request costs is the file's to say, and changes who is served."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.config.reading import parsed, validated
from headrace.model import Learned, Recalled
from tests.core.script import Stage, arrive, done, engine

_TURNS = "calibrate: false, head_start_seconds: 0, slack_tokens: 0"
_TOKENS = f"scheduling: {{{_TURNS}}}"


def stage(text: str, *names: str) -> Stage:
    """A scheduler set as the file says, before engines for one request at a time."""
    settings = validated(parsed(text.encode(), "headrace.yaml"), "headrace.yaml").scheduler_settings()
    return Stage(*(engine(name) for name in names or ("a",)), settings=settings)


def asked(on: Stage, user: str, count: int, prompt: int, output: int, **more: object) -> None:
    """Queue so many of a user, of known lengths."""
    for number in range(count):
        on.do(0.0, arrive(f"{user}{number}", user, prompt_tokens=prompt, output_cap=output, **more))


def served(on: Stage, count: int, prompt: int, output: int) -> Counter[str]:
    """Let so many answers end, oldest first, and say whose were sent."""
    for _ in range(count):
        name = next(iter(on.running))
        on.do(on.now + 0.01, done(name, prompt=prompt, completion=output))
    return Counter(name[0] for name, _ in on.sent)


def readers_and_writers(text: str) -> Counter[str]:
    """r sends long prompts and gets short answers, w the reverse: 400 + 10 and 20 + 200 tokens."""
    on = stage(text)
    asked(on, "r", 100, 400, 10)
    asked(on, "w", 100, 20, 200)
    for _ in range(60):
        name = next(iter(on.running))
        prompt, output = (400, 10) if name[0] == "r" else (20, 200)
        on.do(on.now + 0.01, done(name, prompt=prompt, completion=output))
    return Counter(name[0] for name, _ in on.sent)


def test_in_tokens_two_for_an_answer_s_token_makes_them_equal() -> None:
    """400 + 2 x 10 and 20 + 2 x 200 are the same: they take turns."""
    shares = readers_and_writers(_TOKENS)
    assert abs(shares["r"] - shares["w"]) <= 1


def test_the_price_of_a_token_can_be_set() -> None:
    """With answers for nothing the reader is the expensive one."""
    shares = readers_and_writers(f"scheduling: {{output_price: 0, {_TURNS}}}")
    assert shares["w"] > 10 * shares["r"]


def test_in_money_the_dearer_one_is_served_less() -> None:
    """At 1 and 10 for a million, 500 and 2,020: four times as many requests for the one who reads."""
    shares = readers_and_writers(f"scheduling: {{cost: money, prices: {{m: {{prompt: 1, output: 10}}}}, {_TURNS}}}")
    assert shares["r"] / shares["w"] == pytest.approx(2020 / 500, rel=0.15)


def test_a_model_without_a_price_costs_tokens() -> None:
    """The price list names another model: as if there were none."""
    shares = readers_and_writers(f"scheduling: {{cost: money, prices: {{x: {{output: 10}}}}, {_TURNS}}}")
    assert abs(shares["r"] - shares["w"]) <= 1


def test_two_models_of_different_price_share_by_money() -> None:
    """Whoever asks the model that costs three times as much is served a third as often."""
    on = stage("scheduling: {cost: money, prices: {big: {prompt: 3, output: 12}, small: {prompt: 1, output: 4}}}")
    asked(on, "b", 60, 100, 50, model="big")
    asked(on, "s", 60, 100, 50, model="small")
    shares = served(on, 60, 100, 50)
    assert shares["s"] / shares["b"] == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize(("cost", "part"), [("tokens", 0.0), ("gpu", 3 / 8)])
def test_in_seconds_of_the_machine_fast_service_counts_less(cost: str, part: float) -> None:
    """One tenant asks the slow machine only, the other both; the fast one serves him as often as the slow one anybody.
    By tokens that is all his part. By seconds it is little: he gets 1 + 4 x 3/8, the first 4 x 5/8."""
    on = stage(f"scheduling: {{cost: {cost}, {_TURNS}}}", "slow", "fast")
    speeds = Learned(instance="slow", prefill_seconds=8e-4), Learned(instance="fast", prefill_seconds=2e-4)
    on.do(0.0, Recalled(speeds))
    for user, tenant, machine in (("x", "one", "slow"), ("y", "both", "slow"), ("z", "both", "fast")):
        asked(on, user, 100, 100, 50, tenant=tenant, only=machine)
    for _ in range(80):
        for machine in ("slow", "fast"):
            name = next(name for name, order in on.running.items() if order.instance.id == machine)
            on.do(on.now + 0.01, done(name, prompt=100, completion=50))
    sent = Counter(name[0] for name, _ in on.sent)
    assert sent["y"] / (sent["x"] + sent["y"]) == pytest.approx(part, abs=0.05)
