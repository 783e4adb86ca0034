"""Let people list and answer the permission requests and questions of agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import select

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import AgentRun, Ask, Project, Session, Turn
from sandyard.platform.db.models.message_parts import MessagePart, TextPart
from sandyard.platform.domain.agents.errors import AskOverError
from sandyard.platform.domain.agents.json_columns import AskOption, get_answer, get_ask_detail
from sandyard.platform.domain.agents.model import AskKind, AskStatus
from sandyard.platform.domain.agents.questions.asks import (
    OVERRULED,
    SEND,
    close_ask,
    is_platform_question,
    make_replacement_turn_key,
    overrule,
    resume_turn,
)
from sandyard.platform.domain.agents.questions.policy import Decision, find_option
from sandyard.platform.domain.agents.repository import lock_turn
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects.inheritance import find_project
from sandyard.platform.domain.projects.service import require_owner
from sandyard.platform.domain.sandboxes.repository import is_session_visible_to, require_project_access
from sandyard.platform.domain.users.model import Principal


class TurnQueue(Protocol):
    """The part of `runner.turns.AgentTurns` that answers need."""

    async def queue_turn(
        self, tx: Transaction, caller: Principal, row: Session, parts: Sequence[MessagePart], *, key: str | None
    ) -> Turn: ...
    async def cancel(self, caller: Principal, turn_id: str) -> Turn: ...
    def nudge(self, session_id: str) -> None: ...


class Asks:
    """The requests of agents that people answer. Callers see those of their sessions and projects."""

    def __init__(self, database: Database, turns: TurnQueue) -> None:
        self._database = database
        self._turns = turns

    async def get(self, caller: Principal, ask_id: str) -> Ask:
        async with self._database.reading() as session:
            query = select(Ask).join(Session, Session.id == Ask.session_id)
            ask = (await session.scalars(query.where(Ask.id == ask_id, is_session_visible_to(caller)))).first()
        if ask is None:
            raise NotFoundError(f"There is no request {ask_id[:60]!r}.")
        return ask

    async def list(
        self,
        caller: Principal,
        page: PageRequest,
        *,
        session_id: str | None = None,
        task_id: str | None = None,
        status: AskStatus | None = None,
    ) -> Listing[Ask]:
        query = select(Ask).join(Session, Session.id == Ask.session_id).where(is_session_visible_to(caller))
        if session_id is not None:
            query = query.where(Ask.session_id == session_id)
        if task_id is not None:
            query = query.where(Session.task_id == task_id)
        if status is not None:
            query = query.where(Ask.status == status)
        async with self._database.reading() as session:
            return await list_newest_first(session, query, Ask.id, page)

    async def answer(
        self,
        caller: Principal,
        ask_id: str,
        *,
        option_id: str | None = None,
        decision: Decision | None = None,
        content: dict[str, Any] | None = None,
        message: str | None = None,
    ) -> Ask:
        """Answer a request with exactly one of an option, a decision, or the content of a form, and wake the agent for
        it.

        `message` is only allowed with a denied permission: it tells the agent what to do instead, and becomes the
        session's next turn. Raises AskOverError if the request is no longer pending, and OwnerWithoutAccessError if the
        caller has left the session's project.
        """
        _validate_answer(await self.get(caller, ask_id), option_id, decision, content, message)
        async with self._database.transaction() as tx:
            ask = await tx.session.get(Ask, ask_id)
            if ask is not None and (session := await tx.session.get(Session, ask.session_id)) is not None:
                await require_project_access(tx.session, caller, session)
            if ask is not None and message is not None:
                # Lock the session before its turns, in the same order as `prompt`.
                await tx.session.get(Session, ask.session_id, with_for_update=True)
            if ask is not None and ask.run_id is None:
                return await self._answer_platform_question(tx, caller, ask, option_id, decision)
            locked = await lock_turn(tx, ask.turn_id) if ask is not None and ask.turn_id is not None else None
            ask = await tx.session.get(Ask, ask_id, with_for_update=True, populate_existing=True)
            if ask is None or locked is None or ask.status != AskStatus.PENDING:
                raise AskOverError
            run = await tx.session.get(AgentRun, ask.run_id, with_for_update=True)
            close_ask(
                tx,
                locked.session,
                run,
                ask,
                AskStatus.ANSWERED,
                by="person",
                decision=decision,
                option_id=option_id,
                content=content,
                caller=caller,
            )
            if message is not None:
                part: TextPart = {"type": "text", "text": message}
                await self._turns.queue_turn(tx, caller, locked.session, [part], key=make_replacement_turn_key(ask))
            await resume_turn(locked)
            stop = is_platform_question(ask) and get_answer(ask).get("optionId") == "stop"
        if stop and ask.turn_id is not None:
            await self._turns.cancel(caller, ask.turn_id)
        self._turns.nudge(ask.session_id)
        return ask

    async def allow(self, caller: Principal, ask_id: str) -> Ask:
        """Allow what the project's policy denied, and everything else its pattern denies, for the rest of the session.

        Idempotent. Raises ForbiddenError if the caller may not change the policy, and ConflictError if the request was
        not denied by a pattern.
        """
        await self.get(caller, ask_id)
        async with self._database.transaction() as tx:
            ask = await tx.session.get(Ask, ask_id, with_for_update=True)
            session = await tx.session.get(Session, ask.session_id) if ask is not None else None
            if ask is None or session is None:
                raise AskOverError
            project = await find_project(tx.session, session)
            if project is not None:
                require_owner(caller, project)
            if ask.decided_by == OVERRULED:
                return ask
            if ask.decided_by != "policy" or "pattern" not in get_ask_detail(ask):
                raise ConflictError("This request was not denied by the project's policy.")
            overrule(tx, session, ask, caller)
        return ask

    async def _answer_platform_question(
        self, tx: Transaction, caller: Principal, ask: Ask, option_id: str | None, decision: Decision | None
    ) -> Ask:
        """Answer a question of the platform that belongs to no turn. The code that asked it reacts to the answer's event."""
        await tx.session.refresh(ask, with_for_update=True)
        session = await tx.session.get(Session, ask.session_id)
        if session is None or ask.status != AskStatus.PENDING:
            raise AskOverError
        project = await tx.session.get(Project, session.project_id) if session.project_id is not None else None
        resumes_agent = option_id == SEND or decision in ("allow", "allow_always")
        if resumes_agent and project is not None and project.archived_at is not None:
            raise ConflictError(f"Project {project.id} is archived, so nothing is sent to its agents.")
        status = AskStatus.ANSWERED
        close_ask(tx, session, None, ask, status, by="person", decision=decision, option_id=option_id, caller=caller)
        return ask


