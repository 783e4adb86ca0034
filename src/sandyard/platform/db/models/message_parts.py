"""Types of the parts of messages: `Message.parts`, which the API shows as they are stored. `type` tells them apart."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class TextPart(TypedDict):
    """A text of a person, an agent or the platform."""

    type: Literal["text"]
    text: str
    source: NotRequired[str]
    """`agents.model.PLATFORM` if no person wrote it."""
    about: NotRequired[Literal["task", "failure", "resume"]]
    """`resume`: it asks the agent to continue after an interruption."""


class ThoughtPart(TypedDict):
    type: Literal["thought"]
    text: str


class ImagePart(TypedDict):
    """An image or a sound, of which only the size is kept."""

    type: Literal["image"]
    mimeType: str
    bytes: int


class PlanEntry(TypedDict):
    content: str
    priority: str
    status: str


class PlanPart(TypedDict):
    type: Literal["plan"]
    entries: list[PlanEntry]


class ToolCallLocation(TypedDict):
    path: str
    line: int | None


class ToolCallText(TypedDict):
    type: Literal["text"]
    text: str


class ToolCallDiff(TypedDict):
    type: Literal["diff"]
    path: str
    oldText: str | None
    newText: str


class ToolCallTerminal(TypedDict):
    type: Literal["terminal"]
    terminalId: str


ToolCallContent = ToolCallText | ToolCallDiff | ToolCallTerminal


class ToolCallFields(TypedDict, total=False):
    """The fields that an update of a tool call may change. A stored tool call has all of them."""

    title: str
    kind: str
    status: str
    locations: list[ToolCallLocation]
    content: list[ToolCallContent]
    input: Any
    output: Any


class ToolCallPart(ToolCallFields):
    type: Literal["tool_call"]
    toolCallId: str


class NoticePart(TypedDict):
    """A message of the platform about a turn."""

    type: Literal["notice"]
    code: str
    text: str


class RemarkFields(TypedDict):
    """A review, a comment or a failed check of a pull request."""

    kind: str
    remarkId: str
    author: str
    text: str
    at: str
    state: NotRequired[str]
    path: NotRequired[str]
    line: NotRequired[int]
    url: NotRequired[str]
    mayWrite: NotRequired[bool]
    commit: NotRequired[str | None]
    """The commit that failed a check."""
    pullRequestId: NotRequired[str]
    number: NotRequired[int | None]


class FeedbackPart(RemarkFields):
    type: Literal["feedback"]
    source: str


class ConflictingFile(TypedDict):
    path: str
    kind: str
    detail: str


class ConflictsPart(TypedDict):
    """A merge that the agent has to resolve."""

    type: Literal["conflicts"]
    text: str
    files: list[ConflictingFile]


MessagePart = TextPart | ThoughtPart | ImagePart | PlanPart | ToolCallPart | NoticePart | FeedbackPart | ConflictsPart
