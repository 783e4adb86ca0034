"""Prompts and turns, with a real engine."""

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
from tests.integration.platform.domain.sandboxes.platform_harness import DEADLINE, until

MANY = 400
NUMBERS = "".join(f"{number} " for number in range(1, MANY + 1))


async def test_the_output_of_a_turn_is_stored_as_messages(harness: AgentHarness) -> None:
    row = await harness.create_session()
    turn = await harness.run_turn(row, "think hmm", "say 3", "plan", "tool", "garbage", "usage")
    assert (turn.status, turn.stop_reason, turn.error) == ("completed", "end_turn", None)
    parts = await harness.parts(turn)
    assert [part["type"] for part in parts] == ["thought", "text", "plan", "tool_call", "text"]
    assert parts[1]["text"] == "1 2 3 "
    assert (parts[3]["title"], parts[3]["status"], parts[3]["output"]) == ("Run make", "completed", {"code": 0})
    assert turn.usage["agent"]["totalTokens"] == 3
    assert turn.usage["models"]["calls"] == 1
    assert turn.usage["context"] == {"used": 10, "size": 100}
    again = await harness.run_turn(row, "say 2")
    assert await harness.text(again) == "1 2 "
    assert len(await harness.runs(row)) == 1
    kinds = await harness.platform.list_event_kinds(prefix="turn.")
    assert kinds == ["turn.queued", "turn.started", "turn.completed"] * 2


async def test_repeated_crashes_neither_lose_nor_repeat_output(harness: AgentHarness) -> None:
    row = await harness.create_session()
    turn = await harness.prompt(row, f"slow {MANY} 0.01", key="once")
    follow_up = await harness.prompt(row, "say 5")
    rng = random.Random(7)
    for longest in [0.1] * 10 + [0.6] * 10:
        await asyncio.sleep(rng.random() * longest)
        await harness.crash_and_recover()
    assert (await harness.prompt(row, "say 9", key="once")).id == turn.id
    turn, follow_up = await harness.wait_for_turn(turn), await harness.wait_for_turn(follow_up)
    assert (turn.status, follow_up.status) == ("completed", "completed"), (turn.error, follow_up.error)
    assert await harness.text(turn) == NUMBERS
    assert await harness.text(follow_up) == "1 2 3 4 5 "
    runs = await harness.runs(row)
    assert len(runs) == 1
    assert await harness.read_raw_text(runs[0]) == NUMBERS + "1 2 3 4 5 "


async def test_two_followers_of_one_agent_write_one_transcript(harness: AgentHarness) -> None:
    row = await harness.create_session()
    turn = await harness.prompt(row, f"slow {MANY} 0.01")
    await until(lambda: harness.parts(turn), "the agent writes output")
    first = harness.turns
    harness.open()
    try:
        await harness.turns.recover()
        assert await harness.text(await harness.wait_for_turn(turn)) == NUMBERS
    finally:
        await first.close()


async def test_running_and_queued_turns_can_be_cancelled(harness: AgentHarness) -> None:
    row = await harness.create_session()
    running = await harness.prompt(row, "begin", "say 1", "hold")
    queued = await harness.prompt(row, "say 2")

    async def has_begun() -> bool:
        return len(await harness.parts(running)) == 2

    await until(has_begun, "the agent writes output")
    await harness.turns.cancel(harness.platform.owner, queued.id)
    await harness.turns.cancel(harness.platform.owner, running.id)
    running, queued = await harness.wait_for_turn(running), await harness.wait_for_turn(queued)
    assert (running.status, running.stop_reason) == ("cancelled", "cancelled")
    assert [part.get("status") for part in await harness.parts(running)] == ["cancelled", None], (
        "its tool call is cancelled too"
    )
    assert (queued.status, queued.started_at) == ("cancelled", None)
    again = await harness.turns.retry(harness.platform.owner, queued.id)
    assert await harness.text(await harness.wait_for_turn(again)) == "1 2 "
    assert len(await harness.runs(row)) == 1
    with pytest.raises(NotFoundError):
        await harness.turns.cancel(await harness.platform.create_person("stranger"), running.id)


