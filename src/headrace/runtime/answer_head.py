"""What is known of an answer when it begins."""

from __future__ import annotations

import msgspec

from headrace.model import AnswerForm, CacheResult


class AnswerHead(msgspec.Struct, frozen=True, gc=False):
    """What is known of an answer when it begins; the server makes its response headers of it.

    `waited` is the time in the queue in seconds; `cache` is the reader's own: the same answer is a MISS for the one who
    caused it and JOINED for the others; one from the cache is a HIT for all.
    """

    instance: str
    model: str
    attempts: int
    waited: float
    form: AnswerForm
    cache: CacheResult
