"""The sections `admin` and `scaling`: who may operate a running gateway, and when it asks for more machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from headrace.config.keys import fits_a_header, key_in
from headrace.config.sections import Count, Seconds, Section
from headrace.config.wording import VARIABLE
from headrace.core.scaling import ScalingSettings
from headrace.runtime.addresses import Allowed, allowed

SHORT_KEY = 16
"""Characters below which a key can be guessed; a warning says so."""

Variable = Annotated[str, Field(pattern=VARIABLE, max_length=128)]


def _listable(entry: str) -> str:
    allowed([entry])
    return entry


class AdminSection(Section):
    """Who may use the admin API, and what may be registered through it."""

    api_key: SecretStr | None = Field(
        default=None, min_length=1, description="The key; better from the environment, by `api_key_env` or ${env:NAME}."
    )
    api_key_env: str | None = Field(
        default=None, min_length=1, description="Environment variable that holds the key; without one only loopback."
    )
    allow_addresses: tuple[Annotated[str, AfterValidator(_listable)], ...] = Field(
        (),
        max_length=1000,
        description="Where instances and webhooks given by API may be, as [10.0.0.0/8, *.lab]; empty: not link-local.",
    )
    key_variables: tuple[Variable, ...] = Field(
        ("*_API_KEY",),
        max_length=100,
        description="Variables that `api_key_env` of an instance given by API may name.",
    )

    @field_validator("api_key")
    @classmethod
    def _fits_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not fits_a_header(value.get_secret_value()):
            raise ValueError("the key holds characters that no header may carry")
        return value

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key is not None and self.api_key_env is not None:
            raise ValueError("api_key and api_key_env are two ways to give one key; keep one of them")
        return self

    def key(self, env: Mapping[str, str]) -> str | None:
        """The key that callers must present; None: there is none. Never log this.

        Raises ConfigError when the variable that is to hold it is not set, or holds what no header may carry.
        """
        if self.api_key_env is None:
            return None if self.api_key is None else self.api_key.get_secret_value()
        return key_in(env, self.api_key_env, "admin.api_key_env")

    def warnings(self, key: str | None) -> tuple[str, ...]:
        """What is probably not meant, of the key that is in force."""
        if key is None or len(key) >= SHORT_KEY:
            return ()
        return (
            f"The admin key can be guessed: it has fewer than {SHORT_KEY} characters (try `openssl rand -hex 24`).",
        )

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that may hold keys of instances given by API, with their values. Never log this."""
        return {
            name: value.strip()
            for name, value in env.items()
            if may_hold_a_key(name, self.key_variables) and value.strip()
        }

    def listed(self) -> Allowed:
        """Where instances given by API may be."""
        return allowed(self.allow_addresses)


def may_hold_a_key(name: str, patterns: Collection[str]) -> bool:
    """Whether a variable fits one of the patterns; headrace's own hold no keys of engines."""
    return not name.startswith("HEADRACE_") and any(fnmatchcase(name, pattern) for pattern in patterns)


class ScalingSection(Section):
    """When `GET /admin/scaling/evaluate` says that more or fewer local instances are needed."""

    min_instances: int = Field(1, ge=0, le=1000, description="It never advises fewer.")
    max_instances: Count = Field(10, le=1000, description="It never advises more.")
    window_seconds: Seconds = Field(120.0, le=3600, description="What is looked at: the load and waits of this time.")
    wait_seconds: Seconds = Field(2.0, description="Waits in the queue (p95) above which there are too few.")
    busy: float = Field(0.7, gt=0, le=1, description="Share of the places in use that a fleet of the right size has.")
    idle: float = Field(0.3, ge=0, lt=1, description="Share of the places in use below which there are too many.")
    cooldown_seconds: Seconds = Field(
        300.0, description="After a change of the fleet, and after it asked for more, it does not ask for fewer."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min_instances > self.max_instances:
            raise ValueError("min_instances is more than max_instances")
        if self.idle >= self.busy:
            raise ValueError("idle must be less than busy")
        return self

    def settings(self) -> ScalingSettings:
        """What the judgement is told."""
        return ScalingSettings(
            min_instances=self.min_instances,
            max_instances=self.max_instances,
            window=self.window_seconds,
            wait=self.wait_seconds,
            busy=self.busy,
            idle=self.idle,
            cooldown=self.cooldown_seconds,
        )
