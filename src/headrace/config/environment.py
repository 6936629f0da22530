"""Zero configuration: the engines that the environment already names for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from headrace.config.config import Config
from headrace.config.instances import InstanceSection, ModelEntry, clean_address
from headrace.errors import ConfigError
from headrace.model import Tier

OPENAI_ADDRESS = "https://api.openai.com"
ANTHROPIC_ADDRESS = "https://api.anthropic.com"
OPENAI_NAMES = ("gpt-*", "chatgpt-*", "o1*", "o3*", "o4*", "text-embedding-*", "ft:*")
"""What OpenAI is asked for when other engines stand beside it; alone it is asked for everything."""

PORTS: Mapping[str, int] = {"lmstudio": 1234, "ollama": 11434, "vllm": 8000, "sglang": 30000, "llamacpp": 8080}
"""Where an engine listens unless told otherwise, by its kind."""
_LOCAL = (("OLLAMA_HOST", "ollama"), ("VLLM_URL", "vllm"), ("LLAMA_CPP_URL", "llamacpp"))


class Finding(NamedTuple):
    """One engine that the environment named."""

    variable: str
    instance: InstanceSection


def discover_environment(env: Mapping[str, str], config: Config | None = None) -> tuple[Config, tuple[Finding, ...]]:
    """`config` (or the defaults) with the engines that `env` names, and where each was found.

    Looks at OPENAI_API_KEY (with OPENAI_BASE_URL), ANTHROPIC_API_KEY, OLLAMA_HOST, VLLM_URL, LLAMA_CPP_URL. Where none
    of them names an engine, the built-in echo engine serves the model `echo` and there are no findings.

    Raises ConfigError when a variable holds no usable address.
    """
    found = [*_local(env), *_remote(env)]
    if len(found) > 1:
        found = [_narrowed(finding) for finding in found]
    instances = tuple(finding.instance for finding in found) or (echo_instance("echo"),)
    return (config or Config()).model_copy(update={"instances": instances}).with_keys(env), tuple(found)


def echo_instance(model: str) -> InstanceSection:
    """The built-in engine that answers with the question."""
    return InstanceSection(id="echo", engine="echo", models=(ModelEntry(name=model),), max_concurrent=1000)


def _local(env: Mapping[str, str]) -> list[Finding]:
    found: list[Finding] = []
    for variable, engine in _LOCAL:
        value = env.get(variable, "").strip()
        if value:
            address = address_of(value, PORTS[engine], variable)
            section = InstanceSection.model_validate({"id": engine, "engine": engine, "address": address})
            found.append(Finding(variable, section))
    return found


def _remote(env: Mapping[str, str]) -> list[Finding]:
    found: list[Finding] = []
    if env.get("OPENAI_API_KEY", "").strip():
        address = address_of(env.get("OPENAI_BASE_URL", "").strip() or OPENAI_ADDRESS, None, "OPENAI_BASE_URL")
        section = InstanceSection(id="openai", address=address, tier=Tier.REMOTE, api_key_env="OPENAI_API_KEY")
        found.append(Finding("OPENAI_API_KEY", section))
    if env.get("ANTHROPIC_API_KEY", "").strip():
        section = InstanceSection(
            id="anthropic",
            address=ANTHROPIC_ADDRESS,
            models=(ModelEntry(name="claude-*"),),
            tier=Tier.REMOTE,
            api_key_env="ANTHROPIC_API_KEY",
        )
        found.append(Finding("ANTHROPIC_API_KEY", section))
    return found


def _narrowed(finding: Finding) -> Finding:
    if finding.instance.address != OPENAI_ADDRESS:
        return finding
    names = tuple(ModelEntry(name=name) for name in OPENAI_NAMES)
    return finding._replace(instance=finding.instance.model_copy(update={"models": names}))


def address_of(value: str, port: int | None, variable: str) -> str:
    """A base URL from `host`, `host:port` or a URL; `port` is added where only a host is given.

    `0.0.0.0`, which servers listen on, becomes 127.0.0.1, where they can be reached. Raises ConfigError that names
    `variable` and not its value.
    """
    text = value if "://" in value else f"http://{value}"
    try:
        address = clean_address(text)
    except ValueError as error:
        raise ConfigError(f"{variable}: {error}") from error
    parts = urlsplit(address)
    place = parts.netloc
    if port is not None and "://" not in value and urlsplit(text).port is None:
        place = f"{place}:{port}"
    if parts.hostname == "0.0.0.0":
        place = place.replace("0.0.0.0", "127.0.0.1", 1)
    return urlunsplit(parts._replace(netloc=place))
