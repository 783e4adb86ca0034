"""Turn the messages of an agent into rows.

All effects of a batch of lines, and the offset up to which they were read, are written in one transaction. A batch is
split where the project's patterns have to be matched, because that takes longer than a transaction may.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from pydantic.alias_generators import to_camel
from sqlalchemy import bindparam, select, update

from sandyard.kit.errors import SandyardError
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentRun, Ask, Message, Session, Turn
from sandyard.platform.domain.agents import asking, ending, mcp_commands, steps, wire
from sandyard.platform.domain.agents.errors import AgentFailedError
from sandyard.platform.domain.agents.measure import Measure
from sandyard.platform.domain.agents.model import RunStatus, TurnStatus
from sandyard.platform.domain.agents.policy import UndecidedError, Verdicts
from sandyard.platform.domain.agents.ports import Desk
from sandyard.platform.domain.agents.rows import (
    MCP_MISSING,
    PROMPTED,
    STARTUP,
    Scene,
    about,
    about_turn,
    answered,
    last_message,
    pending,
    say,
    turn_of,
)
from sandyard.platform.domain.agents.transcript import Entry, Transcript, bounded, cut, deltas, shown
from sandyard.platform.domain.mcp_servers.model import SERVER_FAILED
from sandyard.platform.domain.models.faults import Fault
from sandyard.platform.domain.sandboxes.model import utc_now

TOO_LOUD = "agent_too_loud"
APART = 64 << 10
"""Longer lines are parsed in a thread."""
STARTUP_LIMIT = 4000
"""Characters stored of an agent's text before it is prompted."""
DELTAS = 16
"""Maximum delta events for one message in one batch. Beyond that, a single event says that the message has changed."""


class RunGoneError(SandyardError):
    """The agent's session was deleted."""

    code, status = "run_gone", 410


