"""What a validation library says is wrong, in words for whoever wrote the value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Details = Mapping[str, object]
"""The numbers and words that belong to one kind of problem, by the library's names for them."""

INSTANCE_ID = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
PLACE = r"^(https?://[^/?#@\s]+)?/[^#\s]*$"
URL = r"^https?://[^/?#@\s]+(/[^#\s]*)?$"
VARIABLE = r"^[A-Za-z_*][A-Za-z0-9_*]*$"
MODEL_NAME = r"^[^*]+$"
LETTER_IDS = r"^[0-9]{1,16}(,[0-9]{1,16})*$"
REGISTRANT = r"^(admin|discovered:[^\s]{1,512})$"
FORMS: Mapping[str, str] = {
    INSTANCE_ID: "should be 1 to 64 letters, digits, or any of . _ : - and begin with a letter or digit",
    PLACE: "should be a path that begins with /, or a URL with one and without user and password",
    URL: "should be a URL, as https://host/path, without user and password",
    VARIABLE: "should be the name of a variable: letters, digits and _; * stands for any of them",
    MODEL_NAME: "should be the whole name of a model, without *",
    LETTER_IDS: "should be numbers of letters, joined by commas",
    REGISTRANT: "should be admin, or discovered: and a URL",
}
"""What a text of each form looks like: nobody is asked to read the expression."""

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
    "string_pattern_mismatch": lambda details: FORMS[str(details["pattern"])],
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
