"""The status report of Sandyard's engine (`GET /status`). Other endpoints and future versions may respond with anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel


class _Report(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class SandboxCounts(_Report):
    running: int
    paused: int
    creating: int
    removing: int


class PoolReport(_Report):
    """The number of sandboxes of a template created in advance, and the number that there should be."""

    template: str
    isolation: str
    containers: bool
    ready: int
    target: int


class LayerStoreReport(_Report):
    problem: str | None
    published: int
    pending: int


class SlowOperationReport(_Report):
    """An operation of the driver, or of the agent in a sandbox, that took seconds."""

    operation: str
    sandbox: str
    seconds: float
    ended_at: float
    error: str | None


class EngineReport(_Report):
    version: str
    driver: str
    started_at: float
    shortage: str | None
    memory_available: int | None
    disk_free: int | None
    sandboxes: SandboxCounts
    pools: list[PoolReport] = []
    builds: dict[str, int] = {}
    isolation: list[str] = []
    missing: dict[str, str] = {}
    layer_store: LayerStoreReport | None = None
    slow_operations: list[SlowOperationReport] = []


def parse_report(found: Mapping[str, Any] | None) -> EngineReport | None:
    """Parse the report, or return None if it is not one."""
    try:
        return None if found is None else EngineReport.model_validate(found)
    except ValidationError:
        return None
