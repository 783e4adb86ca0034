"""The prompt of each turn that a task gives its agent."""

from __future__ import annotations

from sqlalchemy import func, select

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import AgentRun, Checkpoint, Preparation, Turn
from sandyard.platform.db.models.message_parts import TextPart
from sandyard.platform.domain.agents.catalogue import AgentCatalogue
from sandyard.platform.domain.agents.model import Origin, TurnStatus
from sandyard.platform.domain.git.model import Reason
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.sessions.service import Sessions
from sandyard.platform.domain.tasks import prompts
from sandyard.platform.domain.tasks.model import RoundKind
from sandyard.platform.domain.tasks.step_support import StepContext


class TaskPrompts:
    """Builds prompts from the task, what people have said, and what happened before."""

    def __init__(self, database: Database, sessions: Sessions, agents: AgentCatalogue, git: GitService) -> None:
        self._database = database
        self._sessions = sessions
        self._agents = agents
        self._git = git

    async def build(self, context: StepContext, prompt: str | None) -> tuple[Origin, list[TextPart]]:
        """Return the given prompt about a failure, or without one the prompt of the round."""
        attempt = context.attempt
        if prompt is not None:
            return Origin.VERIFY, [prompts.format_notice(prompt, "failure")]
        kind, origin = attempt.work["kind"], Origin.TASK
        feedback = prompts.format_feedback(attempt.work.get("said", ()))
        if kind == RoundKind.FEEDBACK:
            origin = Origin.FEEDBACK
            if await self._has_worked(attempt.session_id, attempt.agent):
                return origin, feedback
            feedback = [prompts.format_notice(prompts.HANDED_OVER), *feedback]
        elif kind == RoundKind.RETRY and await self._has_worked(attempt.session_id):
            feedback = [prompts.format_retry(attempt.work.get("ended")), *feedback]
            if await self._has_worked(attempt.session_id, attempt.agent):
                return origin, feedback
        profile = await self._agents.profile(attempt.owner_id, attempt.agent)
        parts = await self._format_task(context)
        return origin, [*(parts[:1] if profile.demo else parts), *feedback]

    async def build_after_loss(self, context: StepContext) -> tuple[Origin, list[TextPart]]:
        """Return the prompt for a new sandbox in place of a lost one: the agent has no memory of its work, and the
        files are those that were saved last."""
        attempt = context.attempt
        notice = prompts.format_retry(prompts.SANDBOX_LOST)
        profile = await self._agents.profile(attempt.owner_id, attempt.agent)
        is_feedback = attempt.work["kind"] == RoundKind.FEEDBACK
        origin = Origin.FEEDBACK if is_feedback else Origin.TASK
        feedback = prompts.format_feedback(attempt.work.get("said", ()))
        task = await self._format_task(context)
        if not profile.demo:
            return origin, [*task, *feedback, notice]
        if await self._is_work_saved(context):  # the demo agent would carry out its instructions again
            return origin, [notice]
        return origin, [*(feedback if is_feedback else task[:1]), notice]

    async def _is_work_saved(self, context: StepContext) -> bool:
        """Return whether the work was saved after the agent had finished a turn of this round."""
        attempt = context.attempt
        done = select(func.max(Turn.finished_at)).where(
            Turn.session_id == attempt.session_id,
            Turn.key.startswith(f"{attempt.id}/{attempt.round}/", autoescape=True),
            Turn.status == TurnStatus.COMPLETED,
        )
        saved = select(func.max(Checkpoint.created_at)).where(
            Checkpoint.session_id == attempt.session_id, Checkpoint.reason != Reason.RESTORE
        )
        async with self._database.reading() as session:
            done_at, saved_at = await session.scalar(done), await session.scalar(saved)
        return done_at is not None and saved_at is not None and saved_at >= done_at

    async def _format_task(self, context: StepContext) -> list[TextPart]:
        sandbox = await self._sessions.get_sandbox(context.caller, context.attempt.session_id)
        row = await self._git.get_checkout(context.caller, sandbox.id)
        async with self._database.reading() as session:
            query = select(Preparation.detail).where(
                Preparation.project_id == context.project.id, Preparation.base_commit == row.base_commit
            )
            detail = (await session.scalars(query.limit(1))).first() or {}
        return prompts.format_task(context.task, context.project, row.branch, agents_md=bool(detail.get("agentsMd")))

    async def _has_worked(self, session_id: str, agent: str | None = None) -> bool:
        """Return whether an agent, or this one, has been given the task before and has done something."""
        async with self._database.reading() as session:
            query = select(Turn.id).where(Turn.session_id == session_id, Turn.request.is_not(None))
            if agent is not None:
                query = query.join(AgentRun, AgentRun.id == Turn.run_id).where(AgentRun.agent == agent)
            return (await session.scalars(query.limit(1))).first() is not None
