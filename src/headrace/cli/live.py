"""Something that is played while it is watched: live on a terminal, at its end on paper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

WIDEST = 110
"""Columns beyond which lines are hard to follow with the eye."""

Now = TypeVar("Now")
Story = TypeVar("Story")


def watched(
    play: Callable[[Callable[[Now], None] | None], Coroutine[object, object, Story]],
    opening: RenderableType,
    progress: Callable[[Now], RenderableType],
    whole: Callable[[Story], RenderableType],
    ending: Callable[[Story], RenderableType],
) -> Story:
    """Play it, and show it on standard output. Returns what came of it.

    Args:
        play: plays it; tells what it is given, if anything, how it stands.
        opening: what is about to be seen.
        progress: how it stands.
        whole: all that was to be seen, when it is over.
        ending: what it means.
    """
    terminal = Console(highlight=False)
    width = min(WIDEST, terminal.width) if terminal.is_terminal else WIDEST
    console = Console(highlight=False, width=width)
    console.print(opening, "", sep="\n")
    if terminal.is_terminal:
        with Live(console=console, auto_refresh=False) as live:

            def show(now: Now) -> None:
                live.update(progress(now), refresh=True)

            story = asyncio.run(play(show))
            live.update(whole(story), refresh=True)
    else:
        story = asyncio.run(play(None))
        console.print(whole(story))
    console.print("", ending(story), sep="\n")
    return story
