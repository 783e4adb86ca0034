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
from sandyard.platform.domain.sandboxes.command_output import STDOUT
from tests.integration.platform.domain.agents.harness import AGENT, AgentHarness, ScriptedProfile
from tests.integration.platform.domain.sandboxes.yard import DEADLINE, until

MANY = 400
NUMBERS = "".join(f"{number} " for number in range(1, MANY + 1))


async def test_a_prompt_becomes_messages(harness: AgentHarness) -> None:
    row = await harness.session()
    turn = await harness.play(row, "think hmm", "say 3", "plan", "tool", "garbage", "usage")
    assert (turn.status, turn.stop_reason, turn.error) == ("completed", "end_turn", None)
    parts = await harness.parts(turn)
    assert [part["type"] for part in parts] == ["thought", "text", "plan", "tool_call", "text"]
    assert parts[1]["text"] == "1 2 3 "
    assert (parts[3]["title"], parts[3]["status"], parts[3]["output"]) == ("Run make", "completed", {"code": 0})
    assert turn.usage["agent"]["totalTokens"] == 3
    assert turn.usage["models"]["calls"] == 1
    assert turn.usage["context"] == {"used": 10, "size": 100}
    again = await harness.play(row, "say 2")
    assert await harness.text(again) == "1 2 "
    assert len(await harness.runs(row)) == 1
    kinds = await harness.yard.kinds(about="turn.")
    assert kinds == ["turn.queued", "turn.started", "turn.completed"] * 2


async def test_cut_off_again_and_again_nothing_is_lost_and_nothing_comes_twice(harness: AgentHarness) -> None:
    row = await harness.session()
    turn = await harness.prompt(row, f"slow {MANY} 0.01", key="once")
    follow_up = await harness.prompt(row, "say 5")
    chance = random.Random(7)
    for most in [0.1] * 10 + [0.6] * 10:
        await asyncio.sleep(chance.random() * most)
        await harness.cut_off()
    assert (await harness.prompt(row, "say 9", key="once")).id == turn.id
    turn, follow_up = await harness.done(turn), await harness.done(follow_up)
    assert (turn.status, follow_up.status) == ("completed", "completed"), (turn.error, follow_up.error)
    assert await harness.text(turn) == NUMBERS
    assert await harness.text(follow_up) == "1 2 3 4 5 "
    runs = await harness.runs(row)
    assert len(runs) == 1
    assert await harness.whole(runs[0]) == NUMBERS + "1 2 3 4 5 "


async def test_two_that_follow_one_agent_write_one_transcript(harness: AgentHarness) -> None:
    row = await harness.session()
    turn = await harness.prompt(row, f"slow {MANY} 0.01")
    await until(lambda: harness.parts(turn), "it says something")
    first = harness.turns
    harness.open()
    try:
        await harness.turns.recover()
        assert await harness.text(await harness.done(turn)) == NUMBERS
    finally:
        await first.close()


async def test_cancelled_while_it_runs_and_while_it_waits(harness: AgentHarness) -> None:
    row = await harness.session()
    running = await harness.prompt(row, "begin", "say 1", "hold")
    queued = await harness.prompt(row, "say 2")

    async def begun() -> bool:
        return len(await harness.parts(running)) == 2

    await until(begun, "it says something")
    await harness.turns.cancel(harness.yard.owner, queued.id)
    await harness.turns.cancel(harness.yard.owner, running.id)
    running, queued = await harness.done(running), await harness.done(queued)
    assert (running.status, running.stop_reason) == ("cancelled", "cancelled")
    assert [part.get("status") for part in await harness.parts(running)] == ["cancelled", None], (
        "what it did is over too"
    )
    assert (queued.status, queued.started_at) == ("cancelled", None)
    again = await harness.turns.retry(harness.yard.owner, queued.id)
    assert await harness.text(await harness.done(again)) == "1 2 "
    assert len(await harness.runs(row)) == 1
    with pytest.raises(NotFoundError):
        await harness.turns.cancel(await harness.yard.person("stranger"), running.id)


async def test_an_agent_that_does_not_stop_is_ended(harness: AgentHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_runner, "CANCEL_S", 0.5)
    row = await harness.session()
    turn = await harness.prompt(row, "say 1", "deaf")
    await until(lambda: harness.parts(turn), "it says something")
    await harness.turns.cancel(harness.yard.owner, turn.id)
    assert (await harness.done(turn)).status == "cancelled"
    after = await harness.play(row, "say 2")
    assert (after.status, await harness.text(after)) == ("completed", "1 2 ")
    assert [run.status for run in await harness.runs(row)] == ["ended", "ready"]


