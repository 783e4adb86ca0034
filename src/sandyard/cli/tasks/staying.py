"""The loop of commands that follow something: wait for events, refresh, read input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from sandyard.cli.asks import Answering
from sandyard.cli.errors import ApiError, CommandError, NoAnswerError
from sandyard.cli.tasks.feed import Feed, News
from sandyard.cli.tasks.screen import Screen

if TYPE_CHECKING:
    from sandyard.cli.client import Client

T = TypeVar("T")
TICK_SECONDS, TYPING_SECONDS = 0.25, 0.1
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def stay(
    client: Client,
    whose: Mapping[str, str],
    screen: Screen,
    answering: Answering,
    look: Callable[[News], T | None],
) -> T:
    """Call `look` until it returns a result, and return that. `look` gets all events since its last success. If the server becomes
    unreachable during a call, `look` is called again later and must tolerate that. Ctrl-C raises KeyboardInterrupt."""
    owed = News()
    with Feed(client, whose) as feed:
        while True:
            news = feed.wait(TYPING_SECONDS if answering.open else TICK_SECONDS)
            owed = News(owed.again or news.again, None, owed.events + news.events)
            if news.lost:
                screen.status(f"the server is not responding: {news.lost}")
            elif owed:
                try:
                    found = look(owed)
                    if owed.again or owed.has("ask", "turn"):
                        answering.look()
                except CommandError as error:
                    if not _passing(error):
                        raise
                    owed.again = True
                else:
                    if found is not None:
                        return found
                    owed = News()
            answering.typed()
            screen.tick()


def _passing(error: CommandError) -> bool:
    """Return whether the error may be caused by a server restart."""
    return isinstance(error, NoAnswerError) or (isinstance(error, ApiError) and error.passing)
