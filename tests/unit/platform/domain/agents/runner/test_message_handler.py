"""Handle the messages of an agent."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from sqlalchemy import event, select

from sandyard.platform.db.database import Database, DatabaseUnavailableError, Transaction
from sandyard.platform.db.models import AgentInput, AgentRun, Ask, Message, Project, Session, Turn
from sandyard.platform.domain.agents.acp import limits
from sandyard.platform.domain.agents.questions import asks, policy
from sandyard.platform.domain.agents.runner.deps import AgentRunnerDeps
from sandyard.platform.domain.agents.runner.message_handler import MessageHandler
from sandyard.platform.domain.models.faults import Cause, Fault
from sandyard.platform.domain.projects.model import PermissionSettings
from sandyard.platform.domain.sandboxes.model import utc_now
from tests.unit.platform.domain.agents.turn_rows import create_turn


class FailingDatabase:
    """Dependencies whose database fails a few times after everything was written."""

    def __init__(self, database: Database, times: int) -> None:
        self.database = self
        self._real = database
        self._times = times

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._real.transaction() as tx:
            yield tx
            self._times -= 1
            if self._times >= 0:
                raise DatabaseUnavailableError


async def test_repeated_lines_count_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS", 2)
    await create_turn(database)
    handler = MessageHandler(cast(AgentRunnerDeps, FailingDatabase(database, 5)), "r")
    line = b'{"jsonrpc": "2.0", "id": 1, "method": "fs/read_text_file", "params": {}}'
    lines: Any = [(len(line), line)]
    for _ in range(5):
        with pytest.raises(DatabaseUnavailableError):
            await handler.handle_lines(lines, len(line))
    assert await handler.handle_lines(lines, len(line)) > 0


class Watched:
    """Dependencies that know whether a transaction is open."""

    def __init__(self, database: Database) -> None:
        self.database = self
        self.models = self
        self.reading = database.reading
        self.is_writing = False
        self._real = database

    def get_fault(self, turn_id: str) -> None:
        """Return None: there is no fault."""

    async def get_usage(self, **_: Any) -> None:
        """Return no usage."""

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._real.transaction() as tx:
            self.is_writing = True
            try:
                yield tx
            finally:
                self.is_writing = False


async def test_decides_permissions_between_transactions(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await create_turn(database)
    now = utc_now()
    async with database.transaction() as tx:
        settings = {"agent": {"permissions": {"deny": ["sudo"]}}}
        tx.add(Project(id="p", owner_id="u", name="p", settings=settings, created_at=now, updated_at=now))
        await tx.session.flush()
        session, turn = await tx.session.get(Session, "s"), await tx.session.get(Turn, "t")
        assert session is not None and turn is not None
        session.project_id, turn.run_id, turn.status, turn.request = "p", "r", "running", 7
    deps, searches = Watched(database), []

    def decide(settings: PermissionSettings, call: dict[str, Any]) -> policy.Verdict:
        searches.append((call["title"], deps.is_writing))
        return real(settings, call)

    real = policy.decide
    monkeypatch.setattr(policy, "decide", decide)
    lines: list[tuple[int, bytes]] = []
    place = 0
    for number, title in enumerate(("ls", "sudo id", "id")):
        options = [{"optionId": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
        params = {"toolCall": {"toolCallId": str(number), "title": title}, "options": options}
        line = json.dumps({"jsonrpc": "2.0", "id": number, "method": "session/request_permission", "params": params})
        place += len(line) + 1
        lines.append((place, line.encode()))
    handler = MessageHandler(cast(AgentRunnerDeps, deps), "r")
    for _ in range(2):  # the second time it has already been taken
        assert await handler.handle_lines(lines, place) > 0
    assert searches == [("ls", False), ("sudo id", False), ("id", False)]
    async with database.reading() as reading:
        asks = list(await reading.scalars(select(Ask).order_by(Ask.id)))
        run = await reading.get(AgentRun, "r")
    assert [(ask.title, (ask.answer or {})["decision"]) for ask in asks] == [
        ("ls", "allow"),
        ("sudo id", "reject"),
        ("id", "allow"),
    ]
    assert run is not None and run.consumed == place


async def test_limits_pending_requests(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "MAX_PENDING", 3)
    await create_turn(database)
    async with database.transaction() as tx:
        turn = await tx.session.get(Turn, "t")
        assert turn is not None
        turn.run_id, turn.status, turn.request = "r", "running", 7
    handler, place, loaded = MessageHandler(cast(AgentRunnerDeps, Watched(database)), "r"), 0, list[str]()

    async def take(*messages: dict[str, Any]) -> tuple[str, list[str], str]:
        """Return the turn's status, the ids of pending requests, and all that the agent was sent."""
        nonlocal place
        lines = []
        for message in messages:
            line = json.dumps({"jsonrpc": "2.0", **message}).encode()
            place += len(line) + 1
            lines.append((place, line))
        await handler.handle_lines(lines, place)
        async with database.reading() as reading:
            turn = await reading.get(Turn, "t")
            pending = await reading.scalars(select(Ask.request).where(Ask.status == "pending").order_by(Ask.id))
            sent = await reading.scalars(select(AgentInput.line).order_by(AgentInput.position))
            assert turn is not None
            return turn.status, list(pending), "".join(sent)

    def question(number: int) -> dict[str, Any]:
        return {"id": number, "method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": {}}}

    def cancel(number: int) -> dict[str, Any]:
        return {"method": "$/cancel_request", "params": {"requestId": number}}

    status, pending, sent = await take(*(question(number) for number in range(4)))
    assert (status, pending) == ("waiting", ["0", "1", "2"])
    refusal = json.loads(sent)
    assert (refusal["id"], refusal["error"]["code"]) == (3, -32000)
    assert refusal["error"]["message"].startswith("3 requests of this turn are waiting for an answer.")

    def note_load(ask: Ask, _: Any) -> None:
        loaded.append(ask.request)

    event.listen(Ask, "load", note_load)
    try:
        assert await take(cancel(3), cancel(99)) == ("waiting", pending, sent)
        assert loaded == []
        status, pending, _ = await take(cancel(1), question(4))
        assert (status, pending, loaded) == ("waiting", ["0", "2", "4"], ["1"])
    finally:
        event.remove(Ask, "load", note_load)
    assert (await take(cancel(0), cancel(2), cancel(4)))[:2] == ("running", [])


