"""Options that come together: a parameter of a command that is made from several options, which commands share by name.

    def admin_client(*, gateway: GatewayUrl = DEFAULT_URL, key: AdminKey = None) -> AdminClient: ...

    Client = Annotated[AdminClient, From(admin_client)]

    @instances.command("list")
    @grouped
    def list_instances(client: Client) -> None: ...

The command line has `--gateway` and `--key` where `client` stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import get_args


@dataclass(frozen=True, slots=True)
class From:
    """Marks a parameter, within `Annotated`: `make` makes its value of the options that it takes as keywords."""

    make: Callable[..., object]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer is to see it: with the options of each group in the place of the parameter made of them."""
    groups: dict[str, Callable[..., object]] = {}
    options: list[Parameter] = []
    for name, parameter in signature(command, eval_str=True).parameters.items():
        mark = next((mark for mark in get_args(parameter.annotation) if isinstance(mark, From)), None)
        if mark is None:
            options.append(parameter)
        else:
            groups[name] = mark.make
            options += _options(mark.make)

    @wraps(command)
    def called(**given: object) -> None:
        made = {
            name: make(**{option.name: given.pop(option.name) for option in _options(make)})
            for name, make in groups.items()
        }
        command(**given, **made)

    seen = Signature([option.replace(kind=Parameter.KEYWORD_ONLY) for option in options])
    called.__signature__ = seen  # type: ignore[attr-defined]  # what `inspect.signature` looks at first
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _options(make: Callable[..., object]) -> list[Parameter]:
    return list(signature(make, eval_str=True).parameters.values())
