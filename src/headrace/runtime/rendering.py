"""How a worker's text becomes frames: plain text for the library, OpenAI's form for the server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from headrace.model import AnswerForm, Usage
from headrace.wire.frames import Frame
from headrace.wire.json_text import JsonObject, JsonValue, decode
from headrace.wire.openai import OpenAICall, TextAnswer

_WORD = re.compile(r"\s*\S+\s*?(?=\s|$)|\s+")
_MOST_PIECES = 64


class Rendering(Protocol):
    """One answer on its way from text to frames."""

    def piece(self, text: str) -> Sequence[Frame]:
        """The frames of the next piece; the first call also brings what stands before it."""
        ...

    def closing(self, usage: Usage) -> Sequence[Frame]:
        """The frames after the last piece, if there are any."""
        ...


class PlainText:
    """Each piece is one frame of UTF-8."""

    __slots__ = ()

    def piece(self, text: str) -> Sequence[Frame]:
        """The text itself."""
        return (Frame(text.encode("utf-8", "replace")),)

    def closing(self, usage: Usage) -> Sequence[Frame]:
        """Nothing: plain text does not tell."""
        del usage
        return ()


class OpenAIText:
    """Chunks of a stream, or one body at the end."""

    __slots__ = ("_answer", "_begun", "_kept")

    def __init__(self, call: OpenAICall, form: AnswerForm, answer_id: str, created: int) -> None:
        prefix = "chatcmpl" if call.endpoint == "chat" else "cmpl"
        self._answer = TextAnswer(call, f"{prefix}-{answer_id}", created)
        self._kept: list[str] | None = [] if form is AnswerForm.WHOLE else None
        self._begun = False

    def piece(self, text: str) -> Sequence[Frame]:
        """One chunk, after the opening one; nothing yet of a whole body."""
        if self._kept is not None:
            self._kept.append(text)
            return ()
        return (*self._open(), Frame(self._answer.piece(text)))

    def closing(self, usage: Usage) -> Sequence[Frame]:
        """The end of the stream, or the body."""
        if self._kept is not None:
            return (Frame(self._answer.whole("".join(self._kept), "stop", usage)),)
        return (*self._open(), *self._answer.closing("stop", usage))

    def _open(self) -> Sequence[Frame]:
        if self._begun:
            return ()
        self._begun = True
        opening = self._answer.opening()
        return (Frame(opening),) if opening else ()


def words(text: str) -> Sequence[str]:
    """`text` cut between words, into 64 pieces at most: how one that is there at once is streamed."""
    found = _WORD.findall(text)
    step = max(1, -(-len(found) // _MOST_PIECES))
    return ["".join(found[at : at + step]) for at in range(0, len(found), step)]


def question(call: OpenAICall) -> str:
    """What a worker of plain text is asked: the last message of the user, or the prompt."""
    fields = decode(call.body)
    assert isinstance(fields, dict)
    if call.endpoint != "chat":
        return _text(fields.get("prompt"))
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return ""
    asked = [message for message in messages if isinstance(message, dict)]
    users = [message for message in asked if message.get("role") == "user"]
    return _text((users or asked)[-1].get("content")) if asked else ""


def _text(content: JsonValue) -> str:
    """Text as clients write it: a string, or a list of parts of which only the texts count."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(_part(part) for part in content)


def _part(part: JsonValue) -> str:
    if isinstance(part, str):
        return part
    return _text_field(part) if isinstance(part, dict) else ""


def _text_field(part: JsonObject) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else ""
