"""The types for builds: a recipe and its steps, a build, its result, and the names and tags that refer to it.

All types are frozen. Times are seconds since the epoch (UTC) as floats.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sandyard.engine.contract import Layers
from sandyard.engine.images.model import RegistryAuth
from sandyard.engine.sandboxes.model import Defaults, LogLevel, StartCommand, Template
from sandyard.kit.errors import SandyardError

DEFAULT_TAG = "default"
BASE, FINALIZE = "base", "finalize"
"""The names that clients use for the phases before the first step and after the last one."""


class StepKind(enum.StrEnum):
    COPY = "COPY"
    ENV = "ENV"
    RUN = "RUN"
    WORKDIR = "WORKDIR"
    USER = "USER"


class BuildStatus(enum.StrEnum):
    WAITING = "waiting"  # requested or queued
    BUILDING = "building"
    READY = "ready"
    ERROR = "error"

    @property
    def final(self) -> bool:
        return self in {BuildStatus.READY, BuildStatus.ERROR}


@dataclass(frozen=True, slots=True)
class Step:
    kind: StepKind
    args: tuple[str, ...] = ()
    files: str | None = None  # the hash of the files that the client uploaded for a COPY
    force: bool = False  # run this step and all after it, even if they are cached

    def __str__(self) -> str:
        return " ".join((self.kind.value, *(arg for arg in self.args if arg)))


@dataclass(frozen=True, slots=True)
class Recipe:
    """A client's request for a build. Exactly one of `image` and `template` is set. `registry` holds credentials, which
    exist only during the build and are never stored."""

    image: str | None = None
    template: str | None = None
    registry: RegistryAuth | None = None
    steps: tuple[Step, ...] = ()
    start: str | None = None
    ready: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """The resources of sandboxes of a build. None means the engine's default."""

    cpu_count: int | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None


@dataclass(frozen=True, slots=True)
class State:
    """The state that a step passes on to the next one in addition to files."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    user: str = "user"
    workdir: str | None = None  # None: the user's home

    @property
    def defaults(self) -> Defaults:
        return Defaults(self.user, self.workdir)


@dataclass(frozen=True, slots=True)
class Layer:
    """The file system and the state after a step. `key` identifies what it was made of: layers with the same key are
    interchangeable."""

    key: str
    layers: Layers
    snapshots: tuple[str, ...]  # that the layers need
    state: State
    start: StartCommand | None = None  # verified to become ready on this layer


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a build failed. `step` is `base`, `finalize`, or the number of the step, counted from 1."""

    message: str
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Build:
    id: str  # a UUID
    template_id: str
    status: BuildStatus
    created_at: float
    updated_at: float
    size: Size = Size()
    tags: tuple[str, ...] = (DEFAULT_TAG,)  # assigned when it is ready
    finished_at: float | None = None
    started: bool = False  # its recipe has been received
    reason: Reason | None = None
    product: Layer | None = None  # the result, when it is ready
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of a tag to a build. The latest one of a tag applies; earlier ones are its history."""

    id: str  # a UUID
    template_id: str
    tag: str
    build_id: str
    at: float
    seq: int = 0


@dataclass(frozen=True, slots=True)
class BuiltTemplate:
    """A template name with all its builds."""

    id: str
    name: str
    public: bool
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class LogLine:
    at: float
    level: LogLevel
    message: str
    step: str | None = None


class BuildFailedError(SandyardError):
    """The build failed."""

    code: ClassVar[str] = "build_failed"

    def __init__(self, message: str, step: str | None = None) -> None:
        super().__init__(message)
        self.step = step


def as_template(template: BuiltTemplate, build: Build) -> Template:
    """Return a ready build as a template for new sandboxes."""
    assert build.product is not None
    layer = build.product
    return Template(
        id=template.id,
        layers=layer.layers,
        aliases=(template.name,),
        env=layer.state.env,
        defaults=layer.state.defaults,
        start=layer.start,
        snapshots=layer.snapshots,
        cpu_count=build.size.cpu_count,
        memory_mb=build.size.memory_mb,
        disk_mb=build.size.disk_mb,
    )
