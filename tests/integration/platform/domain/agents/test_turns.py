"""Prompts, before a real engine."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from sandyard.kit.errors import ForbiddenError, NotFoundError
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import Session
from sandyard.platform.domain.agents.repository import SessionState
from sandyard.platform.domain.agents.runner import session_runner
from sandyard.platform.domain.agents.runner.process import AgentProcess
from sandyard.platform.domain.agents.runner.session_runner import SessionRunner
from sandyard.platform.domain.models.faults import Cause, Fault
from sandyard.platform.domain.models.model import OverBudgetError
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.sandboxes.output import STDOUT
from tests.integration.platform.domain.agents.stage import AGENT, ActingProfile, Stage
from tests.integration.platform.domain.sandboxes.yard import DEADLINE, until

MANY = 400
NUMBERS = "".join(f"{number} " for number in range(1, MANY + 1))


async def test_a_prompt_becomes_messages(stage: Stage) -> None:
    row = await stage.session()
    turn = await stage.play(row, "think hmm", "say 3", "plan", "tool", "garbage", "usage")
    assert (turn.status, turn.stop_reason, turn.error) == ("completed", "end_turn", None)
    parts = await stage.parts(turn)
    assert [part["type"] for part in parts] == ["thought", "text", "plan", "tool_call", "text"]
    assert parts[1]["text"] == "1 2 3 "
    assert (parts[3]["title"], parts[3]["status"], parts[3]["output"]) == ("Run make", "completed", {"code": 0})
    assert turn.usage["agent"]["totalTokens"] == 3
    assert turn.usage["models"]["calls"] == 1
    assert turn.usage["context"] == {"used": 10, "size": 100}
    again = await stage.play(row, "say 2")
    assert await stage.text(again) == "1 2 "
    assert len(await stage.runs(row)) == 1
    kinds = await stage.yard.kinds(about="turn.")
    assert kinds == ["turn.queued", "turn.started", "turn.completed"] * 2


async def test_cut_off_again_and_again_nothing_is_lost_and_nothing_comes_twice(stage: Stage) -> None:
    row = await stage.session()
    turn = await stage.prompt(row, f"slow {MANY} 0.01", key="once")
    follow_up = await stage.prompt(row, "say 5")
    chance = random.Random(7)
    for most in [0.1] * 10 + [0.6] * 10:
        await asyncio.sleep(chance.random() * most)
        await stage.cut_off()
    assert (await stage.prompt(row, "say 9", key="once")).id == turn.id
    turn, follow_up = await stage.done(turn), await stage.done(follow_up)
    assert (turn.status, follow_up.status) == ("completed", "completed"), (turn.error, follow_up.error)
    assert await stage.text(turn) == NUMBERS
    assert await stage.text(follow_up) == "1 2 3 4 5 "
    runs = await stage.runs(row)
    assert len(runs) == 1
    assert await stage.whole(runs[0]) == NUMBERS + "1 2 3 4 5 "


async def test_two_that_follow_one_agent_write_one_transcript(stage: Stage) -> None:
    row = await stage.session()
    turn = await stage.prompt(row, f"slow {MANY} 0.01")
    await until(lambda: stage.parts(turn), "it says something")
    first = stage.turns
    stage.open()
    try:
        await stage.turns.recover()
        assert await stage.text(await stage.done(turn)) == NUMBERS
    finally:
        await first.close()


async def test_cancelled_while_it_runs_and_while_it_waits(stage: Stage) -> None:
    row = await stage.session()
    running = await stage.prompt(row, "begin", "say 1", "hold")
    queued = await stage.prompt(row, "say 2")

    async def begun() -> bool:
        return len(await stage.parts(running)) == 2

    await until(begun, "it says something")
    await stage.turns.cancel(stage.yard.owner, queued.id)
    await stage.turns.cancel(stage.yard.owner, running.id)
    running, queued = await stage.done(running), await stage.done(queued)
    assert (running.status, running.stop_reason) == ("cancelled", "cancelled")
    assert [part.get("status") for part in await stage.parts(running)] == ["cancelled", None], "what it did is over too"
    assert (queued.status, queued.started_at) == ("cancelled", None)
    again = await stage.turns.retry(stage.yard.owner, queued.id)
    assert await stage.text(await stage.done(again)) == "1 2 "
    assert len(await stage.runs(row)) == 1
    with pytest.raises(NotFoundError):
        await stage.turns.cancel(await stage.yard.person("stranger"), running.id)


async def test_an_agent_that_does_not_stop_is_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_runner, "CANCEL_S", 0.5)
    row = await stage.session()
    turn = await stage.prompt(row, "say 1", "deaf")
    await until(lambda: stage.parts(turn), "it says something")
    await stage.turns.cancel(stage.yard.owner, turn.id)
    assert (await stage.done(turn)).status == "cancelled"
    after = await stage.play(row, "say 2")
    assert (after.status, await stage.text(after)) == ("completed", "1 2 ")
    assert [run.status for run in await stage.runs(row)] == ["ended", "ready"]


async def test_an_agent_that_dies_and_one_that_fails(stage: Stage) -> None:
    stage.agents.known = ActingProfile(argv=("python3", AGENT, "--noisy"))
    row = await stage.session()
    died = await stage.play(row, "begin", "say 2", "die 3")
    assert (died.status, died.error_code) == ("failed", "agent_died")
    assert "exit code 3" in (died.error or "")
    assert "this is the end" in (died.error or "")
    assert "a warning" not in (died.error or ""), "what it printed at its start is not why it died"
    assert await stage.text(died) == "1 2 ", "what it said before it was prompted is no answer"
    assert (await stage.runs(row))[0].options["startupOutput"] == "Loaded cached credentials.Ready to serve."
    assert [part["status"] for part in await stage.parts(died) if part["type"] == "tool_call"] == ["failed"]
    assert (await stage.parts(died, "system"))[0]["code"] == "agent_died"
    failed = await stage.play(row, "fail no model answers")
    assert (failed.status, failed.error_code) == ("failed", "agent_failed")
    assert "no model answers" in (failed.error or "")
    recalled = await stage.play(row, "recall")
    assert "Earlier messages" not in (said := await stage.text(recalled))
    assert "You: 1 2 " in said  # the second process was told what the first had said
    assert len(await stage.runs(row)) == 2


async def test_what_a_turn_leaves_behind_is_ended_unless_it_serves(stage: Stage) -> None:
    row = await stage.session()
    turn = await stage.play(row, "leave")
    assert turn.status == "completed", turn.error
    (run,) = await stage.runs(row)
    sandbox = await stage.yard.services.lifecycle.rows.get(run.sandbox_id)

    marked = f"grep -laz SANDYARD_RUN={run.id} /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"

    async def there() -> set[str]:
        look = f"for p in $({marked}); do tr '\\0' ' ' </proc/$p/cmdline; echo; done"
        said = await stage.yard.run(sandbox, look)
        words = ("sleep 601", "left-deaf", "left-serving", "sleep 602", "agent.py")
        return {word for word in words if word in said}

    assert await there() == {"sleep 601", "left-deaf", "left-serving", "sleep 602", "agent.py"}
    try:
        assert await stage.turns.end_leftovers(row.id) >= 2
        assert await there() == {"left-serving", "sleep 602", "agent.py"}
    finally:
        await stage.yard.run(sandbox, f"{marked} | xargs -r kill -9; true")


async def test_one_that_ends_while_somebody_looks_is_not_followed_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, followed, real = await stage.session(), list[str](), SessionRunner._load_state
    ending, looked = asyncio.Event(), asyncio.Event()

    class Counted(AgentProcess):
        async def run(self) -> None:
            followed.append(self.run_id)
            await super().run()

    async def late(self: SessionRunner) -> SessionState | None:
        view = await real(self)
        if ending.is_set() and self._task is not None:
            looked.set()
            await asyncio.wait((self._task,))
        return view

    monkeypatch.setattr(session_runner, "AgentProcess", Counted)
    monkeypatch.setattr(SessionRunner, "_load_state", late)
    await stage.play(row, "say 1")
    (run,) = await stage.runs(row)
    sandbox = await stage.yard.services.lifecycle.rows.get(run.sandbox_id)
    assert sandbox.engine_id
    ending.set()
    stage.turns.nudge(row.id)
    async with asyncio.timeout(DEADLINE):
        await looked.wait()
    await stage.yard.services.engine.commands.kill(sandbox.engine_id, run.id)
    await until(lambda: left(stage), "nobody looks after it any more")
    assert followed == [run.id]


async def left(stage: Stage) -> bool:
    return not stage.turns._conductors


async def test_a_prompt_whose_author_leaves_when_it_is_written_down_is_worked_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, database = await stage.session(), stage.yard.services.database
    real = database.transaction

    @contextlib.asynccontextmanager
    async def left() -> AsyncIterator[Transaction]:
        async with real() as tx:
            yield tx
        raise asyncio.CancelledError

    with monkeypatch.context() as leaving, pytest.raises(asyncio.CancelledError):
        leaving.setattr(database, "transaction", left)
        await stage.prompt(row, "say 1")
    (turn,) = (await stage.turns.list(stage.yard.owner, row.id, PageRequest())).items
    assert (await stage.done(turn)).status == "completed"


async def test_another_model_and_another_mode(stage: Stage) -> None:
    row = await stage.session()
    turn = await stage.play(row, "say 1", model="large", mode="plan")
    thoughts = [part["text"] for part in await stage.parts(turn) if part["type"] == "thought"]
    assert "large" not in "".join(thoughts)  # it was started with it
    assert '"modeId": "plan"' in thoughts[0]
    turn = await stage.play(row, "say 1", model="small")
    runs = await stage.runs(row)
    assert (len(runs), runs[0].model) == (1, "small")
    turn = await stage.play(row, "say 1", model="other")
    assert turn.status == "completed"
    assert [run.model for run in await stage.runs(row)] == ["small", "other"]


async def test_another_agent_goes_on_in_the_session(stage: Stage) -> None:
    """It is told what was said before it came; the process of the one before ends."""
    row = await stage.session()
    await stage.play(row, "say 1")
    async with stage.yard.services.database.transaction() as tx:
        known = await tx.session.get(Session, row.id)
        assert known is not None
        known.agent = "other"
    stage.agents.known = ActingProfile(name="other", argv=("python3", AGENT, "--loads"))
    turn = await stage.play(row, "recall")
    assert turn.status == "completed"
    assert "User: say 1" in await stage.text(turn)
    assert [(run.agent, run.status) for run in await stage.runs(row)] == [("acting", "ended"), ("other", "ready")]


async def test_an_agent_that_can_load_its_session_is_not_told_again(stage: Stage) -> None:
    stage.agents.known = ActingProfile(argv=("python3", AGENT, "--loads"))
    row = await stage.session()
    await stage.play(row, "say 1")
    await stage.turns.end_agent(row.id)
    turn = await stage.play(row, "recall")
    assert await stage.text(turn) == "say 1\nrecall\n"
    assert [run.status for run in await stage.runs(row)] == ["ended", "ready"]


async def test_no_budget_no_turn(stage: Stage) -> None:
    row = await stage.session()
    stage.models.budget = OverBudgetError("No more this month.")
    turn = await stage.play(row, "say 1")
    assert (turn.status, turn.error) == ("over_budget", "No more this month.")
    stage.models.budget = None
    turn = await stage.prompt(row, "say 1", "hold")
    await until(lambda: stage.parts(turn), "it says something")
    await stage.turns.stop_over_budget(turn.id, "That was the last of it.")
    turn = await stage.done(turn)
    assert (turn.status, turn.error) == ("over_budget", "That was the last of it.")


async def test_a_provider_that_refuses_fails_the_turn_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of an agent that goes on trying."""
    monkeypatch.setattr(session_runner, "REFUSED_S", 0.2)
    fault = Fault(Cause.KEY, "Anthropic rejected the API key (401).", final=True)
    row = await stage.session()
    turn = await stage.prompt(row, "say 1", "deaf", "hold")
    await until(lambda: stage.parts(turn), "it says something")
    await stage.turns.stop_failed(turn.id, fault)
    turn = await stage.done(turn)
    assert (turn.status, turn.error, turn.error_code) == ("failed", fault.sentence, "model_key_refused")
    stage.models.refused = fault  # and one of an agent that gives up before it is told to
    turn = await stage.play(row, "fail Authentication required")
    assert (turn.status, turn.error, turn.error_code) == ("failed", fault.sentence, "model_key_refused")
    stage.models.refused = None
    assert (await stage.play(row, "say 2")).status == "completed"


