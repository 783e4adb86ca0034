"""Tool calls of the demo agent, as the client sees them."""

# This code runs on old versions of Python and uses plain os calls.
# ruff: noqa: UP037, PTH118

import os
from typing import Any

from .conversation import Conversation


class Call:
    """A tool call, as the client sees it."""

    def __init__(
        self, conversation: Conversation, title: str, kind: str, raw: "dict[str, Any]", path: "str | None"
    ) -> None:
        self._conversation = conversation
        self._id = conversation.next_call()
        self.title = title[:500]
        self.kind = kind
        self.ended = False
        self._begun = {
            "toolCallId": self._id,
            "title": self.title,
            "kind": kind,
            "status": "pending",
            "rawInput": raw,
            "locations": [{"path": os.path.join(conversation.folder, path)}] if path else [],
        }
        conversation.update(dict(self._begun, sessionUpdate="tool_call"))

    def describe(self) -> "dict[str, Any]":
        """Return the call as it was announced."""
        return dict(self._begun)

    def begin(self) -> None:
        self._update({"status": "in_progress"}, kept=False)

    def progress(self, output: str) -> None:
        self._update({"status": "in_progress", "content": _text(output)}, kept=False)

    def end(
        self,
        status: str = "completed",
        *,
        text: str = "",
        content: "list[dict[str, Any]] | None" = None,
        raw: "dict[str, Any] | None" = None,
    ) -> None:
        self.ended = True
        changes: "dict[str, Any]" = {"status": status, "content": _text(text) if content is None else content}
        if raw is not None:
            changes["rawOutput"] = raw
        self._update(changes, kept=True)

    def _update(self, changes: "dict[str, Any]", *, kept: bool) -> None:
        update = dict(changes, sessionUpdate="tool_call_update", toolCallId=self._id)
        self._conversation.update(update, kept=kept)


def _text(text: str) -> "list[dict[str, Any]]":
    return [{"type": "content", "content": {"type": "text", "text": text}}] if text else []
