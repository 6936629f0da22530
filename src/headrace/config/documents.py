"""What is generated from the sections: the JSON schema, and the example file with every key and its default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.config.config import Config
from headrace.config.instances import InstanceSection

WIDTH = 120
SCHEMA_TITLE = "headrace configuration"


def schema_json() -> str:
    """The JSON schema (draft 2020-12) of the configuration file, indented, with a final newline."""
    schema = Config.model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": SCHEMA_TITLE}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def example_yaml() -> str:
    """A configuration file with every key, its default and its meaning; loading it gives the defaults."""
    lines = [
        "# Every key of headrace's configuration, with its default. All of them may be left out.",
        "# ${env:NAME} in any text is replaced by that environment variable.",
    ]
    for name, field in Config.model_fields.items():
        lines += ["", f"# {field.description}"]
        if name == "instances":
            lines += _instances()
        else:
            lines += _entry(name, field, 0)
    return "\n".join(lines) + "\n"


def _instances() -> Iterator[str]:
    yield "instances: []"
    yield "# One with every key; only `address` is needed, and for other than OpenAI-shaped engines `engine`:"
    yield "# instances:"
    defaults = {"id": "gpu-1", "address": "http://127.0.0.1:8001", "engine": "vllm"}
    for number, (name, field) in enumerate(InstanceSection.model_fields.items()):
        value = defaults.get(name, ["*"] if name == "models" else _plain(field.get_default(call_default_factory=True)))
        mark = "- " if number == 0 else ""
        lines = _line(f"{mark}{name}: {_text(value)}", field.description, 1 if number else 0, WIDTH - 4)
        yield from (f"#   {line}" for line in lines)


def _entry(name: str, field: FieldInfo, depth: int) -> Iterator[str]:
    """One key, and the keys below it if it is a section."""
    below = _section_in(field.annotation)
    default: object = field.get_default(call_default_factory=True)
    comment = field.description if depth else None
    if below is None:
        yield from _line(f"{name}: {_text(_plain(default))}", comment, depth)
        return
    if default is None:
        yield from _line(f"{name}: null", comment, depth)
        return
    yield from _line(f"{name}:", comment, depth)
    for key, item in below.model_fields.items():
        yield from _entry(key, item, depth + 1)


def _line(text: str, comment: str | None, depth: int, width: int = WIDTH) -> Iterator[str]:
    """`text` with its comment behind it, or above it where the line would be too long."""
    indent = "  " * depth
    if comment is None:
        yield indent + text
        return
    whole = f"{indent}{text}".ljust(34) + f"  # {comment}"
    if len(whole) <= width:
        yield whole
    else:
        yield f"{indent}# {comment}"
        yield indent + text


def _section_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is dict:  # its keys are the reader's own, so there is nothing to list
        return None
    return next((found for argument in get_args(annotation) if (found := _section_in(argument))), None)


def _plain(value: object) -> object:
    return value.value if hasattr(value, "value") else value


def _text(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=WIDTH)
    return text.removesuffix("\n").removesuffix("\n...").strip()
