"""Define a tool: a domain operation with a name, a description for models, and schemas of its arguments and result.

    @tools.add("pause_sandbox", title="Pause a sandbox", repeats=True)
    async def pause_sandbox(call: Call, arguments: SandboxReference) -> SandboxView:
        \"\"\"What the model reads.\"\"\"

A tool calls the same services as a route does, as the same user. Nothing here depends on the protocol.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

import anyio
from pydantic import BaseModel

from sandyard.kit.errors import UnauthenticatedError
from sandyard.platform.api.schema import Input
from sandyard.platform.domain.users.authentication import is_still_valid
from sandyard.platform.domain.users.model import Principal

if TYPE_CHECKING:
    from sandyard.platform.domain.services import Services

G = TypeVar("G", bound=Input)
A = TypeVar("A", bound=BaseModel)
Limit = Literal["create", "execute"]
Progress = Callable[[float, float | None, str], Awaitable[None]]


@dataclass(slots=True)
class Call:
    """One call of a tool. `target` and `detail` are for the audit log."""

    services: Services
    caller: Principal
    progress: Progress
    target: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def add_audit_detail(self, *, target: str | None = None, **detail: Any) -> None:
        """Add details to the call's audit entry. `target` replaces the first id among the arguments."""
        self.target = target or self.target
        self.detail |= detail

    def shield(self) -> AbstractContextManager[object]:
        """Return a context whose work is finished even if the client disconnects or cancels."""
        return anyio.CancelScope(shield=True)

    async def check_authorization(self) -> None:
        """Raise UnauthenticatedError if the caller's token has become invalid during a long wait."""
        if not await is_still_valid(self.services.database, self.services.clock, self.caller):
            raise UnauthenticatedError("The token has expired or was revoked.")


@dataclass(frozen=True, slots=True)
class Tool:
    """A registered tool. `limit`: the API rate limit that counts it.

    `waits`: it may take long, and cancelling it ends only the waiting. Other tools are finished once they have started.
    """

    name: str
    title: str
    description: str
    arguments_type: type[Input]
    result_type: type[BaseModel]
    run: Callable[[Call, Any], Awaitable[BaseModel]]
    limit: Limit | None = None
    reads: bool = False
    destroys: bool = False
    repeats: bool = False
    waits: bool = False


class Toolbox:
    """A collection of tools, by name."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}

    def add(
        self,
        name: str,
        *,
        title: str,
        limit: Limit | None = None,
        reads: bool = False,
        destroys: bool = False,
        repeats: bool = False,
        waits: bool = False,
    ) -> Callable[[Callable[[Call, G], Awaitable[A]]], Callable[[Call, G], Awaitable[A]]]:
        """Register a tool. Its docstring is the description; its annotations are the schemas.

        `reads`: it changes nothing. `destroys`: what it deletes cannot be recovered. `repeats`: it is idempotent.
        """

        def register(run: Callable[[Call, G], Awaitable[A]]) -> Callable[[Call, G], Awaitable[A]]:
            hints = get_type_hints(run)
            self.tools[name] = Tool(
                name=name,
                title=title,
                description=inspect.cleandoc(run.__doc__ or ""),
                arguments_type=hints["arguments"],
                result_type=hints["return"],
                run=run,
                limit=limit,
                reads=reads,
                destroys=destroys,
                repeats=repeats,
                waits=waits,
            )
            return run

        return register
