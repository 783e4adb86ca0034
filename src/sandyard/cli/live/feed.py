"""Receive events in a separate thread, so that the caller can do other work meanwhile, and the loop of commands that follow something.

Events only tell that something changed: the caller fetches the current state from the server. So nothing is missed or reported
twice when connections drop: after each new connection, `again` means that anything may have changed.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from sandyard.cli.errors import ApiError, CommandError, NoAnswerError
from sandyard.cli.live.asks import Answering
from sandyard.cli.live.screen import Screen
from sandyard.cli.sse import follow

if TYPE_CHECKING:
    from sandyard.cli.client import Client


GIVE_UP_SECONDS = 600.0
"""How long the server may be unreachable."""
BREATH_SECONDS = 0.15
"""Events within this time of the first one are handled together."""
T = TypeVar("T")
TICK_SECONDS, TYPING_SECONDS = 0.25, 0.1
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


@dataclass(slots=True)
class FeedUpdate:
    """Received events. `again`: there is a new connection, and earlier state may be outdated. `lost`: why there is no connection now."""

    again: bool = False
    lost: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.again or bool(self.events)

    def has(self, *nouns: str) -> bool:
        """Return whether there is an event for one of these nouns: `task`, `ask` …"""
        return any(str(event.get("kind")).startswith(tuple(f"{noun}." for noun in nouns)) for event in self.events)

    def of(self, session_id: str) -> FeedUpdate:
        return FeedUpdate(
            self.again, self.lost, [event for event in self.events if event.get("sessionId") == session_id]
        )


class Feed:
    """A feed of events. Use it as a context manager. `params` are the API's filters."""

    def __init__(self, client: Client, params: Mapping[str, object]) -> None:
        self._client = client
        self._params = params
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._left = False

    def __enter__(self) -> Feed:
        threading.Thread(target=self._run, name="feed", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True

    def wait(self, seconds: float) -> FeedUpdate:
        """Return what was received, after at most that many seconds. Raises the error that ended the feed: an API error, or a server that
        was
        unreachable for too long."""
        news = FeedUpdate()
        for item in self._taken(seconds):
            if isinstance(item, Exception):
                raise item
            if isinstance(item, str):
                news.lost = item
            elif item is True:
                news.again, news.lost = True, None
            elif isinstance(item, dict):
                news.events.append(item)
        return news

    def _taken(self, seconds: float) -> Iterator[object]:
        with contextlib.suppress(queue.Empty):
            yield self._queue.get(timeout=seconds)
            end = time.monotonic() + BREATH_SECONDS
            while (left := end - time.monotonic()) > 0:
                yield self._queue.get(timeout=left)

    def _run(self) -> None:
        try:
            seen = follow(
                self._client,
                "/events",
                self._params,
                give_up=GIVE_UP_SECONDS,
                on_open=self._opened,
                on_drop=self._queue.put,
            )
            for message in seen:
                if self._left:
                    return
                event = json.loads(message.data)
                self._queue.put(event if "kind" in event else True)  # other messages mean that events were deleted
        except Exception as error:  # raised in `wait`
            self._queue.put(error)

    def _opened(self) -> bool:
        self._queue.put(True)
        return self._left


def follow_until(
    client: Client,
    whose: Mapping[str, str],
    screen: Screen,
    answering: Answering,
    look: Callable[[FeedUpdate], T | None],
) -> T:
    """Call `look` until it returns a result, and return that. `look` gets all events since its last success. If the server becomes
    unreachable during a call, `look` is called again later and must tolerate that. Ctrl-C raises KeyboardInterrupt."""
    owed = FeedUpdate()
    with Feed(client, whose) as feed:
        while True:
            news = feed.wait(TYPING_SECONDS if answering.open else TICK_SECONDS)
            owed = FeedUpdate(owed.again or news.again, None, owed.events + news.events)
            if news.lost:
                screen.status(f"the server is not responding: {news.lost}")
            elif owed:
                try:
                    found = look(owed)
                    if owed.again or owed.has("ask", "turn"):
                        answering.look()
                except CommandError as error:
                    if not _may_pass(error):
                        raise
                    owed.again = True
                else:
                    if found is not None:
                        return found
                    owed = FeedUpdate()
            answering.typed()
            screen.tick()


def _may_pass(error: CommandError) -> bool:
    """Return whether the error may be caused by a server restart."""
    return isinstance(error, NoAnswerError) or (isinstance(error, ApiError) and error.is_transient)
