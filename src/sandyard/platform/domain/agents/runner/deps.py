"""Dependencies of the agent runner: the profiles of agents, models for them, and their installation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from sandyard.kit.clock import Clock
from sandyard.kit.secret import Secret
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Sandbox, Session, Turn
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.models.faults import Fault
from sandyard.platform.domain.models.model import ModelEndpoint
from sandyard.platform.domain.sandboxes.command_output import OutputFiles
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.settings import PlatformSettings


class Profiles(Protocol):
    async def profile(self, owner_id: str, name: str) -> Profile: ...


class ModelAccess(Protocol):
    async def open_endpoint(
        self, session: Session, sandbox: Sandbox, profile: Profile, model: str | None
    ) -> ModelEndpoint | None: ...
    async def open_gateway(self, session: Session, sandbox: Sandbox) -> tuple[str, Secret]: ...
    async def attach(self, session: Session, sandbox: Sandbox) -> None: ...
    async def detach(self, sandbox_id: str) -> None: ...
    def count_for_turn(self, sandbox_id: str, turn: Turn) -> AbstractContextManager[None]: ...
    async def check_budget(self, session: Session) -> None: ...
    async def get_usage(self, *, turn_id: str | None = None) -> Any: ...
    def get_fault(self, turn_id: str) -> Fault | None: ...


class Installer(Protocol):
    async def __call__(
        self,
        engine: SandboxEngine,
        engine_id: str,
        profile: Profile,
        settings: PlatformSettings,
        progress: Callable[[str], None],
    ) -> bool: ...


@dataclass(frozen=True, slots=True)
class AgentRunnerDeps:
    """The dependencies of session runners and of the processes they run."""

    database: Database
    lifecycle: Lifecycle
    files: OutputFiles
    git: GitService
    agents: Profiles
    models: ModelAccess
    install: Installer
    settings: PlatformSettings
    clock: Clock
    tasks: TaskSet
