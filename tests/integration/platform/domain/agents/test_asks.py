"""What an agent asks, before a real engine: decided by policy, by a person, or by time."""

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
from tests.integration.platform.domain.sandboxes.yard import until


async def asking(harness: AgentHarness, agent: dict[str, Any]) -> Session:
    """A session of a project with these settings for agents."""
    project_id = await harness.yard.project(harness.yard.owner, agent=agent)
    return await harness.session(project_id=project_id)


async def asked(harness: AgentHarness, row: Session) -> Ask:
    found: Ask = await until(lambda: harness.pending(row), "somebody is asked")
    return found


async def status(harness: AgentHarness, turn: Turn) -> str:
    return (await harness.turns.get(harness.yard.owner, turn.id)).status


async def decisions(harness: AgentHarness) -> list[tuple[str | None, str, str]]:
    async with harness.yard.services.database.reading() as session:
        found = await session.scalars(select(Audit).where(Audit.action == "ask.decided").order_by(Audit.seq))
        return [(entry.user_name, entry.means or "", entry.detail["title"]) for entry in found]


async def test_the_policy_decides_at_once(harness: AgentHarness) -> None:
    row = await asking(harness, {"permissions": {"mode": "allow_all", "deny": ["rm -rf"]}})
    turn = await harness.play(row, "ask execute make test", "ask execute rm -rf /")
    text = await harness.text(turn)
    assert '"optionId": "yes-1"' in text
    assert '"optionId": "no-1"' in text
    assert [title for _, means, title in await decisions(harness) if means == "policy"] == ["make test", "rm -rf /"]
    assert await harness.yard.kinds(about="ask.") == ["ask.answered"] * 2


async def test_what_the_policy_refused_is_named_and_allowed_by_who_may_change_it(harness: AgentHarness) -> None:
    yard, member = harness.yard, await harness.yard.person("member")
    project_id = await yard.project(yard.owner, member, agent={"permissions": {"deny": ["rm -rf", "dd"]}})
    row = await harness.session(project_id=project_id)
    turn = await harness.play(row, "ask execute make", "ask execute rm -rf /", "quit")
    assert (turn.status, turn.error_code) == ("failed", "permission_refused")
    assert "“rm -rf /”" in (turn.error or "")
    assert "denies what matches 'rm -rf'" in (turn.error or "")
    found = (await harness.asks.list(yard.owner, PageRequest(), session_id=row.id)).items
    allowed, refused = sorted(found, key=lambda ask: ask.title)
    with pytest.raises(NotFoundError):
        await harness.asks.allow(await yard.person("stranger"), refused.id)
    with pytest.raises(ConflictError):
        await harness.asks.allow(yard.owner, allowed.id)
    await harness.asks.allow(yard.owner, refused.id)
    assert (await harness.asks.allow(yard.owner, refused.id)).decided_by == "overruled"
    went_on = await harness.turns.resume_allowed(yard.owner, row.id, [refused.title])
    assert went_on is not None
    await harness.done(went_on)
    assert "are allowed to do this now:\n- rm -rf /" in (await harness.parts(went_on, "user"))[0]["text"]
    text = await harness.text(await harness.play(row, "ask execute rm -rf /", "ask execute dd"))
    assert (text.count('"yes-1"'), text.count('"no-1"')) == (1, 1), "the other pattern denies what it denied"
    other = await harness.text(await harness.play(await harness.session(project_id=project_id), "ask execute rm -rf /"))
    assert '"no-1"' in other, "in another session it is denied as before"
    own, _ = await yard.services.sessions.create(member, title="mine", agent="acting", project_id=project_id)
    words = [{"type": "text", "text": "ask execute rm -rf /"}]
    await harness.done(await harness.turns.prompt(member, own.id, words))
    (theirs,) = (await harness.asks.list(member, PageRequest(), session_id=own.id)).items
    with pytest.raises(ForbiddenError):
        await harness.asks.allow(member, theirs.id)


async def test_a_refused_agent_is_told_what_to_do_instead(harness: AgentHarness) -> None:
    """Also one that ends its turn when it is refused something: that is no failure then."""
    row = await asking(harness, {"permissions": {"mode": "ask"}})
    turn = await harness.prompt(row, "ask execute make", "quit")
    ask = await asked(harness, row)
    with pytest.raises(InvalidInputError):
        await harness.asks.answer(harness.yard.owner, ask.id, decision="allow", message="say 1")
    await harness.asks.answer(harness.yard.owner, ask.id, option_id="no-1", message="say 1")
    turn = await harness.done(turn)
    assert (turn.status, turn.error, turn.error_code) == ("cancelled", None, None)
    newest = (await harness.turns.list(harness.yard.owner, row.id, PageRequest())).items[0]
    assert newest.id != turn.id
    assert (await harness.done(newest)).status == "completed"
    assert [part["text"] for part in await harness.parts(newest, "user")] == ["say 1"]
    alone = await harness.prompt(row, "ask execute make", "quit")
    await harness.asks.answer(harness.yard.owner, (await asked(harness, row)).id, decision="reject")
    alone = await harness.done(alone)
    assert (alone.status, alone.error_code) == ("failed", "agent_gave_up")
    assert "agent.permissions" not in (alone.error or "")


