"""Which instance answers to which model name: exact names and patterns with `*`."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.model import Instance


def match(instance: Instance, model: str) -> str | None:
    """The name to send upstream when `instance` serves `model`, else None.

    An exact name wins over patterns, and of patterns the one with most literal characters; a dot is a dot.
    """
    best: tuple[bool, int] | None = None
    upstream: str | None = None
    for served in instance.models:
        stands_for = caught(served.name, model)
        if stands_for is None:
            continue
        rank = ("*" not in served.name, len(served.name) - served.name.count("*"))
        if best is None or rank > best:
            best = rank
            upstream = model if served.upstream is None else served.upstream.replace("*", stands_for, 1)
    return upstream


def beside_a_star(instances: Iterable[Instance]) -> tuple[str, ...]:
    """A warning for each address at which one instance serves `*` and another serves models by name."""
    by_address: dict[str, list[tuple[str, ...]]] = {}
    for instance in instances:
        if instance.address:
            by_address.setdefault(instance.address, []).append(tuple(model.name for model in instance.models))
    return tuple(
        f"{address} is listed with `*` and again with {', '.join(names)}: a request for one of these may count "
        "against either entry."
        for address, entries in by_address.items()
        if any("*" in entry for entry in entries)
        and (names := [name for entry in entries if "*" not in entry for name in entry])
    )


def caught(pattern: str, model: str) -> str | None:
    """What the first `*` of `pattern` stands for ("" for an exact name), or None when `model` does not match it."""
    head, star, tail = pattern.partition("*")
    if not star:
        return "" if pattern == model else None
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
