"""Request bodies from clients. Unknown fields are ignored, because newer clients may send more."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

INT32 = 2**31 - 1
Seconds = Annotated[int, Field(ge=0, le=INT32)]
Entries = Annotated[list[str], Field(max_length=1000)]


def _without_nul(metadata: dict[str, str]) -> dict[str, str]:
    if any("\0" in text for pair in metadata.items() for text in pair):
        raise ValueError("a key or value contains a NUL character")
    return metadata


Metadata = Annotated[dict[str, str], AfterValidator(_without_nul)]


class Wire(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class AutoResume(Wire):
    enabled: bool | None = None
    policy: str | None = None  # used in releases of early 2026: "any" or "off"

    @property
    def is_enabled(self) -> bool:
        return self.enabled if self.enabled is not None else self.policy == "any"


class Transform(Wire):
    headers: dict[str, str] | None = None


class Rule(Wire):
    transform: Transform | None = None


class Egress(Wire):
    """Rules for traffic out of a sandbox, as in a new sandbox's `network` and in an update."""

    allowOut: Entries | None = None  # noqa: N815 - the wire's own names
    denyOut: Entries | None = None  # noqa: N815
    dnsServers: Annotated[list[str], Field(max_length=10)] | None = None  # noqa: N815
    egressProxy: dict[str, Any] | None = None  # noqa: N815
    rules: dict[str, list[Rule]] | None = None


class NetworkConfig(Egress):
    allowPublicTraffic: bool | None = None  # noqa: N815
    maskRequestHost: str | None = Field(default=None, max_length=255)  # noqa: N815
    httpsPorts: Annotated[list[int], Field(max_length=1000)] | None = None  # noqa: N815


class NetworkUpdate(Egress):
    allow_internet_access: bool | None = None


class VolumeMount(Wire):
    name: str
    path: str


class NewSandbox(Wire):
    """`timeout` and `secure` have different defaults in v1 and v2: None means not given."""

    templateID: str = Field(min_length=1, max_length=256)  # noqa: N815
    timeout: Seconds | None = None
    secure: bool | None = None
    autoPause: bool | None = None  # noqa: N815
    autoPauseMemory: bool | None = None  # noqa: N815
    autoResume: AutoResume | None = None  # noqa: N815
    allow_internet_access: bool | None = None
    network: NetworkConfig | None = None
    metadata: Metadata | None = None
    envVars: dict[str, str] | None = None  # noqa: N815
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volumeMounts: list[VolumeMount] | None = None  # noqa: N815


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
    # An extension: True requires that the processes continue in the forks, False prevents it
    memory: bool | None = None


class NewSnapshot(Wire):
    name: str | None = Field(default=None, max_length=256)


class NewSecret(Wire):
    name: str
    value: str = Field(repr=False)
    metadata: Metadata | None = None


class SecretUpdate(Wire):
    value: str = Field(repr=False)
    metadata: Metadata | None = None


class KeyName(Wire):
    """The name for a new key, or the new name of a key; keys.py validates it."""

    name: str


class NewTemplate(Wire):
    """The body of `POST /v3/templates`, and of v2, where the name is called alias. The older form with a Dockerfile has
    neither."""

    name: str | None = Field(default=None, max_length=256)
    alias: str | None = Field(default=None, max_length=256)
    tags: Annotated[list[str], Field(max_length=1000)] | None = None
    cpuCount: Annotated[int, Field(le=INT32)] | None = None  # noqa: N815
    memoryMB: Annotated[int, Field(le=INT32)] | None = None  # noqa: N815
    minFreeDiskMB: Annotated[int, Field(ge=0, le=INT32)] | None = None  # noqa: N815


class TemplateStep(Wire):
    type: str = Field(max_length=32)
    args: list[str] | None = None
    filesHash: str | None = Field(default=None, max_length=128)  # noqa: N815
    force: bool | None = None


class StartBuild(Wire):
    fromImage: str | None = Field(default=None, max_length=1000)  # noqa: N815
    fromTemplate: str | None = Field(default=None, max_length=256)  # noqa: N815
    fromImageRegistry: dict[str, Any] | None = None  # noqa: N815
    force: bool | None = None
    steps: list[TemplateStep] | None = None
    startCmd: str | None = None  # noqa: N815
    readyCmd: str | None = None  # noqa: N815


class TemplateUpdate(Wire):
    public: bool | None = None


class AssignTags(Wire):
    target: str = Field(min_length=1, max_length=256)
    tags: Annotated[list[str], Field(max_length=100)]


class RemoveTags(Wire):
    name: str = Field(min_length=1, max_length=256)
    tags: Annotated[list[str], Field(max_length=100)]


class NewVolume(Wire):
    name: str


class EntryMetadata(Wire):
    """Metadata of a file or directory in a volume; omitted fields stay unchanged."""

    uid: Annotated[int, Field(ge=0, le=65535)] | None = None
    gid: Annotated[int, Field(ge=0, le=65535)] | None = None
    mode: Annotated[int, Field(ge=0, le=0o7777)] | None = None
