"""Show a transcript: lines for people, or each message as a line of JSON for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandyard.cli.errors import ApiError
from sandyard.cli.output import print_json
from sandyard.cli.tasks.parts import Line
from sandyard.cli.tasks.screen import Screen
from sandyard.cli.tasks.transcript import Transcript

if TYPE_CHECKING:
    from sandyard.cli.client import Client


def telling(
    client: Client,
    session_id: str,
    screen: Screen,
    *,
    as_json: bool,
    prefix: str = "",
    start: str = "",
    after: str = "",
) -> Transcript:
    """Return a transcript that prints to the screen. `prefix` is put before each line. For `start` and `after`, see Transcript."""

    def line(one: Line) -> None:
        if not as_json:
            screen.line(f"{prefix}{one.text}", **one.style)

    def whole(message: Any) -> None:
        if as_json:
            print_json(message, compact=True)

    return Transcript(client, session_id, line, whole, start=start, after=after)


def tell(client: Client, session_id: str, screen: Screen, *, as_json: bool) -> None:
    """Show the complete transcript so far."""
    try:
        telling(client, session_id, screen, as_json=as_json).sync(over=True)
    except ApiError as error:
        if error.http_status != 404:
            raise
        screen.note("No messages yet.")
