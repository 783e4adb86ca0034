"""Agent trials in a real sandbox, and what they report."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.kit.errors import NotFoundError
from sandyard.platform.db.models import Event, Session, Setting
from sandyard.platform.domain.agents.profiles.custom import Definition
from sandyard.platform.domain.agents.trials import Trial, TrialStep, measure_steps
from sandyard.platform.domain.events.model import EventView
from tests.harness.engine import Engine
from tests.integration.platform.domain.sandboxes.platform_harness import (
    DEADLINE,
    PlatformHarness,
    kill_sandboxes,
    open_platform,
    until,
)

STARTED_AT = datetime(2026, 1, 31, tzinfo=UTC)


async def run_trial(platform: PlatformHarness, name: str) -> Trial:
    async with asyncio.timeout(DEADLINE):
        _, task = await platform.services.trials.begin(platform.owner, name)
        return await platform.services.trials.wait(task)


async def list_leftovers(platform: PlatformHarness) -> list[Any]:
    """List what a trial has left behind."""
    async with platform.services.database.reading() as session:
        notes = await session.scalars(select(Setting.name).where(Setting.name.startswith("agent_trial:")))
        return [*notes, *await session.scalars(select(Session.id))]


async def test_a_trial_of_the_demo_agent_succeeds_and_leaves_nothing_behind(platform: PlatformHarness) -> None:
    trial = await run_trial(platform, "demo")
    assert (trial.ok, trial.error) == (True, None)
    assert [(step.name, step.ok) for step in trial.steps] == [("sandbox", True), ("start", True), ("answer", True)]
    assert trial.answer is not None and trial.answer.startswith("[demo] ") and trial.answer.endswith("ready")
    assert await list_leftovers(platform) == []
    async with platform.services.database.reading() as session:
        event = (await session.scalars(select(Event).where(Event.kind == "agent.tested"))).one()
    assert (event.session_id, event.data["ok"], event.data["agent"]) == (trial.session_id, True, "demo")


async def test_a_failed_trial_reports_the_step_and_the_reason(platform: PlatformHarness) -> None:
    agents = platform.services.agents
    install = {"script": "echo no paper; exit 7", "check": "false"}
    await agents.create(
        platform.owner, "broken", "Broken", Definition.model_validate({"argv": ["x"], "install": install})
    )
    await agents.create(platform.owner, "ended", "Ended", Definition(argv=["sh", "-c", "echo oh no >&2; exit 4"]))
    broken, ended = await run_trial(platform, "broken"), await run_trial(platform, "ended")
    assert (broken.ok, broken.error_code, broken.steps[-1].name) == (False, "agent_install_failed", "install")
    assert broken.error is not None and "no paper" in broken.error
    assert (ended.ok, ended.steps[-1].name, ended.steps[-1].ok) == (False, "start", False)
    assert ended.error
    keyless = Definition.model_validate({"argv": ["x"], "install": install, "apis": ["anthropic"]})
    await agents.create(platform.owner, "keyless", "Keyless", keyless)
    without_key = await run_trial(platform, "keyless")
    assert (without_key.ok, without_key.error_code, without_key.steps) == (False, "no_model", ()), (
        "the trial stops before anything is installed"
    )
    with pytest.raises(NotFoundError):
        await platform.services.trials.begin(platform.owner, "nobody")
    assert await list_leftovers(platform) == []


async def test_a_trial_interrupted_by_a_crash_is_cleaned_up(
    platform: PlatformHarness, engine_process: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await platform.services.agents.create(platform.owner, "silent", None, Definition(argv=["sleep", "1000"]))
    session_id, _ = await platform.services.trials.begin(platform.owner, "silent")

    async def is_starting() -> bool:
        return bool(await platform.list_event_kinds(prefix="agent.starting"))

    await until(is_starting, "the agent starts")
    await platform.services.trials.close()
    async with open_platform(tmp_path, engine_process, monkeypatch) as again:

        async def find_event() -> Event | None:
            async with again.services.database.reading() as session:
                return (await session.scalars(select(Event).where(Event.kind == "agent.tested"))).first()

        event = await until(find_event, "the trial is over")
        assert (event.session_id, event.data["ok"], event.data["errorCode"]) == (session_id, False, "interrupted")
        assert await list_leftovers(again) == []
        await kill_sandboxes(again)


def create_events(*events: tuple[float, str, dict[str, Any]]) -> list[EventView]:
    """Return events from their time in seconds, kind and data."""
    return [
        EventView(number, STARTED_AT + timedelta(seconds=at), kind, None, None, None, None, None, data)
        for number, (at, kind, data) in enumerate(events)
    ]


def test_steps_are_measured_from_events() -> None:
    events = create_events(
        (0, "session.created", {}),
        (1, "agent.starting", {}),
        (2, "sandbox.running", {}),
        (3, "agent.installing", {"what": "Installing X"}),
        (9, "agent.installing", {"what": "X is installed"}),
        (10, "agent.ready", {}),
        (11, "message.created", {"role": "user"}),
        (12, "message.created", {"role": "agent"}),
        (13, "turn.completed", {}),
    )
    expected = [("sandbox", 2), ("install", 7), ("start", 1), ("answer", 2)]
    assert [(step.name, step.seconds) for step in measure_steps(events, ok=True)] == expected
    assert [step.ok for step in measure_steps(events, ok=False)] == [True, True, True, False]
    assert measure_steps(events[:4], ok=False)[-1] == TrialStep("install", 1, ok=False)
    assert measure_steps(events[:2], ok=False) == [TrialStep("sandbox", 1, ok=False)]
    assert measure_steps([], ok=False) == []
