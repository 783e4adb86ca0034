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
from tests.integration.platform.domain.agents.stage import ActingProfile, Stage
from tests.integration.platform.domain.sandboxes.yard import until


async def asking(stage: Stage, agent: dict[str, Any]) -> Session:
    """A session of a project with these settings for agents."""
    project_id = await stage.yard.project(stage.yard.owner, agent=agent)
    return await stage.session(project_id=project_id)


async def asked(stage: Stage, row: Session) -> Ask:
    found: Ask = await until(lambda: stage.pending(row), "somebody is asked")
    return found


async def status(stage: Stage, turn: Turn) -> str:
    return (await stage.turns.get(stage.yard.owner, turn.id)).status


async def decisions(stage: Stage) -> list[tuple[str | None, str, str]]:
    async with stage.yard.services.database.reading() as session:
        found = await session.scalars(select(Audit).where(Audit.action == "ask.decided").order_by(Audit.seq))
        return [(entry.user_name, entry.means or "", entry.detail["title"]) for entry in found]


async def test_the_policy_decides_at_once(stage: Stage) -> None:
    row = await asking(stage, {"permissions": {"mode": "allow_all", "deny": ["rm -rf"]}})
    turn = await stage.play(row, "ask execute make test", "ask execute rm -rf /")
    text = await stage.text(turn)
    assert '"optionId": "yes-1"' in text
    assert '"optionId": "no-1"' in text
    assert [title for _, means, title in await decisions(stage) if means == "policy"] == ["make test", "rm -rf /"]
    assert await stage.yard.kinds(about="ask.") == ["ask.answered"] * 2


async def test_what_the_policy_refused_is_named_and_allowed_by_who_may_change_it(stage: Stage) -> None:
    yard, member = stage.yard, await stage.yard.person("member")
    project_id = await yard.project(yard.owner, member, agent={"permissions": {"deny": ["rm -rf", "dd"]}})
    row = await stage.session(project_id=project_id)
    turn = await stage.play(row, "ask execute make", "ask execute rm -rf /", "quit")
    assert (turn.status, turn.error_code) == ("failed", "permission_refused")
    assert "“rm -rf /”" in (turn.error or "")
    assert "denies what matches 'rm -rf'" in (turn.error or "")
    found = (await stage.asks.list(yard.owner, PageRequest(), session_id=row.id)).items
    allowed, refused = sorted(found, key=lambda ask: ask.title)
    with pytest.raises(NotFoundError):
        await stage.asks.allow(await yard.person("stranger"), refused.id)
    with pytest.raises(ConflictError):
        await stage.asks.allow(yard.owner, allowed.id)
    await stage.asks.allow(yard.owner, refused.id)
    assert (await stage.asks.allow(yard.owner, refused.id)).decided_by == "overruled"
    went_on = await stage.turns.resume_allowed(yard.owner, row.id, [refused.title])
    assert went_on is not None
    await stage.done(went_on)
    assert "are allowed to do this now:\n- rm -rf /" in (await stage.parts(went_on, "user"))[0]["text"]
    text = await stage.text(await stage.play(row, "ask execute rm -rf /", "ask execute dd"))
    assert (text.count('"yes-1"'), text.count('"no-1"')) == (1, 1), "the other pattern denies what it denied"
    other = await stage.text(await stage.play(await stage.session(project_id=project_id), "ask execute rm -rf /"))
    assert '"no-1"' in other, "in another session it is denied as before"
    own, _ = await yard.services.sessions.create(member, title="mine", agent="acting", project_id=project_id)
    words = [{"type": "text", "text": "ask execute rm -rf /"}]
    await stage.done(await stage.turns.prompt(member, own.id, words))
    (theirs,) = (await stage.asks.list(member, PageRequest(), session_id=own.id)).items
    with pytest.raises(ForbiddenError):
        await stage.asks.allow(member, theirs.id)


async def test_a_refused_agent_is_told_what_to_do_instead(stage: Stage) -> None:
    """Also one that ends its turn when it is refused something: that is no failure then."""
    row = await asking(stage, {"permissions": {"mode": "ask"}})
    turn = await stage.prompt(row, "ask execute make", "quit")
    ask = await asked(stage, row)
    with pytest.raises(InvalidInputError):
        await stage.asks.answer(stage.yard.owner, ask.id, decision="allow", message="say 1")
    await stage.asks.answer(stage.yard.owner, ask.id, option_id="no-1", message="say 1")
    turn = await stage.done(turn)
    assert (turn.status, turn.error, turn.error_code) == ("cancelled", None, None)
    newest = (await stage.turns.list(stage.yard.owner, row.id, PageRequest())).items[0]
    assert newest.id != turn.id
    assert (await stage.done(newest)).status == "completed"
    assert [part["text"] for part in await stage.parts(newest, "user")] == ["say 1"]
    alone = await stage.prompt(row, "ask execute make", "quit")
    await stage.asks.answer(stage.yard.owner, (await asked(stage, row)).id, decision="reject")
    alone = await stage.done(alone)
    assert (alone.status, alone.error_code) == ("failed", "agent_gave_up")
    assert "agent.permissions" not in (alone.error or "")


