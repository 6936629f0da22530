"""Replays as JSON, for the admin API and for webhooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.runtime.replays import Replay, Result, Standing


def message(replay: Replay) -> bytes:
    """What a webhook is told of a replay that is over: everything, answers included as far as they are kept."""
    return msgspec.json.encode({"type": "replay", "replay": shown(replay, replay.results.values())})


def shown(replay: Replay, results: Iterable[Result], *, answers: bool = True) -> Mapping[str, object]:
    """A replay as JSON-able fields, with these of its letters."""
    order, counts, delivery = replay.order, replay.counts, replay.delivery
    return {
        "id": replay.id,
        "status": replay.status.value,
        "model": order.model,
        "instance": order.instance,
        "pace_per_second": order.pace,
        "tries": order.tries,
        "created_at": replay.created,
        "finished_at": replay.finished,
        "counts": {standing.value: counts[standing] for standing in Standing},
        "letters": [_letter(result, answers=answers) for result in results],
        "webhook": None if delivery is None else {"delivered": delivery.delivered, "tries": delivery.tries},
    }


def _letter(result: Result, *, answers: bool) -> Mapping[str, object]:
    fields: dict[str, object] = {
        "id": result.letter,
        "request_id": result.request_id,
        "status": result.standing.value,
        "tries": result.tries,
        "instance": result.instance or None,
        "detail": result.detail,
        "answer_bytes": result.answer_bytes,
    }
    if answers:
        fields["answer"] = None if result.answer is None else msgspec.Raw(result.answer)
    return fields
