"""Server-sent events: parse them and follow them across dropped connections without losing or repeating any."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandyard.cli.errors import ApiError, NoResponseError

if TYPE_CHECKING:
    from sandyard.cli.client import Client

SILENCE_SECONDS = 50.0
"""The server sends something at least every 15 s. After three times that, the connection is considered dead."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 10.0


@dataclass(frozen=True, slots=True)
class Event:
    id: str | None
    kind: str
    data: str


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of a text/event-stream. An event cut off by the end of the stream is dropped."""
    kind, event_id = "message", None
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield Event(event_id, kind, "\n".join(data))
            kind, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            kind = value
        elif field == "id" and "\0" not in value:
            event_id = value


def follow(
    client: Client,
    path: str,
    params: Mapping[str, object],
    *,
    after: str | None = None,
    give_up: float | None = None,
    on_open: Callable[[], bool] = lambda: False,
    on_drop: Callable[[str], None] = lambda reason: None,
) -> Iterator[Event]:
    """Yield events for as long as the caller iterates.

    `params` are read at each connection, so the caller may update them.

    A dropped connection is reopened from the last event's id, with growing pauses; `on_drop` is called with the reason. The first
    connection must succeed. `on_open` is called each time the stream is open, so that no event is missed from then on; returning True ends
    the iteration. After `give_up` seconds without a server, NoResponseError is raised. Errors returned by the server (ApiError) are always
    raised.
    """
    pause, connected_before, lost_at = FIRST_PAUSE_SECONDS, False, 0.0
    while True:
        try:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after is not None else {})
            with client.stream(path, params=params, headers=headers, silence_seconds=SILENCE_SECONDS) as response:
                if on_open():
                    return
                pause, connected_before, lost_at = FIRST_PAUSE_SECONDS, True, 0.0
                for event in parse(split_lines(response.iter_text())):
                    after = event.id if event.id is not None else after
                    yield event
            reason = "The stream ended."
        except NoResponseError as error:
            if not connected_before:
                raise
            reason = error.message
        except ApiError as error:
            if not connected_before or not error.is_transient:
                raise
            reason = error.message
        now = time.monotonic()
        lost_at = lost_at or now
        if give_up is not None and now - lost_at > give_up:
            raise NoResponseError(reason)
        on_drop(reason)
        time.sleep(pause)
        pause = min(MAX_PAUSE_SECONDS, pause * 2)


def split_lines(chunks: Iterable[str]) -> Iterator[str]:
    """Yield lines as defined by the format: ended by LF, CR LF or CR, and by no other Unicode line separator."""
    rest = ""
    for chunk in chunks:
        rest += chunk
        ends_with_cr = rest.endswith("\r")  # its LF may follow
        text = rest[:-1] if ends_with_cr else rest
        *complete, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        yield from complete
        rest += "\r" if ends_with_cr else ""