async def test_a_sandbox_that_is_destroyed_fails_the_turn(stage: Stage) -> None:
    row = await stage.session()
    turn = await stage.prompt(row, "say 1", "hold")
    await until(lambda: stage.parts(turn), "it says something")
    assert row.sandbox_id is not None
    await stage.yard.services.sandboxes.destroy_sandbox(stage.yard.owner, row.sandbox_id)
    turn = await stage.done(turn)
    assert (turn.status, turn.error_code) == ("failed", "sandbox_lost")
    assert [run.status for run in await stage.runs(row)] == ["lost"]


@pytest.mark.slow  # it waits for ten seconds
async def test_an_idle_agent_is_ended_and_comes_back(stage: Stage) -> None:
    row = await stage.session()
    await stage.play(row, "say 1")

    async def ended() -> bool:
        stage.yard.clock.advance(stage.yard.services.settings.agent_idle_s + 1)
        return [run.status for run in await stage.runs(row)] == ["ended"]

    await until(ended, "the idle process is ended")
    assert (await stage.play(row, "say 1")).status == "completed"
    page = await stage.turns.list(stage.yard.owner, row.id, PageRequest())
    assert [turn.number for turn in page.items] == [2, 1]


async def test_it_goes_on_after_a_pause_and_while_the_engine_is_away(stage: Stage) -> None:
    row = await stage.session()
    turn = await stage.prompt(row, "slow 60 0.03")
    await until(lambda: stage.parts(turn), "it says something")
    sandbox = await stage.yard.services.lifecycle.rows.get(row.sandbox_id or "")
    await stage.yard.services.lifecycle.pause(sandbox)
    await asyncio.sleep(0.3)
    await stage.yard.services.lifecycle.wake(await stage.yard.row(sandbox))
    await asyncio.sleep(0.3)
    await stage.yard.door.shut()
    await asyncio.sleep(0.5)
    await stage.yard.back()
    turn = await stage.done(turn)
    assert turn.status == "completed", turn.error
    assert await stage.text(turn) == "".join(f"{number} " for number in range(1, 61))


