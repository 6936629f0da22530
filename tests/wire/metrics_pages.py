"""Pages of engines' metrics, as one reads them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model import Engine, EngineReport, ServedModel
from headrace.wire.engine_metrics import Previous, read_metrics
from headrace.wire.engine_metrics.vocabulary import VOCABULARIES

ANY = (ServedModel(name="*"),)
KINDS = tuple(VOCABULARIES)


def said(engine: Engine, page: str | bytes, models: Sequence[ServedModel] = ANY) -> EngineReport | None:
    """What one page says at a first poll."""
    return read_metrics(engine, page.encode() if isinstance(page, str) else page, models, Previous())[0]


def then(engine: Engine, *pages: str | bytes) -> EngineReport | None:
    """What the last of several pages says, polled one after the other."""
    report, previous = None, Previous()
    for page in pages:
        body = page.encode() if isinstance(page, str) else page
        report, previous = read_metrics(engine, body, ANY, previous)
    return report
