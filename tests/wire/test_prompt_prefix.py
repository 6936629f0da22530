"""Chains of prompts: who shares a beginning shares the chain's head, and nobody else does."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.openai import OpenAICall, parse
from headrace.wire.prompt_prefix import BLOCK_BYTES, BLOCK_TOKENS, MOST_BLOCKS, prefix_of, session_prefix

SALT = b"0123456789abcdef"


def chat(*turns: object, **fields: object) -> OpenAICall:
    """A chat whose turns are the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": turn} for number, turn in enumerate(turns)]
    return parse("chat", json.dumps({"model": "m", "messages": messages, **fields}).encode())


def chain(call: OpenAICall, tenant: str = "t", salt: bytes = SALT) -> tuple[int, ...]:
    """The call's chain."""
    return prefix_of(call, tenant, salt)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many blocks two chains have in common from the start."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def words(count: int, seed: str = "w") -> str:
    """Text of so many bytes that repeats nothing."""
    return "".join(f"{seed}{number} " for number in range(count))[:count]


def test_the_next_turn_of_a_conversation_continues_its_chain() -> None:
    """All full blocks of the turn before are there again; only what is new is new."""
    first = chat(words(3000))
    second = chat(words(3000), words(900, "a"), words(700, "b"))
    assert len(chain(first)) == (3000 + len("\nuser\n")) // BLOCK_BYTES
    assert shared(chain(first), chain(second)) == len(chain(first))
    assert len(chain(second)) > len(chain(first))


def test_a_block_knows_all_that_stands_before_it() -> None:
    """One other character at the start, and nothing is shared; at the end, all but the last block."""
    text = words(4 * BLOCK_BYTES)
    assert shared(chain(chat(text)), chain(chat("X" + text[1:]))) == 0
    assert shared(chain(chat(text)), chain(chat(text[:-20] + "X" + text[-19:]))) == 3


@pytest.mark.parametrize(
    "other",
    [
        chat(words(2000), tools=[{"type": "function", "function": {"name": "f"}}]),
        parse("chat", json.dumps({"model": "m", "messages": [{"role": "system", "content": words(2000)}]}).encode()),
        parse("completions", json.dumps({"model": "m", "prompt": words(2000)}).encode()),
    ],
    ids=["tools", "role", "endpoint"],
)
def test_what_a_template_shows_the_model_counts(other: OpenAICall) -> None:
    """Tools come first, roles are part of the text, and a bare prompt has none."""
    assert chain(other)
    assert shared(chain(chat(words(2000))), chain(other)) == 0


def test_how_it_is_written_and_sampled_does_not_count() -> None:
    """Escapes, order of keys, other fields: the prompt is the same."""
    plain = chat("é" + words(2000), temperature=1, stream=True)
    messages = '[{"content": "\\u00e9TEXT", "role": "user", "name": "x"}]'.replace("TEXT", words(2000))
    other = parse("chat", ('{"seed": 1, "messages": ' + messages + ', "model": "m"}').encode())
    assert chain(plain) == chain(other) != ()


def test_a_chain_is_of_its_tenant_its_model_and_its_process() -> None:
    """Nobody shares over tenants or models, or can compute a chain without the salt; no prompt continues a name."""
    call = chat(words(2000))
    assert chain(call) == chain(call)
    elsewhere = chat(words(2000), model="other")
    assert len({chain(call), chain(call, "u"), chain(call, salt=b"another"), chain(elsewhere)}) == 4
    text = words(2000)
    one, other = (
        parse("completions", json.dumps({"model": "m", "prompt": prompt}).encode()) for prompt in (text, "b" + text)
    )
    assert chain(one, "ab") != chain(other, "a")


def test_short_prompts_have_none_and_long_ones_a_bounded_one() -> None:
    """Less than a block is not kept by an engine; more than 128 KiB is not looked at."""
    assert chain(chat("hello")) == ()
    assert chain(chat(words(BLOCK_BYTES - 20))) == ()
    assert len(chain(chat(words(BLOCK_BYTES)))) == 1
    assert len(chain(chat(*[words(50_000)] * 9))) == MOST_BLOCKS
    assert (
        len(chain(parse("completions", json.dumps({"model": "m", "prompt": words(200_000)}).encode()))) == MOST_BLOCKS
    )


def test_a_block_is_so_many_tokens_by_the_usual_estimate() -> None:
    """The chain never speaks of more tokens than the prompt is charged for, and of nearly as many."""
    call = chat(words(50 * BLOCK_BYTES))
    assert 0.98 * call.prompt_tokens <= len(chain(call)) * BLOCK_TOKENS <= 1.001 * call.prompt_tokens


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": words(2000)}]}],
        [{"role": "user", "content": words(2000)}, {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}],
        [{"role": "user", "content": words(2000)}, {"role": "assistant"}],
    ],
    ids=["parts", "tool calls", "no content"],
)
def test_every_form_of_a_message_has_a_chain(messages: list[dict[str, object]]) -> None:
    """Content in parts, tool calls, and messages without content."""
    assert len(chain(parse("chat", json.dumps({"model": "m", "messages": messages}).encode()))) >= 3


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("chat", {"messages": [{"role": "user", "content": 7}], "x": words(2000)}),
        ("chat", {"messages": [{"role": "user", "content": {"text": words(2000)}}]}),
        ("completions", {"prompt": list(range(2000))}),
        ("completions", {"prompt": [], "x": words(2000)}),
        ("embeddings", {"input": words(2000)}),
    ],
)
def test_what_has_no_text_that_is_known_here_has_no_chain(endpoint: str, fields: dict[str, object]) -> None:
    """Such a request goes wherever there is room, as before."""
    assert chain(parse(endpoint, json.dumps({"model": "m", **fields}).encode())) == ()


def test_the_first_of_several_prompts_counts() -> None:
    """A list of texts goes by its first."""
    one, several = ({"model": "m", "prompt": prompt} for prompt in (words(2000), [words(2000), "other"]))
    chains = [chain(parse("completions", json.dumps(fields).encode())) for fields in (one, several)]
    assert chains[0] == chains[1] != ()


@given(st.lists(st.text(max_size=400), min_size=1, max_size=8), st.text(max_size=400))
def test_more_text_never_changes_what_there_was(turns: list[str], more: str) -> None:
    """Whatever the text, a longer conversation begins with the shorter one's chain; hashes have 64 bits."""
    before, after = chain(chat(*turns)), chain(chat(*turns, more))
    assert after[: len(before)] == before
    assert all(0 <= number < 2**64 for number in after)


def test_a_session_stands_for_a_short_prompt() -> None:
    """One block, different for every tenant, user, session and salt, and unlike any prompt's."""
    made = {
        session_prefix("t", "u", "s", SALT),
        session_prefix("x", "u", "s", SALT),
        session_prefix("t", "x", "s", SALT),
        session_prefix("t", "u", "x", SALT),
        session_prefix("t", "u", "s", b"x"),
    }
    assert len(made) == 5
    assert all(len(one) == 1 for one in made)
    assert session_prefix("t", "u", "s", SALT) == session_prefix("t", "u", "s", SALT)
