"""Common arguments of tools."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandyard.platform.api.paging import CURSOR
from sandyard.platform.api.schema import Input, Model
from sandyard.platform.domain.paging import PageRequest

MAX_ID = 60
MAX_WAIT = 600


def id_field(what: str, example: str) -> object:
    return Field(min_length=1, max_length=MAX_ID, description=f"The {what}'s id.", examples=[example])


ProjectId = Annotated[str, id_field("project", "prj_0mh3k7a1x2abcdefghij")]
SessionId = Annotated[str, id_field("session", "ses_00mwhnkz2f0a9s8d7f6g")]
SandboxId = Annotated[str, id_field("sandbox", "sbx_00mwhnkzb5gfh26ygacc")]
CommandId = Annotated[str, id_field("command", "cmd_00mwhnkzc0a1b2c3d4e5")]
TaskId = Annotated[str, id_field("task", "tsk_00mwhnkzc0a1b2c3d4e5")]
AskId = Annotated[str, id_field("ask", "ask_00mwhnkzc0a1b2c3d4e5")]
Path = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4096,
        description="A path in the sandbox: absolute, or relative to the user's home directory.",
        examples=["/home/user/workspace/README.md"],
    ),
]


def wait_field(default: float) -> object:
    return Field(
        default=default,
        ge=0,
        le=MAX_WAIT,
        description="How many seconds this call may wait. The work continues afterwards; call again to keep waiting.",
    )


class Paged(Input):
    """Arguments of lists, which are newest first."""

    limit: int = Field(default=20, ge=1, le=100, description="Maximum number of items.")
    cursor: str | None = Field(
        default=None, pattern=CURSOR, description="`nextCursor` of the previous page. Leave it out for the first page."
    )

    @property
    def page(self) -> PageRequest:
        return PageRequest(self.limit, self.cursor)


class Done(Model):
    """An empty result."""

    done: bool = True
