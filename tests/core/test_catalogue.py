"""The promises of `headrace.core.catalogue`: what stands behind a name, and who takes over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from headrace.core.catalogue import MOST_MODELS, Catalogue, Route, Step
from headrace.core.settings import USUAL_CAUSES, Fallback, ModelSettings, VirtualModel
from headrace.model import FallbackCause, Flow

FILTERED = frozenset({FallbackCause.CONTENT_FILTER})


def catalogue(names: Mapping[str, object] | None = None, **fallbacks: list[str] | Fallback) -> Catalogue:
    """Names as a file has them (a text, a list, or weights), and fallbacks as lists."""
    return Catalogue(
        ModelSettings(
            names={name: _virtual(value) for name, value in (names or {}).items()},
            fallbacks={
                name: value if isinstance(value, Fallback) else Fallback(models=tuple(value))
                for name, value in fallbacks.items()
            },
        )
    )


def _virtual(value: object) -> VirtualModel:
    if isinstance(value, str):
        return VirtualModel(models=(value,))
    if isinstance(value, dict):
        return VirtualModel(models=tuple(value), weights=tuple(value.values()))
    assert isinstance(value, list)
    return VirtualModel(models=tuple(value))


def chain(made: Catalogue, name: str) -> list[str]:
    """The models that a request for `name` may reach, in order."""
    route = made.resolve(name, Flow(), Random(1))
    return [route.model, *(step.model for step in route.rest)]


def test_a_name_of_which_nothing_is_said_stands_for_itself() -> None:
    """Nobody takes over."""
    assert catalogue({"x": "y"}).resolve("m", Flow(), Random(1)) == Route("m")


def test_an_alias_stands_for_its_model() -> None:
    """Also over another alias."""
    made = catalogue({"gpt-4o": "best", "best": "qwen"})
    assert chain(made, "gpt-4o") == ["qwen"]
    assert (made.names, made.models("gpt-4o")) == (("gpt-4o", "best"), ("qwen",))


def test_of_a_list_the_first_is_asked_and_the_others_take_over() -> None:
    """In the order of the file, for the usual causes."""
    made = catalogue({"smart": ["a", "b", "c"]})
    assert made.resolve("smart", Flow(), Random(1)) == Route("a", (Step("b", USUAL_CAUSES), Step("c", USUAL_CAUSES)))


def test_fallbacks_come_nearest_first_and_each_model_once() -> None:
    """Those of the name, of the model, then of the models reached by them; what is asked first is not among them."""
    made = catalogue({"gpt": "a"}, gpt=["b"], a=["c", "b"], b=["d"], c=["d"])
    assert chain(made, "gpt") == ["a", "b", "c", "d"]
    assert chain(made, "a") == ["a", "c", "b", "d"]


def test_a_fallback_keeps_the_causes_it_was_given() -> None:
    """Those of the entry that leads to it."""
    made = catalogue(None, a=Fallback(models=("b",), on=FILTERED), b=["c"])
    assert made.resolve("a", Flow(), Random(1)).rest == (Step("b", FILTERED), Step("c", USUAL_CAUSES))


def test_weights_are_kept_over_many_requests() -> None:
    """Three to one, and a weight of 0 only takes over."""
    made = catalogue({"mixed": {"a": 1, "b": 3, "c": 0}})
    random = Random(1)
    drawn = Counter(made.resolve("mixed", Flow(), random).model for _ in range(4000))
    assert drawn.keys() == {"a", "b"}
    assert 2.7 <= drawn["b"] / drawn["a"] <= 3.3
    first = made.resolve("mixed", Flow(), random)
    assert [step.model for step in first.rest] == [model for model in "bac" if model != first.model]


def test_a_conversation_stays_with_its_model() -> None:
    """All requests of a session are drawn alike; sessions are spread by the weights."""
    made = catalogue({"mixed": {"a": 1, "b": 3}})
    random = Random(1)

    def drawn(session: str) -> set[str]:
        return {made.resolve("mixed", Flow(session=session), random).model for _ in range(5)}

    sessions = [drawn(f"s{number}") for number in range(1000)]
    assert all(len(models) == 1 for models in sessions)
    assert 650 <= sum(models == {"b"} for models in sessions) <= 850


@pytest.mark.parametrize(
    ("names", "fallbacks", "said"),
    [
        ({"a": "a"}, {}, "a -> a"),
        ({"a": ["b", "a"]}, {}, "a -> a"),
        ({"a": "b", "b": "a"}, {}, "a -> b -> a"),
        ({}, {"a": ["a"]}, "a -> a"),
        ({}, {"a": ["b"], "b": ["c"], "c": ["a"]}, "a -> b -> c -> a"),
        ({"smart": ["a", "b"]}, {"a": ["smart"]}, "smart -> a -> smart"),
        ({"x": ["a", "b"], "y": ["x", "c"]}, {}, "'x' is a list itself"),
        ({"x": {"a": 0, "b": 0}}, {}, "greater than 0"),
        ({}, {"a": [f"m{number}" for number in range(MOST_MODELS)]}, f"{MOST_MODELS} are the most"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    names: dict[str, object], fallbacks: dict[str, list[str]], said: str
) -> None:
    """Loops of any length, lists within lists, no weight at all, endless chains."""
    with pytest.raises(ValueError, match=said):
        catalogue(names, **fallbacks)


def test_every_model_that_must_be_there_is_told_with_its_key() -> None:
    """Aliases are followed, so that what is told is what an instance has to serve."""
    made = catalogue({"x": "a", "y": ["x", "b"]}, x=["c"])
    told = list(made.referred())
    assert ("models.y", "b") in told
    assert ("fallbacks.x", "c") in told
    assert {model for _, model in told} == {"a", "b", "c"}
    assert made.falls_back
    assert not catalogue({"x": "a"}).falls_back