async def test_an_agent_that_dies_and_one_that_fails(harness: AgentHarness) -> None:
    harness.agents.known = ScriptedProfile(argv=("python3", AGENT, "--noisy"))
    row = await harness.session()
    died = await harness.play(row, "begin", "say 2", "die 3")
    assert (died.status, died.error_code) == ("failed", "agent_died")
    assert "exit code 3" in (died.error or "")
    assert "this is the end" in (died.error or "")
    assert "a warning" not in (died.error or ""), "what it printed at its start is not why it died"
    assert await harness.text(died) == "1 2 ", "what it said before it was prompted is no answer"
    assert (await harness.runs(row))[0].options["startupOutput"] == "Loaded cached credentials.Ready to serve."
    assert [part["status"] for part in await harness.parts(died) if part["type"] == "tool_call"] == ["failed"]
    assert (await harness.parts(died, "system"))[0]["code"] == "agent_died"
    failed = await harness.play(row, "fail no model answers")
    assert (failed.status, failed.error_code) == ("failed", "agent_failed")
    assert "no model answers" in (failed.error or "")
    recalled = await harness.play(row, "recall")
    assert "Earlier messages" not in (said := await harness.text(recalled))
    assert "You: 1 2 " in said  # the second process was told what the first had said
    assert len(await harness.runs(row)) == 2


async def test_what_a_turn_leaves_behind_is_ended_unless_it_serves(harness: AgentHarness) -> None:
    row = await harness.session()
    turn = await harness.play(row, "leave")
    assert turn.status == "completed", turn.error
    (run,) = await harness.runs(row)
    sandbox = await harness.yard.services.lifecycle.repository.get(run.sandbox_id)

    marked = f"grep -laz SANDYARD_RUN={run.id} /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"

    async def there() -> set[str]:
        look = f"for p in $({marked}); do tr '\\0' ' ' </proc/$p/cmdline; echo; done"
        said = await harness.yard.run(sandbox, look)
        words = ("sleep 601", "left-deaf", "left-serving", "sleep 602", "agent.py")
        return {word for word in words if word in said}

    assert await there() == {"sleep 601", "left-deaf", "left-serving", "sleep 602", "agent.py"}
    try:
        assert await harness.turns.end_leftovers(row.id) >= 2
        assert await there() == {"left-serving", "sleep 602", "agent.py"}
    finally:
        await harness.yard.run(sandbox, f"{marked} | xargs -r kill -9; true")


