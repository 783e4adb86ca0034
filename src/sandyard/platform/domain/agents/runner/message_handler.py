"""Apply the messages of an agent to rows.

All effects of a batch of lines, and the offset up to which they were read, are written in one transaction. A batch is
split where the project's patterns have to be matched, because that takes longer than a transaction may.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import Any

from pydantic.alias_generators import to_camel
from sqlalchemy import bindparam, select, update

from sandyard.kit.errors import SandyardError
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentRun, Ask, Message, Session, Turn
from sandyard.platform.db.models.message_parts import MessagePart
from sandyard.platform.db.models.sessions import TurnUsage
from sandyard.platform.domain.agents.acp import client, mcp, wire
from sandyard.platform.domain.agents.acp.limits import MessageCounter
from sandyard.platform.domain.agents.acp.outbox import (
    list_pending_methods,
    queue_error,
    queue_response,
    take_pending_request,
)
from sandyard.platform.domain.agents.acp.transcript import (
    Transcript,
    TranscriptEntry,
    limit_json,
    split_into_deltas,
    to_event_part,
    truncate,
)
from sandyard.platform.domain.agents.errors import AgentFailedError, RunBrokenError, RunGoneError
from sandyard.platform.domain.agents.json_columns import change_options, get_run_options
from sandyard.platform.domain.agents.model import RunStatus, TurnStatus
from sandyard.platform.domain.agents.questions import asks
from sandyard.platform.domain.agents.questions.policy import UndecidedError, Verdicts
from sandyard.platform.domain.agents.repository import (
    RunningTurn,
    find_last_message_id,
    find_turn_of_run,
    get_session_fields,
    get_turn_fields,
)
from sandyard.platform.domain.agents.runner.deps import AgentRunnerDeps
from sandyard.platform.domain.agents.runner.outcomes import (
    add_notice,
    finish_answered_turn,
    finish_rejected_turn,
    finish_run,
    get_closed_call_status,
)
from sandyard.platform.domain.mcp_servers.model import SERVER_FAILED
from sandyard.platform.domain.models.faults import Fault
from sandyard.platform.domain.sandboxes.model import utc_now

LONG_LINE = 64 << 10
"""Longer lines are parsed in a thread."""
STARTUP_LIMIT = 4000
"""Characters stored of an agent's text before it is prompted."""
MAX_DELTAS = 16
"""Maximum delta events for one message in one batch. Beyond that, a single event says that the message has changed."""


_RUN = (
    select(AgentRun, Session)
    .join(Session, Session.id == AgentRun.session_id)
    .where(AgentRun.id == bindparam("run"))
    .with_for_update(of=AgentRun)
)


