"""Show a session's transcript while it grows: lines for people, or each message as a line of JSON for programs. Each line is shown once,
however often the server is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandyard.cli.connection import quote_segment
from sandyard.cli.errors import ApiError
from sandyard.cli.live import message_lines
from sandyard.cli.live.feed import FeedUpdate
from sandyard.cli.live.message_lines import Line
from sandyard.cli.live.screen import Screen
from sandyard.cli.output import print_json

if TYPE_CHECKING:
    from sandyard.cli.client import Client


FIRST_PAGE, FULL_PAGE = 5, 100
TURN_END_KINDS = ("turn.completed", "turn.cancelled", "turn.failed", "turn.over_budget")
ShowLine = Callable[[Line], None]
ShowMessage = Callable[[Any], None]


@dataclass(slots=True)
class _ShownMessage:
    """The part of a message that was already shown: a number of characters of its text, or entries of its plan."""

    message: Any
    characters: int = 0
    entries: dict[str, str] = field(default_factory=dict)
    settled: bool = False


class Transcript:
    """Calls `show_line` with each complete line and `show_message` with each message that will not change again.

    `start`: the id of the first message to show. `after`: the id of the last message that is already known.
    """

    def __init__(
        self,
        client: Client,
        session_id: str,
        show_line: ShowLine,
        show_message: ShowMessage = lambda message: None,
        *,
        start: str = "",
        after: str = "",
    ) -> None:
        self._client = client
        self._path = f"/sessions/{quote_segment(session_id)}/messages"
        self._show_line = show_line
        self._show_message = show_message
        self._messages: dict[str, _ShownMessage] = {}
        self._newest = f"{after}~" if after else start  # sorts after it and before all later messages
        self._has_synced = False
        self._has_output = False

    @property
    def activity(self) -> str | None:
        """The agent's current activity, in a few words."""
        for shown in reversed(self._messages.values()):
            part = _get_part(shown.message)
            if shown.settled:
                return None
            if part.get("type") == "tool_call":
                return message_lines.get_tool_name(part)
            if part.get("type") in {"text", "thought"}:
                text = str(part.get("text") or "")[shown.characters :].strip()
                return f"… {text[-60:]}" if text else "thinking" if part["type"] == "thought" else "writing"
        return None

    def handle_events(self, update: FeedUpdate, *, has_ended: bool) -> None:
        """Show what is new, given the session's events. `has_ended` means that no more messages are being written."""
        has_ended = has_ended or any(event["kind"] in TURN_END_KINDS for event in update.events)
        thorough = update.reconnected or has_ended or not self._has_synced
        for event in update.events:
            if event["kind"] == "message.updated":
                data = event.get("data") or {}
                thorough = not self._apply_update(str(data.get("messageId")), data.get("part")) or thorough
        if thorough or any(event["kind"] in {"message.created", "message.delta"} for event in update.events):
            self.sync(thorough=thorough, has_ended=has_ended)

    def sync(self, *, thorough: bool = True, has_ended: bool = False) -> None:
        """Show what is new. `thorough` also checks whether older messages have changed. `has_ended` means that no more messages are being
        written."""
        found = self._fetch(thorough)
        self._has_synced = True
        for message in found:
            shown = self._messages.setdefault(message["id"], _ShownMessage(message))
            if not shown.settled:
                shown.message = message
        self._newest = max(self._messages, default=self._newest)
        self._show_new(has_ended)

    def _apply_update(self, message_id: str, part: Any) -> bool:
        """Apply an update of a message's part. Return False if the message is unknown or the update is incomplete, so it must be fetched."""
        shown = self._messages.get(message_id)
        if shown is None or not isinstance(part, dict) or part.get("cut"):
            return shown is not None and shown.settled
        if not shown.settled:
            shown.message = {**shown.message, "parts": [{**_get_part(shown.message), **part}]}
            self._show_new(has_ended=False)
        return True

    def _fetch(self, thorough: bool) -> Sequence[Any]:
        """Return messages, oldest first. Messages before the first one that may still change are not fetched again."""
        first_id = self._find_first_unsettled() if thorough else self._newest
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = self._client.get(self._path, limit=FULL_PAGE if thorough or found else FIRST_PAGE, cursor=cursor)
            found += page["items"]
            cursor = page.get("nextCursor")
            if cursor is None or not page["items"] or (first_id and page["items"][-1]["id"] <= first_id):
                return [message for message in reversed(found) if message["id"] >= first_id]

    def _find_first_unsettled(self) -> str:
        return next(
            (message_id for message_id, shown in sorted(self._messages.items()) if not shown.settled), self._newest
        )

    def _show_new(self, has_ended: bool) -> None:
        for message_id in sorted(self._messages):
            shown = self._messages[message_id]
            if not shown.settled:
                for line in self._format_lines(shown, last=has_ended or message_id < self._newest, has_ended=has_ended):
                    self._show_line(line)
                    self._has_output = True
                if shown.settled:
                    self._show_message(shown.message)
                    shown.message = {"id": message_id}  # free the memory of long messages

    def _format_lines(self, shown: _ShownMessage, *, last: bool, has_ended: bool) -> Iterator[Line]:
        message = shown.message
        part = _get_part(message)
        kind = part.get("type")
        if message["role"] == "user":
            shown.settled = True
            text = "\n".join(str(part.get("text") or "") for part in message["parts"] if part.get("type") == "text")
            if self._has_output:
                yield Line("")
            yield from message_lines.format_prompt(text)
        elif kind in {"text", "thought"}:
            shown.settled = last
            format_line = message_lines.format_text if kind == "text" else message_lines.format_thought
            yield from (format_line(line) for line in _take_new_lines(shown, str(part.get("text") or ""), last))
        elif kind == "tool_call":
            shown.settled = has_ended or part.get("status") in message_lines.FINISHED
            if shown.settled:
                yield from message_lines.format_tool_call(part)
        elif kind == "plan":
            shown.settled = has_ended
            yield from _take_changed_plan_entries(shown, part)
        else:
            shown.settled = True
            for notice in message["parts"]:
                if notice.get("type") == "image":
                    yield message_lines.format_image(notice)
                else:
                    yield from message_lines.format_notice(notice)


