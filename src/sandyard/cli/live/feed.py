"""Receive events in a separate thread, so that the caller can do other work meanwhile, and the loop of commands that follow something.

An event only says that something changed: the caller fetches the current state from the server. So nothing is missed or reported
twice when connections drop: after each new connection, `reconnected` means that anything may have changed.
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

from sandyard.cli.errors import ApiError, CommandError, NoResponseError
from sandyard.cli.live.asks import AskPrompt
from sandyard.cli.live.screen import Screen
from sandyard.cli.sse import follow

if TYPE_CHECKING:
    from sandyard.cli.client import Client


GIVE_UP_SECONDS = 600.0
"""How long the server may be unreachable."""
BATCH_SECONDS = 0.15
"""Events within this time of the first one are handled together."""
T = TypeVar("T")
TICK_SECONDS, TYPING_SECONDS = 0.25, 0.1
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


@dataclass(slots=True)
class FeedUpdate:
    """Received events.

    `reconnected`: there is a new connection, and earlier state may be outdated. `lost`: why there is no connection now.
    """

    reconnected: bool = False
    lost: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.reconnected or bool(self.events)

    def has_event(self, *nouns: str) -> bool:
        """Return whether there is an event for one of these nouns: `task`, `ask` …"""
        return any(str(event.get("kind")).startswith(tuple(f"{noun}." for noun in nouns)) for event in self.events)

    def for_session(self, session_id: str) -> FeedUpdate:
        """Return the update with only the events of one session."""
        return FeedUpdate(
            self.reconnected, self.lost, [event for event in self.events if event.get("sessionId") == session_id]
        )


class Feed:
    """A feed of events. Use it as a context manager. `params` are the API's filters."""

    def __init__(self, client: Client, params: Mapping[str, object]) -> None:
        self._client = client
        self._params = params
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._is_closed = False

    def __enter__(self) -> Feed:
        threading.Thread(target=self._run, name="feed", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True

    def wait(self, seconds: float) -> FeedUpdate:
        """Return what was received, after at most that many seconds.

        Raises the error that ended the feed: an API error, or a server that was unreachable for too long.
        """
        update = FeedUpdate()
        for item in self._receive(seconds):
            if isinstance(item, Exception):
                raise item
            if isinstance(item, str):
                update.lost = item
            elif item is True:
                update.reconnected, update.lost = True, None
            elif isinstance(item, dict):
                update.events.append(item)
        return update

    def _receive(self, seconds: float) -> Iterator[object]:
        with contextlib.suppress(queue.Empty):
            yield self._queue.get(timeout=seconds)
            end = time.monotonic() + BATCH_SECONDS
            while (remaining := end - time.monotonic()) > 0:
                yield self._queue.get(timeout=remaining)

    def _run(self) -> None:
        try:
            messages = follow(
                self._client,
                "/events",
                self._params,
                give_up=GIVE_UP_SECONDS,
                on_open=self._on_open,
                on_drop=self._queue.put,
            )
            for message in messages:
                if self._is_closed:
                    return
                event = json.loads(message.data)
                self._queue.put(event if "kind" in event else True)  # other messages mean that events were deleted
        except Exception as error:  # raised in `wait`
            self._queue.put(error)

    def _on_open(self) -> bool:
        self._queue.put(True)
        return self._is_closed


def follow_until(
    client: Client,
    filters: Mapping[str, str],
    screen: Screen,
    ask_prompt: AskPrompt,
    refresh: Callable[[FeedUpdate], T | None],
) -> T:
    """Call `refresh` until it returns a result, and return that. `refresh` gets all events since its last success. If the server becomes
    unreachable during a call, `refresh` is called again later and must tolerate that. Ctrl-C raises KeyboardInterrupt."""
    pending = FeedUpdate()
    with Feed(client, filters) as feed:
        while True:
            update = feed.wait(TYPING_SECONDS if ask_prompt.is_open else TICK_SECONDS)
            pending = FeedUpdate(pending.reconnected or update.reconnected, None, pending.events + update.events)
            if update.lost:
                screen.set_status(f"the server is not responding: {update.lost}")
            if pending:  # even if the connection was lost again: the next one may be lost as quickly
                try:
                    found = refresh(pending)
                    if pending.reconnected or pending.has_event("ask", "turn"):
                        ask_prompt.refresh()
                except CommandError as error:
                    if not _is_temporary(error):
                        raise
                    pending.reconnected = True
                else:
                    if found is not None:
                        return found
                    pending = FeedUpdate()
            ask_prompt.read_input()
            screen.redraw()


def _is_temporary(error: CommandError) -> bool:
    """Return whether the error may be caused by a server restart."""
    return isinstance(error, NoResponseError) or (isinstance(error, ApiError) and error.is_transient)
