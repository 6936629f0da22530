"""What a program asks and what it gets, when it uses headrace as a library: plain text in, plain text out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headrace.model import CacheResult, ServiceClass, Usage

CHARACTERS_PER_TOKEN = 4
"""How tokens are estimated where nobody counts them."""


class PromptRequest(msgspec.Struct, frozen=True, gc=False):
    """One question to a model. `msgspec.structs.replace` makes another one of it.

    A worker that answers the same words differently (by `session`, say) is used with `dedup="off"` or with that scope.
    """

    input: str
    """The prompt."""
    session: str = ""
    request_id: str | None = None
    """Names this request in answers, dead letters and traces; None: made. One in use by another gets an addition."""
    user: str = "anonymous"
    tenant: str = "default"
    service_class: ServiceClass = ServiceClass.NORMAL
    model: str = "default"
    deadline_secs: float | None = None
    """Seconds from now after which nobody wants the answer any more: waiting, retries and hooks included."""
    timeout_seconds: float | None = None
    """Longest time of one attempt; None: the pipeline's."""
    max_tokens: int | None = None
    """Longest answer. It is also what fair shares are charged by, until the real length is known."""
    metadata: Mapping[str, str] = {}
    """For the worker and the hooks; part of what makes two requests identical."""

    @property
    def body(self) -> bytes:
        """The request as JSON, as dead letters keep it."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, body: bytes) -> PromptRequest:
        """The request that `body` was made of.

        Raises:
            ValueError: `body` is no request of this kind.
        """
        return msgspec.json.decode(body, type=cls)

    @property
    def tokens(self) -> int:
        """Estimated length of the prompt, at least 1."""
        return -(-len(self.input) // CHARACTERS_PER_TOKEN) or 1


class PromptAnswer(msgspec.Struct, frozen=True, gc=False):
    """What came back. `msgspec.structs.replace` makes another one of it."""

    text: str
    request_id: str
    usage: Usage | None = None
    """Tokens of the model call; None for an answer from the cache, which used none."""
    shared: CacheResult = CacheResult.MISS
    """`miss`: a model call was made for this request; `joined`: it shares another's; `hit`: it comes from the cache."""
    instance: str = ""
    """Which worker answered."""
    attempts: int = 0
    """Model calls that were made until one succeeded."""
    waited: float = 0.0
    """Seconds the model call waited in the queue."""


class Prepared(NamedTuple):
    """A prompt that hooks made of another one: the model gets `prompt`; what is kept and sent again is `asked`."""

    prompt: PromptRequest
    asked: PromptRequest

    @property
    def body(self) -> bytes:
        """The request as it was asked, as JSON."""
        return self.asked.body


def fingerprint(prompt: PromptRequest, scope: str) -> bytes:
    """What identical prompts of one scope have in common: 32 bytes of SHA-256.

    Over the model, the input, the bound on the answer and the metadata; not over who asks, in what session and until
    when.
    """
    # Lengths before texts: no two different prompts read the same.
    model, text, metadata = prompt.model, prompt.input, prompt.metadata
    asked = f"{len(scope)},{len(model)},{len(text)},{prompt.max_tokens}:{scope}{model}{text}"
    if metadata:
        asked += "".join([f"{len(name)},{len(value)}:{name}{value}" for name, value in sorted(metadata.items())])
    return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).digest()