async def test_an_agent_that_ignores_cancellation_is_ended(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_runner, "CANCEL_S", 0.5)
    row = await harness.create_session()
    turn = await harness.prompt(row, "say 1", "deaf")
    await until(lambda: harness.parts(turn), "the agent writes output")
    await harness.turns.cancel(harness.platform.owner, turn.id)
    assert (await harness.wait_for_turn(turn)).status == "cancelled"
    after = await harness.run_turn(row, "say 2")
    assert (after.status, await harness.text(after)) == ("completed", "1 2 ")
    assert [run.status for run in await harness.runs(row)] == ["ended", "ready"]


async def test_a_turn_fails_when_its_agent_dies_or_fails(harness: AgentHarness) -> None:
    harness.agents.current_profile = ScriptedProfile(argv=("python3", AGENT, "--noisy"))
    row = await harness.create_session()
    died = await harness.run_turn(row, "begin", "say 2", "die 3")
    assert (died.status, died.error_code) == ("failed", "agent_died")
    assert "exit code 3" in (died.error or "")
    assert "this is the end" in (died.error or "")
    assert "a warning" not in (died.error or ""), "output at startup is not the cause of death"
    assert await harness.text(died) == "1 2 ", "output before the prompt is not part of the turn"
    assert (await harness.runs(row))[0].options["startupOutput"] == "Loaded cached credentials.Ready to serve."
    assert [part["status"] for part in await harness.parts(died) if part["type"] == "tool_call"] == ["failed"]
    assert (await harness.parts(died, "system"))[0]["code"] == "agent_died"
    failed = await harness.run_turn(row, "fail no model answers")
    assert (failed.status, failed.error_code) == ("failed", "agent_failed")
    assert "no model answers" in (failed.error or "")
    recalled = await harness.run_turn(row, "recall")
    assert "Earlier messages" not in (text := await harness.text(recalled))
    assert "You: 1 2 " in text  # the second process got the transcript of the first
    assert len(await harness.runs(row)) == 2


async def test_leftover_processes_are_ended_unless_they_serve_a_port(harness: AgentHarness) -> None:
    row = await harness.create_session()
    turn = await harness.run_turn(row, "leave")
    assert turn.status == "completed", turn.error
    (run,) = await harness.runs(row)
    sandbox = await harness.platform.services.lifecycle.repository.get(run.sandbox_id)

    marked = f"grep -laz SANDYARD_RUN={run.id} /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"

    async def list_processes() -> set[str]:
        script = f"for p in $({marked}); do tr '\\0' ' ' </proc/$p/cmdline; echo; done"
        output = await harness.platform.run(sandbox, script)
        markers = ("sleep 601", "left-deaf", "left-serving", "sleep 602", "agent.py")
        return {marker for marker in markers if marker in output}

    assert await list_processes() == {"sleep 601", "left-deaf", "left-serving", "sleep 602", "agent.py"}
    try:
        assert await harness.turns.end_leftovers(row.id) >= 2
        assert await list_processes() == {"left-serving", "sleep 602", "agent.py"}
    finally:
        await harness.platform.run(sandbox, f"{marked} | xargs -r kill -9; true")


