"""A round of an attempt, step by step: setup → provision → checkout → agent → verify → commit → push → pull request.

The workflow must be deterministic: it depends only on recorded step results, because it is replayed after a crash. Each step may be
restarted and must be idempotent: sessions get their id before they exist, turns have a key, commands are found again, and branches and pull
requests are looked up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypedDict, TypeVar

from sqlalchemy import and_, bindparam, select

from sandyard.kit.errors import NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Attempt, Project, Sandbox, Session, Step, Task, User
from sandyard.platform.db.models.task_details import StepDetail
from sandyard.platform.db.retry import TEMPORARY_ERRORS, retry_while_database_unavailable
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.service import owner_has_access
from sandyard.platform.domain.sandboxes.commands import StoppingError
from sandyard.platform.domain.sandboxes.model import (
    SANDBOX_LOST,
    OwnerWithoutAccessError,
    SandboxDestroyedError,
    Status,
    utc_now,
)
from sandyard.platform.domain.tasks import prompts
from sandyard.platform.domain.tasks.attempt_records import emit_attempt_event, lock_attempt
from sandyard.platform.domain.tasks.attempts import Attempts
from sandyard.platform.domain.tasks.board import Tasks
from sandyard.platform.domain.tasks.durable import StepRunner
from sandyard.platform.domain.tasks.model import AttemptStatus, Column, RoundKind, StepName
from sandyard.platform.domain.tasks.step_support import CancelledStep, StepContext, StepFailure, StepKey, StepResult
from sandyard.platform.domain.tasks.steps import Steps
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)
StepFunction = Callable[..., Awaitable[StepResult]]
R = TypeVar("R", bound=Mapping[str, Any])
_INTERNAL: StepFailure = {
    "code": "internal",
    "message": "Internal error in this step; see the platform's log. Retry the task.",
}
MAX_LOSSES = 3
"""How many times a round starts again because its sandbox was lost."""
_CANCELLED: StepResult = {"failed": {"code": "cancelled", "message": "The task was stopped."}}


class RoundPlan(TypedDict):
    """The plan of a round, recorded at its beginning.

    `kind` is a RoundKind. `solo`: the task has one attempt, which is published without being picked. `fresh`: the attempt has no session
    yet, or only a copy that the setup of another attempt has made for it. `fixes`: how many times the agent may fix a failed verify
    command or rejected commits.
    """

    kind: str
    solo: bool
    fresh: bool
    fixes: int


class Rounds:
    def __init__(self, database: Database, attempts: Attempts, tasks: Tasks, steps: Steps) -> None:
        self._database = database
        self._attempts = attempts
        self._tasks = tasks
        self._steps = steps

    # the workflow ----------------------------------------------------------------------------------------------------------

    async def run_round(self, run_dbos_step: StepRunner, attempt_id: str, number: int) -> None:
        """Run the round. Steps return failures as results, so that failures are recorded too."""
        count = 0

        async def run_durably(name: str, function: Callable[..., Awaitable[R]], *arguments: Any) -> R:
            work = partial(function, *arguments)
            result: R = await run_dbos_step(name, retry_while_database_unavailable, work, "step")
            return result

        async def run_step(name: StepName, function: StepFunction, **arguments: Any) -> StepResult:
            nonlocal count
            count += 1
            result = await run_durably(
                name, self._run_recorded_step, attempt_id, number, count, name, function, arguments
            )
            if "failed" in result:
                raise _StepFailedError(result["failed"])
            return result

        try:
            plan = await run_durably("begin", self._plan_round, attempt_id, number)
            publishes = plan["kind"] == RoundKind.PUBLISH or plan["solo"]
            await self._run_steps(run_step, plan, publishes=publishes)
            status = AttemptStatus.IN_REVIEW if publishes else AttemptStatus.READY
            await run_durably("rest", self._finish, attempt_id, number, status)
        except _StepFailedError as error:
            await run_durably("fail", self._fail, attempt_id, number, error.failure)
        except Exception as error:  # a step failed without returning a result
            log.error("round_crashed", attempt=attempt_id, exc=error)  # noqa: TRY400
            await run_durably("fail", self._fail, attempt_id, number, _INTERNAL)

    async def _run_steps(self, run_step: StepFunction, plan: RoundPlan, *, publishes: bool) -> None:
        """Run the steps. If the sandbox is lost, they start again in a new one, from the work that was saved last."""
        for losses in range(MAX_LOSSES + 1):
            try:
                if plan["kind"] != RoundKind.PUBLISH:
                    await self._run_work_steps(run_step, plan, losses)
                if publishes:
                    await self._run_publish_steps(run_step, plan, losses)
            except _StepFailedError as error:
                if error.failure["code"] != SANDBOX_LOST or losses == MAX_LOSSES:
                    raise
            else:
                return

    async def _run_work_steps(self, run_step: StepFunction, plan: RoundPlan, losses: int) -> None:
        prepared: StepResult = {}
        if plan["fresh"] and not losses:
            prepared = await run_step(StepName.SETUP, self._steps.setup)
        await run_step(StepName.PROVISION, self._steps.provision, preparation=prepared.get("preparation"))
        await run_step(StepName.CHECKOUT, self._steps.checkout)
        suffix = f"/loss-{losses}" if losses else ""
        again = {"after_loss": True} if losses else {}
        await run_step(StepName.AGENT, self._steps.agent, turn=f"agent{suffix}", prompt=None, **again)
        for fix in range(plan["fixes"] + 1):
            verified = await run_step(StepName.VERIFY, self._steps.verify)
            if verified["ok"]:
                break
            if fix == plan["fixes"]:
                raise _StepFailedError({"code": "verify_failed", "message": verified["message"]})
            turn = f"verify-{fix + 1}{suffix}"
            await run_step(StepName.AGENT, self._steps.agent, turn=turn, prompt=verified["words"])
        await run_step(StepName.COMMIT, self._steps.commit)

    async def _run_publish_steps(self, run_step: StepFunction, plan: RoundPlan, losses: int) -> None:
        """Publish the work. Commits that violate the project's convention go back to the agent."""
        if plan["kind"] == RoundKind.PUBLISH:
            await run_step(StepName.PROVISION, self._steps.provision, preparation=None)
        for fix in range(plan["fixes"] + 1):
            pushed = await run_step(StepName.PUSH, self._steps.push)
            if pushed["ok"]:
                break
            if fix == plan["fixes"]:
                raise _StepFailedError({"code": "commit_message", "message": pushed["message"]})
            await run_step(
                StepName.AGENT,
                self._steps.agent,
                turn=f"reword-{fix + 1}" + (f"/loss-{losses}" if losses else ""),
                prompt=prompts.format_refusal(pushed["message"]),
            )
        await run_step(StepName.PULL_REQUEST, self._steps.pull_request)

    # common to all steps -----------------------------------------------------------------------------------------------------

    async def _run_recorded_step(  # noqa: PLR0917 - called positionally by the workflow
        self,
        attempt_id: str,
        number: int,
        count: int,
        name: StepName,
        function: StepFunction,
        arguments: Mapping[str, Any],
    ) -> StepResult:
        """Run a step and record its progress, which users see."""
        step_key = (attempt_id, number, count)
        try:
            started = await self.record_step_started(step_key, name)
            if started is None:
                return _CANCELLED
            context, saved_detail = started
            result = (
                _CANCELLED
                if context.attempt.cancel_at
                else await function(context, step_key, saved_detail, **arguments)
            )
        except StoppingError:
            raise asyncio.CancelledError from None  # the next process runs it again
        except CancelledStep:
            result = _CANCELLED
        except TEMPORARY_ERRORS:
            raise  # the result could not be recorded either: the step is repeated
        except SandyardError as error:
            log.info("step_failed", attempt=attempt_id, step=name, code=error.code, reason=error.message)
            result = {"failed": {"code": error.code, "message": error.message}}
        except Exception as error:
            log.error("step_crashed", attempt=attempt_id, step=name, exc=error)  # noqa: TRY400
            result = {"failed": _INTERNAL}
        failure = result.get("failed")
        if failure is not None:
            result = {"failed": await self._explain_by_sandbox(attempt_id, failure)}
        await self._record_step_finished(step_key, result)
        return result

    async def _explain_by_sandbox(self, attempt_id: str, failure: StepFailure) -> StepFailure:
        """Return the failure with the code SANDBOX_LOST if the engine has lost the sandbox of the attempt's session. If a person has
        deleted it, its loss is no reason to begin again."""
        query = (
            select(Sandbox.status, Sandbox.error_code, Sandbox.destroy_requested_at)
            .join(Session, Session.sandbox_id == Sandbox.id)
            .join(Attempt, Attempt.session_id == Session.id)
            .where(Attempt.id == attempt_id, Attempt.cancel_at.is_(None))
        )
        async with self._database.reading() as session:
            found = (await session.execute(query.limit(1))).first()
        code = failure["code"]
        if found is None:
            return failure
        status, error_code, destroy_requested_at = found
        if status == Status.DESTROYED or destroy_requested_at is not None:
            code = SandboxDestroyedError.code if code == SANDBOX_LOST else code
        elif status == Status.ERROR and error_code == SANDBOX_LOST:
            code = SANDBOX_LOST
        return {"code": code, "message": failure["message"]}

    async def record_step_started(self, step_key: StepKey, name: StepName) -> tuple[StepContext, StepDetail] | None:
        """Record that the step started. Returns its context and saved details, or None if the attempt is no longer in this round."""
        async with self._database.transaction() as tx:
            context, row = await self._load(tx, step_key)
            attempt = context.attempt
            if attempt.status != AttemptStatus.RUNNING or attempt.round != step_key[1]:
                return None
            if row is None:
                row = Step(
                    attempt_id=step_key[0], round=step_key[1], number=step_key[2], name=name, status="running", started_at=utc_now(),
                    tries=1, detail={},
                )  # fmt: skip
                tx.add(row)
            else:
                await tx.session.refresh(row, with_for_update=True)
                row.tries, row.status = row.tries + 1, "running"
            attempt.step, attempt.updated_at = name, utc_now()
            emit_attempt_event(
                tx, attempt, "attempt.step", round=step_key[1], step=name, status="running", tries=row.tries
            )
        return context, row.detail.copy()

    async def _record_step_finished(self, step_key: StepKey, result: StepResult) -> None:
        failure = result.get("failed")
        async with self._database.transaction() as tx:
            found = (await tx.session.execute(_SELECT_STEP, _make_step_parameters(step_key))).first()
            if found is None:
                return
            row, attempt = found
            row.status, row.finished_at = "failed" if failure else "completed", utc_now()
            row.error = failure["message"] if failure else None
            row.detail = {**row.detail, **result.get("shown", {})}
            emit_attempt_event(
                tx, attempt, "attempt.step", round=step_key[1], step=row.name, status=row.status, tries=row.tries,
                error=None if row.error is None else row.error[:1000], detail=result.get("shown", {}),
            )  # fmt: skip

    async def _load(self, tx: Transaction, step_key: StepKey) -> tuple[StepContext, Step | None]:
        """Load the attempt and lock it until the transaction ends."""
        found = (await tx.session.execute(_SELECT_CONTEXT, _make_step_parameters(step_key))).first()
        if found is None:
            raise NotFoundError("The task no longer exists.")
        attempt, task, project, user, step = found
        if not await owner_has_access(tx.session, attempt):
            raise OwnerWithoutAccessError(
                f"{user.name}, on whose behalf this task runs, was disabled or no longer has access to the project. Retry the task to start "
                "over on your behalf."
            )
        return StepContext(attempt, task, project, Principal(user.id, user.name, user.role, f"task:{task.id}")), step

    async def _plan_round(self, attempt_id: str, number: int) -> RoundPlan:
        async with self._database.reading() as session:
            attempt = await session.get(Attempt, attempt_id)
            project = await session.get(Project, attempt.project_id) if attempt is not None else None
            existing = await session.get(Session, attempt.session_id) if attempt is not None else None
        if attempt is None or project is None:
            # any plan will do: its first step fails because the task no longer exists
            return {"kind": RoundKind.PUBLISH, "solo": True, "fresh": False, "fixes": 0}
        return {
            "kind": attempt.work["kind"],
            "solo": attempt.work.get("solo", True),
            "fresh": existing is None or attempt.round == 1,
            "fixes": ProjectSettings.from_project(project).verify.fixes,
        }

    # the end -----------------------------------------------------------------------------------------------------------------

    async def _finish(self, attempt_id: str, number: int, status: AttemptStatus) -> StepResult:
        """Finish the round in review with a pull request, or ready to be picked. A round stopped in its last step is cancelled."""
        async with self._database.transaction() as tx:
            found = await lock_attempt(tx, attempt_id)
            if found is None or found[1].status != AttemptStatus.RUNNING or found[1].round != number:
                return {}
            task, row = found
            is_cancelled = row.cancel_at is not None
            has_next_round = not is_cancelled and await self._attempts.finish_round(tx, task, row, status)
            if task.status == Column.IN_PROGRESS and not is_cancelled and not has_next_round:
                others = select(Attempt.id).where(
                    Attempt.task_id == row.task_id,
                    Attempt.id != row.id,
                    Attempt.status.in_((AttemptStatus.QUEUED, AttemptStatus.RUNNING)),
                )
                if (await tx.session.scalars(others.limit(1))).first() is None:
                    task.error = None
                    await self._tasks.advance(tx, task, Column.IN_REVIEW)
        if is_cancelled:
            return await self._fail(attempt_id, number, _CANCELLED["failed"])
        self._attempts.nudge()
        return {}

    async def _fail(self, attempt_id: str, number: int, failure: StepFailure) -> StepResult:
        await self._attempts.fail(attempt_id, failure["code"], failure["message"], number=number)
        return {}


def _make_step_parameters(step_key: StepKey) -> dict[str, str | int]:
    """Return the parameters of `_SELECT_STEP` and `_SELECT_CONTEXT`."""
    return dict(zip(("attempt", "round", "number"), step_key, strict=True))


_THIS_STEP = and_(
    Step.attempt_id == bindparam("attempt"), Step.round == bindparam("round"), Step.number == bindparam("number")
)
_SELECT_STEP = (
    select(Step, Attempt).join(Attempt, Attempt.id == Step.attempt_id).where(_THIS_STEP).with_for_update(of=Step)
)
_SELECT_CONTEXT = (
    select(Attempt, Task, Project, User, Step)
    .join(Task, Task.id == Attempt.task_id)
    .join(Project, Project.id == Attempt.project_id)
    .join(User, User.id == Attempt.owner_id)
    .outerjoin(Step, _THIS_STEP)
    .where(Attempt.id == bindparam("attempt"))
    .with_for_update(of=Attempt)
)


class _StepFailedError(Exception):
    """A step has failed permanently."""

    def __init__(self, failure: StepFailure) -> None:
        super().__init__(failure["message"])
        self.failure = failure