async def test_what_an_agent_tells_before_it_asks_is_denied_too(harness: AgentHarness) -> None:
    row = await asking(harness, {"permissions": {"deny": ["README"]}})
    turn = await harness.play(row, "vague /repository/README.md", "vague /repository/app.py")
    text = await harness.text(turn)
    assert (text.count('"optionId": "no-1"'), text.count('"optionId": "yes-1"')) == (1, 1)


async def test_with_deny_nobody_can_allow_always(harness: AgentHarness) -> None:
    """An agent that was told so would not ask before the next one, which may be denied."""
    row = await asking(harness, {"permissions": {"mode": "ask", "deny": ["README"]}})
    turn = await harness.prompt(row, "ask execute make")
    ask = await asked(harness, row)
    assert [one["kind"] for one in ask.detail["options"]] == ["allow_once", "reject_once"]
    await harness.asks.answer(harness.yard.owner, ask.id, decision="allow_always")
    await harness.done(turn)
    assert '"optionId": "yes-1"' in await harness.text(turn)


async def test_a_stricter_policy_starts_the_agent_anew_and_in_a_mode_in_which_it_asks(harness: AgentHarness) -> None:
    harness.agents.known = ScriptedProfile(modes=("code", "plan"), unasked_modes=("code",))
    row = await asking(harness, {})
    await harness.play(row, "say 1", mode="code")
    async with harness.yard.services.database.transaction() as tx:
        project = await tx.session.get(Project, row.project_id)
        assert project is not None
        project.settings = {**project.settings, "agent": {"permissions": {"deny": ["README"]}}}
    turn = await harness.play(row, "say 1", mode="code")
    assert [run.status for run in await harness.runs(row)] == ["ended", "ready"]
    thoughts = [part["text"] for part in await harness.parts(turn) if part["type"] == "thought"]
    assert '"modeId": "plan"' in thoughts[0]


async def test_a_person_answers_and_a_sleeping_sandbox_is_woken_for_it(harness: AgentHarness) -> None:
    row = await asking(harness, {"permissions": {"mode": "allow_reads"}})
    turn = await harness.prompt(row, "ask read a file", "ask execute make", "form")
    ask = await asked(harness, row)
    assert (ask.title, ask.kind, await status(harness, turn)) == ("make", "permission", "waiting")
    sandbox = await harness.yard.services.lifecycle.repository.get(row.sandbox_id or "")
    assert harness.yard.services.lifecycle.activity.idle_for(sandbox.id) >= 0
    await harness.yard.services.lifecycle.pause(sandbox)
    await harness.cut_off()
    stranger = await harness.yard.person("stranger")
    with pytest.raises(NotFoundError):
        await harness.asks.answer(stranger, ask.id, decision="allow")
    with pytest.raises(InvalidInputError):
        await harness.asks.answer(harness.yard.owner, ask.id, option_id="nonsense")
    await harness.asks.answer(harness.yard.owner, ask.id, decision="allow")
    with pytest.raises(AskOverError):
        await harness.asks.answer(harness.yard.owner, ask.id, decision="reject")

    async def question() -> Ask | None:
        found = await harness.pending(row)
        return found if found is not None and found.kind == "question" else None

    form: Ask = await until(question, "the form")
    assert (await harness.yard.row(sandbox)).status == Status.RUNNING
    assert form.title == "Your name?"
    with pytest.raises(InvalidInputError):
        await harness.asks.answer(harness.yard.owner, form.id, decision="allow")
    await harness.asks.answer(harness.yard.owner, form.id, content={"name": "Ada"})
    turn = await harness.done(turn)
    assert '"content": {"name": "Ada"}' in await harness.text(turn)
    assert [by for by, _, _ in await decisions(harness)] == [None, "owner", "owner"]


async def test_nobody_answers_in_time(harness: AgentHarness) -> None:
    row = await asking(harness, {"permissions": {"mode": "ask", "timeout_seconds": 60}})
    turn = await harness.prompt(row, "ask read a file", "form")
    await asked(harness, row)
    harness.yard.clock.advance(
        61
    )  # and it stays ahead: the time of the form that follows is over as soon as it is there
    turn = await harness.done(turn)
    text = await harness.text(turn)
    assert '"optionId": "no-1"' in text
    assert '"action": "cancel"' in text
    assert [means for _, means, _ in await decisions(harness)] == ["timeout", "timeout"]


