"""No key of the configuration is only for show."""

from __future__ import annotations

from random import Random

import pytest
from prometheus_client import CollectorRegistry

from headrace.build import build
from headrace.cli.serve import server_settings
from headrace.config import Config
from headrace.config import sections as sections_module
from headrace.config.administration import AdminSection, ScalingSection
from headrace.config.instances import InstanceSection
from headrace.config.models import FallbackSection
from headrace.config.sections import LimitSection, Section

AT_THE_DOOR = {f"ServerSection.{key}" for key in ("host", "port", "insecure", "log_level", "log_format")}
"""What `headrace serve` itself reads: the tests of the command look at them."""


def every_key() -> set[str]:
    """`Section.key` for all that a file may hold."""
    found = [kind for kind in vars(sections_module).values() if isinstance(kind, type) and issubclass(kind, Section)]
    kinds: list[type[Section]] = [*found, Config, InstanceSection, FallbackSection, AdminSection, ScalingSection]
    return {f"{kind.__name__}.{key}" for kind in kinds for key in kind.model_fields}


def test_every_key_is_read_by_a_part_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Putting a gateway together looks at each key there is: none is accepted and then forgotten."""
    limit = LimitSection(requests_per_minute=60)
    given: dict[str, object] = {"instances": ({"address": "http://127.0.0.1:1", "engine": "vllm"},)}
    given["dead_letters"] = {"path": None, "webhook": {"url": "http://127.0.0.1:1/", "secret_env": "S"}}
    given["routing"] = {"spill_after_seconds": {"normal": 5}, "hedge": {"after": 2}}
    given["fallbacks"] = {"m": {"to": ["n"], "on": ["exhausted"]}}
    given["scheduling"] = {"prices": {"m": {"prompt": 2.5, "output": 10}}}
    config = Config.model_validate({**given, "limits": {"per_user": limit, "per_tenant": limit}})
    read: set[str] = set()
    plain = Section.__getattribute__

    def noted(section: Section, name: str) -> object:
        if name in type(section).model_fields:
            read.add(f"{type(section).__name__}.{name}")
        return plain(section, name)

    monkeypatch.setattr(Section, "__getattribute__", noted)
    server_settings(config)
    build(config.with_keys({"S": "s"}), registry=CollectorRegistry(), random=Random(1))
    assert every_key() - read == AT_THE_DOOR
