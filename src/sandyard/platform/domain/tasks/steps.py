"""The steps of a round.

Each may be restarted after a crash and must be idempotent: sessions get their id before they exist, turns have a key, commands are found
again, and branches and pull requests are looked up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from functools import partial
from weakref import WeakValueDictionary

from sqlalchemy import select

from sandyard.kit.errors import ConflictError, NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.kit.text import make_json_storable
from sandyard.kit.times import rfc3339
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import (
    Ask,
    Attempt,
    Checkpoint,
    Command,
    GitOperation,
    Preparation,
    PreparationStatus,
    Sandbox,
    Session,
    Step,
    Turn,
)
from sandyard.platform.db.models.message_parts import TextPart
from sandyard.platform.db.models.task_details import DiffCounts, SetupProgress, StepDetail, Verification
from sandyard.platform.domain.agents.catalogue import AgentCatalogue
from sandyard.platform.domain.agents.errors import PermissionRefusedError, SandboxRestartedError
from sandyard.platform.domain.agents.model import Origin, TurnStatus
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.agents.questions import asks
from sandyard.platform.domain.agents.runner.turns import AgentTurns
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.git import commit_messages
from sandyard.platform.domain.git.errors import CommitMessageError
from sandyard.platform.domain.git.model import CHECKOUT_FOLDER, OperationKind, OperationStatus, Reason, UndoneChanges
from sandyard.platform.domain.git.operations.runner import OPEN_STATUSES
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.models.service import Models
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.preparations.model import Progress
from sandyard.platform.domain.preparations.service import Preparations
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.e2b import (
    EngineInvalidError,
    SandboxNotFoundError,
    TemplateNotFoundError,
)
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import CommandStatus, NewCommand, Status, utc_now
from sandyard.platform.domain.sessions.service import Sessions, TaskCopy
from sandyard.platform.domain.tasks import prompts
from sandyard.platform.domain.tasks.attempt_records import emit_attempt_event
from sandyard.platform.domain.tasks.model import RoundKind
from sandyard.platform.domain.tasks.moves import ACTIVE_ATTEMPTS
from sandyard.platform.domain.tasks.source_sessions import SourceSessionError
from sandyard.platform.domain.tasks.step_support import (
    CANCEL_CHECK_S,
    ENGINE_RETRY_S,
    CancelledStep,
    StepContext,
    StepKey,
    StepResult,
    StepSupport,
)
from sandyard.platform.domain.tasks.task_prompts import TaskPrompts

log = get_logger(__name__)
MAX_REFUSALS = 3
"""How often the engine may refuse to create a sandbox: a snapshot may be missing, and then the template in its place."""
REFUSED_CODES = frozenset(
    error_class.code for error_class in (EngineInvalidError, TemplateNotFoundError, SandboxNotFoundError)
)
"""Error codes of a sandbox that waiting does not help."""
MAX_RESTARTS = 3
"""How often a sandbox may be restarted during a step, which then continues from its files."""
KILL_TIMEOUT_S = 15.0
"""How long a killed check may take to exit before its changes are undone anyway."""
_TURN_FAILURES = {
    TurnStatus.CANCELLED: ("cancelled", "The agent was stopped."),
    TurnStatus.OVER_BUDGET: ("over_budget", "The budget is used up."),
}


class Steps:
    """The steps. Each gets its context, its key, and the details an earlier try saved. `shown` is the part of the result that people see."""

    def __init__(  # noqa: PLR0917 - its dependencies
        self,
        database: Database,
        sessions: Sessions,
        lifecycle: Lifecycle,
        commands: Commands,
        turns: AgentTurns,
        agents: AgentCatalogue,
        models: Models,
        preparations: Preparations,
        git: GitService,
        pull_requests: PullRequests,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._prompts = TaskPrompts(database, sessions, agents, git)
        self._lifecycle = lifecycle
        self._commands = commands
        self._turns = turns
        self._agents = agents
        self._models = models
        self._preparations = preparations
        self._git = git
        self._pulls = pull_requests
        self._support = StepSupport(database)
        self._fork_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def setup(self, context: StepContext, step_key: StepKey, saved_detail: StepDetail) -> StepResult:
        """Prepare a checkout in which the project's setup has run, saved as a snapshot. Or fork the session that the task starts from."""
        if context.project.repository is None:
            raise ConflictError(
                f"Project {context.project.name!r} has no repository. Add one in the project's settings."
            )
        if context.task.from_session_id is not None:
            await self._ensure_fork(context, context.task.from_session_id)
            return {"shown": {"sourceSessionId": context.task.from_session_id}}
        profile = await self._require_model(context)
        prepared = await self._support.wait_unless_cancelled(
            context.attempt.id,
            self._support.retry_while_engine_unavailable(lambda: self._prepare(context, profile)),
        )
        return {"preparation": prepared.id, "shown": {"preparationId": prepared.id}}

    async def _require_model(self, context: StepContext) -> Profile:
        """Return the agent's profile. Raises the error of a missing model early instead of after minutes of preparation."""
        profile = await self._agents.profile(context.attempt.owner_id, context.attempt.agent)
        await self._models.require_model(context.project.id, profile, context.attempt.model)
        return profile

    async def _prepare(self, context: StepContext, profile: Profile) -> Preparation:
        """Prepare the project and report progress."""
        row = await self._preparations.start(
            context.caller, context.project, base_branch=context.task.base_branch, profile=profile
        )
        if row.status == PreparationStatus.READY:
            return row
        task, reported = asyncio.ensure_future(self._preparations.wait(row.id)), None
        try:
            while not (await asyncio.wait((task,), timeout=CANCEL_CHECK_S))[0]:
                progress = self._preparations.get_progress(row.id)
                if progress is not None and progress != reported:
                    reported = progress
                    await self._report_progress(context.attempt, progress)
            return task.result()
        finally:
            await end_tasks(task)

    async def _report_progress(self, attempt: Attempt, progress: Progress) -> None:
        shown: SetupProgress = {"round": attempt.round, "step": progress.step, "output": progress.output}
        async with self._database.transaction() as tx:
            row = await tx.session.get(Attempt, attempt.id, with_for_update=True)
            if row is not None:
                row.detail = {**row.detail, "doing": make_json_storable(shown)}
                emit_attempt_event(
                    tx, row, "attempt.progress", round=row.round, step=row.step, what=progress.step[:200]
                )

    async def _ensure_fork(self, context: StepContext, source_id: str) -> None:
        """Fork the source session for this attempt, unless it has a session.

        Other attempts of the same start that have no session yet are forked in the same request, so that all continue from the same
        instant. Those that cannot be forked now are forked by their own step later.
        """
        attempt = context.attempt
        lock = self._fork_locks.get(context.task.id)
        if lock is None:
            lock = self._fork_locks[context.task.id] = asyncio.Lock()
        async with lock:
            copies = await self._list_missing_sessions(context)
            if attempt.session_id not in copies:
                return
            await self._require_model(context)
            await self._report_progress(attempt, Progress("forking the session", None))
            try:
                source = await self._sessions.get_sandbox(context.caller, source_id)
                await self._wait_for_git_operations(context, source.id)
                await self._support.wait_unless_cancelled(
                    attempt.id, self._support.retry_while_engine_unavailable(lambda: self._fork(context, source_id))
                )
            except (ConflictError, NotFoundError) as error:
                raise SourceSessionError(source_id, error.message) from None

    async def _fork(self, context: StepContext, source_id: str) -> None:
        copies = await self._list_missing_sessions(context)
        if context.attempt.session_id not in copies:
            raise CancelledStep
        results = await self._sessions.fork_for_task(context.caller, source_id, context.task, list(copies.values()))
        result = results[context.attempt.session_id]
        if isinstance(result, SandyardError):
            raise result

    async def _list_missing_sessions(self, context: StepContext) -> dict[str, TaskCopy]:
        """Return what to fork for the attempts that wait or run on behalf of the same user and have no session yet, by session id."""
        query = select(Attempt).outerjoin(Session, Session.id == Attempt.session_id).order_by(Attempt.number)
        query = query.where(
            Attempt.task_id == context.task.id,
            Attempt.owner_id == context.attempt.owner_id,
            Attempt.status.in_(ACTIVE_ATTEMPTS),
            Attempt.cancel_at.is_(None),
            Session.id.is_(None),
        )
        async with self._database.reading() as session:
            rows = list(await session.scalars(query))
        return {row.session_id: TaskCopy(row.session_id, row.agent, row.model) for row in rows}

    async def provision(
        self, context: StepContext, step_key: StepKey, saved_detail: StepDetail, *, preparation: str | None
    ) -> StepResult:
        """Return a session with a usable sandbox: a new one, its existing one, or a replacement for a lost one."""
        attempt = context.attempt
        async with self._database.reading() as session:
            prepared = await session.get(Preparation, preparation) if preparation is not None else None
        create_session = partial(
            self._sessions.create,
            context.caller,
            title=context.task.title,
            project_id=context.project.id,
            agent=attempt.agent,
            model=attempt.model,
            session_id=attempt.session_id,
            task_id=context.task.id,
            base_branch=context.task.base_branch,
            preparation=prepared,
        )
        row, sandbox = await self._support.wait_unless_cancelled(
            attempt.id, self._support.retry_while_engine_unavailable(create_session)
        )
        started, pause, refusals = time.monotonic(), 2.0, 0
        while True:
            try:
                sandbox = await self._lifecycle.wait_until_provisioned(sandbox.id)
            except SandyardError as error:  # its row holds the error too
                log.info("provisioning_failed", attempt=attempt.id, reason=error.message)
                sandbox = await self._lifecycle.repository.get(sandbox.id)
            usable = sandbox.status not in (Status.ERROR, Status.DESTROYED)
            if usable and sandbox.destroy_requested_at is None:
                return {"shown": {"sessionId": row.id, "sandboxId": sandbox.id}}
            failed = sandbox.status == Status.ERROR
            refusals += failed and sandbox.error_code in REFUSED_CODES
            if refusals >= MAX_REFUSALS or ((failed or usable) and time.monotonic() - started > ENGINE_RETRY_S):
                raise ConflictError(
                    f"Could not provision a sandbox: {sandbox.error or 'the previous one is still shutting down'}"
                )
            if failed or usable:  # a usable one is being deleted
                await self._support.wait_unless_cancelled(attempt.id, asyncio.sleep(pause))
                pause = min(pause * 1.5, 30.0)
            await self._support.raise_if_cancelled(attempt.id)
            if not usable:
                create_sandbox = partial(self._sessions.provision, context.caller, row.id)
                row, sandbox = await self._support.wait_unless_cancelled(
                    attempt.id, self._support.retry_while_engine_unavailable(create_sandbox)
                )

    async def checkout(self, context: StepContext, step_key: StepKey, saved_detail: StepDetail) -> StepResult:
        sandbox = await self._sessions.get_sandbox(context.caller, context.attempt.session_id)
        await self._wait_for_git_operations(context, sandbox.id)
        page = await self._git.list_operations(context.caller, PageRequest(limit=20), sandbox_id=sandbox.id)
        for operation in page.items:
            if operation.kind in (OperationKind.CLONE, OperationKind.RESTORE):
                self._git.operations.raise_failure(operation)
                if operation.kind == OperationKind.CLONE and await self._is_copy(context.attempt.session_id):
                    raise ConflictError(
                        "The copy of the session that the task starts from was lost before its files were saved. Move the task to the "
                        "backlog and start it again."
                    )
                break
            if operation.kind == OperationKind.BRANCH and "copyOf" in operation.arguments:
                retried = operation.status == OperationStatus.FAILED and context.attempt.work["kind"] == RoundKind.RETRY
                self._git.operations.raise_failure(
                    await self._repeat_branch_of_copy(context, sandbox, operation) if retried else operation
                )
                await self._save_copied_work(context, sandbox)
                break
        row = await self._git.get_checkout(context.caller, sandbox.id)
        return {"shown": {"branch": row.branch, "baseBranch": row.base_branch, "commit": row.base_commit}}

    async def _is_copy(self, session_id: str) -> bool:
        """Return whether the session's first sandbox was a copy of another session's."""
        copied = GitOperation.arguments["copyOf"].as_string().is_not(None)
        query = select(GitOperation.id).where(
            GitOperation.session_id == session_id, GitOperation.kind == OperationKind.BRANCH, copied
        )
        async with self._database.reading() as session:
            return await session.scalar(query.limit(1)) is not None

    async def _save_copied_work(self, context: StepContext, sandbox: Sandbox) -> None:
        """Save the copied work tree, so that the session can continue from it in another sandbox if this one is lost."""
        async with self._database.reading() as session:
            query = select(Checkpoint.id).where(Checkpoint.session_id == context.attempt.session_id)
            if await session.scalar(query.limit(1)) is not None:
                return
        saved = await self._git.checkpoint(context.caller, sandbox.id, Reason.TURN)
        self._git.operations.raise_failure(
            await self._support.wait_unless_cancelled(context.attempt.id, self._git.operations.wait(saved.id))
        )

    async def _repeat_branch_of_copy(
        self, context: StepContext, sandbox: Sandbox, operation: GitOperation
    ) -> GitOperation:
        """Create the branch of a copied checkout again, after a person has retried the task."""
        again = await self._git.operations.submit(
            OperationKind.BRANCH,
            sandbox,
            project_id=operation.project_id,
            user_id=context.caller.user_id,
            **operation.arguments,
        )
        return await self._support.wait_unless_cancelled(context.attempt.id, self._git.operations.wait(again.id))

    async def agent(
        self,
        context: StepContext,
        step_key: StepKey,
        saved_detail: StepDetail,
        *,
        turn: str,
        prompt: str | None,
        after_loss: bool = False,
    ) -> StepResult:
        """Run a turn of the agent with this prompt, or with that of the round. `after_loss`: its sandbox replaces a lost one.

        If the sandbox is restarted during the turn, the agent is told to continue from its files, at most MAX_RESTARTS times.
        """
        build = self._prompts.build_after_loss(context) if after_loss else self._prompts.build(context, prompt)
        origin, parts = await build
        row = await self._run_turn(context, step_key, turn, origin, parts)
        for number in range(1, MAX_RESTARTS + 1):
            if row.error_code != SandboxRestartedError.code:
                break
            await self._support.raise_if_cancelled(context.attempt.id)
            again = [prompts.format_retry(row.error)]
            row = await self._run_turn(context, step_key, f"{turn}/restart-{number}", origin, again)
        row = await self._follow_refusals(context, step_key, row)
        # they may hold Git's lock or use all processes
        ended = await self._turns.end_leftovers(context.attempt.session_id)
        if row.status != TurnStatus.COMPLETED:
            await self._support.raise_if_cancelled(context.attempt.id)
            code, message = _TURN_FAILURES.get(TurnStatus(row.status), ("turn_failed", "The agent failed."))
            return {"failed": {"code": row.error_code or code, "message": row.error or message}}
        shown: StepDetail = {"turnId": row.id, "stopReason": row.stop_reason}
        if ended:
            shown["leftovers"] = ended
        return {"shown": shown}

    async def _run_turn(
        self, context: StepContext, step_key: StepKey, key: str, origin: Origin, parts: Sequence[TextPart]
    ) -> Turn:
        """Run a turn to its end. The same key is the same turn."""
        attempt = context.attempt
        row = await self._turns.prompt(
            context.caller,
            attempt.session_id,
            parts,
            key=f"{attempt.id}/{attempt.round}/{key}",
            origin=origin,
            model=attempt.model,
        )
        return await self._wait_for_turn(context, step_key, row.id)

    async def _wait_for_turn(self, context: StepContext, step_key: StepKey, turn_id: str) -> Turn:
        attempt = context.attempt
        await self._support.save_detail(step_key, {"turnId": turn_id})
        try:
            return await self._support.wait_unless_cancelled(attempt.id, self._turns.wait(turn_id))
        except CancelledStep:
            # this turn may have been requested after the others were cancelled
            await self._turns.cancel_all(attempt.session_id)
            await self._turns.wait(turn_id)
            raise

    async def _follow_refusals(self, context: StepContext, step_key: StepKey, row: Turn) -> Turn:
        """Return the last of the turns in which a person told the agent what to do instead of a denied action, at its end.

        A turn that was withdrawn before it started does not count.
        """
        while True:
            async with self._database.reading() as session:
                replacement = await asks.find_replacement_turn(session, row.id)
            if replacement is None:
                return row
            done = await self._wait_for_turn(context, step_key, replacement.id)
            if done.status == TurnStatus.CANCELLED and done.request is None:
                return row
            row = done

    async def verify(self, context: StepContext, step_key: StepKey, saved_detail: StepDetail) -> StepResult:
        """Run the verify command in the checkout and undo its changes, so that only the agent's work is committed."""
        verify = context.settings.verify
        if verify.command is None:
            return {"ok": True}
        sandbox = await self._sessions.get_sandbox(context.caller, context.attempt.session_id)
        command_id = saved_detail.get("commandId") or await self._find_interrupted_check(
            step_key, sandbox.id, verify.command
        )
        tree: str | None = saved_detail.get("tree")
        if tree is None and command_id is None:
            tree = await self._support.retry_while_engine_unavailable(
                lambda: self._git.record_work_tree(context.caller, sandbox.id)
            )
            await self._support.save_detail(step_key, {"tree": tree})
        new = NewCommand(
            command=verify.command, timeout_s=verify.timeout_seconds, cwd=CHECKOUT_FOLDER, envs={"CI": "true"}
        )
        for _ in range(MAX_RESTARTS + 1):
            if command_id is None:
                command_id = (
                    await self._support.retry_while_engine_unavailable(
                        lambda: self._commands.execute(context.caller, sandbox.id, new, internal=True)
                    )
                ).id
                await self._support.save_detail(step_key, {"commandId": command_id})
            try:
                command = await self._wait_for_check(context, command_id)
            except CancelledStep:
                await self._undo_check(context, sandbox.id, tree)
                raise
            if command.status != CommandStatus.LOST:
                break
            await self._support.raise_if_cancelled(context.attempt.id)
            # the sandbox was restarted during the verify command; a restarted platform may have started the next one
            command_id = await self._find_interrupted_check(step_key, sandbox.id, verify.command)
        undone = await self._undo_check(context, sandbox.id, tree)
        ok = command.status == CommandStatus.EXITED and command.exit_code == 0
        verified: Verification = {
            "ok": ok,
            "command": verify.command,
            "commandId": command.id,
            "exitCode": command.exit_code,
            "seconds": command.duration_s,
            "at": rfc3339(command.finished_at or utc_now()),
        }
        async with self._database.transaction() as tx:
            row = await tx.session.get(Attempt, context.attempt.id, with_for_update=True)
            if row is not None:
                row.detail = {**row.detail, "verified": verified}
        shown: StepDetail = {"commandId": command.id, "exitCode": command.exit_code, "ok": ok}
        if undone is not None and undone.count:
            shown["undone"] = {"count": undone.count, "paths": list(undone.paths), "commit": undone.commit}
        if ok:
            return {"ok": True, "shown": shown}
        await self._support.raise_if_cancelled(context.attempt.id)
        if command.status in (CommandStatus.LOST, CommandStatus.NOT_STARTED):
            raise ConflictError(f"Could not run the verify command `{verify.command}`. {command.error or ''}".strip())
        output = await self._read_output_end(command.id, command.stdout_bytes, command.stderr_bytes)
        prompt = prompts.format_failure(verify.command, command.exit_code, output)
        tried = {0: "", 1: " after one attempt to fix it"}.get(
            verify.fixes, f" after {verify.fixes} attempts to fix it"
        )
        message = f"The verify command `{verify.command}` {'still ' if tried else ''}fails (exit code {command.exit_code}){tried}."
        return {"ok": False, "words": prompt, "message": message, "shown": shown}

    async def _undo_check(self, context: StepContext, sandbox_id: str, tree: str | None) -> UndoneChanges | None:
        if tree is None:  # the step was started by a version without this
            return None
        await self._ensure_running(sandbox_id)
        return await self._support.retry_while_engine_unavailable(
            lambda: self._git.undo_changes(context.caller, sandbox_id, tree)
        )

    async def _find_interrupted_check(self, step_key: StepKey, sandbox_id: str, command: str) -> str | None:
        """Return the id of the verify command that an interrupted try of this step started but could not record."""
        never = (CommandStatus.LOST, CommandStatus.NOT_STARTED)
        query = select(Command.id).join(Step, Step.started_at <= Command.started_at)
        query = query.where(Step.attempt_id == step_key[0], Step.round == step_key[1], Step.number == step_key[2])
        query = query.where(Command.sandbox_id == sandbox_id, Command.command == command, Command.status.not_in(never))
        async with self._database.reading() as session:
            return await session.scalar(query.order_by(Command.id.desc()).limit(1))

    async def _wait_for_check(self, context: StepContext, command_id: str) -> Command:
        """Wait for the verify command. If the attempt is cancelled, kill it and raise CancelledStep."""
        try:
            return await self._support.wait_unless_cancelled(context.attempt.id, self._commands.wait(command_id))
        except CancelledStep:
            await self._commands.kill(context.caller, command_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_TIMEOUT_S):
                    await self._commands.wait(command_id)
            raise

    async def _read_output_end(self, command_id: str, out: int, err: int) -> str:
        """Return the end of both outputs. `out` and `err`: their sizes in bytes."""
        texts = []
        for stream, size in (("stdout", out), ("stderr", err)):
            start = max(0, size - prompts.MAX_OUTPUT)
            texts.append(
                (await self._commands.files.read(command_id, stream, start, size - start)).decode(errors="replace")
            )
        return "\n".join(text for text in texts if text.strip())

    async def commit(self, context: StepContext, step_key: StepKey, saved_detail: StepDetail) -> StepResult:
        """Commit the agent's uncommitted changes. Fails if there is no commit at all, except after feedback."""
        sandbox = await self._sessions.get_sandbox(context.caller, context.attempt.session_id)
        await self._wait_for_git_operations(context, sandbox.id)
        await self._ensure_running(sandbox.id)
        status = await self._support.retry_while_engine_unavailable(
            lambda: self._git.get_status(context.caller, sandbox.id)
        )
        if not status.clean:
            subject = commit_messages.suggest_subject(_describe_round(context.attempt) or context.task.title)
            wanted = await self._git.commit(context.caller, sandbox.id, message=subject)
            done = await self._git.operations.wait(wanted.id)
            if (
                done.status == OperationStatus.FAILED
                and (await self._git.get_status(context.caller, sandbox.id)).entries
            ):
                self._git.operations.raise_failure(done)
        diff = await self._support.retry_while_engine_unavailable(
            lambda: self._git.get_diff(context.caller, sandbox.id, patches=False)
        )
        commits = await self._support.retry_while_engine_unavailable(
            lambda: self._git.list_commits(context.caller, sandbox.id, limit=1)
        )
        if not commits:
            turns = select(Turn.id).where(
                Turn.key.startswith(f"{context.attempt.id}/{context.attempt.round}/", autoescape=True)
            )
            async with self._database.reading() as session:
                refused = await asks.list_denied_permissions(session, Ask.turn_id.in_(turns))
            if refused:
                raise PermissionRefusedError(f"{asks.describe_denial(refused)} The agent changed nothing.")
            raise ConflictError(
                "The agent changed nothing, so there is nothing to open a pull request for. See its last message."
            )
        counted: DiffCounts = {"files": len(diff.files), "added": diff.added, "removed": diff.removed}
        async with self._database.transaction() as tx:
            row = await tx.session.get(Attempt, context.attempt.id, with_for_update=True)
            if row is not None:
                row.detail = {**row.detail, "diff": counted, "head": commits[0].id}
        shown: StepDetail = {
            "head": commits[0].id,
            "files": counted["files"],
            "added": counted["added"],
            "removed": counted["removed"],
        }
        return {"shown": shown}

    async def _wait_for_git_operations(self, context: StepContext, sandbox_id: str) -> None:
        """Wait until no Git operation is in progress in the sandbox, such as one started before a crash."""
        page = await self._git.list_operations(context.caller, PageRequest(limit=50), sandbox_id=sandbox_id)
        for operation in reversed(page.items):
            if operation.status in OPEN_STATUSES:
                await self._support.wait_unless_cancelled(context.attempt.id, self._git.operations.wait(operation.id))

    async def _ensure_running(self, sandbox_id: str) -> None:
        """Resume the sandbox if it is paused."""
        row = await self._lifecycle.repository.get(sandbox_id)
        await self._support.retry_while_engine_unavailable(lambda: self._lifecycle.ensure_running(row))

    async def push(self, context: StepContext, step_key: StepKey, saved_detail: StepDetail) -> StepResult:
        sandbox = await self._sessions.get_sandbox(context.caller, context.attempt.session_id)
        await self._wait_for_git_operations(context, sandbox.id)
        operation = await self._git.operations.wait((await self._git.push(context.caller, sandbox.id)).id)
        if operation.error_code == CommitMessageError.code:
            message = operation.error or ""
            return {"ok": False, "message": message, "shown": {"ok": False, "message": message}}
        self._git.operations.raise_failure(operation)
        row = await self._git.get_checkout(context.caller, sandbox.id)
        return {"ok": True, "shown": {"branch": row.branch, "commit": row.pushed}}

    async def pull_request(self, context: StepContext, step_key: StepKey, saved_detail: StepDetail) -> StepResult:
        sandbox = await self._sessions.get_sandbox(context.caller, context.attempt.session_id)
        await self._wait_for_git_operations(context, sandbox.id)
        pull, _ = await self._pulls.open(context.caller, sandbox.id, push=False)  # the previous step has pushed
        async with self._database.transaction() as tx:
            row = await tx.session.get(Attempt, context.attempt.id, with_for_update=True)
            if row is not None:
                row.detail = {
                    **row.detail,
                    "pullRequestId": pull.id,
                    "branch": pull.head_branch,
                    "head": pull.head_commit,
                }
        return {"shown": {"pullRequestId": pull.id, "number": pull.number, "url": pull.url}}


def _describe_round(attempt: Attempt) -> str:
    """Return what a later round was asked to do; empty for the first work on the task, which is named after it."""
    if "head" not in attempt.detail:
        return ""
    summaries = (
        commit_messages.summarize(message.get("about") or message["words"]) for message in attempt.work.get("said", ())
    )
    return next((line for line in summaries if line), "")