async def test_one_that_speaks_another_protocol_is_told_at_once(stage: Stage) -> None:
    """Also when it says nothing after that, and does not end."""
    answer = r"""read line; printf '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":7}}\n'; sleep 600"""
    stage.agents.known = ActingProfile(argv=("bash", "-c", answer))
    turn = await stage.play(await stage.session(), "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_protocol")


async def test_what_does_not_speak_the_protocol_is_told_soon(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_runner, "STRAY_S", 0.5)
    stage.agents.known = ActingProfile(
        argv=("bash", "-c", "echo Welcome to the shop.; echo '{\"level\": 1}'; sleep 600")
    )
    row = await stage.session()
    turn = await stage.play(row, "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_protocol")
    assert "does not speak ACP" in (turn.error or "")
    assert "Welcome to the shop." in (turn.error or "")
    monkeypatch.setattr(session_runner, "STRAY_S", 600)
    stage.agents.known = ActingProfile(argv=("bash", "-c", "yes no protocol; sleep 600"))
    turn = await stage.play(row, "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_protocol")
    assert "no protocol\nno protocol\n" in (turn.error or "")
    endless = "printf x; head -c 1000000000 /dev/zero | tr '\\0' x; sleep 600"
    stage.agents.known = ActingProfile(argv=("bash", "-c", endless))
    turn = await stage.play(row, "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_too_loud")
    files = stage.yard.services.commands.files
    for run in await stage.runs(row):
        kept = files._path(run.id, STDOUT).stat()
        assert kept.st_blocks * 512 < 20 << 20, "a line is kept up to its limit"


