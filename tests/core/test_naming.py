"""The promises of `headrace.core.naming`: which instance answers to which model name."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.naming import match
from headrace.model import Instance, ServedModel


def serves(*names: str | tuple[str, str]) -> Instance:
    """An instance with these names; a pair is a name and what is sent upstream."""
    pairs = [(name, None) if isinstance(name, str) else name for name in names]
    return Instance(id="a", models=tuple(ServedModel(name=name, upstream=upstream) for name, upstream in pairs))


@pytest.mark.parametrize(
    ("names", "model", "upstream"),
    [
        (["gpt-4"], "gpt-4", "gpt-4"),
        (["gpt-4"], "gpt-4o", None),
        (["gpt-4"], "GPT-4", None),
        (["*"], "anything/at:all", "anything/at:all"),
        (["gw/*-chat"], "gw/qwen-chat", "gw/qwen-chat"),
        (["gw/*-chat"], "gw/-chat", "gw/-chat"),
        (["gw/*-chat"], "gw-chat", None),
        (["gw/*-chat"], "gw/qwen-chat-2", None),
        (["m1.5"], "m1x5", None),
        (["m1.*"], "m1.5", "m1.5"),
        (["m1.*"], "m1x5", None),
        (["a*b*c"], "a1b2c", "a1b2c"),
        (["a*b*c"], "abc", "abc"),
        (["a*b*c"], "acb", None),
        (["aa*aa"], "aaa", None),
        ([("gw/*", "*")], "gw/llama", "llama"),
        ([("*-chat", "org/*")], "qwen-chat", "org/qwen"),
        ([("a*b*c", "<*>")], "aXbYc", "<X>"),
        ([("alias", "real")], "alias", "real"),
        ([], "m", None),
        (["[a]*"], "a1", None),
        (["gpt-?"], "gpt-4", None),
    ],
)
def test_names_and_patterns(names: list[str | tuple[str, str]], model: str, upstream: str | None) -> None:
    """Exact names, stars, and what is sent upstream; every other character is itself."""
    assert match(serves(*names), model) == upstream


def test_an_exact_name_wins_over_patterns_wherever_it_stands() -> None:
    """The order in the configuration means nothing."""
    for names in ([("*", "star"), ("m", "exact")], [("m", "exact"), ("*", "star")]):
        assert match(serves(*names), "m") == "exact"


def test_of_patterns_the_most_literal_wins() -> None:
    """More literal characters say more precisely what is meant."""
    names = [("*", "any"), ("gpt-*", "gpt"), ("gpt-4*", "four"), ("*-mini", "mini")]
    assert match(serves(*names), "gpt-4-mini") == "four"
    assert match(serves(*names), "gpt-3-mini") == "mini"
    assert match(serves(*names), "other") == "any"


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_stars_mean_what_they_mean_everywhere(pattern: str, model: str) -> None:
    """Agrees with the shell's rule for patterns of stars only."""
    wanted = re.match(fnmatch.translate(pattern), model) is not None
    assert (match(serves(pattern), model) is not None) == wanted
