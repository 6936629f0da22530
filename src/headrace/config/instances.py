"""The `instances` of the configuration file: which engines there are, where, and what they serve."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from headrace.config.sections import Count, Place, Section, Weight, switch
from headrace.config.wording import INSTANCE_ID
from headrace.model import Engine, Instance, ServedModel, Tier
from headrace.wire.adapters import GOING_ON

EngineName = Literal["openai", "vllm", "llamacpp", "sglang", "tgi", "tensorrt", "ollama", "lmstudio", "echo"]

_KNOWS_PRIORITY = ("vllm", "sglang")
_RESUMED = ("vllm", "sglang", "llamacpp")
"""Asked for the rest of a broken stream unless the file says otherwise; what others do with such a request varies."""

DEFAULT_WINDOW_TOKENS = 3072
"""Prompt tokens a local engine may hold un-started: one and a half prefill steps of a large one, so that the step under
way is full, the next one has something to begin with, and the engine builds no queue of its own."""


MOST_FOUND = 256
"""With `max_concurrent: auto`, requests at an instance at most; what vLLM runs at once on cards of 80 GB."""


LONGEST_ADDRESS = 2048
"""Characters of an address at most."""


class ModelEntry(Section):
    """One model an instance serves. Short forms: `name`, `*`, `alias=upstream`."""

    name: str = Field(min_length=1, max_length=256, description="The name clients ask for; `*` stands for anything.")
    upstream: str | None = Field(
        default=None, min_length=1, max_length=256, description="The name the engine is asked for; null: the same."
    )

    @model_validator(mode="after")
    def _star_needs_star(self) -> ModelEntry:
        if self.upstream is not None and "*" in self.upstream and "*" not in self.name:
            raise ValueError("`*` in upstream stands for what the `*` of name matched, but name has none")
        return self


def model_entry(value: object) -> object:
    """The short form of an entry (`name`, `alias=upstream`) as the long one; anything else as it is."""
    if not isinstance(value, str):
        return value
    name, equals, upstream = value.partition("=")
    return {"name": name.strip(), "upstream": upstream.strip()} if equals else {"name": value.strip()}


class InstanceSection(Section):
    """One engine that answers requests."""

    id: str | None = Field(
        default=None,
        pattern=INSTANCE_ID,
        description="Name in logs, metrics and response headers; null: the engine's name and a number.",
    )
    address: str = Field(
        "", description="Base URL, as http://127.0.0.1:8001; empty for echo. A trailing /v1 is dropped."
    )
    engine: EngineName = Field(
        "openai",
        description="openai (anything like it), vllm, llamacpp, sglang, tgi, tensorrt, ollama, lmstudio, or echo.",
    )
    models: tuple[Annotated[ModelEntry, BeforeValidator(model_entry, json_schema_input_type=str | ModelEntry)], ...] = (
        Field(
            (ModelEntry(name="*"),), min_length=1, description="Names served: `name`, `*`, `pre-*`, `alias=upstream`."
        )
    )
    tier: Tier = Field(Tier.LOCAL, description="local, or remote: used when no local instance can take the request.")
    capacity: Weight = Field(1.0, description="Relative strength, for load balancing.")
    weight: Weight = Field(
        1.0, description="How much a request weighs here with the strategy `weighted`; at 2 it goes half as often."
    )
    max_concurrent: Count | Literal["auto"] = Field(
        10, description="Requests at this instance at the same time; auto: adaptive, up to 256."
    )
    adaptive: bool = Field(
        default=False, description="Find how many at the same time are best, instead of always allowing max_concurrent."
    )
    window_tokens: Count | Literal["auto"] | None = Field(
        "auto",
        description="Prompt tokens sent whose answers have not begun; null: no bound; auto: 3072 for local engines.",
    )
    api_key_env: str | None = Field(
        default=None, min_length=1, description="Environment variable that holds this engine's key."
    )
    metrics: Place | None = Field(
        default=None,
        description="Where its own metrics are: a path, or a URL if on another port (Triton's); null: the usual place.",
    )
    forward_priority: bool = Field(
        default=False,
        description="Tell vllm or sglang each request's class as its priority; they must schedule by it.",
    )
    resume: Annotated[Literal["auto", "on", "off"], BeforeValidator(switch)] = Field(
        "auto",
        description="Give it the beginning of a broken stream and send the rest; auto: local vllm, sglang, llamacpp.",
    )
    metadata: dict[str, str] = Field(default_factory=dict, description="Free labels.")

    @field_validator("address")
    @classmethod
    def _clean_address(cls, value: str) -> str:
        return clean_address(value) if value else value

    @model_validator(mode="after")
    def _address_fits_engine(self) -> InstanceSection:
        if self.engine != "echo" and not self.address:
            raise ValueError(f"an instance with the engine {self.engine} needs an address")
        if self.engine == "echo" and self.address:
            raise ValueError("the echo engine is built in and has no address")
        if self.forward_priority and self.engine not in _KNOWS_PRIORITY:
            raise ValueError(
                f"forward_priority is for {' and '.join(_KNOWS_PRIORITY)}; {self.engine} has no priorities"
            )
        if self.resume == "on" and Engine(self.engine) not in GOING_ON:
            raise ValueError(f"resume cannot be on: {self.engine} has no way to go on from a part of an answer")
        twice = sorted(name for name, times in Counter(entry.name for entry in self.models).items() if times > 1)
        if twice:
            raise ValueError(f"the model '{twice[0]}' is named twice")
        return self

    def window(self) -> int | None:
        """The un-started window in prompt tokens; None: no such gate."""
        if self.window_tokens != "auto":
            return self.window_tokens
        return DEFAULT_WINDOW_TOKENS if self.tier is Tier.LOCAL and self.engine != "echo" else None

    def resumes(self) -> bool:
        """Whether it may be asked for the rest of a broken stream."""
        if self.resume != "auto":
            return self.resume == "on"
        return self.tier is Tier.LOCAL and self.engine in _RESUMED

    def as_instance(self, instance_id: str) -> Instance:
        """The value the other rooms work with; `instance_id` stands in where the file gives none."""
        return Instance(
            id=self.id or instance_id,
            address=self.address,
            engine=Engine(self.engine),
            models=tuple(ServedModel(name=entry.name, upstream=entry.upstream) for entry in self.models),
            tier=self.tier,
            capacity=self.capacity,
            max_concurrent=MOST_FOUND if self.max_concurrent == "auto" else self.max_concurrent,
            adaptive=self.adaptive or self.max_concurrent == "auto",
            window_tokens=self.window(),
            weight=self.weight,
            api_key_env=self.api_key_env,
            metrics=self.metrics,
            forward_priority=self.forward_priority,
            resume=self.resumes(),
            metadata=self.metadata,
        )


def clean_address(address: str) -> str:
    """The base URL in its one spelling: no trailing slash or `/v1`, host in lower case, no default port.

    Raises ValueError for what is no http(s) base URL, without repeating the address (it may hold a password).
    """
    address = address.strip()
    # Where they are is where an address ends in a request line; the parsing below would drop some of them silently.
    if not address.isprintable() or " " in address:
        raise ValueError("the address must not hold spaces or control characters")
    if len(address) > LONGEST_ADDRESS:
        raise ValueError(f"the address is longer than {LONGEST_ADDRESS} characters")
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise ValueError("the address is no URL") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("the address must begin with http:// or https://")
    if not parts.hostname:
        raise ValueError("the address has no host")
    if port == 0:
        raise ValueError("the address has the port 0, at which nothing can listen")
    if not parts.path.isascii():
        raise ValueError("the path of the address must be ASCII; write other characters as %C3%BC")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address must not hold a user or password; name the key's variable in api_key_env")
    if parts.query or parts.fragment:
        raise ValueError("the address must not hold a query or fragment")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = {"http": 80, "https": 443}[parts.scheme]
    place = host if port in (None, default) else f"{host}:{port}"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urlunsplit((parts.scheme, place, path, "", ""))
