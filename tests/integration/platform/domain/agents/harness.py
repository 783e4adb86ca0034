"""Agents on a real engine: turns of a scripted agent, run by a service that can crash and be reopened."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from sandyard.kit.errors import SandyardError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import AgentRun, Ask, Message, Sandbox, Session, Turn
from sandyard.platform.domain.agents.profiles.custom import Definition
from sandyard.platform.domain.agents.profiles.model import Install, Launch, LaunchRequest, Profile
from sandyard.platform.domain.agents.questions.service import Asks
from sandyard.platform.domain.agents.runner.turns import AgentTurns
from sandyard.platform.domain.models.faults import Fault
from sandyard.platform.domain.models.model import ModelApi, ModelEndpoint
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.sandboxes.command_output import STDOUT
from sandyard.platform.domain.sandboxes.e2b import SandboxNotRunningError
from sandyard.platform.domain.sandboxes.model import Status
from tests.integration.platform.domain.sandboxes.platform_harness import DEADLINE, PlatformHarness
from tests.unit.platform.world import ROOT

AGENT = "/home/user/.acting/agent.py"
SOURCE = (Path(__file__).parent / "scripted_agent.py").read_bytes()


@dataclass(frozen=True)
class ScriptedProfile:
    name: str = "acting"
    title: str = "Acting"
    description: str = "For tests."
    demo: bool = True
    install: Install | None = None
    apis: tuple[ModelApi, ...] = ()
    models: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    unasked_modes: tuple[str, ...] = ()
    auth_method: str | None = None
    argv: tuple[str, ...] = ("python3", AGENT)

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(self.argv, {"ACTING": "1"}, {AGENT: SOURCE})


@dataclass
class FakeAgents:
    current_profile: Profile = field(default_factory=ScriptedProfile)

    async def profile(self, owner_id: str, name: str) -> Profile:
        return self.current_profile


@dataclass
class FakeUsage:
    calls: int = 0
    cost_usd: float | None = None


class FakeModels:
    """No models, unless `configured_endpoint` is set. `budget_error` is raised by every budget check."""

    def __init__(self) -> None:
        self.budget_error: SandyardError | None = None
        self.current_fault: Fault | None = None
        self.counting: list[str] = []
        self.configured_endpoint: ModelEndpoint | None = None
        self.attached = 0
        self.reached = 0

    async def open_endpoint(
        self, session: Session, sandbox: Sandbox, profile: Profile, model: str | None
    ) -> ModelEndpoint | None:
        return self.configured_endpoint

    async def open_gateway(self, session: Session, sandbox: Sandbox) -> tuple[str, Secret]:
        self.reached += 1
        return "http://127.0.0.1:4100", Secret("syc_capability")

    async def attach(self, session: Session, sandbox: Sandbox) -> None:
        if sandbox.status == Status.PAUSED:
            raise SandboxNotRunningError
        self.attached += 1

    async def detach(self, sandbox_id: str) -> None: ...

    @contextlib.contextmanager
    def count_for_turn(self, sandbox_id: str, turn: Turn) -> Iterator[None]:
        self.counting.append(turn.id)
        yield
        self.counting.remove(turn.id)

    async def check_budget(self, session: Session) -> None:
        if self.budget_error is not None:
            raise self.budget_error

    async def get_usage(self, *, turn_id: str | None = None) -> FakeUsage:
        return FakeUsage(calls=1)

    def get_fault(self, turn_id: str) -> Fault | None:
        return self.current_fault


async def _install(*_: Any) -> bool:
    return False


@dataclass
class AgentHarness:
    platform: PlatformHarness
    agents: FakeAgents = field(default_factory=FakeAgents)
    models: FakeModels = field(default_factory=FakeModels)
    turns: AgentTurns = field(init=False)
    asks: Asks = field(init=False)

    def open(self) -> None:
        services = self.platform.services
        self.turns = AgentTurns(
            services.database,
            services.lifecycle,
            files=services.commands.files,
            git=services.git,
            agents=self.agents,
            models=self.models,
            settings=services.settings,
            clock=self.platform.clock,
            install=_install,
        )
        services.lifecycle.before_pause.append(self.turns.before_pause)
        services.lifecycle.after_resume.append(self.turns.after_resume)
        services.lifecycle.after_end.append(self.turns.after_end)
        self.asks = Asks(services.database, self.turns)

    async def crash_and_recover(self) -> None:
        """Simulate kill -9: abandon everything in progress and recover in a new service."""
        old = self.turns
        self.open()
        await old.tasks.cancel()
        await self.turns.recover()

    async def create_session(self, **wanted: Any) -> Session:
        row, _ = await self.platform.services.sessions.create(
            self.platform.owner, title="acting", agent="acting", **wanted
        )
        return row

    async def prompt(self, row: Session, *lines: str, **options: Any) -> Turn:
        return await self.turns.prompt(
            self.platform.owner, row.id, [{"type": "text", "text": "\n".join(lines)}], **options
        )

    async def wait_for_turn(self, turn: Turn) -> Turn:
        async with asyncio.timeout(DEADLINE):
            return await self.turns.wait(turn.id)

    async def run_turn(self, row: Session, *lines: str, **options: Any) -> Turn:
        return await self.wait_for_turn(await self.prompt(row, *lines, **options))

    async def parts(self, turn: Turn, role: str = "agent") -> list[dict[str, Any]]:
        async with self.platform.services.database.reading() as session:
            query = select(Message).where(Message.turn_id == turn.id, Message.role == role).order_by(Message.id)
            return [row.parts[0] for row in await session.scalars(query)]

    async def text(self, turn: Turn) -> str:
        return "".join(part["text"] for part in await self.parts(turn) if part["type"] == "text")

    async def runs(self, row: Session) -> list[AgentRun]:
        async with self.platform.services.database.reading() as session:
            query = select(AgentRun).where(AgentRun.session_id == row.id).order_by(AgentRun.id)
            return list(await session.scalars(query))

    async def find_pending_ask(self, row: Session) -> Ask | None:
        found = await self.asks.list(self.platform.owner, PageRequest(), session_id=row.id, status="pending")  # type: ignore[arg-type]
        return found.items[0] if found.items else None

    async def read_raw_text(self, run: AgentRun) -> str:
        """Return all text in the stored raw output of the run, and check that every byte of it was consumed."""
        raw = await self.platform.services.commands.files.read(run.id, STDOUT, 0, 1 << 30)
        assert len(raw) == run.consumed
        lines = [json.loads(line) for line in raw.splitlines() if line.startswith(b"{")]
        updates = [line["params"]["update"] for line in lines if line.get("method") == "session/update"]
        return "".join(
            update["content"]["text"] for update in updates if update["sessionUpdate"] == "agent_message_chunk"
        )


@contextlib.asynccontextmanager
async def open_harness(platform: PlatformHarness) -> AsyncIterator[AgentHarness]:
    # FakeAgents runs it, but a session is created only with an agent that exists
    await platform.services.agents.create(ROOT, ScriptedProfile.name, None, Definition(argv=["python3", AGENT]))
    harness = AgentHarness(platform)
    harness.open()
    try:
        yield harness
    finally:
        await harness.turns.close()
