"""Engines' own metrics: where they are, how each engine calls them, and what they say about its load.

A page goes in, an `EngineReport` comes out. What a page does not say, says in a way that cannot be trusted, or says
for another model is unknown (None), never 0: an engine that looks idle attracts all work.
"""

from headrace.wire.engine_metrics.exposition import LARGEST_PAGE
from headrace.wire.engine_metrics.places import metrics_requests
from headrace.wire.engine_metrics.reading import Previous, read_metrics
from headrace.wire.engine_metrics.vocabulary import reports_metrics

__all__ = ["LARGEST_PAGE", "Previous", "metrics_requests", "read_metrics", "reports_metrics"]
