"""The state of the installation, for administrators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandyard.platform.api.auth import AdminCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Instant, Model
from sandyard.platform.domain.instance.engine_report import EngineReport
from sandyard.platform.domain.instance.queues import QueueName
from sandyard.platform.domain.instance.status import InstanceStatus, StatusReader, Target

router = api_router("service")
Reader = Annotated[StatusReader, inject("status")]


class ProblemView(Model):
    text: str
    severe: bool = Field(description="True if new work fails until the problem is solved.")
    target: Target | None = Field(description="The page on which the problem can be solved.")
    target_id: str | None = Field(description="The project, sandbox or session, if `target` is a single one.")


class WorkQueueView(Model):
    name: QueueName
    waiting: int
    running: int
    waiting_since: Instant | None = Field(description="When the oldest waiting item started to wait.")
    limit: int | None = Field(description="Maximum number that can run at once. Null: there is no overall limit.")


class SlowWorkView(Model):
    text: str
    since: Instant | None = Field(description="When it started, if it is still in progress.")
    seconds: float | None = Field(description="How long it took, if it has ended.")
    error: str | None
    target: Target | None
    target_id: str | None


class DiskView(Model):
    free: int
    total: int


class InstanceStatusView(Model):
    version: str
    database: str = Field(examples=["SQLite"])
    disk: DiskView = Field(description="The disk of the platform's data directory, in bytes.")
    problems: list[ProblemView] = Field(description="What needs attention, severe problems first.")
    queues: list[WorkQueueView]
    slow: list[SlowWorkView] = Field(
        description="Work that is taking unusually long, and recent slow operations of the engine."
    )
    engine: EngineReport | None = Field(
        description="The engine's status report. Null if the engine does not respond or is not Sandyard's."
    )
    engine_error: str | None = Field(description="Why the engine does not respond.")


@router.get("/status", name="service.status", response_model=InstanceStatusView, dependencies=[limit_large_responses()])
async def status(_: AdminCaller, reader: Reader) -> InstanceStatus:
    """Return what the installation is doing, what is slow, and what needs attention."""
    return await reader.read()
