"""The sections `models` and `fallbacks`, and when remote instances help: what a file can say of them."""

from __future__ import annotations

import pytest

from headrace.config import load
from headrace.core.settings import USUAL_CAUSES, Fallback, HedgeSettings, VirtualModel
from headrace.errors import ConfigError
from headrace.model import FallbackCause, ServiceClass
from tests.written import Written

ENGINES = "instances: [{engine: echo, models: [qwen, 'gpt-*']}]"


def test_names_stand_for_one_model_for_several_or_for_a_mix(written: Written) -> None:
    """A text, a list, weights."""
    text = "models: {a: qwen, b: [qwen, gpt-5], c: {qwen: 3, gpt-5: 0}}"
    settings = load(written(text + "\n" + ENGINES), {}).scheduler_settings().models
    assert settings.names == {
        "a": VirtualModel(models=("qwen",)),
        "b": VirtualModel(models=("qwen", "gpt-5")),
        "c": VirtualModel(models=("qwen", "gpt-5"), weights=(3.0, 0.0)),
    }


def test_fallbacks_are_a_list_or_a_list_with_causes(written: Written) -> None:
    """`on` is a key like any other, not YAML's word for true."""
    text = "fallbacks: {qwen: [gpt-5], gpt-5: {to: [gpt-4o], on: [content_filter]}}"
    settings = load(written(text + "\n" + ENGINES), {}).scheduler_settings().models
    assert settings.fallbacks == {
        "qwen": Fallback(models=("gpt-5",), on=USUAL_CAUSES),
        "gpt-5": Fallback(models=("gpt-4o",), on=frozenset({FallbackCause.CONTENT_FILTER})),
    }


def test_the_environment_can_say_it_too(written: Written) -> None:
    """With the same meaning of `on`."""
    env = {"HEADRACE_FALLBACKS": "", "HEADRACE_FALLBACKS__QWEN": "{to: [gpt-5], on: [exhausted]}"}
    settings = load(written(ENGINES), env).scheduler_settings().models
    assert settings.fallbacks["qwen"].on == {FallbackCause.EXHAUSTED}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {a: a}", "a model must not lead back to itself: a -> a"),
        ("models: {a: [qwen, b], b: a}", "a model must not lead back to itself: a -> b -> a"),
        ("fallbacks: {qwen: [gpt-5], gpt-5: [qwen]}", "a model must not lead back to itself: qwen -> gpt-5 -> qwen"),
        ("models: {a: quen}", "models.a: no instance serves the model 'quen'"),
        ("fallbacks: {qwen: [claude]}", "fallbacks.qwen: no instance serves the model 'claude'"),
        ("fallbacks: {quen: [qwen]}", "fallbacks.quen: no instance serves the model 'quen'"),
        ("fallbacks: {qwen: {too: [gpt-5]}}", "fallbacks.qwen.too: unknown key; did you mean to?"),
        (
            "fallbacks: {qwen: {to: [gpt-5], on: [never]}}",
            "fallbacks.qwen.on[0]: should be 'exhausted', 'context_length' or 'content_filter'",
        ),
        ("fallbacks: {qwen: {to: [gpt-5], on: []}}", "fallbacks.qwen.on: must not be empty"),
        ("models: {a: {qwen: 0}}", "models.a: at least one weight must be greater than 0"),
        ("models: {'a*': qwen}", "models.a*: should be the whole name of a model, without *"),
        ("routing: {spill_after_seconds: {norml: 1}}", "routing.spill_after_seconds.norml: unknown key"),
    ],
)
def test_what_cannot_work_is_refused_by_name(written: Written, text: str, message: str) -> None:
    """Loops, models that nobody serves, causes that do not exist: told when the file is read, not by users."""
    with pytest.raises(ConfigError) as caught:
        load(written(text + "\n" + ENGINES), {})
    assert message in str(caught.value)


def test_without_instances_nothing_is_known_of_models(written: Written) -> None:
    """They come from the environment or are registered later."""
    assert load(written("models: {a: b}"), {}).scheduler_settings().models.names


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        ("null", {}),
        ("0", dict.fromkeys(ServiceClass, 0.0)),
        ("{interactive: 1, batch: 600}", {ServiceClass.INTERACTIVE: 1.0, ServiceClass.BATCH: 600.0}),
    ],
)
def test_how_long_a_class_waits_for_a_local_instance(
    written: Written, said: str, waits: dict[ServiceClass, float]
) -> None:
    """For all classes alike, or for each its own; never by default."""
    config = load(written(f"routing: {{spill_after_seconds: {said}}}"), {})
    assert config.scheduler_settings().routing.spill_after == waits


def test_a_slow_answer_is_one_that_nearly_timed_out(written: Written) -> None:
    """Four fifths of the configured times."""
    recovery = load(written("timeouts: {attempt: 100, first_token: 10}"), {}).scheduler_settings().recovery
    assert (recovery.slow_answer, recovery.slow_first_token) == (80.0, 8.0)


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("null", None),
        ("{}", HedgeSettings(after=None, budget=0.05)),
        ("{after: p95, budget: 0.1}", HedgeSettings(after=None, budget=0.1)),
        ("{after: 2}", HedgeSettings(after=2.0, budget=0.05)),
    ],
)
def test_when_a_second_instance_is_asked(written: Written, said: str, settings: HedgeSettings | None) -> None:
    """Never, unless it is said; then after a time, or after what is late as things go."""
    config = load(written(f"routing: {{hedge: {said}}}"), {})
    assert config.scheduler_settings().routing.hedge == settings