class MessageHandler:
    """Handle the messages of one run.

    `handle_lines` and `record_end` raise the errors of the database, and may then be called again with the same arguments.

    `output_before` returns how many bytes of standard output and standard error had been read before the agent could
    read the input at a position, or None if it cannot read it yet.

    `read_server_exits` takes names of MCP servers and returns a message for each that has exited, by name.
    """

    def __init__(
        self,
        deps: AgentRunnerDeps,
        run_id: str,
        output_before: Callable[[int], tuple[int, int] | None] = lambda _: (0, 0),
        read_server_exits: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]] | None = None,
    ) -> None:
        self._deps = deps
        self._run_id = run_id
        self._output_before = output_before
        self._read_server_exits = read_server_exits
        self._transcript: Transcript | None = None
        self._turn_id: str | None = None
        self._handled: int | None = None  # the output offset that the transcript here includes
        self._counter = MessageCounter()
        self._worked_at = time.monotonic()  # when it last sent text or used a tool, as far as known

    async def handle_lines(self, lines: Sequence[tuple[int, bytes]], consumed: int) -> int:
        """Handle a batch of lines and return how many bytes of input the run has by now.

        Raises RunBrokenError if the lines were handled and the process has to be ended.
        """
        counter = copy(self._counter)  # only kept once the batch is written: after a failure the same lines come again
        incoming = await self._parse_lines(lines, counter)
        if any(_is_work(message) for _, message in incoming):
            self._worked_at = time.monotonic()
        responses = [message.id for _, message in incoming if isinstance(message, wire.Response | wire.ErrorResponse)]
        facts = _Facts()
        if responses:
            facts = _Facts(await self._load_usage(), await self._load_server_exits(responses))
        verdicts = Verdicts()
        while True:
            sent, undecided = await self._write_batch(incoming, consumed, facts, counter, verdicts)
            if undecided is None:
                return sent
            await verdicts.decide(undecided)

    async def _write_batch(
        self,
        incoming: Sequence[tuple[int, wire.Incoming]],
        consumed: int,
        facts: _Facts,
        counter: MessageCounter,
        verdicts: Verdicts,
    ) -> tuple[int, UndecidedError | None]:
        """Write a batch in one transaction, up to the first line that needs an unknown verdict. Returns that as the
        second item."""
        broken: RunBrokenError | None = None
        undecided: UndecidedError | None = None
        try:
            async with self._deps.database.transaction() as tx:
                batch = await self._load_batch(tx, facts)
                answer_start = self._find_answer_start(batch.run, batch.turn)
                if batch.run.consumed >= consumed:
                    return batch.run.sent, None
                reached = batch.run.consumed
                for end, message in incoming:
                    if end <= batch.run.consumed:
                        continue  # already handled by a session runner that was interrupted
                    try:
                        await batch.handle(message, verdicts, startup=end <= answer_start)
                        if (fault := counter.find_exceeded_limit(batch.transcript)) is not None:
                            raise RunBrokenError(fault, RunBrokenError.TOO_MUCH_OUTPUT)  # noqa: TRY301
                    except RunBrokenError as error:
                        broken = error
                        break
                    except UndecidedError as error:
                        undecided, consumed = error, reached
                        break
                    reached = end
                await batch.write()
                if undecided is None and batch.turn is not None and batch.run.status == RunStatus.READY:
                    await client.advance(tx, batch.session, batch.run, batch.turn)
                batch.run.consumed = consumed
        except BaseException:
            self._transcript = None  # its changes may not be written
            raise
        batch.transcript.mark_written()
        self._handled = consumed
        if undecided is None:
            self._counter = counter  # it counts all lines, so keep it only when all are handled
        if broken is not None:
            raise broken
        return batch.run.sent, undecided

    def _find_answer_start(self, run: AgentRun, turn: Turn | None) -> float:
        """Return the offset in the output up to which text is not an answer, because the agent had not been prompted."""
        prompted = get_run_options(run).get("prompted")
        if prompted is None:  # a run of an earlier version may have been prompted already
            return 0 if turn is not None and turn.request is not None else math.inf
        read_before = self._output_before(prompted)
        return math.inf if read_before is None else read_before[0]

    async def _parse_lines(
        self, lines: Sequence[tuple[int, bytes]], counter: MessageCounter
    ) -> list[tuple[int, wire.Incoming]]:
        found = []
        for end, line in lines:
            message = (
                wire.parse_line(line) if len(line) <= LONG_LINE else await asyncio.to_thread(wire.parse_line, line)
            )
            if message is not None:
                found.append((end, message))
                counter.count(message, len(line))
        return found

    async def record_end(
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
        async with self._deps.database.transaction() as tx:
            run = await tx.session.get(AgentRun, self._run_id, with_for_update=True)
            session = await tx.session.get(Session, run.session_id) if run is not None else None
            if run is None or session is None:
                return
            turn = await find_turn_of_run(tx.session, run.id, for_update=True)
            prompted = get_run_options(run).get("prompted")
            read_before = self._output_before(prompted) if prompted is not None else None
            await finish_run(
                tx,
                session,
                run,
                turn,
                status=status,
                exit_code=exit_code,
                error=error,
                code=code,
                stderr=stderr(read_before[1] if read_before is not None else 0),
                usage=usage,
            )

    async def _load_batch(self, tx: Transaction, facts: _Facts) -> _Batch:
        found = (await tx.session.execute(_RUN, {"run": self._run_id})).first()
        if found is None:
            raise RunGoneError
        run, session = found
        turn = await find_turn_of_run(tx.session, run.id, for_update=True)
        others = run.consumed != self._handled  # another session runner, which is about to be stopped, has written
        if self._transcript is None or others or (turn is not None and turn.id != self._turn_id):
            self._turn_id = turn.id if turn is not None else None
            self._transcript = await _load_transcript(tx, session, self._turn_id)
            self._handled = run.consumed
        fault = self._deps.models.get_fault(turn.id) if turn is not None else None
        idle = fault is not None and fault.alone and fault.at > self._worked_at
        return _Batch(tx, session, run, turn, self._transcript, self._turn_id, facts, fault, idle=idle)

    async def _load_usage(self) -> TurnUsage:
        async with self._deps.database.reading() as session:
            turn = await find_turn_of_run(session, self._run_id)
        if turn is None or turn.request is None:
            return {}
        return {"models": _to_usage(await self._deps.models.get_usage(turn_id=turn.id))}

    async def _load_server_exits(self, responses: Sequence[int]) -> Mapping[str, str]:
        """Return a message for each MCP server that has exited, if one of these responses opens the agent's session or
        ends its turn."""
        async with self._deps.database.reading() as session:
            run = await session.get(AgentRun, self._run_id)
        names = get_run_options(run).get("mcpCommands", []) if run is not None else []
        if run is None or not names or self._read_server_exits is None:
            return {}
        pending = get_run_options(run).get("pending", {})
        if not any(pending.get(str(response_id)) in (*_OPENING_METHODS, "session/prompt") for response_id in responses):
            return {}
        return await self._read_server_exits(names)


def _to_usage(spent: Any) -> dict[str, Any]:
    """Return the usage in the form of the API."""
    if not dataclasses.is_dataclass(spent) or isinstance(spent, type):
        return {}
    return {to_camel(name): value for name, value in dataclasses.asdict(spent).items()}


async def _load_transcript(tx: Transaction, session: Session, turn_id: str | None) -> Transcript:
    known: list[tuple[str, MessagePart]] = []
    if turn_id is not None:
        query = select(Message).where(Message.turn_id == turn_id, Message.role == "agent").order_by(Message.id)
        known = [(row.id, row.parts[0]) for row in await tx.session.scalars(query) if row.parts]
    return Transcript(await find_last_message_id(tx.session, session.id), known)


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    """Facts that are read before the transaction of a batch. `server_exits`: messages about MCP servers, by name."""

    usage: TurnUsage = dataclasses.field(default_factory=TurnUsage)
    server_exits: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class _Batch:
    """The effects of a batch of messages, in one transaction."""

    tx: Transaction
    session: Session
    run: AgentRun
    turn: Turn | None
    transcript: Transcript
    turn_id: str | None  # the turn that messages belong to: the current or the previous one
    facts: _Facts
    fault: Fault | None
    idle: bool  # the agent has done nothing since the fault

    async def handle(self, message: wire.Incoming, verdicts: Verdicts, *, startup: bool = False) -> None:
        """Apply one message. `startup`: the agent sent it before it was prompted.

        Raises UndecidedError before anything is changed; call again when the verdict is known.
        """
        if isinstance(message, wire.Notification):
            if message.method == wire.UPDATE:
                self._apply_update(message.params, startup=startup)
            elif message.method == wire.CANCEL_REQUEST and self.turn is not None:
                await asks.withdraw(self._running_turn(self.turn), wire.encode_key(message.params.get("requestId")))
        elif isinstance(message, wire.Request):
            await self._handle_request(message, verdicts)
        else:
            await self._handle_response(message)
        await self._record_activity()

    def _running_turn(self, turn: Turn) -> RunningTurn:
        return RunningTurn(self.tx, self.session, self.run, turn)

    async def _record_activity(self) -> None:
        if self.turn is None:
            return
        self.turn.active_at = utc_now()
        if self.turn.stuck_at is not None and self.turn.error_code != client.WAKING:
            self.turn.stuck_at = None
            self.tx.emit("turn.unstuck", **get_session_fields(self.session), **get_turn_fields(self.turn))
            await asks.withdraw_stuck_question(self._running_turn(self.turn))

    def _apply_update(self, params: dict[str, Any], *, startup: bool) -> None:
        update = params.get("update")
        if not isinstance(update, dict):
            return
        replay = "session/load" in list_pending_methods(self.run)  # the agent repeats messages that are already stored
        kind = update.get("sessionUpdate")
        if replay and not (isinstance(kind, str) and kind in _METADATA_UPDATES):
            return
        if startup and kind == "agent_message_chunk":
            self._store_startup_text(update)
            return
        reported = self.transcript.apply(update)
        if reported is None:
            return
        if reported.options:
            change_options(self.run, reported.options)
        if reported.usage and self.turn is not None:
            self.turn.usage = {**self.turn.usage, **reported.usage}

    def _store_startup_text(self, update: dict[str, Any]) -> None:
        """Store the text outside of the transcript, because it answers no prompt."""
        content = update.get("content")
        text = content.get("text") if isinstance(content, dict) else None
        known = get_run_options(self.run).get("startupOutput", "")
        if isinstance(text, str) and len(known) < STARTUP_LIMIT:
            change_options(self.run, {"startupOutput": truncate(known + text, STARTUP_LIMIT)})

    async def _handle_request(self, request: wire.Request, verdicts: Verdicts) -> None:
        if request.method not in (asks.PERMISSION_METHOD, asks.QUESTION_METHOD):
            self._reject(request, wire.METHOD_NOT_FOUND, "The client does not support this method.")
            return
        query = select(Ask.id).where(Ask.run_id == self.run.id, Ask.request == request.key)
        if (await self.tx.session.scalars(query)).first() is not None:
            self._reject(request, wire.INVALID_REQUEST, "This request id was already used.")
        elif self.turn is not None and await asks.count_pending(self.tx, self.turn) >= asks.MAX_PENDING:
            text = f"{asks.MAX_PENDING} requests of this turn are waiting for an answer. Wait until one is answered."
            self._reject(request, wire.TOO_MANY, text)
        elif request.method == asks.PERMISSION_METHOD:
            if self.turn is None or self.turn.cancel_at is not None:
                queue_response(self.tx, self.run, request.key, {"outcome": {"outcome": "cancelled"}})
                return
            await self.write()
            call = request.params.get("toolCall")
            known = self.transcript.call(call.get("toolCallId")) if isinstance(call, dict) else {}
            await asks.open_permission(self._running_turn(self.turn), request, known, verdicts)
        elif self.turn is None or self.turn.cancel_at is not None or request.params.get("mode", "form") != "form":
            queue_response(self.tx, self.run, request.key, {"action": "cancel"})
        else:
            await self.write()
            self.transcript.end_text()  # text after the question belongs in a new message below it
            await asks.open_question(self._running_turn(self.turn), request)

    def _reject(self, request: wire.Request, code: int, text: str) -> None:
        queue_error(self.tx, self.run, request.key, code, text)

    async def _handle_response(self, response: wire.Response | wire.ErrorResponse) -> None:
        method = take_pending_request(self.run, response.id)
        if method is None:
            return
        if method == "session/prompt":
            if self.turn is not None and self.turn.request == response.id:
                await self.write()
                await self._report_exited_servers(self.turn)
                await self._finish_prompt(self.turn, response)
        elif isinstance(response, wire.ErrorResponse):
            await self._handle_error(method, response)
        elif method == "initialize":
            try:
                await client.handle_initialized(self.tx, self.run, response.result)
            except SandyardError as error:
                raise RunBrokenError(error.message, error.code) from None
        elif method == "authenticate":
            await client.open_session(self.tx, self.run)
        elif method in _OPENING_METHODS:
            fresh = method == "session/new"
            if self.turn is not None:
                await self._report_unused_servers(self.turn)
            client.record_session_opened(self.tx, self.session, self.run, response.result, fresh=fresh)
        elif method == "session/set_config_option":
            change_options(self.run, client.parse_session_options(response.result))

    async def _report_unused_servers(self, turn: Turn) -> None:
        """Report MCP servers that the agent was not given or cannot start."""
        if (unsupported := mcp.describe_unsupported_servers(self.run)) is not None:
            await add_notice(self._running_turn(turn), mcp.UNSUPPORTED, unsupported)
        for name, command in get_run_options(self.run).get("mcpMissing", {}).items():
            await add_notice(self._running_turn(turn), SERVER_FAILED, mcp.describe_missing_command(name, command))
        await self._report_exited_servers(turn)

    async def _report_exited_servers(self, turn: Turn) -> None:
        """Report MCP servers that have exited, each once for a start of the agent."""
        for name, text in self.facts.server_exits.items():
            unreported = get_run_options(self.run).get("mcpCommands", [])
            if name in unreported:
                await add_notice(self._running_turn(turn), SERVER_FAILED, text)
                change_options(self.run, {"mcpCommands": [server for server in unreported if server != name]})

    async def _finish_prompt(self, turn: Turn, response: wire.Response | wire.ErrorResponse) -> None:
        usage = self.facts.usage
        if isinstance(response, wire.Response) and isinstance(response.result.get("usage"), dict):
            usage = {**usage, "agent": limit_json(response.result["usage"], 4000)}
        if turn.error_code == client.WAKING and turn.cancel_at is None:
            turn.request = turn.stuck_at = None  # `advance` prompts it to continue
            self.tx.emit("turn.unstuck", **get_session_fields(self.session), **get_turn_fields(turn))
        elif isinstance(response, wire.ErrorResponse):
            await finish_rejected_turn(self._running_turn(turn), response.message, usage, self.fault)
        else:
            reason = str(response.result.get("stopReason") or "end_turn")[:100]
            await finish_answered_turn(self._running_turn(turn), reason, usage, self.fault if self.idle else None)
        if TurnStatus(turn.status).is_final:
            self.transcript.close_calls(get_closed_call_status(TurnStatus(turn.status)))
            self.turn = None

    async def _handle_error(self, method: str, error: wire.ErrorResponse) -> None:
        if method in ("session/load", "session/resume"):
            await client.open_session(self.tx, self.run, anew=True)
        elif method in ("session/set_mode", "session/set_config_option"):
            if self.turn is not None:
                text = f"The agent could not change its mode or model: {error.message}"
                await add_notice(self._running_turn(self.turn), "not_set", text)
        else:
            words = {"initialize": "initialize", "authenticate": "authenticate"}.get(method, "start a session")
            if self.turn is not None:
                await self._report_exited_servers(self.turn)
            raise RunBrokenError(f"The agent failed to {words}: {error.message}", AgentFailedError.code)

    # messages ------------------------------------------------------------------------------------------------------------

    async def write(self) -> None:
        for entry in self.transcript.take_changes():
            if entry.new:
                self._create_message(entry)
                entry.new = False
            else:
                await self._update_message(entry)
            entry.delta, entry.changed = "", False

    def _create_message(self, entry: TranscriptEntry) -> None:
        part, rest = to_event_part(entry.part), list[str]()
        if entry.delta and len(pieces := split_into_deltas(entry.delta)) <= MAX_DELTAS:
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

    async def _update_message(self, entry: TranscriptEntry) -> None:
        changed = update(Message).where(Message.id == entry.id).values(parts=[entry.part], updated_at=utc_now())
        await self.tx.session.execute(changed)
        pieces = split_into_deltas(entry.delta)
        if entry.delta and len(pieces) <= MAX_DELTAS:
            for piece in pieces:
                self._emit("message.delta", entry, text=piece)
        else:
            self._emit("message.updated", entry, part=to_event_part(entry.part))

    def _emit(self, kind: str, entry: TranscriptEntry, **data: Any) -> None:
        self.tx.emit(kind, **get_session_fields(self.session), messageId=entry.id, turnId=self.turn_id, **data)


def _is_work(message: wire.Incoming) -> bool:
    """Return whether the agent sends text, uses a tool or sends a request."""
    if not isinstance(message, wire.Notification):
        return isinstance(message, wire.Request)
    update = message.params.get("update")
    return isinstance(update, dict) and update.get("sessionUpdate") in _WORK_UPDATES


_OPENING_METHODS = ("session/new", "session/load", "session/resume")
_WORK_UPDATES = ("agent_message_chunk", "tool_call", "tool_call_update")
_METADATA_UPDATES = frozenset(
    ("current_mode_update", "config_option_update", "available_commands_update", "usage_update")
)
