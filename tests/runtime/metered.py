"""An engine whose `/metrics` a test decides about, poll by poll, while it answers everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.testing import ReceivedRequest, Script, ScriptedConnection, ScriptedEngine, steps

NOT_FOUND = steps.json(404, {"detail": "Not Found"})


def page(running: float = 0, waiting: float = 0, kv: float = 0.0) -> bytes:
    """What a vLLM would say."""
    return (
        f'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {kv}\n'
    ).encode()


class Metered:
    """The engine. `say` plays for each poll; `answer` for each request."""

    def __init__(self, say: Script | bytes = b"", *, answer: Script | None = None) -> None:
        self.engine = ScriptedEngine(self._play, guard=1000.0)
        self.engine.answers_probes = False
        self.say = say
        self.answer: Script = answer or steps.answer("Hello from the engine")
        self.polls: list[tuple[float, ReceivedRequest]] = []
        """When each poll came, on the loop's clock, and what it asked."""
        self.at_once = 0
        self.most_at_once = 0

    @property
    def times(self) -> list[float]:
        """When the polls came."""
        return [when for when, _ in self.polls]

    def gaps(self) -> list[float]:
        """Seconds between one poll and the next."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    async def _play(self, conn: ScriptedConnection) -> None:
        if conn.request.path in ("/health", "/v1/models"):
            await conn.json(200, {"object": "list", "data": []})
        elif conn.request.method == "GET":
            await self._poll(conn)
        else:
            await _each(self.answer, conn)

    async def _poll(self, conn: ScriptedConnection) -> None:
        self.polls.append((asyncio.get_running_loop().time(), conn.request))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await _each(steps.whole(200, self.say) if isinstance(self.say, bytes) else self.say, conn)
        finally:
            self.at_once -= 1


async def _each(script: Script, conn: ScriptedConnection) -> None:
    for step in script if isinstance(script, Sequence) else (script,):
        await step(conn)