class RunBrokenError(SandyardError):
    """The agent could not be used."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.reason = code


_RUN = (
    select(AgentRun, Session)
    .join(Session, Session.id == AgentRun.session_id)
    .where(AgentRun.id == bindparam("run"))
    .with_for_update(of=AgentRun)
)


class Consumer:
    """Consume the messages of one run.

    `take` and `over` raise the errors of the database, and may then be called again with the same arguments.

    `heard_before` returns how many bytes of standard output and standard error had been read before the agent could
    read the input at a position, or None if it cannot read it yet.
    """

    def __init__(
        self, desk: Desk, run_id: str, heard_before: Callable[[int], tuple[int, int] | None] = lambda _: (0, 0)
    ) -> None:
        self._desk = desk
        self._run_id = run_id
        self._heard_before = heard_before
        self._transcript: Transcript | None = None
        self._turn_id: str | None = None
        self._taken: int | None = None  # the output offset that the transcript here includes
        self._measure = Measure()
        self._worked_at = time.monotonic()  # when it last sent text or used a tool, as far as known

    async def take(self, lines: Sequence[tuple[int, bytes]], consumed: int) -> int:
        """Take a batch of lines and return how many bytes of input the run has by now.

        Raises RunBrokenError if the lines were taken and the process has to be ended.
        """
        measure = copy(self._measure)  # only kept once the batch is written: after a failure the same lines come again
        incoming = await self._parse_lines(lines, measure)
        if any(_is_work(one) for _, one in incoming):
            self._worked_at = time.monotonic()
        usage = (
            await self._load_usage() if any(isinstance(one, wire.Answer | wire.Refusal) for _, one in incoming) else {}
        )
        verdicts = Verdicts()
        while True:
            sent, undecided = await self._write_batch(incoming, consumed, usage, measure, verdicts)
            if undecided is None:
                return sent
            await verdicts.decide(undecided)

    async def _write_batch(
        self,
        incoming: Sequence[tuple[int, wire.Incoming]],
        consumed: int,
        usage: dict[str, Any],
        measure: Measure,
        verdicts: Verdicts,
    ) -> tuple[int, UndecidedError | None]:
        """Write a batch in one transaction, up to the first line that needs an unknown verdict. Returns that as the
        second item."""
        broken: RunBrokenError | None = None
        undecided: UndecidedError | None = None
        try:
            async with self._desk.database.transaction() as tx:
                batch = await self._load_batch(tx, usage)
                words_from = self._find_answer_start(batch.run, batch.turn)
                if batch.run.consumed >= consumed:
                    return batch.run.sent, None
                reached = batch.run.consumed
                for end, one in incoming:
                    if end <= batch.run.consumed:
                        continue  # already taken by a conductor that was interrupted
                    try:
                        await batch.handle(one, verdicts, startup=end <= words_from)
                        if (fault := measure.fault(batch.transcript)) is not None:
                            raise RunBrokenError(fault, TOO_LOUD)  # noqa: TRY301
                    except RunBrokenError as error:
                        broken = error
                        break
                    except UndecidedError as error:
                        undecided, consumed = error, reached
                        break
                    reached = end
                await batch.write()
                if undecided is None and batch.turn is not None and batch.run.status == RunStatus.READY:
                    await steps.advance(tx, batch.session, batch.run, batch.turn)
                batch.run.consumed = consumed
        except BaseException:
            self._transcript = None  # its changes may not be written
            raise
        batch.transcript.settled()
        self._taken = consumed
        if undecided is None:
            self._measure = measure  # it counts all lines, so keep it only when all are taken
        if broken is not None:
            raise broken
        return batch.run.sent, undecided

    def _find_answer_start(self, run: AgentRun, turn: Turn | None) -> float:
        """Return the offset in the output up to which text is not an answer, because the agent had not been prompted."""
        prompted = run.options.get(PROMPTED)
        if prompted is None:  # a run of an earlier version may have been prompted already
            return 0 if turn is not None and turn.request is not None else math.inf
        heard = self._heard_before(prompted)
        return math.inf if heard is None else heard[0]

    async def _parse_lines(
        self, lines: Sequence[tuple[int, bytes]], measure: Measure
    ) -> list[tuple[int, wire.Incoming]]:
        found = []
        for end, line in lines:
            told = wire.parse(line) if len(line) <= APART else await asyncio.to_thread(wire.parse, line)
            if told is not None:
                found.append((end, told))
                measure.count(told, len(line))
        return found

    async def over(
        self,
        *,
        status: RunStatus,
        exit_code: int | None = None,
        error: str | None = None,
        code: str | None = None,
        stderr: Callable[[int], str] = lambda _: "",
    ) -> None:
        """Record that the run has ended. `stderr` returns the error output from an offset on."""
        usage = await self._load_usage()
        async with self._desk.database.transaction() as tx:
            run = await tx.session.get(AgentRun, self._run_id, with_for_update=True)
            session = await tx.session.get(Session, run.session_id) if run is not None else None
            if run is None or session is None:
                return
            turn = await turn_of(tx.session, run.id, to_change=True)
            heard = self._heard_before(run.options[PROMPTED]) if PROMPTED in run.options else None
            await ending.run_over(
                tx,
                session,
                run,
                turn,
                status=status,
                exit_code=exit_code,
                error=error,
                code=code,
                stderr=stderr(heard[1] if heard is not None else 0),
                usage=usage,
            )

    async def _load_batch(self, tx: Transaction, usage: dict[str, Any]) -> _Batch:
        found = (await tx.session.execute(_RUN, {"run": self._run_id})).first()
        if found is None:
            raise RunGoneError
        run, session = found
        turn = await turn_of(tx.session, run.id, to_change=True)
        others = run.consumed != self._taken  # another conductor, which is about to be stopped, has written
        if self._transcript is None or others or (turn is not None and turn.id != self._turn_id):
            self._turn_id = turn.id if turn is not None else None
            self._transcript = await _load_transcript(tx, session, self._turn_id)
            self._taken = run.consumed
        fault = self._desk.models.fault(turn.id) if turn is not None else None
        idle = fault is not None and fault.alone and fault.at > self._worked_at
        return _Batch(tx, session, run, turn, self._transcript, self._turn_id, usage, fault, idle=idle)

    async def _load_usage(self) -> dict[str, Any]:
        async with self._desk.database.reading() as session:
            turn = await turn_of(session, self._run_id)
        if turn is None or turn.request is None:
            return {}
        return {"models": as_dict(await self._desk.models.usage(turn_id=turn.id))}


def as_dict(spent: Any) -> dict[str, Any]:
    """Return the usage in the form of the API."""
    if not dataclasses.is_dataclass(spent) or isinstance(spent, type):
        return {}
    return {to_camel(name): value for name, value in dataclasses.asdict(spent).items()}


async def _load_transcript(tx: Transaction, session: Session, turn_id: str | None) -> Transcript:
    known: list[tuple[str, dict[str, Any]]] = []
    if turn_id is not None:
        query = select(Message).where(Message.turn_id == turn_id, Message.role == "agent").order_by(Message.id)
        known = [(row.id, row.parts[0]) for row in await tx.session.scalars(query) if row.parts]
    return Transcript(await last_message(tx.session, session.id), known)


@dataclasses.dataclass(slots=True)
class _Batch:
    tx: Transaction
    session: Session
    run: AgentRun
    turn: Turn | None
    transcript: Transcript
    turn_id: str | None  # the turn that messages belong to: the current or the previous one
    usage: dict[str, Any]
    fault: Fault | None
    idle: bool  # the agent has done nothing since the fault

    async def handle(self, told: wire.Incoming, verdicts: Verdicts, *, startup: bool = False) -> None:
        """Apply one message. `startup`: the agent sent it before it was prompted.

        Raises UndecidedError before anything is changed; call again when the verdict is known.
        """
        if isinstance(told, wire.Notice):
            if told.method == wire.UPDATE:
                self._apply_update(told.params, startup=startup)
            elif told.method == wire.CANCEL_REQUEST and self.turn is not None:
                await asking.withdraw(self._make_scene(self.turn), wire.key_of(told.params.get("requestId")))
        elif isinstance(told, wire.Request):
            await self._handle_request(told, verdicts)
        else:
            await self._handle_answer(told)
        await self._record_activity()

    def _make_scene(self, turn: Turn) -> Scene:
        return Scene(self.tx, self.session, self.run, turn)

    async def _record_activity(self) -> None:
        if self.turn is None:
            return
        self.turn.active_at = utc_now()
        if self.turn.stuck_at is not None and self.turn.error_code != steps.WAKING:
            self.turn.stuck_at = None
            self.tx.emit("turn.unstuck", **about(self.session), **about_turn(self.turn))
            await asking.withdraw_stuck(self.tx, self.session, self.run, self.turn)

    def _apply_update(self, params: dict[str, Any], *, startup: bool) -> None:
        update = params.get("update")
        if not isinstance(update, dict):
            return
        replay = "session/load" in pending(self.run)  # the agent repeats messages that are already stored
        kind = update.get("sessionUpdate")
        if replay and not (isinstance(kind, str) and kind in _METADATA_UPDATES):
            return
        if startup and kind == "agent_message_chunk":
            self._store_startup_text(update)
            return
        facts = self.transcript.apply(update)
        if facts is None:
            return
        if facts.options:
            self.run.options = {**self.run.options, **facts.options}
        if facts.usage and self.turn is not None:
            self.turn.usage = {**self.turn.usage, **facts.usage}

    def _store_startup_text(self, update: dict[str, Any]) -> None:
        """Store the text outside of the transcript, because it answers no prompt."""
        content = update.get("content")
        text = content.get("text") if isinstance(content, dict) else None
        known = self.run.options.get(STARTUP, "")
        if isinstance(text, str) and len(known) < STARTUP_LIMIT:
            self.run.options = {**self.run.options, STARTUP: cut(known + text, STARTUP_LIMIT)}

    async def _handle_request(self, request: wire.Request, verdicts: Verdicts) -> None:
        if request.method not in (asking.PERMISSION, asking.QUESTION):
            say(
                self.tx,
                self.run,
                wire.refuse(request.key, wire.METHOD_NOT_FOUND, "The client does not support this method."),
            )
            return
        query = select(Ask.id).where(Ask.run_id == self.run.id, Ask.request == request.key)
        if (await self.tx.session.scalars(query)).first() is not None:
            say(self.tx, self.run, wire.refuse(request.key, -32600, "This request id was already used."))
        elif self.turn is not None and await asking.count_pending(self.tx, self.turn) >= asking.MOST_PENDING:
            text = f"{asking.MOST_PENDING} requests of this turn are waiting for an answer. Wait until one is answered."
            say(self.tx, self.run, wire.refuse(request.key, wire.TOO_MANY, text))
        elif request.method == asking.PERMISSION:
            if self.turn is None or self.turn.cancel_at is not None:
                say(self.tx, self.run, wire.answer(request.key, {"outcome": {"outcome": "cancelled"}}))
                return
            await self.write()
            call = request.params.get("toolCall")
            known = self.transcript.call(call.get("toolCallId")) if isinstance(call, dict) else {}
            await asking.open_permission(self._make_scene(self.turn), request, known, verdicts)
        elif self.turn is None or self.turn.cancel_at is not None or request.params.get("mode", "form") != "form":
            say(self.tx, self.run, wire.answer(request.key, {"action": "cancel"}))
        else:
            await self.write()
            self.transcript.end_text()  # text after the question belongs in a new message below it
            await asking.open_question(self._make_scene(self.turn), request)

    async def _handle_answer(self, told: wire.Answer | wire.Refusal) -> None:
        method = answered(self.run, told.id)
        if method is None:
            return
        if method == "session/prompt":
            if self.turn is not None and self.turn.request == told.id:
                await self.write()
                await self._finish_prompt(self.turn, told)
        elif isinstance(told, wire.Refusal):
            await self._handle_refusal(method, told)
        elif method == "initialize":
            try:
                await steps.greeted(self.tx, self.run, told.result)
            except SandyardError as error:
                raise RunBrokenError(error.message, error.code) from None
        elif method == "authenticate":
            await steps.open_session(self.tx, self.run)
        elif method in ("session/new", "session/load", "session/resume"):
            fresh = method == "session/new"
            if self.turn is not None:
                await self._report_unused_servers(self.turn)
            steps.opened(self.tx, self.session, self.run, told.result, fresh=fresh)
        elif method == "session/set_config_option":
            self.run.options = {**self.run.options, **steps.session_options(told.result)}

    async def _report_unused_servers(self, turn: Turn) -> None:
        """Report MCP servers that the agent was not given or cannot start."""
        if (left_out := steps.describe_left_out(self.run)) is not None:
            await ending.notice(self.tx, self.session, turn, steps.LEFT_OUT, left_out)
        for name, command in self.run.options.get(MCP_MISSING, {}).items():
            text = mcp_commands.describe_missing(name, command)
            await ending.notice(self.tx, self.session, turn, SERVER_FAILED, text)

    async def _finish_prompt(self, turn: Turn, told: wire.Answer | wire.Refusal) -> None:
        usage = self.usage
        if isinstance(told, wire.Answer) and isinstance(told.result.get("usage"), dict):
            usage = {**usage, "agent": bounded(told.result["usage"], 4000)}
        if turn.error_code == steps.WAKING and turn.cancel_at is None:
            turn.request = turn.stuck_at = None  # `advance` prompts it to continue
            self.tx.emit("turn.unstuck", **about(self.session), **about_turn(turn))
        elif isinstance(told, wire.Refusal):
            await ending.refused(self._make_scene(turn), told.message, usage, self.fault)
        else:
            reason = str(told.result.get("stopReason") or "end_turn")[:100]
            await ending.answered(self._make_scene(turn), reason, usage, self.fault if self.idle else None)
        if TurnStatus(turn.status).over:
            self.transcript.close_calls(ending.closed_status(TurnStatus(turn.status)))
            self.turn = None

    async def _handle_refusal(self, method: str, told: wire.Refusal) -> None:
        if method in ("session/load", "session/resume"):
            await steps.open_session(self.tx, self.run, anew=True)
        elif method in ("session/set_mode", "session/set_config_option"):
            if self.turn is not None:
                await ending.notice(
                    self.tx,
                    self.session,
                    self.turn,
                    "not_set",
                    f"The agent could not change its mode or model: {told.message}",
                )
        else:
            words = {"initialize": "initialize", "authenticate": "authenticate"}.get(method, "start a session")
            raise RunBrokenError(f"The agent failed to {words}: {told.message}", AgentFailedError.code)

    # messages ------------------------------------------------------------------------------------------------------------

    async def write(self) -> None:
        for entry in self.transcript.changes():
            if entry.new:
                self._create_message(entry)
                entry.new = False
            else:
                await self._update_message(entry)
            entry.delta, entry.changed = "", False

    def _create_message(self, entry: Entry) -> None:
        part, rest = shown(entry.part), list[str]()
        if entry.delta and len(pieces := deltas(entry.delta)) <= DELTAS:
            part, rest = {**entry.part, "text": pieces[0]}, list(pieces[1:])
        row = Message(
            id=entry.id,
            session_id=self.session.id,
            turn_id=self.turn_id,
            role="agent",
            parts=[entry.part],
            created_at=utc_now(),
        )
        self.tx.add(row)
        self._emit("message.created", entry, role="agent", by=self.run.agent, part=part)
        for piece in rest:
            self._emit("message.delta", entry, text=piece)

    async def _update_message(self, entry: Entry) -> None:
        changed = update(Message).where(Message.id == entry.id).values(parts=[entry.part], updated_at=utc_now())
        await self.tx.session.execute(changed)
        pieces = deltas(entry.delta)
        if entry.delta and len(pieces) <= DELTAS:
            for piece in pieces:
                self._emit("message.delta", entry, text=piece)
        else:
            self._emit("message.updated", entry, part=shown(entry.part))

    def _emit(self, kind: str, entry: Entry, **data: Any) -> None:
        self.tx.emit(kind, **about(self.session), messageId=entry.id, turnId=self.turn_id, **data)


def _is_work(told: wire.Incoming) -> bool:
    """Return whether the agent sends text, uses a tool or sends a request."""
    if not isinstance(told, wire.Notice):
        return isinstance(told, wire.Request)
    update = told.params.get("update")
    return isinstance(update, dict) and update.get("sessionUpdate") in _WORK_UPDATES


_WORK_UPDATES = ("agent_message_chunk", "tool_call", "tool_call_update")
_METADATA_UPDATES = frozenset(
    ("current_mode_update", "config_option_update", "available_commands_update", "usage_update")
)
