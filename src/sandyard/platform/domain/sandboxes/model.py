"""Statuses, errors and request types of sandboxes and commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from sandyard.kit.errors import ConflictError, ForbiddenError, SandyardError
from sandyard.platform.db.models import Sandbox
from sandyard.platform.db.models.sandboxes import UsageSample
from sandyard.platform.domain.sandboxes.e2b import Usage


class Status(StrEnum):
    PROVISIONING = "provisioning"
    RUNNING = "running"
    PAUSED = "paused"
    ERROR = "error"
    DESTROYED = "destroyed"


class CommandStatus(StrEnum):
    """State of a command. `lost`: it ran, but its exit was not observed. `not_started`: it never ran."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    LOST = "lost"
    NOT_STARTED = "not_started"

    @property
    def is_final(self) -> bool:
        return self not in (CommandStatus.STARTING, CommandStatus.RUNNING)


SANDBOX_LOST = "sandbox_lost"
"""Error code of a sandbox that the engine no longer has, and of the commands and steps that ran in it."""
LIVE = (Status.PROVISIONING, Status.RUNNING, Status.PAUSED)


class SandboxFailedError(ConflictError):
    """The sandbox failed."""

    code = "sandbox_failed"


class SandboxDestroyedError(ConflictError):
    """The sandbox was deleted."""

    code, status = "sandbox_destroyed", 410


class OwnerWithoutAccessError(ForbiddenError):
    """The owner of this sandbox was disabled or no longer has access to its project. Ask the project's owner to add them again."""

    code = "owner_without_access"


class CommandRefusedError(SandyardError):
    """The project's policy does not allow this command."""

    code, status = "command_refused", 403


@dataclass(frozen=True, slots=True)
class NewSandbox:
    """A requested sandbox. The caller has authorized `session_id` and the fields after it."""

    template: str
    idle_seconds: int
    envs: Mapping[str, str] = field(default_factory=dict)
    agent_id: str | None = None
    task_id: str | None = None
    session_id: str | None = None
    project_id: str | None = None
    deleted_project_id: str | None = None
    internal: bool = False


@dataclass(frozen=True, slots=True)
class NewCommand:
    command: str
    timeout_s: float
    cwd: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    background: bool = False


def check_usable(row: Sandbox) -> None:
    """Raise an error if the sandbox can no longer be used."""
    if row.status == Status.DESTROYED or row.destroy_requested_at is not None:
        raise SandboxDestroyedError(f"Sandbox {row.id} was deleted.")
    if row.status == Status.ERROR:
        raise SandboxFailedError(f"Sandbox {row.id} failed: {row.error} Create a new sandbox for its session.")


def utc_now() -> datetime:
    return datetime.now(UTC)


def make_usage_sample(usage: Usage) -> UsageSample:
    """Return the usage as it is stored."""
    return {
        "cpu_percent": usage.cpu_percent,
        "cpu_count": usage.cpu_count,
        "memory_bytes": usage.memory_bytes,
        "memory_total_bytes": usage.memory_total_bytes,
        "disk_bytes": usage.disk_bytes,
        "disk_total_bytes": usage.disk_total_bytes,
        "at": usage.at.isoformat(),
    }


def get_sandbox_event_fields(row: Sandbox) -> dict[str, str | None]:
    """Return the ids that every event about this sandbox contains."""
    return {
        "owner_id": row.owner_id,
        "project_id": row.project_id,
        "task_id": row.task_id,
        "session_id": row.session_id,
        "sandbox_id": row.id,
    }
