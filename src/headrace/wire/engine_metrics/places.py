"""Where an engine's metrics are, and how to ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from headrace.model import Instance
from headrace.wire.adapters.addresses import server_root
from headrace.wire.adapters.contract import EngineRequest
from headrace.wire.adapters.openai import headers
from headrace.wire.engine_metrics.vocabulary import VOCABULARIES

_ACCEPT = "text/plain;version=0.0.4, */*;q=0.1"


def metrics_requests(instance: Instance, key: str | None, path: str | None) -> Sequence[tuple[str, EngineRequest]]:
    """The addresses and requests to try, the likeliest first; one where the place is known. `key` goes with each.

    Args:
        instance: its own `metrics` wins; a URL there may be on another port, as Triton's is.
        key: the instance's own; some engines guard their metrics with it.
        path: the place at engines that name none; None: the engine's usual one.

    Raises:
        ValueError: engines of this kind have no metrics.
    """
    if instance.engine not in VOCABULARIES:
        raise ValueError(f"engine {instance.engine} has no metrics that can be read")
    place = instance.metrics or path
    if place is not None and "://" in place:
        parts = urlsplit(place)
        query = f"?{parts.query}" if parts.query else ""
        wanted = [(f"{parts.scheme}://{parts.netloc}", f"{parts.path or '/'}{query}")]
    else:
        root = server_root(instance.address)
        wanted = [(root, path) for path in ((place,) if place else VOCABULARIES[instance.engine].paths)]
    fields = headers(key, _ACCEPT, has_body=False)
    return tuple((address, EngineRequest("GET", path, fields, b"")) for address, path in wanted)
