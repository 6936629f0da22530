"""The unit in which an answer travels from an engine's decoder to the readers."""

from __future__ import annotations

import msgspec


class Frame(msgspec.Struct, frozen=True, gc=False):
    """Bytes that may go to a client as they are: one or more whole SSE events, or one whole JSON body."""

    data: bytes
    usage_only: bool = False
    """The SSE chunk with `choices: []` and usage; readers that did not ask for usage skip it."""
