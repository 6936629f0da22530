"""Operators can look up every metric there is."""

from __future__ import annotations

from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry

from headrace.build import build
from headrace.config import Config
from headrace.server.app import build_app
from headrace.server.settings import ServerSettings
from headrace.testing import on_virtual_time

OPERATE = Path(__file__).parent.parent / "docs" / "operate.md"


@on_virtual_time
async def test_every_metric_is_explained_to_operators() -> None:
    """Each name that `/metrics` can show, with all that is optional switched on, stands in `docs/operate.md`."""
    registry = CollectorRegistry()
    config = Config.model_validate(
        {
            "instances": [{"id": "a", "address": "http://127.0.0.1:1", "engine": "vllm", "models": ["m"]}],
            "dead_letters": {"path": None},
            "metrics": {"users": 5},
            "scheduling": {"prices": {"m": {"prompt": 1, "output": 2}}},
        }
    )
    async with build(config, registry=registry, random=Random(1)) as headrace:
        build_app(headrace, ServerSettings(), registry)
        names = {family.name for family in registry.collect()}

    text = OPERATE.read_text()
    assert len(names) > 30
    assert [name for name in sorted(names) if f"`{name}`" not in text and f"`{name}_total`" not in text] == []
