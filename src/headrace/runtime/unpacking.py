"""Bodies of engines that compress although they were asked not to."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from headrace.runtime.failures import Failure, UpstreamFailed

MOST_AT_ONCE = 32 * 1024 * 1024
"""Bytes that one read may become; what becomes more is no answer but an attack on memory."""
_ANY_ZLIB = 32 + zlib.MAX_WBITS
"""gzip or deflate, told apart by their first bytes."""


class Unpacker:
    """One packed body, unpacked as it comes: what the engine flushed is not held back."""

    def __init__(self) -> None:
        self._packed = zlib.decompressobj(_ANY_ZLIB)
        self._begun = False

    def feed(self, data: bytes, last: bool) -> bytes:
        """What `data` unpacks to. Raises UpstreamFailed when it does not, goes on behind its end, or ends before it."""
        self._begun = self._begun or bool(data)
        try:
            plain = self._packed.decompress(data, MOST_AT_ONCE)
        except zlib.error:
            raise UpstreamFailed(Failure.PROTOCOL, "the body cannot be unpacked") from None
        packed = self._packed
        if packed.unconsumed_tail or packed.unused_data or (last and self._begun and not packed.eof):
            raise UpstreamFailed(Failure.PROTOCOL, "the body cannot be unpacked")
        return plain


def unpacker_for(headers: Mapping[str, str]) -> Unpacker | None:
    """What the body has to go through; None: nothing. Raises UpstreamFailed for a coding that is not known here."""
    match headers.get("content-encoding", "identity").strip().lower():
        case "identity" | "":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return Unpacker()
        case _:
            raise UpstreamFailed(Failure.PROTOCOL, "the body is packed in an unknown way")


def unwrapped(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of the body as it is after unpacking: of one that was packed, not the length it had on the way."""
    coding = headers.get("content-encoding")
    if coding is None:
        return headers
    dropped = {"content-encoding"} if coding.strip().lower() == "identity" else {"content-encoding", "content-length"}
    return {name: value for name, value in headers.items() if name not in dropped}