def _take_new_lines(shown: _ShownMessage, text: str, last: bool) -> Iterator[str]:
    """Yield complete lines that were not shown yet. At the end, also the last line without a line break."""
    end = len(text) if last else text.rfind("\n") + 1
    if end > shown.characters:
        new_text = text[shown.characters : end]
        shown.characters = end
        yield from new_text.removesuffix("\n").split("\n")


def _take_changed_plan_entries(shown: _ShownMessage, part: Any) -> Iterator[Line]:
    """Yield entries that are new or changed."""
    for entry in part.get("entries") or []:
        content, status = str(entry.get("content")), str(entry.get("status"))
        if shown.entries.get(content) != status:
            shown.entries[content] = status
            yield message_lines.format_plan_entry(entry)


def _get_part(message: Any) -> Any:
    found = message.get("parts") or [{}]
    return found[0] if isinstance(found[0], dict) else {}


def open_transcript(
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

    def show_line(line: Line) -> None:
        if not as_json:
            screen.print_line(f"{prefix}{line.text}", **line.style)

    def show_message(message: Any) -> None:
        if as_json:
            print_json(message, compact=True)

    return Transcript(client, session_id, show_line, show_message, start=start, after=after)


def print_transcript(client: Client, session_id: str | None, screen: Screen, *, as_json: bool) -> None:
    """Show the complete transcript so far. None: the session does not exist."""
    try:
        if session_id is None:
            screen.print_note("No messages yet.")
            return
        open_transcript(client, session_id, screen, as_json=as_json).sync(has_ended=True)
    except ApiError as error:
        if error.http_status != 404:
            raise
        screen.print_note("No messages yet.")
