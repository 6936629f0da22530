"""The sections `models` and `fallbacks`: names beside those of the instances, and who takes over from whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from headrace.config.sections import Factor, Section
from headrace.config.wording import MODEL_NAME
from headrace.core.catalogue import MOST_MODELS, Catalogue
from headrace.core.naming import match
from headrace.core.settings import Fallback, ModelSettings, VirtualModel
from headrace.model import FallbackCause, Instance

ModelName = Annotated[str, Field(min_length=1, max_length=256, pattern=MODEL_NAME)]
"""A whole name: patterns are for instances."""
Names = Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=MOST_MODELS)]
Behind = ModelName | Names | Annotated[dict[ModelName, Factor], Field(min_length=1, max_length=MOST_MODELS)]
"""What stands behind a name: a model, several in order, or several by weight."""


class FallbackSection(Section):
    """Who takes over from a model, and why."""

    to: Names = Field(description="The models, in order.")
    on: tuple[FallbackCause, ...] = Field(
        (FallbackCause.EXHAUSTED, FallbackCause.CONTEXT_LENGTH),
        min_length=1,
        description="exhausted: no instance can answer; context_length: the prompt is too long; content_filter.",
    )


def _short(value: object) -> object:
    return {"to": value} if isinstance(value, list | tuple) else value


FallbackEntry = Annotated[FallbackSection, BeforeValidator(_short, json_schema_input_type=Names | FallbackSection)]
"""In short: the list of models alone."""


def model_settings(names: Mapping[str, Behind], fallbacks: Mapping[str, FallbackSection]) -> ModelSettings:
    """The two sections as the scheduler is told them."""
    return ModelSettings(
        names={name: _virtual(behind) for name, behind in names.items()},
        fallbacks={name: Fallback(models=entry.to, on=frozenset(entry.on)) for name, entry in fallbacks.items()},
    )


def refuse_impossible(settings: ModelSettings, instances: Iterable[Instance]) -> None:
    """Raises ValueError for names that lead back to themselves, and for models that no instance serves.

    Without any instance there is nothing to compare with: they are not known yet.
    """
    instances = tuple(instances)
    for key, model in Catalogue(settings).referred():
        if instances and not any(match(instance, model) is not None for instance in instances):
            raise ValueError(f"{key}: no instance serves the model '{model}'")


def _virtual(behind: Behind) -> VirtualModel:
    if isinstance(behind, str):
        return VirtualModel(models=(behind,))
    if isinstance(behind, dict):
        return VirtualModel(models=tuple(behind), weights=tuple(behind.values()))
    return VirtualModel(models=behind)