class Failing(Watched):
    """Dependencies for an agent whose model provider answered the last request with a fault, `seconds` from now."""

    def __init__(self, database: Database, seconds: float, *, alone: bool = True) -> None:
        super().__init__(database)
        self._fault = Fault(Cause.BUSY, "Acme is overloaded (429).", at=time.monotonic() + seconds, alone=alone)

    def get_fault(self, turn_id: str) -> Fault:  # type: ignore[override]
        return self._fault

    async def get_usage(self, **_: Any) -> None:
        """Return no usage."""


async def turn_after(database: Database, deps: Failing, *lines: dict[str, Any]) -> Turn:
    """Return the turn after the agent sent these messages and ended it normally."""
    await create_turn(database)
    async with database.transaction() as tx:
        run, turn = await tx.session.get(AgentRun, "r"), await tx.session.get(Turn, "t")
        assert run is not None and turn is not None
        turn.run_id, turn.status, turn.request = "r", "running", 7
        run.options = {"pending": {"7": "session/prompt"}}
    handler, place = MessageHandler(cast(AgentRunnerDeps, deps), "r"), 0
    for item in (*lines, {"id": 7, "result": {"stopReason": "end_turn"}}):
        line = json.dumps({"jsonrpc": "2.0", **item}).encode()
        place += len(line) + 1
        await handler.handle_lines([(place, line)], place)
    async with database.reading() as session:
        found = await session.get(Turn, "t")
    assert found is not None
    return found


def make_update(kind: str, **update: Any) -> dict[str, Any]:
    return {"method": "session/update", "params": {"update": {"sessionUpdate": kind, **update}}}


TEXT = make_update("agent_message_chunk", content={"type": "text", "text": "Done."})
TOOL = make_update("tool_call", toolCallId="1", title="ls")
THOUGHT = make_update("agent_thought_chunk", content={"type": "text", "text": "Hm."})


@pytest.mark.parametrize("before", [[], [THOUGHT], [TEXT, TOOL]])
async def test_turn_fails_if_last_model_call_failed(database: Database, before: list[dict[str, Any]]) -> None:
    """The agent ends it normally, but has done nothing since the fault."""
    turn = await turn_after(database, Failing(database, 1000), *before)
    assert (turn.status, turn.error_code, turn.error) == ("failed", "model_busy", "Acme is overloaded (429).")


@pytest.mark.parametrize("since", [TEXT, TOOL])
async def test_turn_completes_after_recovered_model_call(database: Database, since: dict[str, Any]) -> None:
    turn = await turn_after(database, Failing(database, -1000), since)
    assert (turn.status, turn.error) == ("completed", None)


async def test_failed_side_call_does_not_fail_turn(database: Database) -> None:
    """Some agents ask a second model for a title at the same time."""
    turn = await turn_after(database, Failing(database, 1000, alone=False), TEXT)
    assert (turn.status, turn.error) == ("completed", None)


async def test_exits_of_mcp_servers_are_read_for_answers_to_our_requests(database: Database) -> None:
    """They are read outside of transactions, and each server is reported once."""
    await create_turn(database)
    async with database.transaction() as tx:
        run, turn = await tx.session.get(AgentRun, "r"), await tx.session.get(Turn, "t")
        assert run is not None and turn is not None
        turn.run_id, turn.status, turn.request = "r", "running", 7
        run.options = {"pending": {"6": "session/load", "7": "session/prompt"}, "mcpCommands": ["notes", "files"]}
    deps, reads, place = Watched(database), list[list[str]](), 0

    async def read_exits(names: Sequence[str]) -> dict[str, str]:
        assert not deps.is_writing
        reads.append([*names])
        return {"notes": "notes has exited", "other": "not one of them"}

    handler = MessageHandler(cast(AgentRunnerDeps, deps), "r", read_server_exits=read_exits)

    async def take(**message: Any) -> list[str]:
        """Return the texts of all notices."""
        nonlocal place
        line = json.dumps({"jsonrpc": "2.0", **message}).encode()
        place += len(line) + 1
        await handler.handle_lines([(place, line)], place)
        async with database.reading() as reading:
            rows = await reading.scalars(select(Message).where(Message.role == "system"))
            return [row.parts[0]["text"] for row in rows]  # type: ignore[typeddict-item]

    assert await take(id=99, result={}) == []
    assert reads == [], "the answer to no request of ours"
    assert await take(id=6, result={}) == ["notes has exited"]
    assert await take(id=7, result={"stopReason": "end_turn"}) == ["notes has exited"]
    assert reads == [["notes", "files"], ["files"]]
