"""Who and what is on the stage: two engines, the users, a gateway with short times, and when what happens."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.bench.questions import Question
from headrace.config import Config
from headrace.testing.timing import TimingNumbers

MODEL = "mock"
ENGINES = ("gpu-1", "gpu-2")
USERS = ("ann", "ben", "cho", "dan", "eva", "fay")
JSON_USER = "gus"
"""Asks for JSON, whose second half nobody can ask for: the broken stream has to end with an error."""
EVERYBODY = (*USERS, JSON_USER)
SEED = 4
"""Of the gateway's jitter."""

SLOTS = 8
"""Of each engine: enough for everybody, so that who is cut off need not wait for a place."""
ENGINE: TimingNumbers = {"slots": SLOTS, "prefill_tps": 2_000.0, "decode_tps": 26.0, "batch_slowdown": 0.02}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """When what happens; seconds."""

    killed_at: float = 2.5
    """An engine is killed at the first moment after this at which `JSON_USER` has read a part of an answer."""
    away: float = 4.0
    """So long there is nothing at its address."""
    after: float = 3.0
    """Users go on asking for so long after its breaker has closed..."""
    longest: float = 20.0
    """...but not beyond this moment."""
    pause: float = 0.15
    """Between an answer and the user's next question."""
    words: int = 36
    """In each answer."""


def config(urls: dict[str, str]) -> Config:
    """A gateway before these engines, by their ids. Its times are those of a play, not of an operation."""
    common = {"engine": "vllm", "models": [MODEL], "max_concurrent": SLOTS}
    return Config.model_validate(
        {
            "instances": [{"id": name, "address": url, **common} for name, url in urls.items()],
            "circuit_breaker": {"failure_threshold": 3, "recovery_timeout": 2.0},
            "health_check": {"interval_seconds": 1.0, "timeout_seconds": 1.0, "deep_check_interval": 0},
            "load_balancer": {"cooldown_seconds": 0.5, "slow_start_seconds": 1.5},
            "metrics": {"enabled": False},
            "dead_letters": {"path": None},
        }
    )


def words(user: str, number: int, length: int) -> str:
    """What the user's request so numbered is to be answered with: counted, so that no word is like another."""
    return " ".join([f"{user}-{number}", *(str(place) for place in range(2, length + 1))])


def question(user: str, request_id: str, text: str) -> Question:
    """The request for that answer: a mock engine repeats what it is told."""
    length = len(text.split())
    fields: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": length,
        "stream": True,
        "user": user,
    }
    if user == JSON_USER:
        fields["response_format"] = {"type": "json_object"}
    headers = (("x-headrace-user", user), ("x-request-id", request_id), ("x-headrace-keepalive", "off"))
    return Question(headers, msgspec.json.encode(fields), length, length)
