"""`headrace chat`: talk to a gateway, or to the built-in echo engine in this process."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import Refused
from headrace.cli.replies import DEFAULT_URL, Url

if TYPE_CHECKING:
    from headrace.cli.talk import Message

Answer = Callable[["list[Message]"], AsyncIterator[str]]
"""From the conversation so far to the pieces of its next turn."""

LONGEST_MEMORY = 100
"""Turns of a conversation that are sent along; older ones are forgotten."""

_COMMANDS = "/clear forgets the conversation, /quit or Ctrl-D ends it."


def chat(
    message: Annotated[str | None, typer.Argument(help="One question; without it, a conversation begins.")] = None,
    *,
    url: Url = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Model to ask; else the first one the gateway lists.")] = None,
    user: Annotated[str | None, typer.Option(help="Whose share this is; else your login name.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Talk to the built-in echo engine, without a gateway.")] = False,
) -> None:
    """Talk to a model; the answer streams, and your place in the queue is shown while you wait."""
    answer = _echo() if echo else gateway_answer(url, model, user or login())
    begin: list[Message] = [{"role": "system", "content": system}] if system else []
    if message is not None:
        asyncio.run(say(answer, [*begin, {"role": "user", "content": message}]))
    else:
        converse(answer, begin)


def converse(answer: Answer, begin: list[Message]) -> None:
    """Questions and answers until the input ends or says /quit. Ctrl-C stops an answer, not the conversation."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing and history
    print(f"Type a message. {_COMMANDS}")
    turns = list(begin)
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text == "/quit":
            return
        if text == "/clear":
            turns = list(begin)
        elif text.startswith("/") and text[1:].isalpha():
            print(_COMMANDS)
        elif text:
            turns.append({"role": "user", "content": text})
            reply = _turn(answer, turns)
            turns = [*turns, {"role": "assistant", "content": reply}] if reply else turns[:-1]
            turns = begin + turns[len(begin) :][-LONGEST_MEMORY:]


def _turn(answer: Answer, turns: list[Message]) -> str:
    try:
        return asyncio.run(say(answer, turns))
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(" (stopped)")
    return ""


async def say(answer: Answer, turns: list[Message]) -> str:
    """Print the answer as it comes; returns it whole."""
    pieces: list[str] = []
    try:
        async for piece in answer(turns):
            if not pieces:
                _clear_notice()
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
    finally:
        _clear_notice() if not pieces else print()
    return "".join(pieces)


def gateway_answer(url: str, model: str | None, user: str) -> Answer:
    """Answers by the gateway at `url`, whose first listed model is asked if none is named."""
    from headrace.cli.talk import Gateway

    gateway = Gateway(url, user, waiting=_notice)
    chosen = model

    async def answer(turns: list[Message]) -> AsyncIterator[str]:
        nonlocal chosen
        if chosen is None:
            chosen = next(iter(await gateway.models()), None)
            if chosen is None:
                raise Refused("the gateway lists no model by name; say which with --model")
        async for piece in gateway.answer(chosen, turns):
            yield piece

    return answer


def _echo() -> Answer:
    from headrace import EchoWorker, Pipeline, PromptRequest

    async def answer(turns: list[Message]) -> AsyncIterator[str]:
        async with Pipeline(EchoWorker()) as pipe:
            request = PromptRequest(session="chat", request_id=f"chat-{len(turns)}", input=turns[-1]["content"])
            async for piece in pipe.stream(request):
                yield piece

    return answer


def _notice(position: int) -> None:
    """Say the place in the queue on a line that the answer will replace."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[Kwaiting: number {position} in the queue")
    else:
        sys.stderr.write(f"waiting: number {position} in the queue\n")
    sys.stderr.flush()


def _clear_notice() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def login() -> str:
    """The name this terminal's user is known by."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "anonymous"