async def test_a_cancelled_turn_asks_no_longer(harness: AgentHarness) -> None:
    row = await asking(harness, {"permissions": {"mode": "ask"}})
    turn = await harness.prompt(row, "ask read a file")
    ask = await asked(harness, row)
    await harness.turns.cancel(harness.yard.owner, turn.id)
    turn = await harness.done(turn)
    assert turn.status == "cancelled"
    assert '{"outcome": {"outcome": "cancelled"}}' in await harness.text(turn)
    assert (await harness.asks.get(harness.yard.owner, ask.id)).status == "cancelled"


@pytest.mark.parametrize("when", ["show", "wake", "ask", "stop"])
async def test_an_agent_that_is_stuck(harness: AgentHarness, when: str) -> None:
    row = await asking(harness, {"stuck_minutes": 1, "when_stuck": when})
    turn = await harness.prompt(row, "say 1", "hold")
    await until(lambda: harness.parts(turn), "it says something")

    async def stuck() -> bool:
        harness.yard.clock.advance(20)
        return "turn.stuck" in await harness.yard.kinds(about="turn.")

    await until(stuck, "it is seen to be stuck")
    if when == "show":
        assert (await harness.turns.get(harness.yard.owner, turn.id)).stuck_at is not None
        await harness.turns.cancel(harness.yard.owner, turn.id)
    elif when == "ask":
        ask = await asked(harness, row)
        assert await status(harness, turn) == "waiting"
        await harness.asks.answer(harness.yard.owner, ask.id, option_id="stop")
    turn = await harness.done(turn)
    assert turn.status == ("completed" if when == "wake" else "cancelled")


@pytest.mark.slow  # it waits for six seconds
async def test_one_that_goes_on_by_itself_asks_no_longer(harness: AgentHarness) -> None:
    row = await asking(harness, {"stuck_minutes": 1, "when_stuck": "ask"})
    turn = await harness.prompt(row, "say 1", "sleep 6", "say 2", "hold")
    await until(lambda: harness.parts(turn), "it says something")

    async def stuck() -> Ask | None:
        harness.yard.clock.advance(20)
        return await harness.pending(row)

    ask = await until(stuck, "somebody is asked")
    assert await status(harness, turn) == "waiting"

    async def runs() -> bool:
        return await status(harness, turn) == "running"

    await until(runs, "it goes on")
    assert (await harness.asks.get(harness.yard.owner, ask.id)).status == "cancelled"
    await harness.turns.cancel(harness.yard.owner, turn.id)
    assert (await harness.done(turn)).status == "cancelled"


async def test_a_stuck_one_that_does_not_listen_is_replaced_once(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_runner, "CANCEL_S", 0.5)
    row = await asking(harness, {"stuck_minutes": 1, "when_stuck": "wake"})
    turn = await harness.prompt(row, "say 1", "deaf")
    await until(lambda: harness.parts(turn), "it says something")

    async def stuck() -> bool:
        harness.yard.clock.advance(20)
        return "turn.stuck" in await harness.yard.kinds(about="turn.")

    await until(stuck, "it is seen to be stuck")
    assert (await harness.done(turn)).status == "completed"
    assert len(await harness.runs(row)) == 2


async def test_an_answer_of_which_nobody_tells_is_brought_all_the_same(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answered may have been cancelled when it was written down."""
    row = await asking(harness, {"permissions": {"mode": "ask"}})
    turn = await harness.prompt(row, "ask execute make")
    ask = await asked(harness, row)
    monkeypatch.setattr(harness.turns, "nudge", lambda _: None)
    await harness.asks.answer(harness.yard.owner, ask.id, decision="allow")
    assert (await harness.done(turn)).status == "completed"


async def test_its_model_comes_back_when_its_sandbox_wakes_under_another_platform(harness: AgentHarness) -> None:
    harness.models.given = ModelEndpoint(ModelApi.ANTHROPIC, "http://127.0.0.1:1/x", Secret("x"), None)
    row = await asking(harness, {"permissions": {"mode": "ask"}})
    turn = await harness.prompt(row, "ask execute make")
    ask = await asked(harness, row)
    sandbox = await harness.yard.services.lifecycle.repository.get(row.sandbox_id or "")
    await harness.yard.services.lifecycle.pause(sandbox)
    await harness.cut_off()
    harness.models.attached = 0
    await asyncio.sleep(0.5)
    assert harness.models.attached == 0, "nothing wakes it"
    await harness.asks.answer(harness.yard.owner, ask.id, decision="allow")
    assert (await harness.done(turn)).status == "completed"
    assert harness.models.attached == 1
