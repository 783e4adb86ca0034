"""The loop of every command that stays: word comes, a look is taken, and somebody may type an answer."""

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
"""The exit code of who leaves with Ctrl-C."""


def stay(
    client: Client,
    whose: Mapping[str, str],
    screen: Screen,
    answering: Answering,
    look: Callable[[News], T | None],
) -> T:
    """What `look` gives at last. It is called with all that has happened since it last came back; when the server is away in the
    middle of it, it is called again later, and must not mind. Ctrl-C is the caller's to handle."""
    owed = News()
    with Feed(client, whose) as feed:
        while True:
            news = feed.wait(TYPING_SECONDS if answering.open else TICK_SECONDS)
            owed = News(owed.again or news.again, None, owed.events + news.events)
            if news.lost:
                screen.status(f"the server is away: {news.lost}")
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
    """Whether a server that is being started again explains it."""
    return isinstance(error, NoAnswerError) or (isinstance(error, ApiError) and error.passing)
