"""What kind of machine an engine runs on: the numbers of the step-time formula.

    T_step = step + token * max(0, n - free_tokens) + kv_read * (KV tokens read)      n = tokens in the batch

Sources: linear-operator times of Vidur's published profiles (MIT licence; A100-80G with Llama-3-8B: 9.7 ms at one
token, 146 ms at 2,048), KV of 128 KiB a token read at about 1.6 TB/s (A100) and 2.6 TB/s (H100); batch limits are
vLLM's defaults.
"""

from __future__ import annotations

import msgspec

BLOCK_TOKENS = 16
"""Tokens of one KV block."""


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of engine; times in seconds, sizes in tokens."""

    name: str = "custom"
    step: float
    """Shortest time of a step."""
    token: float
    """Each token in the batch beyond `free_tokens`."""
    free_tokens: int = 100
    kv_read: float
    """Each KV token read in a step."""
    kv_tokens: int = 400_000
    budget: int = 2048
    """Most tokens in one step (max_num_batched_tokens)."""
    max_seqs: int = 256
    """Most sequences in one step (max_num_seqs)."""
    knee: int = 96
    """Sequences in flight beyond which more of them hardly raise the throughput; the yardstick of utilisation."""

    def seconds(self, prompt: int, output: int) -> float:
        """Engine time that a request needs when its steps are shared by `knee` sequences."""
        decode = self.step / self.knee + self.kv_read * (prompt + output / 2)
        return self.token * prompt + output * decode


A100 = EngineProfile(name="a100", step=0.011, token=68e-6, kv_read=8.2e-8)
"""A100-80G with an 8B model."""
H100 = EngineProfile(
    name="h100",
    step=0.006,
    token=24e-6,
    free_tokens=150,
    kv_read=5e-8,
    kv_tokens=420_000,
    budget=8192,
    max_seqs=1024,
    knee=192,
)
"""H100 with an 8B model."""
SLOW = EngineProfile(name="slow", step=0.030, token=200e-6, kv_read=2.4e-7)
"""A third of an A100."""

PROFILES = {profile.name: profile for profile in (A100, H100, SLOW)}