async def test_what_an_agent_tells_before_it_asks_is_denied_too(stage: Stage) -> None:
    row = await asking(stage, {"permissions": {"deny": ["README"]}})
    turn = await stage.play(row, "vague /repository/README.md", "vague /repository/app.py")
    text = await stage.text(turn)
    assert (text.count('"optionId": "no-1"'), text.count('"optionId": "yes-1"')) == (1, 1)


async def test_with_deny_nobody_can_allow_always(stage: Stage) -> None:
    """An agent that was told so would not ask before the next one, which may be denied."""
    row = await asking(stage, {"permissions": {"mode": "ask", "deny": ["README"]}})
    turn = await stage.prompt(row, "ask execute make")
    ask = await asked(stage, row)
    assert [one["kind"] for one in ask.detail["options"]] == ["allow_once", "reject_once"]
    await stage.asks.answer(stage.yard.owner, ask.id, decision="allow_always")
    await stage.done(turn)
    assert '"optionId": "yes-1"' in await stage.text(turn)


async def test_a_stricter_policy_starts_the_agent_anew_and_in_a_mode_in_which_it_asks(stage: Stage) -> None:
    stage.agents.known = ActingProfile(modes=("code", "plan"), unasked_modes=("code",))
    row = await asking(stage, {})
    await stage.play(row, "say 1", mode="code")
    async with stage.yard.services.database.transaction() as tx:
        project = await tx.session.get(Project, row.project_id)
        assert project is not None
        project.settings = {**project.settings, "agent": {"permissions": {"deny": ["README"]}}}
    turn = await stage.play(row, "say 1", mode="code")
    assert [run.status for run in await stage.runs(row)] == ["ended", "ready"]
    thoughts = [part["text"] for part in await stage.parts(turn) if part["type"] == "thought"]
    assert '"modeId": "plan"' in thoughts[0]


async def test_a_person_answers_and_a_sleeping_sandbox_is_woken_for_it(stage: Stage) -> None:
    row = await asking(stage, {"permissions": {"mode": "allow_reads"}})
    turn = await stage.prompt(row, "ask read a file", "ask execute make", "form")
    ask = await asked(stage, row)
    assert (ask.title, ask.kind, await status(stage, turn)) == ("make", "permission", "waiting")
    sandbox = await stage.yard.services.lifecycle.rows.get(row.sandbox_id or "")
    assert stage.yard.services.lifecycle.activity.idle_for(sandbox.id) >= 0
    await stage.yard.services.lifecycle.pause(sandbox)
    await stage.cut_off()
    stranger = await stage.yard.person("stranger")
    with pytest.raises(NotFoundError):
        await stage.asks.answer(stranger, ask.id, decision="allow")
    with pytest.raises(InvalidInputError):
        await stage.asks.answer(stage.yard.owner, ask.id, option_id="nonsense")
    await stage.asks.answer(stage.yard.owner, ask.id, decision="allow")
    with pytest.raises(AskOverError):
        await stage.asks.answer(stage.yard.owner, ask.id, decision="reject")

    async def question() -> Ask | None:
        found = await stage.pending(row)
        return found if found is not None and found.kind == "question" else None

    form: Ask = await until(question, "the form")
    assert (await stage.yard.row(sandbox)).status == Status.RUNNING
    assert form.title == "Your name?"
    with pytest.raises(InvalidInputError):
        await stage.asks.answer(stage.yard.owner, form.id, decision="allow")
    await stage.asks.answer(stage.yard.owner, form.id, content={"name": "Ada"})
    turn = await stage.done(turn)
    assert '"content": {"name": "Ada"}' in await stage.text(turn)
    assert [by for by, _, _ in await decisions(stage)] == [None, "owner", "owner"]


async def test_nobody_answers_in_time(stage: Stage) -> None:
    row = await asking(stage, {"permissions": {"mode": "ask", "timeout_seconds": 60}})
    turn = await stage.prompt(row, "ask read a file", "form")
    await asked(stage, row)
    stage.yard.clock.advance(61)  # and it stays ahead: the time of the form that follows is over as soon as it is there
    turn = await stage.done(turn)
    text = await stage.text(turn)
    assert '"optionId": "no-1"' in text
    assert '"action": "cancel"' in text
    assert [means for _, means, _ in await decisions(stage)] == ["timeout", "timeout"]


