"""Address of the E2B endpoint, and its data about a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypedDict

from sandyard.kit.secret import Secret

CLOUD_DOMAIN = "e2b.app"


class ApiOptions(TypedDict, total=False):
    """SDK options that we pass with every call."""

    api_key: str
    api_url: str
    sandbox_url: str | None
    domain: str
    debug: bool
    retries: int
    request_timeout: float


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Connection settings of an engine.

    `api_url` None means E2B Cloud, or the self-hosted E2B at `domain`. With `sandbox_url`, all sandboxes are reached
    through that address.
    """

    api_key: Secret | None
    api_url: str | None = None
    sandbox_url: str | None = None
    domain: str | None = None
    request_timeout_s: float = 30.0
    create_timeout_s: float = 5.0

    @property
    def options(self) -> ApiOptions:
        """Return all options explicitly: the SDK's environment variables are not used, and retries are ours."""
        domain = self.domain or CLOUD_DOMAIN
        return {
            "api_key": self.api_key.reveal() if self.api_key else "",
            "api_url": self.api_url or f"https://api.{domain}",
            "sandbox_url": self.sandbox_url,
            "domain": domain,
            "debug": False,
            "retries": 0,
            "request_timeout": self.request_timeout_s,
        }


class EngineState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class EngineSandbox:
    """A sandbox as the engine reports it. `template` is its name if it has one, else its id. Times are in UTC."""

    id: str
    state: EngineState
    template: str
    started_at: datetime
    ends_at: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """The engine's latest sample. `cpu_percent` is the sum over all cores: 200 means two fully used cores."""

    cpu_percent: float
    cpu_count: int
    memory_bytes: int
    memory_total_bytes: int
    disk_bytes: int
    disk_total_bytes: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Denied:
    """A connection of a sandbox that was denied. `protocol` dns: the name was not resolved."""

    host: str
    protocol: str
    port: int | None
    at: datetime