def _validate_answer(
    ask: Ask, option_id: str | None, decision: Decision | None, content: dict[str, Any] | None, message: str | None
) -> None:
    """Raise InvalidInputError, naming the valid answers, if the request cannot be answered like this."""
    options = get_ask_detail(ask).get("options") or []
    names = ", ".join(repr(option["optionId"]) for option in options)
    if sum(value is not None for value in (option_id, decision, content)) != 1:
        raise InvalidInputError("Answer with one of optionId, decision or content.")
    has_form = ask.kind == AskKind.QUESTION and not is_platform_question(ask)
    if content is not None and not has_form:
        raise InvalidInputError("content: this request has no form. Answer with optionId or decision.")
    if has_form and (option_id is not None or decision in ("allow", "allow_always")):
        raise InvalidInputError("This request has a form. Answer with content, or deny it with decision: reject.")
    if option_id is not None and all(option["optionId"] != option_id for option in options):
        raise InvalidInputError(f"optionId: there is no such option. Available: {names}.")
    if message is not None and (ask.kind != AskKind.PERMISSION or not _is_denial(options, option_id, decision)):
        raise InvalidInputError(
            "message: only allowed with a denied permission. Deny the request, or leave the message out."
        )
    if not has_form and decision in ("allow", "allow_always") and find_option(options, decision) is None:
        raise InvalidInputError(f"decision: the agent offers no such option. Available: {names}.")


def _is_denial(options: Sequence[AskOption], option_id: str | None, decision: Decision | None) -> bool:
    kind = next((option["kind"] for option in options if option["optionId"] == option_id), decision or "")
    return kind.startswith("reject")
