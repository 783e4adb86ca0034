"""Sessions: an agent or a person at work, with a sandbox of the session's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import (
    UNTITLED,
    Checkout,
    Checkpoint,
    GitOperation,
    Message,
    Preparation,
    Project,
    Sandbox,
    Session,
    Task,
)
from sandyard.platform.db.models.message_parts import MessagePart
from sandyard.platform.domain.git.errors import NoCheckoutError, NotInProjectError
from sandyard.platform.domain.git.model import Reason
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import (
    NewSandbox,
    Status,
    get_sandbox_event_fields,
    utc_now,
)
from sandyard.platform.domain.sandboxes.repository import (
    is_session_visible_to,
    require_owner_access,
    require_project_access,
)
from sandyard.platform.domain.sandboxes.service import check_envs, check_template
from sandyard.platform.domain.sessions.origins import (
    copy_checkout,
    fork_checkout,
    get_prepared_checkout,
    is_newer,
    select_first_checkout,
    select_preparation,
)
from sandyard.platform.domain.sessions.snapshots import Snapshots, get_session_event_fields
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)
FindAgentSnapshot = Callable[[str, str, str], Awaitable[str]]
CheckAgent = Callable[[str, str], Awaitable[object]]
_MAX_TITLE_LENGTH = 300


@dataclass(frozen=True, slots=True)
class TaskCopy:
    """The id, agent and model of the session of an attempt that continues from another session."""

    session_id: str
    agent: str
    model: str | None


class Sessions:
    """Operations on sessions. Raises NotFoundError for what the caller may not see."""

    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        commands: Commands,
        *,
        projects: Projects,
        git: GitService,
        settings: PlatformSettings,
        check_agent: CheckAgent | None = None,
        find_agent_snapshot: FindAgentSnapshot | None = None,
        before_delete: Sequence[Callable[[str], Awaitable[None]]] = (),
    ) -> None:
        """`check_agent` is called with an owner's id and an agent, and raises InvalidInputError if the owner has no such agent.

        `find_agent_snapshot` is called with an owner's id, an agent and a template, and returns what to create the agent's sandbox from.

        `before_delete` are called with the id of a session before it is deleted.
        """
        self._database = database
        self._commands = commands
        self._git = git
        self._lifecycle = lifecycle
        self._projects = projects
        self._settings = settings
        self._snapshots = Snapshots(database, lifecycle)
        self._check_agent = check_agent
        self._find_agent_snapshot = find_agent_snapshot
        self._before_delete = before_delete
        self.after_end = self._snapshots.forget_unusable

    async def before_pause(self, sandbox: Sandbox) -> None:
        """Save the sandbox's files as a snapshot, if the settings ask for it."""
        if self._settings.checkpoint_on_pause and sandbox.session_id is not None and sandbox.engine_id is not None:
            await self._snapshots.save(sandbox.session_id, sandbox.engine_id)

    async def create(
        self,
        principal: Principal,
        *,
        title: str | None = None,
        project_id: str | None = None,
        template: str | None = None,
        agent: str | None = None,
        envs: Mapping[str, str] | None = None,
        model: str | None = None,
        mode: str | None = None,
        session_id: str | None = None,
        task_id: str | None = None,
        base_branch: str | None = None,
        preparation: Preparation | None = None,
    ) -> tuple[Session, Sandbox]:
        """Create a session and its sandbox, which is being provisioned; the project's repository is checked out into it.

        If `session_id` already exists, that session is returned, whatever else is given. With a `preparation`, the sandbox is created from
        it and the checkout only gets its branch.
        """
        if session_id is not None and (known := await self._find_existing(principal, session_id)) is not None:
            return known
        project = await self._projects.get(principal, project_id) if project_id is not None else None
        template = template or (project.template if project else None)
        if template is not None:
            await check_template(self._database, principal, template, project_id)
        if preparation is not None and (project is None or preparation.project_id != project.id):
            raise InvalidInputError("preparation: it belongs to another project.")
        await self._check_task(task_id, project_id)
        if agent is not None and self._check_agent is not None:
            await self._check_agent(principal.user_id, agent)
        now, variables = utc_now(), dict(envs or {})
        row = Session(
            id=session_id or make_ordered_id("ses_"),
            owner_id=principal.user_id,
            project_id=project_id,
            task_id=task_id,
            title=title or UNTITLED,
            agent=agent,
            model=model,
            mode=mode,
            template=template or self._settings.default_template,
            created_at=now,
            updated_at=now,
        )
        idle = (project.settings if project else {}).get("idleSeconds")
        prepared = None
        if preparation is not None:
            if preparation.snapshot is None:
                raise ConflictError("The preparation is not ready.")
            source, row.template = preparation.snapshot, preparation.template
            prepared, base_branch = get_prepared_checkout(preparation), preparation.base_branch
            variables = {**preparation.detail.get("envs", {}), **variables}
        else:
            source = await self._find_template(row)
        sandbox = self._lifecycle.draft(principal.user_id, self._make_sandbox_request(row, source, variables, idle))
        row.sandbox_id, checkout = sandbox.id, None
        try:
            running_limit = self._lifecycle.running_limit
            async with running_limit.start(sandbox), self._database.transaction() as tx:
                tx.add(row)
                await tx.session.flush()
                tx.add(sandbox)
                tx.emit("session.created", **get_session_event_fields(row), title=row.title, sandboxId=sandbox.id)
                tx.emit("sandbox.provisioning", **get_sandbox_event_fields(sandbox), template=sandbox.template)
                if project is not None and project.repository is not None:
                    await tx.session.flush()
                    checkout = self._git.draft_checkout(
                        tx, sandbox, project, principal.user_id, base_branch=base_branch, prepared=prepared
                    )
        except IntegrityError:
            if session_id is not None and (known := await self._find_existing(principal, session_id)) is not None:
                return known  # a concurrent request created it
            raise
        self._lifecycle.provision(sandbox.id)
        if checkout is not None:
            self._git.operations.begin(checkout)
        return row, sandbox

    async def fork(self, principal: Principal, session_id: str, *, title: str | None = None) -> tuple[Session, Sandbox]:
        """Create a session of the caller's own with a copy of this one's sandbox, whose checkout gets a branch of its own.

        Messages are not copied. Raises ConflictError if the session has no sandbox.
        """
        row, parent = await self._get_with_parent(principal, session_id)
        if row.agent is not None and self._check_agent is not None:
            await self._check_agent(principal.user_id, row.agent)
        copy = _copy_session(row, principal, title=title or f"Fork of {row.title}"[:_MAX_TITLE_LENGTH])
        (sandbox,) = await self._fork(principal, parent, [copy], forked_from=row.id)
        if isinstance(sandbox, SandyardError):
            raise sandbox
        return copy, sandbox

    async def fork_for_task(
        self, principal: Principal, session_id: str, task: Task, copies: Sequence[TaskCopy]
    ) -> dict[str, Session | SandyardError]:
        """Fork a session for attempts at a task of its project, all from one instant. Returns the new sessions or errors by id.

        Raises NotFoundError if the caller may not see the session, NotInProjectError, and ConflictError if the session has no
        sandbox or no checkout.
        """
        row, parent = await self._get_with_parent(principal, session_id)
        if row.project_id != task.project_id:
            raise NotInProjectError("The session that the task starts from is not in the task's project.")
        await self._git.get_checkout(principal, parent.id)
        sessions = [
            _copy_session(
                row,
                principal,
                title=task.title,
                task_id=task.id,
                id_=copied.session_id,
                agent=copied.agent,
                model=copied.model,
            )
            for copied in copies
        ]
        results = await self._fork(principal, parent, sessions, forked_from=row.id)
        return {
            copy.id: result if isinstance(result, SandyardError) else copy
            for copy, result in zip(sessions, results, strict=True)
        }

    async def _get_with_parent(self, principal: Principal, session_id: str) -> tuple[Session, Sandbox]:
        """Return a session that the caller may fork, and its sandbox."""
        row, parent = await self.get_with_sandbox(principal, session_id)
        if parent is None:
            raise ConflictError("The session has no sandbox that can be copied. Create a new sandbox for it first.")
        parent = await self._lifecycle.repository.get_for(principal, parent.id)
        if row.project_id is not None:
            await self._projects.get(principal, row.project_id)
        return row, parent

    async def _fork(
        self, principal: Principal, parent: Sandbox, copies: Sequence[Session], *, forked_from: str
    ) -> list[Sandbox | SandyardError]:
        """Copy the sandbox for these new sessions."""
        sessions = {copy.id: copy for copy in copies}
        operations: list[GitOperation] = []

        async def record(tx: Transaction, sandbox: Sandbox) -> None:
            copy = sessions[sandbox.session_id or ""]
            copy.sandbox_id, copy.forked_from_id = sandbox.id, forked_from
            sandbox.envs = self._lifecycle.reseal_envs(parent, sandbox)
            tx.add(copy)
            await tx.session.flush()
            tx.add(sandbox)
            await tx.session.flush()
            fields = get_session_event_fields(copy)
            tx.emit("session.created", **fields, title=copy.title, sandboxId=sandbox.id, forkedFrom=forked_from)
            checkout = await tx.session.get(Checkout, parent.id)
            if checkout is not None:
                tx.add(fork_checkout(checkout, sandbox))
                operations.append(self._git.draft_branch_of_copy(tx, sandbox, checkout, principal.user_id))

        requests = [self._make_sandbox_request(copy, parent.template, {}, parent.idle_seconds) for copy in copies]
        results = await self._lifecycle.fork_all(principal.user_id, parent, requests, record)
        for operation in operations:
            self._git.operations.begin(operation)
        return results

    async def _find_template(self, row: Session) -> str:
        """Return the session's template, or a snapshot of it with the session's agent installed."""
        if row.agent is None or self._find_agent_snapshot is None:
            return row.template
        return await self._find_agent_snapshot(row.owner_id, row.agent, row.template)

    async def _find_existing(self, principal: Principal, session_id: str) -> tuple[Session, Sandbox] | None:
        """Return the existing session; None if there is none. Raises ConflictError if it is another user's or has no sandbox."""
        async with self._database.reading() as session:
            row = await session.get(Session, session_id)
            sandbox = await session.get(Sandbox, row.sandbox_id) if row is not None and row.sandbox_id else None
        if row is None:
            return None
        if row.owner_id != principal.user_id or sandbox is None:
            raise ConflictError(f"Session {session_id[:60]!r} already exists.")
        if sandbox.status == Status.PROVISIONING:
            self._lifecycle.provision(sandbox.id)
        return row, sandbox

    async def _check_task(self, task_id: str | None, project_id: str | None) -> None:
        if task_id is None:
            return
        async with self._database.reading() as session:
            task = await session.get(Task, task_id)
        if task is None or task.project_id != project_id:
            raise InvalidInputError(f"taskId: there is no task {task_id[:60]!r} in the project.")

    def _make_sandbox_request(
        self, row: Session, template: str, envs: Mapping[str, str], idle_seconds: int | None
    ) -> NewSandbox:
        return NewSandbox(
            template=template,
            idle_seconds=idle_seconds or self._settings.idle_seconds,
            envs=check_envs(envs),
            agent_id=row.agent,
            task_id=row.task_id,
            session_id=row.id,
            project_id=row.project_id,
            deleted_project_id=row.deleted_project_id,
        )

    async def get(self, principal: Principal, session_id: str) -> Session:
        async with self._database.reading() as session:
            query = select(Session).where(Session.id == session_id, is_session_visible_to(principal))
            row = (await session.execute(query)).scalar_one_or_none()
        if row is None:
            raise NotFoundError(f"There is no session {session_id[:60]!r}.")
        return row

    async def get_with_sandbox(self, principal: Principal, session_id: str) -> tuple[Session, Sandbox | None]:
        query = select(Session, Sandbox).outerjoin(Sandbox, Sandbox.id == Session.sandbox_id)
        async with self._database.reading() as session:
            found = (
                await session.execute(query.where(Session.id == session_id, is_session_visible_to(principal)))
            ).first()
        if found is None:
            raise NotFoundError(f"There is no session {session_id[:60]!r}.")
        return found[0], found[1]

    async def get_sandbox(self, principal: Principal, session_id: str) -> Sandbox:
        """Return the session's sandbox. Does not resume it."""
        _, sandbox = await self.get_with_sandbox(principal, session_id)
        if sandbox is None:
            raise NotFoundError(f"Session {session_id} has no sandbox. Create a new sandbox for it.")
        return sandbox

    async def get_sandboxes(self, rows: Listing[Session]) -> dict[str, Sandbox]:
        """Return sandboxes by id, for a page of sessions."""
        ids = [row.sandbox_id for row in rows.items if row.sandbox_id]
        async with self._database.reading() as session:
            found = (await session.execute(select(Sandbox).where(Sandbox.id.in_(ids)))).scalars()
            return {row.id: row for row in found}

    async def list_sessions(
        self, principal: Principal, page: PageRequest, *, project_id: str | None, archived: bool
    ) -> Listing[Session]:
        query = select(Session).where(is_session_visible_to(principal))
        query = query.where(Session.archived_at.is_not(None) if archived else Session.archived_at.is_(None))
        if project_id is not None:
            query = query.where(Session.project_id == project_id)
        async with self._database.reading() as session:
            return await list_newest_first(session, query, Session.id, page)

    async def rename(self, principal: Principal, session_id: str, title: str) -> Session:
        return await self._change(principal, session_id, "session.renamed", title=title)

    async def archive(self, principal: Principal, session_id: str) -> Session:
        """Archive the session and pause its sandbox, which is removed later if unused. Idempotent."""
        row = await self.get(principal, session_id)
        if row.archived_at is None:
            row = await self._change(principal, session_id, "session.archived", archived_at=utc_now())
        if row.sandbox_id is not None:
            sandbox = await self._lifecycle.repository.get(row.sandbox_id)
            if sandbox.status in (Status.PROVISIONING, Status.RUNNING):
                try:
                    await self._lifecycle.pause(sandbox)
                except SandyardError as error:  # it is paused when idle
                    log.warning("session_not_paused", session=row.id, reason=error.message)
        return row

    async def delete(self, principal: Principal, session_id: str) -> None:
        """Delete the session with its sandboxes, messages and checkpoint.

        Allowed for its owner, the project's owner and administrators.
        """
        row = await self.get(principal, session_id)
        await self._projects.require_may_delete(principal, row, "session")
        for callback in self._before_delete:
            await callback(row.id)
        async with self._database.reading() as session:
            query = select(Sandbox).where(Sandbox.session_id == row.id, Sandbox.status != Status.DESTROYED)
            sandboxes = list((await session.execute(query)).scalars())
        for sandbox in sandboxes:
            await self._lifecycle.destroy(sandbox, keep_work=False)
        await self._git.checkpoints.delete_of_session(row.id)
        await self._snapshots.delete_unrecorded(row.id, keep=None)
        await self._commands.purge(row.id)
        if row.checkpoint is not None:
            await self._lifecycle.engine.delete_snapshot(row.checkpoint)
        async with self._database.transaction() as tx:
            known = await tx.session.get(Session, row.id)
            if known is not None:
                sandboxes_update = update(Sandbox).where(Sandbox.session_id == row.id)
                await tx.session.execute(sandboxes_update.values(envs=None))
                # a sandbox provisioned at this moment is orphaned: the next sync with the engine deletes it
                await tx.session.execute(
                    sandboxes_update.where(Sandbox.status != Status.DESTROYED).values(destroy_requested_at=utc_now())
                )
                await tx.session.delete(known)
                tx.emit("session.deleted", **get_session_event_fields(row))

    async def provision(self, principal: Principal, session_id: str) -> tuple[Session, Sandbox]:
        """Create a new sandbox for a session whose sandbox failed or was deleted. Raises ConflictError while the old one is usable.

        Uses the last snapshot if there is one, otherwise the work last saved in Git. Raises OwnerWithoutAccessError if the session's owner
        was removed from its project.
        """
        row = await self.get(principal, session_id)
        async with self._database.reading() as session:
            query = select(Checkpoint).where(Checkpoint.session_id == row.id, Checkpoint.project_id == row.project_id)
            checkpoint = (await session.scalars(query.order_by(Checkpoint.id.desc()).limit(1))).first()
        return await self._create_sandbox(row, row.checkpoint, checkpoint, may_clone=row.project_id is not None)

    async def restore(self, principal: Principal, checkpoint_id: str) -> GitOperation:
        """Create a new sandbox for the session of a checkpoint, with the work as it was then.

        The existing sandbox is deleted after its work was saved; if saving fails, nothing is changed.
        """
        async with self._database.reading() as session:
            checkpoint = await session.get(Checkpoint, checkpoint_id)
        if checkpoint is None or checkpoint.session_id is None:
            raise _make_no_checkpoint_error(checkpoint_id)
        try:
            row, old = await self.get_with_sandbox(principal, checkpoint.session_id)
            await self._projects.get(principal, checkpoint.project_id)
        except NotFoundError:
            raise _make_no_checkpoint_error(checkpoint_id) from None
        if row.project_id != checkpoint.project_id:
            raise NotInProjectError(
                "The checkpoint belongs to a project that this session is not in. Start a session in that project and restore it there."
            )
        async with self._database.reading() as session:
            project = await session.get(Project, checkpoint.project_id)
            await require_owner_access(session, row)
        if project is None or project.repository is None:
            raise ConflictError("The checkpoint's project no longer has a repository. Add one first.")
        if old is not None and old.status not in (Status.ERROR, Status.DESTROYED):
            saved = await self._git.operations.wait((await self._git.checkpoint(principal, old.id, Reason.RESTORE)).id)
            if saved.error_code != NoCheckoutError.code:  # otherwise it has nothing left to save
                self._git.operations.raise_failure(saved)
            await self._lifecycle.destroy(old, keep_work=False)
        _, sandbox = await self._create_sandbox(row, None, checkpoint, may_clone=True)
        page = await self._git.list_operations(principal, PageRequest(limit=1), sandbox_id=sandbox.id)
        return page.items[0]

    async def _create_sandbox(
        self, row: Session, snapshot: str | None, checkpoint: Checkpoint | None, *, may_clone: bool
    ) -> tuple[Session, Sandbox]:
        """Create the sandbox. If nothing was saved and `may_clone`, the project's repository is checked out again."""
        async with self._database.reading() as session:
            await require_owner_access(session, row)
            project = await session.get(Project, row.project_id) if row.project_id is not None else None
            source = project if checkpoint is None else await session.get(Project, checkpoint.project_id)
            prepared = None
            if may_clone and snapshot is None and source is not None and source.repository is not None:
                prepared = await session.scalar(select_preparation(row, source))
            clone_arguments = await session.scalar(select_first_checkout(row)) or {}
        idle = (project.settings if project else {}).get("idleSeconds")
        template = snapshot or (prepared and prepared.snapshot) or await self._find_template(row)
        sandbox = self._lifecycle.draft(row.owner_id, self._make_sandbox_request(row, template, {}, idle))
        checkout, running_limit = None, self._lifecycle.running_limit
        async with running_limit.start(sandbox), self._database.transaction() as tx:
            known = await tx.session.get(Session, row.id, with_for_update=True)
            if known is None:
                raise NotFoundError(f"There is no session {row.id!r}.")
            old = await tx.session.get(Sandbox, known.sandbox_id) if known.sandbox_id else None
            if old is not None and old.status not in (Status.ERROR, Status.DESTROYED):
                raise ConflictError(f"Session {row.id} already has a sandbox, which is {old.status}.")
            if old is not None:
                sandbox.envs = self._lifecycle.reseal_envs(old, sandbox)
            known.sandbox_id, known.updated_at, known.archived_at = sandbox.id, utc_now(), None
            tx.add(sandbox)
            tx.emit(
                "sandbox.provisioning",
                **get_sandbox_event_fields(sandbox),
                template=sandbox.template,
                fromCheckpoint=snapshot is not None,
            )
            await tx.session.flush()
            if source is not None and source.repository is not None:
                old_checkout = await tx.session.get(Checkout, old.id) if old is not None else None
                has_work = snapshot is not None and old_checkout is not None
                if has_work and old_checkout is not None:
                    tx.add(copy_checkout(old_checkout, sandbox))
                if (checkpoint is not None or may_clone) and (not has_work or is_newer(checkpoint, known)):
                    checkout = self._git.draft_checkout(
                        tx,
                        sandbox,
                        source,
                        row.owner_id,
                        checkpoint,
                        base_branch=clone_arguments.get("baseBranch"),
                        prepared=None if prepared is None else get_prepared_checkout(prepared),
                    )
        self._lifecycle.provision(sandbox.id)
        if checkout is not None:
            self._git.operations.begin(checkout)
        return known, sandbox

    # snapshots ---------------------------------------------------------------------------------------------------------

    async def save_snapshot(self, principal: Principal, session_id: str) -> Session:
        """Save the files of the session's sandbox as its snapshot."""
        row = await self.get(principal, session_id)
        sandbox = await self.get_sandbox(principal, session_id)
        await self._lifecycle.call(sandbox, lambda engine_id: self._snapshots.save(row.id, engine_id))
        return await self.get(principal, session_id)

    # messages ----------------------------------------------------------------------------------------------------------

    async def add_message(self, principal: Principal, session_id: str, parts: list[MessagePart]) -> Message:
        row = await self.get(principal, session_id)
        message = Message(
            id=make_ordered_id("msg_"),
            session_id=row.id,
            author_id=principal.user_id,
            role="user",
            parts=parts,
            created_at=utc_now(),
        )
        async with self._database.transaction() as tx:
            await require_project_access(tx.session, principal, row)
            await require_owner_access(tx.session, row)
            tx.add(message)
            tx.emit(
                "message.created",
                **get_session_event_fields(row),
                messageId=message.id,
                role=message.role,
                by=principal.name,
            )
        return message

    async def list_messages(self, principal: Principal, session_id: str, page: PageRequest) -> Listing[Message]:
        row = await self.get(principal, session_id)
        async with self._database.reading() as session:
            return await list_newest_first(
                session, select(Message).where(Message.session_id == row.id), Message.id, page
            )

    async def _change(self, principal: Principal, session_id: str, event: str, **changes: Any) -> Session:
        await self.get(principal, session_id)
        async with self._database.transaction() as tx:
            row = await tx.session.get(Session, session_id)
            if row is None:
                raise NotFoundError(f"There is no session {session_id[:60]!r}.")
            await require_project_access(tx.session, principal, row)
            for name, value in changes.items():
                setattr(row, name, value)
            row.updated_at = utc_now()
            tx.emit(event, **get_session_event_fields(row), title=row.title)
        return row


def _copy_session(
    row: Session,
    principal: Principal,
    *,
    title: str,
    id_: str | None = None,
    task_id: str | None = None,
    agent: str | None = None,
    model: str | None = None,
) -> Session:
    """Return a new session of the caller's own for a copy of the session's sandbox.

    `agent`: replaces the session's agent, together with its model and mode.
    """
    now = utc_now()
    return Session(
        id=id_ or make_ordered_id("ses_"),
        owner_id=principal.user_id,
        project_id=row.project_id,
        deleted_project_id=row.deleted_project_id,
        task_id=task_id,
        title=title,
        agent=agent or row.agent,
        model=row.model if agent is None else model,
        mode=row.mode if agent is None else None,
        template=row.template,
        created_at=now,
        updated_at=now,
    )


def _make_no_checkpoint_error(checkpoint_id: str) -> NotFoundError:
    return NotFoundError(f"There is no checkpoint {checkpoint_id[:60]!r}.")
