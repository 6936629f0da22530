"""What is kept of a request whose texts must not be kept: its shape, and nothing that was said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.redaction import LONGEST_BODY, redacted

SECRET = "SECRET-4711"


def test_a_chat_keeps_its_shape() -> None:
    """Roles, kinds, numbers and settings stay; every text tells its length."""
    body = {
        "model": "m",
        "temperature": 0.5,
        "stream": True,
        "messages": [
            {"role": "system", "content": "be kind"},
            {
                "role": "user",
                "content": [{"type": "text", "text": SECRET}, {"type": "image_url", "image_url": {"url": "x"}}],
            },
            {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        ],
        "reasoning_effort": "low",
        "user": SECRET,
    }
    kept = redacted(json.dumps(body).encode())
    assert kept is not None
    told = json.loads(kept)
    system, user, assistant = told.pop("messages")
    assert (told.pop("user"), told.pop("reasoning_effort")) == ("[11 characters]", "low")
    assert told == {"model": "m", "temperature": 0.5, "stream": True}
    assert system == {"role": "system", "content": "[7 characters]"}
    assert user["content"][0] == {"type": "text", "text": "[11 characters]"}
    assert user["content"][1] == {"type": "image_url", "image_url": {"url": "[1 characters]"}}
    function = {"name": "[1 characters]", "arguments": "[2 characters]"}
    assert assistant["tool_calls"] == [{"type": "function", "function": function}]


def test_prompts_of_numbers_are_texts_too() -> None:
    """Token ids and samples can be read back by who has the vocabulary."""
    assert (
        redacted(b'{"prompt": [[1, 2, 3], [4.5]], "stop": []}') == b'{"prompt":["[3 numbers]","[1 numbers]"],"stop":[]}'
    )


def test_a_text_in_the_place_of_a_setting_is_no_setting() -> None:
    """Whoever writes a novel into `model` does not get it kept."""
    assert SECRET.encode() not in (redacted(json.dumps({"model": SECRET * 100}).encode()) or b"")


@pytest.mark.parametrize("body", [b"no json", b"\xff", b"[" * 200 + b"]" * 200, b'"' + b"x" * LONGEST_BODY + b'"'])
def test_what_cannot_be_looked_through_is_not_kept(body: bytes) -> None:
    """No JSON, too deep, too long: nothing."""
    assert redacted(body) is None


@given(
    st.recursive(
        st.just(SECRET) | st.booleans() | st.none() | st.integers(0, 9),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["content", "name", "x"]), inner),
        max_leaves=20,
    )
)
def test_no_text_survives_wherever_it_stands(value: object) -> None:
    """In any nesting of fields that are no settings."""
    kept = redacted(json.dumps(value).encode())
    assert kept is not None
    assert SECRET.encode() not in kept
