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


FEW, MANY = 5, 100
TURN_OVER = ("turn.completed", "turn.cancelled", "turn.failed", "turn.over_budget")
Tell = Callable[[Line], None]
Whole = Callable[[Any], None]


@dataclass(slots=True)
class _Shown:
    """How much of a message was shown: a number of characters of its text, or entries of its plan."""

    message: Any
    characters: int = 0
    entries: dict[str, str] = field(default_factory=dict)
    settled: bool = False


class Transcript:
    """Calls `tell` with each complete line and `whole` with each message that will not change any more. `start` is the id of the first
    message to show; `after` is the id of the last message that is already known."""

    def __init__(
        self,
        client: Client,
        session_id: str,
        tell: Tell,
        whole: Whole = lambda message: None,
        *,
        start: str = "",
        after: str = "",
    ) -> None:
        self._client = client
        self._path = f"/sessions/{quote_segment(session_id)}/messages"
        self._tell = tell
        self._whole = whole
        self._told: dict[str, _Shown] = {}
        self._newest = f"{after}~" if after else start  # sorts after it and before all later messages
        self._looked = False
        self._begun = False

    @property
    def doing(self) -> str | None:
        """What the agent is doing right now, in a few words."""
        for told in reversed(self._told.values()):
            part = _get_part(told.message)
            if told.settled:
                return None
            if part.get("type") == "tool_call":
                return message_lines.get_tool_name(part)
            if part.get("type") in {"text", "thought"}:
                words = str(part.get("text") or "")[told.characters :].strip()
                return f"… {words[-60:]}" if words else "thinking" if part["type"] == "thought" else "writing"
        return None

    def hear(self, news: FeedUpdate, *, over: bool) -> None:
        """Show what is new, given the session's events. `over` means that no more messages are being written."""
        over = over or any(event["kind"] in TURN_OVER for event in news.events)
        thorough = news.again or over or not self._looked
        for event in news.events:
            if event["kind"] == "message.updated":
                data = event.get("data") or {}
                thorough = not self._updated(str(data.get("messageId")), data.get("part")) or thorough
        if thorough or any(event["kind"] in {"message.created", "message.delta"} for event in news.events):
            self.sync(thorough=thorough, over=over)

    def sync(self, *, thorough: bool = True, over: bool = False) -> None:
        """Show what is new. `thorough` also checks whether older messages have changed. `over` means that no more messages are being
        written."""
        found = self._read(thorough)
        self._looked = True
        for message in found:
            told = self._told.setdefault(message["id"], _Shown(message))
            if not told.settled:
                told.message = message
        self._newest = max(self._told, default=self._newest)
        self._tell_all(over)

    def _updated(self, message_id: str, part: Any) -> bool:
        """Apply an update of a message's part. Return False if the message is unknown or the update is incomplete, so it must be fetched."""
        told = self._told.get(message_id)
        if told is None or not isinstance(part, dict) or part.get("cut"):
            return told is not None and told.settled
        if not told.settled:
            told.message = {**told.message, "parts": [{**_get_part(told.message), **part}]}
            self._tell_all(over=False)
        return True

    def _read(self, thorough: bool) -> Sequence[Any]:
        """Return messages, oldest first. Messages before the first one that may still change are not fetched again."""
        floor = self._floor() if thorough else self._newest
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = self._client.get(self._path, limit=MANY if thorough or found else FEW, cursor=cursor)
            found += page["items"]
            cursor = page.get("nextCursor")
            if cursor is None or not page["items"] or (floor and page["items"][-1]["id"] <= floor):
                return [message for message in reversed(found) if message["id"] >= floor]

    def _floor(self) -> str:
        return next((number for number, told in sorted(self._told.items()) if not told.settled), self._newest)

    def _tell_all(self, over: bool) -> None:
        for number in sorted(self._told):
            told = self._told[number]
            if not told.settled:
                for line in self._lines(told, last=over or number < self._newest, over=over):
                    self._tell(line)
                    self._begun = True
                if told.settled:
                    self._whole(told.message)
                    told.message = {"id": number}  # free the memory of long messages

    def _lines(self, told: _Shown, *, last: bool, over: bool) -> Iterator[Line]:
        message = told.message
        part = _get_part(message)
        kind = part.get("type")
        if message["role"] == "user":
            told.settled = True
            text = "\n".join(str(one.get("text") or "") for one in message["parts"] if one.get("type") == "text")
            if self._begun:
                yield Line("")
            yield from message_lines.format_prompt(text)
        elif kind in {"text", "thought"}:
            told.settled = last
            make = message_lines.format_text if kind == "text" else message_lines.format_thought
            yield from (make(line) for line in _new_lines(told, str(part.get("text") or ""), last))
        elif kind == "tool_call":
            told.settled = over or part.get("status") in message_lines.OVER
            if told.settled:
                yield from message_lines.format_tool_call(part)
        elif kind == "plan":
            told.settled = over
            yield from _changed_plan_entries(told, part)
        else:
            told.settled = True
            for one in message["parts"]:
                if one.get("type") == "image":
                    yield message_lines.format_image(one)
                else:
                    yield from message_lines.format_notice(one)


def _new_lines(told: _Shown, text: str, last: bool) -> Iterator[str]:
    """Yield complete lines that were not shown yet. At the end, also the last line without a line break."""
    end = len(text) if last else text.rfind("\n") + 1
    if end > told.characters:
        fresh = text[told.characters : end]
        told.characters = end
        yield from fresh.removesuffix("\n").split("\n")


def _changed_plan_entries(told: _Shown, part: Any) -> Iterator[Line]:
    """Yield entries that are new or changed."""
    for entry in part.get("entries") or []:
        content, status = str(entry.get("content")), str(entry.get("status"))
        if told.entries.get(content) != status:
            told.entries[content] = status
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

    def line(one: Line) -> None:
        if not as_json:
            screen.line(f"{prefix}{one.text}", **one.style)

    def whole(message: Any) -> None:
        if as_json:
            print_json(message, compact=True)

    return Transcript(client, session_id, line, whole, start=start, after=after)


def print_transcript(client: Client, session_id: str, screen: Screen, *, as_json: bool) -> None:
    """Show the complete transcript so far."""
    try:
        open_transcript(client, session_id, screen, as_json=as_json).sync(over=True)
    except ApiError as error:
        if error.http_status != 404:
            raise
        screen.note("No messages yet.")
