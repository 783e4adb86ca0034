"""Server-sent events: parse them and follow them across dropped connections without losing or repeating any."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandyard.cli.errors import ApiError, NoAnswerError

if TYPE_CHECKING:
    from sandyard.cli.client import Client

SILENCE_SECONDS = 50.0
"""The server sends something at least every 15 s. After three times that, the connection is considered dead."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0


@dataclass(frozen=True, slots=True)
class Event:
    id: str | None
    kind: str
    data: str


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of a text/event-stream. An event cut off by the end of the stream is dropped."""
    kind, number = "message", None
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield Event(number, kind, "\n".join(data))
            kind, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            kind = value
        elif field == "id" and "\0" not in value:
            number = value


def follow(
    client: Client,
    path: str,
    params: Mapping[str, object],
    *,
    after: str | None = None,
    give_up: float | None = None,
    opened: Callable[[], bool] = lambda: False,
    dropped: Callable[[str], None] = lambda reason: None,
) -> Iterator[Event]:
    """Yield events for as long as the caller iterates.

    `params` are read at each connection, so the caller may update them.

    A dropped connection is reopened from the last event's id, with growing pauses; `dropped` is called with the reason. The first
    connection must succeed. `opened` is called at each connection, when no event can be missed any more; True ends the iteration. After
    `give_up` seconds without a server, NoAnswerError is raised. Errors returned by the server (ApiError) are always raised.
    """
    pause, reached, lost_at = FIRST_PAUSE, False, 0.0
    while True:
        try:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after is not None else {})
            with client.stream(path, params=params, headers=headers, silence=SILENCE_SECONDS) as answer:
                if opened():
                    return
                pause, reached, lost_at = FIRST_PAUSE, True, 0.0
                for event in parse(_lines(answer.iter_text())):
                    after = event.id if event.id is not None else after
                    yield event
            reason = "The stream ended."
        except NoAnswerError as error:
            if not reached:
                raise
            reason = error.message
        except ApiError as error:
            if not reached or not error.passing:
                raise
            reason = error.message
        now = time.monotonic()
        lost_at = lost_at or now
        if give_up is not None and now - lost_at > give_up:
            raise NoAnswerError(reason)
        dropped(reason)
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 2)


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Yield lines as defined by the format: ended by LF, CR LF or CR, and by no other Unicode line separator."""
    rest = ""
    for chunk in chunks:
        rest += chunk
        held = rest.endswith("\r")  # its LF may follow
        text = rest[:-1] if held else rest
        *whole, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        yield from whole
        rest += "\r" if held else ""