async def test_an_agent_that_ends_while_its_state_is_loaded_is_not_followed_again(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, followed, real = await harness.create_session(), list[str](), SessionRunner.load_state
    ending, state_loaded = asyncio.Event(), asyncio.Event()

    class RecordedProcess(AgentProcess):
        async def run(self) -> None:
            followed.append(self.run_id)
            await super().run()

    async def load_state_until_ended(self: SessionRunner) -> SessionState | None:
        view = await real(self)
        if ending.is_set() and self._task is not None:
            state_loaded.set()
            await asyncio.wait((self._task,))
        return view

    monkeypatch.setattr(session_runner, "AgentProcess", RecordedProcess)
    monkeypatch.setattr(SessionRunner, "load_state", load_state_until_ended)
    await harness.run_turn(row, "say 1")
    (run,) = await harness.runs(row)
    sandbox = await harness.platform.services.lifecycle.repository.get(run.sandbox_id)
    assert sandbox.engine_id
    ending.set()
    harness.turns.nudge(row.id)
    async with asyncio.timeout(DEADLINE):
        await state_loaded.wait()
    await harness.platform.services.engine.commands.kill(sandbox.engine_id, run.id)
    await until(lambda: has_no_runners(harness), "the runner has ended")
    assert followed == [run.id]


async def has_no_runners(harness: AgentHarness) -> bool:
    return not harness.turns.runners


async def test_a_prompt_is_processed_when_its_caller_is_cancelled_after_it_was_stored(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, database = await harness.create_session(), harness.platform.services.database
    real = database.transaction

    @contextlib.asynccontextmanager
    async def cancel_after_commit() -> AsyncIterator[Transaction]:
        async with real() as tx:
            yield tx
        raise asyncio.CancelledError

    with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
        patch.setattr(database, "transaction", cancel_after_commit)
        await harness.prompt(row, "say 1")
    (turn,) = (await harness.turns.list(harness.platform.owner, row.id, PageRequest())).items
    assert (await harness.wait_for_turn(turn)).status == "completed"


async def test_the_model_and_the_mode_can_change_between_turns(harness: AgentHarness) -> None:
    row = await harness.create_session()
    turn = await harness.run_turn(row, "say 1", model="large", mode="plan")
    thoughts = [part["text"] for part in await harness.parts(turn) if part["type"] == "thought"]
    assert "large" not in "".join(thoughts)  # the agent was started with this model
    assert '"modeId": "plan"' in thoughts[0]
    turn = await harness.run_turn(row, "say 1", model="small")
    runs = await harness.runs(row)
    assert (len(runs), runs[0].model) == (1, "small")
    turn = await harness.run_turn(row, "say 1", model="other")
    assert turn.status == "completed"
    assert [run.model for run in await harness.runs(row)] == ["small", "other"]


async def test_another_agent_can_continue_the_session(harness: AgentHarness) -> None:
    """It gets the earlier transcript, and the process of the previous agent ends."""
    row = await harness.create_session()
    await harness.run_turn(row, "say 1")
    async with harness.platform.services.database.transaction() as tx:
        stored = await tx.session.get(Session, row.id)
        assert stored is not None
        stored.agent = "other"
    harness.agents.current_profile = ScriptedProfile(name="other", argv=("python3", AGENT, "--loads"))
    turn = await harness.run_turn(row, "recall")
    assert turn.status == "completed"
    assert "User: say 1" in await harness.text(turn)
    assert [(run.agent, run.status) for run in await harness.runs(row)] == [("acting", "ended"), ("other", "ready")]


async def test_an_agent_that_loads_its_session_is_not_sent_the_transcript(harness: AgentHarness) -> None:
    harness.agents.current_profile = ScriptedProfile(argv=("python3", AGENT, "--loads"))
    row = await harness.create_session()
    await harness.run_turn(row, "say 1")
    await harness.turns.end_agent(row.id)
    turn = await harness.run_turn(row, "recall")
    assert await harness.text(turn) == "say 1\nrecall\n"
    assert [run.status for run in await harness.runs(row)] == ["ended", "ready"]


async def test_a_turn_over_budget_is_stopped(harness: AgentHarness) -> None:
    row = await harness.create_session()
    harness.models.budget_error = OverBudgetError("No more this month.")
    turn = await harness.run_turn(row, "say 1")
    assert (turn.status, turn.error) == ("over_budget", "No more this month.")
    harness.models.budget_error = None
    turn = await harness.prompt(row, "say 1", "hold")
    await until(lambda: harness.parts(turn), "the agent writes output")
    await harness.turns.stop_over_budget(turn.id, "That was the last of it.")
    turn = await harness.wait_for_turn(turn)
    assert (turn.status, turn.error) == ("over_budget", "That was the last of it.")


async def test_a_rejection_by_the_provider_fails_the_turn_immediately(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the agent keeps trying."""
    monkeypatch.setattr(session_runner, "REFUSED_S", 0.2)
    fault = Fault(Cause.KEY, "Anthropic rejected the API key (401).", final=True)
    row = await harness.create_session()
    turn = await harness.prompt(row, "say 1", "deaf", "hold")
    await until(lambda: harness.parts(turn), "the agent writes output")
    await harness.turns.stop_failed(turn.id, fault)
    turn = await harness.wait_for_turn(turn)
    assert (turn.status, turn.error, turn.error_code) == ("failed", fault.message, "model_key_refused")
    harness.models.current_fault = fault  # now with an agent that gives up before it is stopped
    turn = await harness.run_turn(row, "fail Authentication required")
    assert (turn.status, turn.error, turn.error_code) == ("failed", fault.message, "model_key_refused")
    harness.models.current_fault = None
    assert (await harness.run_turn(row, "say 2")).status == "completed"


async def test_destroying_the_sandbox_fails_the_turn(harness: AgentHarness) -> None:
    row = await harness.create_session()
    turn = await harness.prompt(row, "say 1", "hold")
    await until(lambda: harness.parts(turn), "the agent writes output")
    assert row.sandbox_id is not None
    await harness.platform.services.sandboxes.destroy_sandbox(harness.platform.owner, row.sandbox_id)
    turn = await harness.wait_for_turn(turn)
    assert (turn.status, turn.error_code) == ("failed", "sandbox_lost")
    assert [run.status for run in await harness.runs(row)] == ["lost"]


@pytest.mark.slow  # waits for ten seconds
async def test_an_idle_agent_is_ended_and_restarted(harness: AgentHarness) -> None:
    row = await harness.create_session()
    await harness.run_turn(row, "say 1")

    async def is_ended() -> bool:
        harness.platform.clock.advance(harness.platform.services.settings.agent_idle_s + 1)
        return [run.status for run in await harness.runs(row)] == ["ended"]

    await until(is_ended, "the idle process is ended")
    assert (await harness.run_turn(row, "say 1")).status == "completed"
    page = await harness.turns.list(harness.platform.owner, row.id, PageRequest())
    assert [turn.number for turn in page.items] == [2, 1]


async def test_a_turn_survives_a_pause_and_an_engine_outage(harness: AgentHarness) -> None:
    row = await harness.create_session()
    turn = await harness.prompt(row, "slow 60 0.03")
    await until(lambda: harness.parts(turn), "the agent writes output")
    sandbox = await harness.platform.services.lifecycle.repository.get(row.sandbox_id or "")
    await harness.platform.services.lifecycle.pause(sandbox)
    await asyncio.sleep(0.3)
    await harness.platform.services.lifecycle.resume(await harness.platform.reload(sandbox))
    await asyncio.sleep(0.3)
    await harness.platform.engine_proxy.stop()
    await asyncio.sleep(0.5)
    await harness.platform.reconnect_engine()
    turn = await harness.wait_for_turn(turn)
    assert turn.status == "completed", turn.error
    assert await harness.text(turn) == "".join(f"{number} " for number in range(1, 61))


async def test_an_unsupported_protocol_version_fails_the_turn_immediately(harness: AgentHarness) -> None:
    """Even if the program then stays silent and does not end."""
    script = r"""read line; printf '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":7}}\n'; sleep 600"""
    harness.agents.current_profile = ScriptedProfile(argv=("bash", "-c", script))
    turn = await harness.run_turn(await harness.create_session(), "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_protocol")


async def test_a_program_that_does_not_speak_the_protocol_fails_the_turn_soon(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_runner, "STRAY_S", 0.5)
    harness.agents.current_profile = ScriptedProfile(
        argv=("bash", "-c", "echo Welcome to the shop.; echo '{\"level\": 1}'; sleep 600")
    )
    row = await harness.create_session()
    turn = await harness.run_turn(row, "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_protocol")
    assert "does not speak ACP" in (turn.error or "")
    assert "Welcome to the shop." in (turn.error or "")
    monkeypatch.setattr(session_runner, "STRAY_S", 600)
    harness.agents.current_profile = ScriptedProfile(argv=("bash", "-c", "yes no protocol; sleep 600"))
    turn = await harness.run_turn(row, "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_protocol")
    assert "no protocol\nno protocol\n" in (turn.error or "")
    endless = "printf x; head -c 1000000000 /dev/zero | tr '\\0' x; sleep 600"
    harness.agents.current_profile = ScriptedProfile(argv=("bash", "-c", endless))
    turn = await harness.run_turn(row, "say 1")
    assert (turn.status, turn.error_code) == ("failed", "agent_too_loud")
    files = harness.platform.services.commands.files
    for run in await harness.runs(row):
        kept = files.get_path(run.id, STDOUT).stat()
        assert kept.st_blocks * 512 < 20 << 20, "a line is stored only up to its limit"


async def test_a_former_member_cannot_use_the_agents_of_the_project(harness: AgentHarness) -> None:
    platform = harness.platform
    member = await platform.create_person("member")
    project_id = await platform.project(platform.owner, member)
    row, _ = await platform.services.sessions.create(member, title="mine", agent="acting", project_id=project_id)
    prompt = [{"type": "text", "text": "say 1"}]
    first = await harness.turns.prompt(member, row.id, prompt, key="once")
    assert (await harness.turns.prompt(member, row.id, prompt, key="once")).id == first.id
    assert (await harness.wait_for_turn(first)).status == "completed"
    await platform.services.projects.remove_member(platform.owner, project_id, member.user_id)
    for caller in (
        member,
        platform.owner,
    ):  # the agent could not run for others either, and the member would read their prompts
        with pytest.raises(ForbiddenError):
            await harness.turns.prompt(caller, row.id, prompt)


async def test_a_waiting_prompt_of_a_former_member_is_not_sent(harness: AgentHarness) -> None:
    platform = harness.platform
    member = await platform.create_person("member")
    project_id = await platform.project(platform.owner, member)
    row, _ = await platform.services.sessions.create(
        platform.owner, title="mine", agent="acting", project_id=project_id
    )
    first = await harness.turns.prompt(platform.owner, row.id, [{"type": "text", "text": "say 1\nhold"}])
    second = await harness.turns.prompt(member, row.id, [{"type": "text", "text": "say 2"}])
    third = await harness.turns.prompt(platform.owner, row.id, [{"type": "text", "text": "say 3"}])
    await until(lambda: harness.parts(first), "the agent writes output")
    await platform.services.projects.remove_member(platform.owner, project_id, member.user_id)
    await harness.turns.cancel(platform.owner, first.id)
    ended = await harness.wait_for_turn(second)
    assert (ended.status, ended.error_code, ended.request) == ("failed", "owner_without_access", None)
    assert (await harness.wait_for_turn(third)).status == "completed"


async def test_a_turn_of_a_former_member_fails_if_the_engine_paused_its_sandbox(harness: AgentHarness) -> None:
    platform, lifecycle = harness.platform, harness.platform.services.lifecycle
    member = await platform.create_person("member")
    project_id = await platform.project(platform.owner, member)
    row, _ = await platform.services.sessions.create(member, title="mine", agent="acting", project_id=project_id)
    turn = await harness.turns.prompt(member, row.id, [{"type": "text", "text": "say 1\nhold"}])
    await until(lambda: harness.parts(turn), "the agent writes output")
    sandbox = await lifecycle.repository.get(row.sandbox_id or "")
    assert sandbox.engine_id is not None
    await platform.services.projects.remove_member(platform.owner, project_id, member.user_id)
    await lifecycle.engine.pause(sandbox.engine_id)
    await lifecycle.record_pause(sandbox.id)
    ended = await harness.wait_for_turn(turn)
    assert (ended.status, ended.error_code) == ("failed", "owner_without_access")
    assert (await lifecycle.repository.get(sandbox.id)).status == "paused"


async def test_an_agent_ended_while_paused_does_not_run_beside_the_next_one(harness: AgentHarness) -> None:
    row, lifecycle = await harness.create_session(), harness.platform.services.lifecycle
    turn = await harness.prompt(row, "say 1", "hold")
    await until(lambda: harness.parts(turn), "the agent writes output")
    sandbox = await lifecycle.repository.get(row.sandbox_id or "")
    await lifecycle.pause(sandbox)
    await harness.turns.end_agent(row.id)
    assert (await harness.wait_for_turn(turn)).status == "failed"
    assert (await lifecycle.repository.get(sandbox.id)).status == "paused"
    assert (await harness.run_turn(row, "say 2")).status == "completed"
    first, second = await harness.runs(row)
    assert sandbox.engine_id is not None
    assert not await lifecycle.engine.commands.kill(sandbox.engine_id, first.id)
    assert await lifecycle.engine.commands.kill(sandbox.engine_id, second.id)
