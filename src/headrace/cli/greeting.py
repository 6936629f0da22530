"""What `headrace serve` says when it starts: the engines, their models, the address, and a line to try."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence

from headrace.cli import Refused
from headrace.cli.engine_listing import Asker
from headrace.cli.options import Chosen
from headrace.cli.tables import model_names
from headrace.config import Config, InstanceSection, ModelEntry
from headrace.model import Engine, Instance, Tier
from headrace.wire.discovery import look

ASK_SECONDS = 2.0
SHOWN_MODELS = 6


def ask_models(instance: Instance, key: str | None) -> tuple[str, ...]:
    """The names an engine lists at `/v1/models` within two seconds; empty when it cannot say."""
    try:
        found = look(Asker(instance.address, key, ASK_SECONDS), Engine.OPENAI)
    except Refused:
        return ()
    return found.models if found is not None else ()


def listed_models(config: Config) -> dict[str, tuple[str, ...]]:
    """By instance id, what each local engine that serves `*` says it has."""
    secrets = config.secrets()
    return {
        instance.id: ask_models(instance, secrets.get(instance.id))
        for instance in config.model_instances()
        if instance.tier is Tier.LOCAL and instance.address and any(m.name == "*" for m in instance.models)
    }


def with_listed(chosen: Chosen, listed: Mapping[str, Sequence[str]], env: Mapping[str, str]) -> Chosen:
    """Engines that no file named serve the models they list by name, so that `/v1/models` shows them.

    A single engine serves `*` as well: it may get models later. With several, a model of one must not be asked of
    another.
    """
    sections: list[InstanceSection] = []
    for finding in chosen.findings:
        section = finding.instance
        names = tuple(ModelEntry(name=name) for name in dict.fromkeys(listed.get(section.id or "", ())) if name != "*")
        if names:
            models = (*names, *section.models) if len(chosen.findings) == 1 else names
            section = section.model_copy(update={"models": models})
        sections.append(section)
    if not sections:
        return chosen
    config = chosen.config.model_copy(update={"instances": tuple(sections)}).with_keys(env)
    return Chosen(config, chosen.findings, chosen.path)


def greeting(chosen: Chosen, version: str) -> Iterator[str]:
    """The lines to print before it listens."""
    yield f"headrace {version}"
    named = {finding.instance.id: finding.variable for finding in chosen.findings}
    instances = chosen.config.model_instances()
    for instance in instances:
        origin = f" (named by {named[instance.id]})" if instance.id in named else ""
        where = instance.address or "built in"
        yield f"  {instance.id}: {instance.engine.value}, {where}, models {_models(instance)}{origin}"
    if [instance.engine for instance in instances] == [Engine.ECHO] and chosen.path is None:
        yield "  It answers with the question. For a real engine set OPENAI_API_KEY, ANTHROPIC_API_KEY, OLLAMA_HOST,"
        yield "  VLLM_URL or LLAMA_CPP_URL, or give a file with --config (examples/headrace.yaml has every key)."
    elif not chosen.config.models and all("*" in served.name for instance in instances for served in instance.models):
        yield "  No model is known by name, so /v1/models lists none, and programs that choose from it find none:"
        yield "  start the engine before headrace, or name its models in a file or with --model."
    for warning in chosen.config.warnings():
        yield f"warning: {warning}"


def invitation(url: str, model: str) -> Iterator[str]:
    """The lines that say where to send a first request."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]})
    yield f"Listening on {url} (OpenAI API: {url}/v1, admin: {url}/docs). Ctrl-C lets the running requests finish. Try:"
    yield f"  curl {url}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(body)}"


def sample_model(config: Config, listed: Mapping[str, Sequence[str]]) -> str:
    """A model name for the line to try: one served by name, one an engine lists, or a place to fill in."""
    for instance in config.model_instances():
        for name in (*(m.name for m in instance.models), *listed.get(instance.id, ())):
            if "*" not in name:
                return name
    return "MODEL"


def base_url(host: str, port: int, *, secure: bool = False) -> str:
    """The address a client on this machine uses."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if secure else 'http'}://{reachable}:{port}"


def _models(instance: Instance) -> str:
    names = model_names(instance).split(", ")
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    return ", ".join(names[:SHOWN_MODELS]) + more
