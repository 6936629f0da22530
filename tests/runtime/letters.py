"""Dead letters to test with."""

from __future__ import annotations

from headrace.model import AttemptRecord, Cause, ServiceClass
from headrace.runtime.stores import StoredLetter


def letter(
    name: str = "req-1",
    *,
    reason: str = "inference_failure",
    died_at: float = 1000.0,
    tenant: str = "t",
    user: str = "u",
    model: str = "m",
    detail: str = "503 from gpu-1",
    body: bytes | None = b'{"model":"m"}',
) -> StoredLetter:
    """A letter with every field filled."""
    return StoredLetter(
        request_id=name,
        reason=reason,
        detail=detail,
        tenant=tenant,
        user=user,
        session="s",
        service_class=ServiceClass.BATCH,
        model=model,
        endpoint="chat",
        died_at=died_at,
        waited=1.5,
        attempts=(AttemptRecord(1, "gpu-1", 0.25, 1.0, Cause.SERVER_ERROR, 503, "overloaded"),),
        body=body,
    )


def shed(name: str, died_at: float = 1000.0) -> StoredLetter:
    """A letter of a request that found the queue full."""
    return letter(name, reason="backpressure:inference", died_at=died_at)


def names(letters: tuple[StoredLetter, ...]) -> list[str]:
    """Their request ids, in their order."""
    return [each.request_id for each in letters]
