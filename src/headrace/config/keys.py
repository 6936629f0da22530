"""Keys and secrets, in the variables that the file names. Messages name the variable, never what it holds."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import ConfigError


def secret_in(env: Mapping[str, str], variable: str, place: str) -> str:
    """What the variable holds, without blanks around it. Raises ConfigError, naming `place`, when it is not set."""
    secret = env.get(variable, "").strip()
    if not secret:
        raise ConfigError(f"{place}: the environment variable {variable} is not set")
    return secret


def key_in(env: Mapping[str, str], variable: str, place: str) -> str:
    """The same for what is sent in a header. Raises ConfigError also when no header may carry it."""
    key = secret_in(env, variable, place)
    if not fits_a_header(key):
        raise ConfigError(f"{place}: {variable} holds characters that no header may carry")
    return key


def fits_a_header(key: str) -> bool:
    """Only characters that HTTP lets through as they are, and no blank at either end."""
    return key.isascii() and key.isprintable() and key == key.strip()
