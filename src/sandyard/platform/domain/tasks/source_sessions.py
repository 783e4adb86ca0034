"""The live session that the attempts of a task start from: who may use it, and what it needs for that."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.errors import ConflictError, InvalidInputError
from sandyard.platform.db.models import Sandbox, Session
from sandyard.platform.domain.sandboxes.model import Status
from sandyard.platform.domain.sandboxes.repository import is_session_visible_to
from sandyard.platform.domain.users.model import Principal


class SourceSessionError(ConflictError):
    """The session that the task starts from cannot be forked."""

    code = "source_session"

    def __init__(self, source_id: str, reason: str) -> None:
        super().__init__(
            f"Could not fork session {source_id}, which this task starts from. {reason} Make the session usable, or change the task to "
            "start from another session or the base branch (fromSessionId). Then retry the task."
        )


async def check_source_session(
    session: AsyncSession, caller: Principal, project_id: str, source_id: str, base_branch: str | None
) -> None:
    """Check that tasks of the project may start from this session, as of now. Attempts check it again when they start.

    Raises InvalidInputError, also if the caller may not see the session, and ConflictError if it has no sandbox.
    """
    if base_branch is not None:
        raise InvalidInputError(
            "baseBranch: the branches of a task that starts from a session start at the session's commit. Leave it out."
        )
    query = select(Session, Sandbox).outerjoin(Sandbox, Sandbox.id == Session.sandbox_id)
    found = (await session.execute(query.where(Session.id == source_id, is_session_visible_to(caller)))).first()
    if found is None:
        raise InvalidInputError(f"fromSessionId: there is no session {source_id[:60]!r}.")
    row, sandbox = found
    if row.project_id != project_id:
        raise InvalidInputError(f"fromSessionId: session {row.id} is not in the task's project.")
    if sandbox is None or sandbox.status in (Status.ERROR, Status.DESTROYED):
        raise ConflictError(f"Session {row.id} has no sandbox that can be copied. Create a new sandbox for it first.")
