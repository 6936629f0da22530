"""What engines speak, one module each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What goes to an engine. `path` follows the instance's address and begins with a slash; it may carry a query."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
