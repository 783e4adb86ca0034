"""Request bodies as clients send them. Unknown fields are left alone: newer clients send more than is known here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

INT32 = 2**31 - 1
Seconds = Annotated[int, Field(ge=0, le=INT32)]
Entries = Annotated[list[str], Field(max_length=1000)]


class Wire(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class AutoResume(Wire):
    enabled: bool | None = None
    policy: str | None = None  # of releases in early 2026: "any" or "off"

    @property
    def wanted(self) -> bool:
        return self.enabled if self.enabled is not None else self.policy == "any"


class Egress(Wire):
    """Rules for traffic out of a sandbox, as in a new sandbox's `network` and in an update."""

    allowOut: Entries | None = None  # noqa: N815 - the wire's own names
    denyOut: Entries | None = None  # noqa: N815
    dnsServers: list[str] | None = None  # noqa: N815
    egressProxy: dict[str, Any] | None = None  # noqa: N815
    rules: dict[str, Any] | None = None


class NetworkConfig(Egress):
    allowPublicTraffic: bool | None = None  # noqa: N815
    maskRequestHost: str | None = Field(default=None, max_length=255)  # noqa: N815
    httpsPorts: list[int] | None = None  # noqa: N815


class NetworkUpdate(Egress):
    allow_internet_access: bool | None = None


class NewSandbox(Wire):
    """`timeout` and `secure` have other defaults in v1 and v2: None is what was not said."""

    templateID: str = Field(min_length=1, max_length=256)  # noqa: N815
    timeout: Seconds | None = None
    secure: bool | None = None
    autoPause: bool | None = None  # noqa: N815
    autoPauseMemory: bool | None = None  # noqa: N815
    autoResume: AutoResume | None = None  # noqa: N815
    allow_internet_access: bool | None = None
    network: NetworkConfig | None = None
    metadata: dict[str, str] | None = None
    envVars: dict[str, str] | None = None  # noqa: N815
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volumeMounts: list[dict[str, Any]] | None = None  # noqa: N815


class Connect(Wire):
    timeout: Seconds
    memory: bool | None = None


class ConnectV2(Wire):
    timeout: Seconds = 300
    memory: bool | None = None


class Resume(Wire):
    timeout: Seconds = 15
    autoPause: bool | None = None  # noqa: N815
    memory: bool | None = None


class Pause(Wire):
    memory: bool | None = None


class Timeout(Wire):
    timeout: Seconds


class Refresh(Wire):
    duration: Annotated[int, Field(ge=0, le=3600)] | None = None


class Fork(Wire):
    count: int = 1
    timeout: Seconds = 15


class NewSnapshot(Wire):
    name: str | None = Field(default=None, max_length=256)
