"""Permission requests and questions of an agent, with a real engine: decided by policy, by a person, or by timeout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import Ask, Audit, Project, Session, Turn
from sandyard.platform.domain.agents.errors import AskOverError
from sandyard.platform.domain.agents.runner import session_runner
from sandyard.platform.domain.models.model import ModelApi, ModelEndpoint
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.sandboxes.model import Status
from tests.integration.platform.domain.agents.harness import AgentHarness, ScriptedProfile
from tests.integration.platform.domain.sandboxes.platform_harness import until


async def create_session_with(harness: AgentHarness, agent: dict[str, Any]) -> Session:
    """Create a session of a project with these agent settings."""
    project_id = await harness.platform.project(harness.platform.owner, agent=agent)
    return await harness.create_session(project_id=project_id)


async def wait_for_ask(harness: AgentHarness, row: Session) -> Ask:
    found: Ask = await until(lambda: harness.find_pending_ask(row), "a request is pending")
    return found


async def get_turn_status(harness: AgentHarness, turn: Turn) -> str:
    return (await harness.turns.get(harness.platform.owner, turn.id)).status


async def list_decisions(harness: AgentHarness) -> list[tuple[str | None, str, str]]:
    async with harness.platform.services.database.reading() as session:
        found = await session.scalars(select(Audit).where(Audit.action == "ask.decided").order_by(Audit.seq))
        return [(entry.user_name, entry.means or "", entry.detail["title"]) for entry in found]


async def test_the_policy_decides_immediately(harness: AgentHarness) -> None:
    row = await create_session_with(harness, {"permissions": {"mode": "allow_all", "deny": ["rm -rf"]}})
    turn = await harness.run_turn(row, "ask execute make test", "ask execute rm -rf /")
    text = await harness.text(turn)
    assert '"optionId": "yes-1"' in text
    assert '"optionId": "no-1"' in text
    assert [title for _, means, title in await list_decisions(harness) if means == "policy"] == [
        "make test",
        "rm -rf /",
    ]
    assert await harness.platform.list_event_kinds(prefix="ask.") == ["ask.answered"] * 2


async def test_a_denied_request_is_reported_and_can_be_allowed_by_the_project_owner(harness: AgentHarness) -> None:
    platform, member = harness.platform, await harness.platform.create_person("member")
    project_id = await platform.project(platform.owner, member, agent={"permissions": {"deny": ["rm -rf", "dd"]}})
    row = await harness.create_session(project_id=project_id)
    turn = await harness.run_turn(row, "ask execute make", "ask execute rm -rf /", "quit")
    assert (turn.status, turn.error_code) == ("failed", "permission_refused")
    assert "“rm -rf /”" in (turn.error or "")
    assert "denies what matches 'rm -rf'" in (turn.error or "")
    found = (await harness.asks.list(platform.owner, PageRequest(), session_id=row.id)).items
    allowed, denied = sorted(found, key=lambda ask: ask.title)
    with pytest.raises(NotFoundError):
        await harness.asks.allow(await platform.create_person("stranger"), denied.id)
    with pytest.raises(ConflictError):
        await harness.asks.allow(platform.owner, allowed.id)
    await harness.asks.allow(platform.owner, denied.id)
    assert (await harness.asks.allow(platform.owner, denied.id)).decided_by == "overruled"
    resumed = await harness.turns.resume_allowed(platform.owner, row.id, [denied.title])
    assert resumed is not None
    await harness.wait_for_turn(resumed)
    assert "are allowed to do this now:\n- rm -rf /" in (await harness.parts(resumed, "user"))[0]["text"]
    text = await harness.text(await harness.run_turn(row, "ask execute rm -rf /", "ask execute dd"))
    assert (text.count('"yes-1"'), text.count('"no-1"')) == (1, 1), "the other pattern still denies its matches"
    other = await harness.text(
        await harness.run_turn(await harness.create_session(project_id=project_id), "ask execute rm -rf /")
    )
    assert '"no-1"' in other, "another session is still denied"
    member_session, _ = await platform.services.sessions.create(
        member, title="mine", agent="acting", project_id=project_id
    )
    prompt = [{"type": "text", "text": "ask execute rm -rf /"}]
    await harness.wait_for_turn(await harness.turns.prompt(member, member_session.id, prompt))
    (member_ask,) = (await harness.asks.list(member, PageRequest(), session_id=member_session.id)).items
    with pytest.raises(ForbiddenError):
        await harness.asks.allow(member, member_ask.id)


async def test_the_message_of_a_rejection_becomes_the_next_prompt(harness: AgentHarness) -> None:
    """With a message, it is no failure if the agent ends its turn after the rejection."""
    row = await create_session_with(harness, {"permissions": {"mode": "ask"}})
    turn = await harness.prompt(row, "ask execute make", "quit")
    ask = await wait_for_ask(harness, row)
    with pytest.raises(InvalidInputError):
        await harness.asks.answer(harness.platform.owner, ask.id, decision="allow", message="say 1")
    await harness.asks.answer(harness.platform.owner, ask.id, option_id="no-1", message="say 1")
    turn = await harness.wait_for_turn(turn)
    assert (turn.status, turn.error, turn.error_code) == ("cancelled", None, None)
    newest = (await harness.turns.list(harness.platform.owner, row.id, PageRequest())).items[0]
    assert newest.id != turn.id
    assert (await harness.wait_for_turn(newest)).status == "completed"
    assert [part["text"] for part in await harness.parts(newest, "user")] == ["say 1"]
    without_message = await harness.prompt(row, "ask execute make", "quit")
    await harness.asks.answer(harness.platform.owner, (await wait_for_ask(harness, row)).id, decision="reject")
    without_message = await harness.wait_for_turn(without_message)
    assert (without_message.status, without_message.error_code) == ("failed", "agent_gave_up")
    assert "agent.permissions" not in (without_message.error or "")


async def test_a_path_reported_before_the_permission_request_is_denied_too(harness: AgentHarness) -> None:
    row = await create_session_with(harness, {"permissions": {"deny": ["README"]}})
    turn = await harness.run_turn(row, "vague /repository/README.md", "vague /repository/app.py")
    text = await harness.text(turn)
    assert (text.count('"optionId": "no-1"'), text.count('"optionId": "yes-1"')) == (1, 1)


async def test_allow_always_is_not_offered_with_a_deny_list(harness: AgentHarness) -> None:
    """Otherwise the agent would not ask before its next call, which may be denied."""
    row = await create_session_with(harness, {"permissions": {"mode": "ask", "deny": ["README"]}})
    turn = await harness.prompt(row, "ask execute make")
    ask = await wait_for_ask(harness, row)
    assert [option["kind"] for option in ask.detail["options"]] == ["allow_once", "reject_once"]
    await harness.asks.answer(harness.platform.owner, ask.id, decision="allow_always")
    await harness.wait_for_turn(turn)
    assert '"optionId": "yes-1"' in await harness.text(turn)


async def test_a_stricter_policy_restarts_the_agent_in_a_mode_that_asks(harness: AgentHarness) -> None:
    harness.agents.current_profile = ScriptedProfile(modes=("code", "plan"), unasked_modes=("code",))
    row = await create_session_with(harness, {})
    await harness.run_turn(row, "say 1", mode="code")
    async with harness.platform.services.database.transaction() as tx:
        project = await tx.session.get(Project, row.project_id)
        assert project is not None
        project.settings = {**project.settings, "agent": {"permissions": {"deny": ["README"]}}}
    turn = await harness.run_turn(row, "say 1", mode="code")
    assert [run.status for run in await harness.runs(row)] == ["ended", "ready"]
    thoughts = [part["text"] for part in await harness.parts(turn) if part["type"] == "thought"]
    assert '"modeId": "plan"' in thoughts[0]


async def test_an_answer_resumes_a_paused_sandbox(harness: AgentHarness) -> None:
    row = await create_session_with(harness, {"permissions": {"mode": "allow_reads"}})
    turn = await harness.prompt(row, "ask read a file", "ask execute make", "form")
    ask = await wait_for_ask(harness, row)
    assert (ask.title, ask.kind, await get_turn_status(harness, turn)) == ("make", "permission", "waiting")
    sandbox = await harness.platform.services.lifecycle.repository.get(row.sandbox_id or "")
    assert harness.platform.services.lifecycle.activity.idle_for(sandbox.id) >= 0
    await harness.platform.services.lifecycle.pause(sandbox)
    await harness.crash_and_recover()
    stranger = await harness.platform.create_person("stranger")
    with pytest.raises(NotFoundError):
        await harness.asks.answer(stranger, ask.id, decision="allow")
    with pytest.raises(InvalidInputError):
        await harness.asks.answer(harness.platform.owner, ask.id, option_id="nonsense")
    await harness.asks.answer(harness.platform.owner, ask.id, decision="allow")
    with pytest.raises(AskOverError):
        await harness.asks.answer(harness.platform.owner, ask.id, decision="reject")

    async def find_question() -> Ask | None:
        found = await harness.find_pending_ask(row)
        return found if found is not None and found.kind == "question" else None

    form: Ask = await until(find_question, "the form is pending")
    assert (await harness.platform.reload(sandbox)).status == Status.RUNNING
    assert form.title == "Your name?"
    with pytest.raises(InvalidInputError):
        await harness.asks.answer(harness.platform.owner, form.id, decision="allow")
    await harness.asks.answer(harness.platform.owner, form.id, content={"name": "Ada"})
    turn = await harness.wait_for_turn(turn)
    assert '"content": {"name": "Ada"}' in await harness.text(turn)
    assert [by for by, _, _ in await list_decisions(harness)] == [None, "owner", "owner"]


async def test_unanswered_requests_are_declined_at_the_timeout(harness: AgentHarness) -> None:
    row = await create_session_with(harness, {"permissions": {"mode": "ask", "timeout_seconds": 60}})
    turn = await harness.prompt(row, "ask read a file", "form")
    await wait_for_ask(harness, row)
    harness.platform.clock.advance(61)  # it stays ahead, so the form that follows times out as soon as it exists
    turn = await harness.wait_for_turn(turn)
    text = await harness.text(turn)
    assert '"optionId": "no-1"' in text
    assert '"action": "cancel"' in text
    assert [means for _, means, _ in await list_decisions(harness)] == ["timeout", "timeout"]


async def test_cancelling_a_turn_cancels_its_request(harness: AgentHarness) -> None:
    row = await create_session_with(harness, {"permissions": {"mode": "ask"}})
    turn = await harness.prompt(row, "ask read a file")
    ask = await wait_for_ask(harness, row)
    await harness.turns.cancel(harness.platform.owner, turn.id)
    turn = await harness.wait_for_turn(turn)
    assert turn.status == "cancelled"
    assert '{"outcome": {"outcome": "cancelled"}}' in await harness.text(turn)
    assert (await harness.asks.get(harness.platform.owner, ask.id)).status == "cancelled"


@pytest.mark.parametrize("when", ["show", "wake", "ask", "stop"])
async def test_a_stuck_agent_is_handled_as_configured(harness: AgentHarness, when: str) -> None:
    row = await create_session_with(harness, {"stuck_minutes": 1, "when_stuck": when})
    turn = await harness.prompt(row, "say 1", "hold")
    await until(lambda: harness.parts(turn), "the agent writes output")

    async def is_stuck() -> bool:
        harness.platform.clock.advance(20)
        return "turn.stuck" in await harness.platform.list_event_kinds(prefix="turn.")

    await until(is_stuck, "the agent is reported as stuck")
    if when == "show":
        assert (await harness.turns.get(harness.platform.owner, turn.id)).stuck_at is not None
        await harness.turns.cancel(harness.platform.owner, turn.id)
    elif when == "ask":
        ask = await wait_for_ask(harness, row)
        assert await get_turn_status(harness, turn) == "waiting"
        await harness.asks.answer(harness.platform.owner, ask.id, option_id="stop")
    turn = await harness.wait_for_turn(turn)
    assert turn.status == ("completed" if when == "wake" else "cancelled")


@pytest.mark.slow  # waits for six seconds
async def test_the_question_about_a_stuck_agent_is_cancelled_when_it_continues(harness: AgentHarness) -> None:
    row = await create_session_with(harness, {"stuck_minutes": 1, "when_stuck": "ask"})
    turn = await harness.prompt(row, "say 1", "sleep 6", "say 2", "hold")
    await until(lambda: harness.parts(turn), "the agent writes output")

    async def find_stuck_ask() -> Ask | None:
        harness.platform.clock.advance(20)
        return await harness.find_pending_ask(row)

    ask = await until(find_stuck_ask, "a request is pending")
    assert await get_turn_status(harness, turn) == "waiting"

    async def is_running() -> bool:
        return await get_turn_status(harness, turn) == "running"

    await until(is_running, "the turn continues")
    assert (await harness.asks.get(harness.platform.owner, ask.id)).status == "cancelled"
    await harness.turns.cancel(harness.platform.owner, turn.id)
    assert (await harness.wait_for_turn(turn)).status == "cancelled"


async def test_a_stuck_agent_that_ignores_cancellation_is_replaced_once(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_runner, "CANCEL_S", 0.5)
    row = await create_session_with(harness, {"stuck_minutes": 1, "when_stuck": "wake"})
    turn = await harness.prompt(row, "say 1", "deaf")
    await until(lambda: harness.parts(turn), "the agent writes output")

    async def is_stuck() -> bool:
        harness.platform.clock.advance(20)
        return "turn.stuck" in await harness.platform.list_event_kinds(prefix="turn.")

    await until(is_stuck, "the agent is reported as stuck")
    assert (await harness.wait_for_turn(turn)).status == "completed"
    assert len(await harness.runs(row)) == 2


async def test_an_answer_is_delivered_without_a_notification(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may have been cancelled right after its answer was stored."""
    row = await create_session_with(harness, {"permissions": {"mode": "ask"}})
    turn = await harness.prompt(row, "ask execute make")
    ask = await wait_for_ask(harness, row)
    monkeypatch.setattr(harness.turns, "nudge", lambda _: None)
    await harness.asks.answer(harness.platform.owner, ask.id, decision="allow")
    assert (await harness.wait_for_turn(turn)).status == "completed"


async def test_the_model_is_attached_again_when_the_sandbox_resumes_after_a_restart(harness: AgentHarness) -> None:
    harness.models.configured_endpoint = ModelEndpoint(ModelApi.ANTHROPIC, "http://127.0.0.1:1/x", Secret("x"), None)
    row = await create_session_with(harness, {"permissions": {"mode": "ask"}})
    turn = await harness.prompt(row, "ask execute make")
    ask = await wait_for_ask(harness, row)
    sandbox = await harness.platform.services.lifecycle.repository.get(row.sandbox_id or "")
    await harness.platform.services.lifecycle.pause(sandbox)
    await harness.crash_and_recover()
    harness.models.attached = 0
    await asyncio.sleep(0.5)
    assert harness.models.attached == 0, "the sandbox stays paused"
    await harness.asks.answer(harness.platform.owner, ask.id, decision="allow")
    assert (await harness.wait_for_turn(turn)).status == "completed"
    assert harness.models.attached == 1
