"""What a validation library says is wrong, in words for whoever wrote the value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Details = Mapping[str, object]
"""The numbers and words that belong to one kind of problem, by the library's names for them."""

_MAPPING = re.compile(r"Input should be a valid dictionary or instance of \w+")


def _least(details: Details, unit: str) -> str:
    least = details.get("min_length")
    return "must not be empty" if least == 1 else f"should have at least {least} {unit}"


_KINDS: Mapping[str, Callable[[Details], str]] = {
    "missing": lambda _: "is missing",
    "string_type": lambda _: "should be a text",
    "string_unicode": lambda _: "should be a text",
    "string_too_short": lambda details: _least(details, "characters"),
    "string_too_long": lambda details: f"should have at most {details.get('max_length')} characters",
    "string_pattern_mismatch": lambda details: f"should have the form {details.get('pattern')}",
    "too_short": lambda details: _least(details, "entries"),
    "too_long": lambda details: f"should have at most {details.get('max_length')} entries",
    "tuple_type": lambda _: "should be a list",
    "list_type": lambda _: "should be a list",
    "dict_type": lambda _: "should be a mapping of keys",
    "model_attributes_type": lambda _: "should be a mapping of keys",
    "int_type": lambda _: "should be a whole number",
    "int_parsing": lambda _: "should be a whole number",
    "int_from_float": lambda _: "should be a whole number",
    "float_type": lambda _: "should be a number",
    "float_parsing": lambda _: "should be a number",
    "bool_type": lambda _: "should be true or false",
    "bool_parsing": lambda _: "should be true or false",
}


def worded(kind: str, message: str, details: Details | None = None) -> str:
    """What is wrong with a value, to be read after its place.

    `kind`, `message` and `details` are the library's (`type`, `msg` and `ctx` of an error); a kind without words of its
    own keeps the message, brought into the same form.
    """
    words = _KINDS.get(kind)
    if words is not None:
        return words(details or {})
    text = _MAPPING.sub("should be a mapping of keys", message.removeprefix("Value error, "))
    return text.replace("Input should", "should")
