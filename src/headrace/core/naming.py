"""Which instance answers to which model name: exact names and patterns with `*`."""

from __future__ import annotations

from headrace.model import Instance, ServedModel


def match(instance: Instance, model: str) -> str | None:
    """The name to send upstream when `instance` serves `model`, else None.

    An exact name wins over patterns, and of patterns the one with most literal characters; a dot is a dot.
    """
    best: tuple[bool, int] | None = None
    upstream: str | None = None
    for served in instance.models:
        caught = _caught(served, model)
        if caught is None:
            continue
        rank = ("*" not in served.name, len(served.name) - served.name.count("*"))
        if best is None or rank > best:
            best = rank
            upstream = model if served.upstream is None else served.upstream.replace("*", caught, 1)
    return upstream


def _caught(served: ServedModel, model: str) -> str | None:
    """What the first `*` of the pattern stands for ("" for an exact name), or None when it does not match."""
    head, star, tail = served.name.partition("*")
    if not star:
        return "" if served.name == model else None
    if not model.startswith(head) or len(model) < len(head) + len(tail.replace("*", "")):
        return None
    rest = model[len(head) :]
    pieces = tail.split("*")
    if not rest.endswith(pieces[-1]):
        return None
    middle, at = rest[: len(rest) - len(pieces[-1])], 0
    first: int | None = None
    for piece in pieces[:-1]:
        found = middle.find(piece, at)
        if found < 0:
            return None
        first = found if first is None else first
        at = found + len(piece)
    return middle if first is None else middle[:first]