async def test_one_that_ends_while_somebody_looks_is_not_followed_again(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, followed, real = await harness.session(), list[str](), SessionRunner._load_state
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
    await harness.play(row, "say 1")
    (run,) = await harness.runs(row)
    sandbox = await harness.yard.services.lifecycle.repository.get(run.sandbox_id)
    assert sandbox.engine_id
    ending.set()
    harness.turns.nudge(row.id)
    async with asyncio.timeout(DEADLINE):
        await looked.wait()
    await harness.yard.services.engine.commands.kill(sandbox.engine_id, run.id)
    await until(lambda: left(harness), "nobody looks after it any more")
    assert followed == [run.id]


async def left(harness: AgentHarness) -> bool:
    return not harness.turns._runners


async def test_a_prompt_whose_author_leaves_when_it_is_written_down_is_worked_on(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, database = await harness.session(), harness.yard.services.database
    real = database.transaction

    @contextlib.asynccontextmanager
    async def left() -> AsyncIterator[Transaction]:
        async with real() as tx:
            yield tx
        raise asyncio.CancelledError

    with monkeypatch.context() as leaving, pytest.raises(asyncio.CancelledError):
        leaving.setattr(database, "transaction", left)
        await harness.prompt(row, "say 1")
    (turn,) = (await harness.turns.list(harness.yard.owner, row.id, PageRequest())).items
    assert (await harness.done(turn)).status == "completed"


async def test_another_model_and_another_mode(harness: AgentHarness) -> None:
    row = await harness.session()
    turn = await harness.play(row, "say 1", model="large", mode="plan")
    thoughts = [part["text"] for part in await harness.parts(turn) if part["type"] == "thought"]
    assert "large" not in "".join(thoughts)  # it was started with it
    assert '"modeId": "plan"' in thoughts[0]
    turn = await harness.play(row, "say 1", model="small")
    runs = await harness.runs(row)
    assert (len(runs), runs[0].model) == (1, "small")
    turn = await harness.play(row, "say 1", model="other")
    assert turn.status == "completed"
    assert [run.model for run in await harness.runs(row)] == ["small", "other"]


async def test_another_agent_goes_on_in_the_session(harness: AgentHarness) -> None:
    """It is told what was said before it came; the process of the one before ends."""
    row = await harness.session()
    await harness.play(row, "say 1")
    async with harness.yard.services.database.transaction() as tx:
        known = await tx.session.get(Session, row.id)
        assert known is not None
        known.agent = "other"
    harness.agents.known = ScriptedProfile(name="other", argv=("python3", AGENT, "--loads"))
    turn = await harness.play(row, "recall")
    assert turn.status == "completed"
    assert "User: say 1" in await harness.text(turn)
    assert [(run.agent, run.status) for run in await harness.runs(row)] == [("acting", "ended"), ("other", "ready")]


async def test_an_agent_that_can_load_its_session_is_not_told_again(harness: AgentHarness) -> None:
    harness.agents.known = ScriptedProfile(argv=("python3", AGENT, "--loads"))
    row = await harness.session()
    await harness.play(row, "say 1")
    await harness.turns.end_agent(row.id)
    turn = await harness.play(row, "recall")
    assert await harness.text(turn) == "say 1\nrecall\n"
    assert [run.status for run in await harness.runs(row)] == ["ended", "ready"]


async def test_no_budget_no_turn(harness: AgentHarness) -> None:
    row = await harness.session()
    harness.models.budget = OverBudgetError("No more this month.")
    turn = await harness.play(row, "say 1")
    assert (turn.status, turn.error) == ("over_budget", "No more this month.")
    harness.models.budget = None
    turn = await harness.prompt(row, "say 1", "hold")
    await until(lambda: harness.parts(turn), "it says something")
    await harness.turns.stop_over_budget(turn.id, "That was the last of it.")
    turn = await harness.done(turn)
    assert (turn.status, turn.error) == ("over_budget", "That was the last of it.")


async def test_a_provider_that_refuses_fails_the_turn_at_once(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of an agent that goes on trying."""
    monkeypatch.setattr(session_runner, "REFUSED_S", 0.2)
    fault = Fault(Cause.KEY, "Anthropic rejected the API key (401).", final=True)
    row = await harness.session()
    turn = await harness.prompt(row, "say 1", "deaf", "hold")
    await until(lambda: harness.parts(turn), "it says something")
    await harness.turns.stop_failed(turn.id, fault)
    turn = await harness.done(turn)
    assert (turn.status, turn.error, turn.error_code) == ("failed", fault.sentence, "model_key_refused")
    harness.models.refused = fault  # and one of an agent that gives up before it is told to
    turn = await harness.play(row, "fail Authentication required")
    assert (turn.status, turn.error, turn.error_code) == ("failed", fault.sentence, "model_key_refused")
    harness.models.refused = None
    assert (await harness.play(row, "say 2")).status == "completed"


async def test_a_sandbox_that_is_destroyed_fails_the_turn(harness: AgentHarness) -> None:
    row = await harness.session()
    turn = await harness.prompt(row, "say 1", "hold")
    await until(lambda: harness.parts(turn), "it says something")
    assert row.sandbox_id is not None
    await harness.yard.services.sandboxes.destroy_sandbox(harness.yard.owner, row.sandbox_id)
    turn = await harness.done(turn)
    assert (turn.status, turn.error_code) == ("failed", "sandbox_lost")
    assert [run.status for run in await harness.runs(row)] == ["lost"]


@pytest.mark.slow  # it waits for ten seconds
async def test_an_idle_agent_is_ended_and_comes_back(harness: AgentHarness) -> None:
    row = await harness.session()
    await harness.play(row, "say 1")

    async def ended() -> bool:
        harness.yard.clock.advance(harness.yard.services.settings.agent_idle_s + 1)
        return [run.status for run in await harness.runs(row)] == ["ended"]

    await until(ended, "the idle process is ended")
    assert (await harness.play(row, "say 1")).status == "completed"
    page = await harness.turns.list(harness.yard.owner, row.id, PageRequest())
    assert [turn.number for turn in page.items] == [2, 1]


async def test_it_goes_on_after_a_pause_and_while_the_engine_is_away(harness: AgentHarness) -> None:
    row = await harness.session()
    turn = await harness.prompt(row, "slow 60 0.03")
    await until(lambda: harness.parts(turn), "it says something")
    sandbox = await harness.yard.services.lifecycle.repository.get(row.sandbox_id or "")
    await harness.yard.services.lifecycle.pause(sandbox)
    await asyncio.sleep(0.3)
    await harness.yard.services.lifecycle.resume(await harness.yard.row(sandbox))
    await asyncio.sleep(0.3)
    await harness.yard.door.shut()
    await asyncio.sleep(0.5)
    await harness.yard.back()
    turn = await harness.done(turn)
    assert turn.status == "completed", turn.error
    assert await harness.text(turn) == "".join(f"{number} " for number in range(1, 61))


async def test_one_that_speaks_another_protocol_is_told_at_once(harness: AgentHarness) -> None:
    """Also when it says nothing after that, and does not end."""
    answer = r"""read line; printf '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":7}}\n'; sleep 600"""
    harness.agents.known = ScriptedProfile(argv=("bash", "-c", answer))
    turn = await harness.play(await harness.session(), "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_protocol")


async def test_what_does_not_speak_the_protocol_is_told_soon(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_runner, "STRAY_S", 0.5)
    harness.agents.known = ScriptedProfile(
        argv=("bash", "-c", "echo Welcome to the shop.; echo '{\"level\": 1}'; sleep 600")
    )
    row = await harness.session()
    turn = await harness.play(row, "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_protocol")
    assert "does not speak ACP" in (turn.error or "")
    assert "Welcome to the shop." in (turn.error or "")
    monkeypatch.setattr(session_runner, "STRAY_S", 600)
    harness.agents.known = ScriptedProfile(argv=("bash", "-c", "yes no protocol; sleep 600"))
    turn = await harness.play(row, "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_protocol")
    assert "no protocol\nno protocol\n" in (turn.error or "")
    endless = "printf x; head -c 1000000000 /dev/zero | tr '\\0' x; sleep 600"
    harness.agents.known = ScriptedProfile(argv=("bash", "-c", endless))
    turn = await harness.play(row, "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_too_loud")
    files = harness.yard.services.commands.files
    for run in await harness.runs(row):
        kept = files._path(run.id, STDOUT).stat()
        assert kept.st_blocks * 512 < 20 << 20, "a line is kept up to its limit"


async def test_who_has_left_the_project_does_not_use_its_agents(harness: AgentHarness) -> None:
    yard = harness.yard
    member = await yard.person("member")
    project_id = await yard.project(yard.owner, member)
    row, _ = await yard.services.sessions.create(member, title="mine", agent="acting", project_id=project_id)
    words = [{"type": "text", "text": "say 1"}]
    first = await harness.turns.prompt(member, row.id, words, key="once")
    assert (await harness.turns.prompt(member, row.id, words, key="once")).id == first.id
    assert (await harness.done(first)).status == "completed"
    await yard.services.projects.remove_member(yard.owner, project_id, member.user_id)
    with pytest.raises(ForbiddenError):
        await harness.turns.prompt(member, row.id, words)


async def test_one_that_slept_when_it_was_ended_does_not_go_on_beside_the_next(harness: AgentHarness) -> None:
    row, lifecycle = await harness.session(), harness.yard.services.lifecycle
    turn = await harness.prompt(row, "say 1", "hold")
    await until(lambda: harness.parts(turn), "it says something")
    sandbox = await lifecycle.repository.get(row.sandbox_id or "")
    await lifecycle.pause(sandbox)
    await harness.turns.end_agent(row.id)
    assert (await harness.done(turn)).status == "failed"
    assert (await lifecycle.repository.get(sandbox.id)).status == "paused"
    assert (await harness.play(row, "say 2")).status == "completed"
    first, second = await harness.runs(row)
    assert sandbox.engine_id is not None
    assert not await lifecycle.engine.commands.kill(sandbox.engine_id, first.id)
    assert await lifecycle.engine.commands.kill(sandbox.engine_id, second.id)
