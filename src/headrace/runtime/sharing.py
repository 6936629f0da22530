"""Which requests of the library share an answer."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from headrace.runtime.prompts import PromptRequest, fingerprint

DedupMode: TypeAlias = Literal["off", "in_flight", "full"]
"""off: every request makes its own call; in_flight: identical ones share a running call; full: also a finished one."""
DedupScope: TypeAlias = Literal["global", "tenant", "user", "session"]
"""Among whom answers are shared."""


class Sharing(NamedTuple):
    """The choice made for a pipeline."""

    mode: DedupMode
    scope: DedupScope

    def fingerprint(self, asked: PromptRequest, prompt: PromptRequest) -> bytes | None:
        """What identifies the answer to `prompt` among those `asked` may share; None: none."""
        return None if self.mode == "off" else fingerprint(prompt, self._scope(asked))

    def _scope(self, asked: PromptRequest) -> str:
        match self.scope:
            case "global":
                return ""
            case "tenant":
                return asked.tenant
            case "user":
                return f"{asked.tenant}\0{asked.user}"
            case "session":
                return f"{asked.tenant}\0{asked.user}\0{asked.session}"
