"""Which requests share an answer, and among whom."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from headrace.model import Flow
from headrace.runtime.prompts import PromptRequest, fingerprint

DedupMode: TypeAlias = Literal["off", "in_flight", "full"]
"""off: every request makes its own call; in_flight: identical ones share a running call; full: also a finished one."""
DedupScope: TypeAlias = Literal["global", "tenant", "user", "session"]
"""Among whom answers are shared."""


class Sharing(NamedTuple):
    """The choice made for a pipeline of the library."""

    mode: DedupMode
    scope: DedupScope

    def fingerprint(self, flow: Flow, prompt: PromptRequest) -> bytes | None:
        """What identifies the answer to `prompt` among those that `flow` may share; None: it shares none."""
        return None if self.mode == "off" else fingerprint(prompt, scope_key(self.scope, flow))


def scope_key(scope: DedupScope, flow: Flow) -> str:
    """What those who may share an answer with `flow` have in common, and nobody else."""
    match scope:
        case "global":
            return ""
        case "tenant":
            return flow.tenant
        case "user":
            return f"{flow.tenant}\0{flow.user}"
        case "session":
            return f"{flow.tenant}\0{flow.user}\0{flow.session}"