async def test_who_has_left_the_project_does_not_use_its_agents(stage: Stage) -> None:
    yard = stage.yard
    member = await yard.person("member")
    project_id = await yard.project(yard.owner, member)
    row, _ = await yard.services.sessions.create(member, title="mine", agent="acting", project_id=project_id)
    words = [{"type": "text", "text": "say 1"}]
    first = await stage.turns.prompt(member, row.id, words, key="once")
    assert (await stage.turns.prompt(member, row.id, words, key="once")).id == first.id
    assert (await stage.done(first)).status == "completed"
    await yard.services.projects.remove_member(yard.owner, project_id, member.user_id)
    with pytest.raises(ForbiddenError):
        await stage.turns.prompt(member, row.id, words)


async def test_one_that_slept_when_it_was_ended_does_not_go_on_beside_the_next(stage: Stage) -> None:
    row, lifecycle = await stage.session(), stage.yard.services.lifecycle
    turn = await stage.prompt(row, "say 1", "hold")
    await until(lambda: stage.parts(turn), "it says something")
    sandbox = await lifecycle.rows.get(row.sandbox_id or "")
    await lifecycle.pause(sandbox)
    await stage.turns.end_agent(row.id)
    assert (await stage.done(turn)).status == "failed"
    assert (await lifecycle.rows.get(sandbox.id)).status == "paused"
    assert (await stage.play(row, "say 2")).status == "completed"
    first, second = await stage.runs(row)
    assert sandbox.engine_id is not None
    assert not await lifecycle.engine.commands.kill(sandbox.engine_id, first.id)
    assert await lifecycle.engine.commands.kill(sandbox.engine_id, second.id)
