"""The manifest of a published snapshot: everything that an engine needs to create sandboxes from it.

Manifests are untrusted: anyone who can write to the layer store can change them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandyard import __version__
from sandyard.engine.contract import Isolation, Layers, Limits
from sandyard.engine.layers.store import MAX_DOCUMENT_BYTES
from sandyard.engine.sandboxes.model import Defaults, Snapshot, StartCommand
from sandyard.engine.sandboxes.snapshots import is_snapshot_id, split_name
from sandyard.kit import bounded_json
from sandyard.kit.errors import InvalidInputError

FORMAT = 1
_MAX_NUMBER = 1 << 50
_LATEST_TIME = 4_000_000_000.0  # in the year 2096
_MAX_VALUES = 50_000
MAX_LAYERS = 119  # as many as an overlay of a sandbox can have
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=65536)]
Kind = Literal["template", "snapshot"]
"""Whether a layer is part of the template, or holds what sandboxes have changed since. Between these, a driver adds a layer with
the few files that depend on the machine."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class PackedLayer(_Model):
    """A layer in the store. `digest`: of the blob, `size` bytes; `diff_id`: of the tar in it, `bytes` bytes."""

    digest: Digest
    diff_id: Digest
    size: int = Field(ge=0, le=_MAX_NUMBER)
    bytes: int = Field(ge=0, le=_MAX_NUMBER)
    entries: int = Field(ge=0, le=_MAX_NUMBER)

    @property
    def key(self) -> str:
        return f"blobs/{self.digest.removeprefix('sha256:')}"


class ManifestLayer(PackedLayer):
    """`name`: for people, what the layer is on the engine that published it, such as `tpl:base/78b6f4c6020a3e47`."""

    kind: Kind
    name: Annotated[str, Field(max_length=300)] = ""


class ManifestLimits(_Model):
    memory_mb: int = Field(ge=1, le=1 << 24)
    cpu_count: int = Field(ge=1, le=4096)
    pids: int = Field(ge=1, le=_MAX_NUMBER)
    disk_mb: int = Field(ge=1, le=_MAX_NUMBER)


class ManifestStart(_Model):
    command: Text
    ready: Text | None


class Manifest(_Model):
    """Layers are topmost first."""

    format: int = FORMAT
    engine: Annotated[str, Field(max_length=100)] = __version__
    id: Annotated[str, Field(max_length=64)]
    name: Text | None
    tag: Text
    created_at: float = Field(ge=0, le=_LATEST_TIME, allow_inf_nan=False)
    sandbox_id: Annotated[str, Field(max_length=100)]
    template_id: Annotated[str, Field(max_length=100)]
    limits: ManifestLimits
    env: Mapping[Text, Text]
    user: Text
    workdir: Text | None
    start: ManifestStart | None
    isolation: Isolation | None
    containers: bool | None
    layers: Annotated[tuple[ManifestLayer, ...], Field(min_length=1, max_length=MAX_LAYERS)]

    @property
    def size(self) -> int:
        """Return the bytes of all its blobs."""
        return sum({layer.digest: layer.size for layer in self.layers}.values())

    @property
    def ref(self) -> str:
        return f"{self.name or self.id}:{self.tag}"

    def encode(self) -> bytes:
        return (json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n").encode()


def make_manifest(snapshot: Snapshot, layers: Sequence[ManifestLayer]) -> Manifest:
    limits, start = snapshot.limits, snapshot.start
    return Manifest(
        id=snapshot.id,
        name=snapshot.name,
        tag=snapshot.tag,
        created_at=snapshot.created_at,
        sandbox_id=snapshot.sandbox_id,
        template_id=snapshot.template_id,
        limits=ManifestLimits(
            memory_mb=limits.memory_mb, cpu_count=limits.cpu_count, pids=limits.pids, disk_mb=limits.disk_mb
        ),
        env=dict(snapshot.env),
        user=snapshot.defaults.user,
        workdir=snapshot.defaults.workdir,
        start=None if start is None else ManifestStart(command=start.command, ready=start.ready),
        isolation=snapshot.isolation,
        containers=snapshot.containers,
        layers=tuple(layers),
    )


def make_snapshot(manifest: Manifest, layers: Layers, max_limits: Limits) -> Snapshot:
    """Return the record of a published snapshot whose layers are now on this machine. Its limits of processes and disk, which clients cannot
    choose, are at most those in `max_limits`."""
    limits, start = manifest.limits, manifest.start
    return Snapshot(
        id=manifest.id,
        sandbox_id=manifest.sandbox_id,
        template_id=manifest.template_id,
        layers=layers,
        limits=Limits(
            limits.memory_mb,
            limits.cpu_count,
            min(limits.pids, max_limits.pids),
            min(limits.disk_mb, max_limits.disk_mb),
        ),
        created_at=manifest.created_at,
        name=manifest.name,
        tag=manifest.tag,
        env=dict(manifest.env),
        defaults=Defaults(manifest.user, manifest.workdir),
        start=None if start is None else StartCommand(start.command, start.ready),
        isolation=manifest.isolation,
        containers=manifest.containers,
    )


def parse_manifest(content: bytes, snapshot_id: str) -> Manifest:
    """Parse a manifest. Raises InvalidInputError, also for one of a newer format."""
    try:
        raw = bounded_json.parse(content, largest=MAX_DOCUMENT_BYTES, values=_MAX_VALUES)
        if isinstance(raw, dict) and isinstance(raw.get("format"), int) and raw["format"] > FORMAT:
            raise InvalidInputError(
                f"The manifest of the snapshot {snapshot_id} was written by a newer engine. Upgrade this one."
            )
        manifest = Manifest.model_validate(raw)
    except (ValueError, ValidationError) as error:
        where = f": {error.errors()[0]['loc']}" if isinstance(error, ValidationError) else ""
        raise InvalidInputError(f"The manifest of the snapshot {snapshot_id} is damaged{where}.") from None
    try:
        split_name(manifest.ref)
    except InvalidInputError as error:
        raise InvalidInputError(f"The manifest of the snapshot {snapshot_id} is damaged. {error.message}") from None
    if not is_snapshot_id(manifest.id):  # one like a name would be found instead of what has that name here
        raise InvalidInputError(
            f"The manifest of the snapshot {snapshot_id} is damaged: {manifest.id!r} is not the id of a snapshot."
        )
    if manifest.id != snapshot_id:
        raise InvalidInputError(f"The manifest of the snapshot {snapshot_id} is that of another one ({manifest.id}).")
    return manifest
