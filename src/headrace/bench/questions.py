"""What is asked: prompts of about the wanted length, each unlike all others, so that none is answered from a cache."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import msgspec

from headrace.bench.patterns import User

_TEXT = (
    "river stone light water house green paper cloud bread horse table music winter garden morning city "
    "letter silver window forest road bridge island summer kitchen yellow mountain door field story ocean "
    "chair market night candle engine basket ladder planet sugar thunder valley wagon bottle copper feather "
    "harbor jacket lemon mirror needle orange pencil rabbit saddle ticket velvet whistle anchor button carpet "
    "dragon"
)
_WORDS = _TEXT.split()
"""Common words: with most tokenizers each is one token."""

_OPENING = "Request {number} of {name}:"
_ORDER = "Tell a very long story with these words."


@dataclass(frozen=True, slots=True)
class Question:
    """One request as it goes out."""

    headers: tuple[tuple[str, str], ...]
    body: bytes
    prompt_tokens: int
    """About so many, a word being a token."""
    output_tokens: int
    """The bound on the answer, `max_tokens`."""


@dataclass(slots=True)
class Conversation:
    """What a caller and the endpoint have said so far, and about how many tokens that is."""

    name: str
    turns: list[dict[str, str]]
    tokens: int = 0


class Questioner:
    """Makes one user's requests.

    Args:
        user: whose they are.
        model: what is asked.
        random: its only source of chance.
        ignore_eos: ask engines that know the field to make answers as long as they may be.
        key: the user's API key, if they have one of their own.
    """

    def __init__(self, user: User, model: str, random: Random, *, ignore_eos: bool = False, key: str | None) -> None:
        self._user = user
        self._model = model
        self._random = random
        self._ignore_eos = ignore_eos
        self._number = 0
        self._sessions = 0
        self._system = [{"role": "system", "content": self._words(user.shared)}] if user.shared else []
        # Notes while waiting would take the place of refusals' status and of the header with the wait.
        headers = [("x-headrace-user", user.name), ("x-headrace-keepalive", "off")]
        if user.service_class is not None:
            headers.append(("x-headrace-class", user.service_class.value))
        if key:
            headers.append(("authorization", f"Bearer {key}"))
        self._headers = tuple(headers)

    def converse(self) -> Conversation:
        """A conversation that has not begun."""
        self._sessions += 1
        return Conversation(f"{self._user.name}-{self._sessions}", [])

    def ask(self, conversation: Conversation | None = None) -> Question:
        """The next request; with a conversation, its next turn, which is added to it."""
        user = self._user
        prompt, output = user.prompt.draw(self._random), user.output.draw(self._random)
        turn = {"role": "user", "content": self._prompt(prompt)}
        headers = self._headers
        turns, tokens = [turn], prompt
        if conversation is not None:
            conversation.turns.append(turn)
            conversation.tokens += prompt
            headers += (("x-session-id", conversation.name),)
            turns, tokens = conversation.turns, conversation.tokens
        fields: dict[str, object] = {
            "model": self._model,
            "messages": [*self._system, *turns],
            "max_tokens": output,
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": user.name,
        }
        if self._ignore_eos:
            fields["ignore_eos"] = True
        return Question(headers, msgspec.json.encode(fields), tokens + user.shared, output)

    def answered(self, conversation: Conversation, text: str, tokens: int) -> Conversation:
        """Remember an answer of so many tokens; a conversation that has grown too long is followed by a new one."""
        conversation.turns.append({"role": "assistant", "content": text or "ok"})
        conversation.tokens += tokens
        return conversation if conversation.tokens < (self._user.session or 0) else self.converse()

    def _prompt(self, tokens: int) -> str:
        self._number += 1
        opening = _OPENING.format(number=self._number, name=self._user.name)
        room = tokens - len(opening.split()) - len(_ORDER.split())
        return f"{opening} {self._words(room)} {_ORDER}" if room > 0 else f"{opening} {self._words(max(1, tokens - 4))}"

    def _words(self, number: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=max(1, number)))
