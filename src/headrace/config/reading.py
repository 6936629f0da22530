"""From file, environment and flags to one `Config`: substitution, precedence, and errors a person can act on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from headrace.config.config import Config
from headrace.config.wording import worded
from headrace.config.yaml_loader import LARGEST_FILE_BYTES, Loader
from headrace.errors import ConfigError

Tree = dict[str, object]

_VARIABLE = re.compile(r"\$\{env:([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHORT = {
    "HEADRACE_HOST": ("server", "host"),
    "HEADRACE_PORT": ("server", "port"),
    "HEADRACE_LOG_LEVEL": ("server", "log_level"),
}


def load(path: Path | None, env: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Config:
    """Read the configuration: `overrides` (flags) win over `env`, `env` over the file, the file over the defaults.

    `path` None reads no file. `overrides` maps dotted keys, as `server.port`, to values; None values are absent.
    `env` gives `HEADRACE_HOST`, `HEADRACE_PORT`, `HEADRACE_LOG_LEVEL`, `HEADRACE_<SECTION>__<KEY>` (a YAML value)
    and what `${env:NAME}` and `api_key_env` name.

    Raises ConfigError, naming the key and the nearest known one; no value from the environment is ever part of it.
    """
    source = str(path) if path is not None else "configuration"
    tree = _substituted(read_tree(path), env, source) if path is not None else {}
    for keys, value in _from_environment(env):
        _put(tree, keys, value, f"HEADRACE_{'__'.join(keys).upper()}")
    for dotted, value in (overrides or {}).items():
        if value is not None:
            _put(tree, tuple(dotted.split(".")), value, dotted)
    return validated(tree, source).with_keys(env)


def validated(tree: Tree, source: str) -> Config:
    """The configuration a tree of plain values stands for. Raises ConfigError with every problem found."""
    problems = list(_unknown_keys(tree, Config, ""))
    if not problems:
        try:
            return Config.model_validate(tree)
        except ValidationError as error:
            problems = list(_sentences(tree, error))
    raise ConfigError(f"{source}: {problems[0]}" if len(problems) == 1 else "\n  ".join([f"{source}:", *problems]))


# ----------------------------------------------------------------------------------------------------------- file


def read_tree(path: Path) -> Tree:
    """The file's plain values. An empty file is an empty tree. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > LARGEST_FILE_BYTES:
        raise ConfigError(f"{path}: is larger than {LARGEST_FILE_BYTES} bytes")
    return parsed(data, str(path))


def parsed(data: bytes, source: str) -> Tree:
    """The plain values of a file's bytes. Raises ConfigError, naming `source`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: is not UTF-8 text (byte {error.start})") from error
    try:
        value: object = yaml.load(text, Loader)  # noqa: S506  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}: {error.problem or 'not YAML'}{place}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{source}: cannot be read as YAML") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: must be a mapping of sections, as `server: {{port: 8080}}`")
    return {str(key): item for key, item in value.items()}


def _substituted(value: Tree, env: Mapping[str, str], source: str) -> Tree:
    return {key: _filled(item, env, f"{source}: {key}") for key, item in value.items()}


def _filled(value: object, env: Mapping[str, str], place: str) -> object:
    """`value` with `${env:NAME}` replaced in every text, after parsing: a variable cannot change the structure."""
    if isinstance(value, dict):
        return {key: _filled(item, env, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, env, f"{place}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{place}: '{match.group(0)}' names no environment variable")
        if name not in env:
            raise ConfigError(f"{place}: the environment variable {name} is not set")
        return env[name]

    return _VARIABLE.sub(fill, value)


# ---------------------------------------------------------------------------------------------------- environment


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], object]]:
    for name in sorted(env):
        value = env[name]
        if not name.startswith("HEADRACE_") or value == "":
            continue
        if name in _SHORT:
            # Kubernetes sets HEADRACE_PORT=tcp://... in every pod beside a service of that name.
            if not value.startswith("tcp://"):
                yield _SHORT[name], value
        elif "__" in name or name == "HEADRACE_INSTANCES":
            try:
                read: object = yaml.load(value, Loader)  # noqa: S506
            except (yaml.YAMLError, RecursionError, ValueError) as error:
                raise ConfigError(f"{name}: the value is not YAML") from error
            yield tuple(name.removeprefix("HEADRACE_").lower().split("__")), read


def _put(tree: Tree, keys: tuple[str, ...], value: object, place: str) -> None:
    """Set one nested value, making the mappings on the way."""
    here = tree
    for key in keys[:-1]:
        below = here.get(key)
        if below is None:
            below = here[key] = {}
        if not isinstance(below, dict):
            raise ConfigError(f"{place}: {key} holds a value, not keys")
        here = below
    here[keys[-1]] = value


# --------------------------------------------------------------------------------------------------------- errors


def _unknown_keys(value: object, model: type[BaseModel], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        here = f"{path}.{key}" if path else str(key)
        field = model.model_fields.get(str(key))
        if field is None:
            yield f"{here}: unknown key{_suggestion(str(key), model)}"
            continue
        for below, section, place in _sections(item, field.annotation, here):
            yield from _unknown_keys(below, section, place)


def _sections(value: object, annotation: object, path: str) -> Iterator[tuple[object, type[BaseModel], str]]:
    """What stands where a section may stand, with that section and the place in the file.

    The keys of a mapping by names and the entries of a list are the reader's own: only what is below them is looked at.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield value, annotation, path
    elif get_origin(annotation) is dict:
        for key, item in value.items() if isinstance(value, dict) else ():
            yield from _sections(item, get_args(annotation)[1], f"{path}.{key}")
    elif get_origin(annotation) is tuple:
        for number, item in enumerate(value if isinstance(value, list) else ()):
            yield from _sections(item, get_args(annotation)[0], f"{path}[{number}]")
    else:
        for argument in get_args(annotation):
            yield from _sections(value, argument, path)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _suggestion(key: str, model: type[BaseModel]) -> str:
    near = difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]}?"
    if model is Config:
        sections = (
            name
            for name, field in Config.model_fields.items()
            if any(key in m.model_fields for m in _models_in(field.annotation))
        )
        section = next(sections, None)
        if section is not None:
            return f"; did you mean {section}.{key}?"
    return f"; known here: {', '.join(model.model_fields)}"


def _sentences(tree: Tree, error: ValidationError) -> Iterator[str]:
    """One sentence for each key that is wrong; the alternatives of a key are joined by `or`."""
    found: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False):
        path = path_of(problem["loc"], tree, missing=problem["type"] == "missing")
        found.setdefault(path, []).append(worded(problem["type"], problem["msg"], problem.get("ctx")))
    for path, texts in found.items():
        if any(other.startswith((f"{path}[", f"{path}.")) for other in found):
            continue  # what is wrong with an entry says more than what is wrong with its list
        first, *others = dict.fromkeys(texts)
        joined = " or ".join([first, *(text.removeprefix("should be ") for text in others)])
        yield f"{path}: {joined}" if path else joined


def path_of(loc: Sequence[int | str], tree: object, *, missing: bool = False) -> str:
    """The place of a wrong value in `tree` as people write it: `models[0].name`.

    What a validation library adds to tell the branches of a union apart is left out. `missing`: the last part of `loc`
    is a key that is not there.
    """
    here, path = tree, ""
    for number, part in enumerate(loc):
        if isinstance(here, list) and isinstance(part, int) and part < len(here):
            here, path = here[part], f"{path}[{part}]"
        elif isinstance(here, dict) and (part in here or (missing and number == len(loc) - 1)):
            here, path = here.get(part), f"{path}.{part}" if path else str(part)
    return path