async def test_a_cancelled_turn_asks_no_longer(stage: Stage) -> None:
    row = await asking(stage, {"permissions": {"mode": "ask"}})
    turn = await stage.prompt(row, "ask read a file")
    ask = await asked(stage, row)
    await stage.turns.cancel(stage.yard.owner, turn.id)
    turn = await stage.done(turn)
    assert turn.status == "cancelled"
    assert '{"outcome": {"outcome": "cancelled"}}' in await stage.text(turn)
    assert (await stage.asks.get(stage.yard.owner, ask.id)).status == "cancelled"


@pytest.mark.parametrize("when", ["show", "wake", "ask", "stop"])
async def test_an_agent_that_is_stuck(stage: Stage, when: str) -> None:
    row = await asking(stage, {"stuck_minutes": 1, "when_stuck": when})
    turn = await stage.prompt(row, "say 1", "hold")
    await until(lambda: stage.parts(turn), "it says something")

    async def stuck() -> bool:
        stage.yard.clock.advance(20)
        return "turn.stuck" in await stage.yard.kinds(about="turn.")

    await until(stuck, "it is seen to be stuck")
    if when == "show":
        assert (await stage.turns.get(stage.yard.owner, turn.id)).stuck_at is not None
        await stage.turns.cancel(stage.yard.owner, turn.id)
    elif when == "ask":
        ask = await asked(stage, row)
        assert await status(stage, turn) == "waiting"
        await stage.asks.answer(stage.yard.owner, ask.id, option_id="stop")
    turn = await stage.done(turn)
    assert turn.status == ("completed" if when == "wake" else "cancelled")


@pytest.mark.slow  # it waits for six seconds
async def test_one_that_goes_on_by_itself_asks_no_longer(stage: Stage) -> None:
    row = await asking(stage, {"stuck_minutes": 1, "when_stuck": "ask"})
    turn = await stage.prompt(row, "say 1", "sleep 6", "say 2", "hold")
    await until(lambda: stage.parts(turn), "it says something")

    async def stuck() -> Ask | None:
        stage.yard.clock.advance(20)
        return await stage.pending(row)

    ask = await until(stuck, "somebody is asked")
    assert await status(stage, turn) == "waiting"

    async def runs() -> bool:
        return await status(stage, turn) == "running"

    await until(runs, "it goes on")
    assert (await stage.asks.get(stage.yard.owner, ask.id)).status == "cancelled"
    await stage.turns.cancel(stage.yard.owner, turn.id)
    assert (await stage.done(turn)).status == "cancelled"


async def test_a_stuck_one_that_does_not_listen_is_replaced_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_runner, "CANCEL_S", 0.5)
    row = await asking(stage, {"stuck_minutes": 1, "when_stuck": "wake"})
    turn = await stage.prompt(row, "say 1", "deaf")
    await until(lambda: stage.parts(turn), "it says something")

    async def stuck() -> bool:
        stage.yard.clock.advance(20)
        return "turn.stuck" in await stage.yard.kinds(about="turn.")

    await until(stuck, "it is seen to be stuck")
    assert (await stage.done(turn)).status == "completed"
    assert len(await stage.runs(row)) == 2


async def test_an_answer_of_which_nobody_tells_is_brought_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answered may have been cancelled when it was written down."""
    row = await asking(stage, {"permissions": {"mode": "ask"}})
    turn = await stage.prompt(row, "ask execute make")
    ask = await asked(stage, row)
    monkeypatch.setattr(stage.turns, "nudge", lambda _: None)
    await stage.asks.answer(stage.yard.owner, ask.id, decision="allow")
    assert (await stage.done(turn)).status == "completed"


async def test_its_model_comes_back_when_its_sandbox_wakes_under_another_platform(stage: Stage) -> None:
    stage.models.given = ModelEndpoint(ModelApi.ANTHROPIC, "http://127.0.0.1:1/x", Secret("x"), None)
    row = await asking(stage, {"permissions": {"mode": "ask"}})
    turn = await stage.prompt(row, "ask execute make")
    ask = await asked(stage, row)
    sandbox = await stage.yard.services.lifecycle.rows.get(row.sandbox_id or "")
    await stage.yard.services.lifecycle.pause(sandbox)
    await stage.cut_off()
    stage.models.attached = 0
    await asyncio.sleep(0.5)
    assert stage.models.attached == 0, "nothing wakes it"
    await stage.asks.answer(stage.yard.owner, ask.id, decision="allow")
    assert (await stage.done(turn)).status == "completed"
    assert stage.models.attached == 1
