"""The JSON documents of images: indexes, manifests and configurations, parsed as hostile input. Makes no requests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandyard.engine.images.reference import DIGEST
from sandyard.kit import bounded_json
from sandyard.kit.errors import InvalidInputError, NotFoundError, UnsupportedError

MAX_BYTES, MAX_VALUES = 8 << 20, 50_000
"""Maximum number of bytes and JSON values in one document."""
MAX_LAYERS = 100
"""A sandbox can have at most 119 layers, and builds on top of an image need some of them."""
ACCEPTED = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ARCHITECTURE = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
}.get(os.uname().machine, os.uname().machine)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob identified by its content. `size` is its required size."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    digest: str
    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """The parts of an image's configuration that matter to a sandbox. `diff_ids` are the uncompressed layers' digests,
    lowest first."""

    diff_ids: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str | None = None


def compute_digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def parse_json(content: bytes, what: str) -> dict[str, Any]:
    try:
        document = bounded_json.parse(content, largest=MAX_BYTES, values=MAX_VALUES)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidInputError(f"{what} is not a JSON object.")
    return document


def is_index(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("manifests"), list)


def choose_manifest(document: Mapping[str, Any], what: str) -> Descriptor:
    """Return an index's manifest for this machine. Raises UnsupportedError, which lists the available platforms."""
    platforms = []
    for entry in document["manifests"]:
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if not isinstance(platform, dict):
            platform = {}
        system, architecture = platform.get("os", "linux"), platform.get("architecture", ARCHITECTURE)
        if system == "linux" and architecture == ARCHITECTURE:
            return _parse_descriptor(entry, f"The index of {what}")
        if system != "unknown":  # attestations
            platforms.append(f"{system}/{architecture}")
    offered = ", ".join(dict.fromkeys(platforms))[:300] or "no platform"
    raise UnsupportedError(
        f"{what} is not available for linux/{ARCHITECTURE}, which this machine needs. It is available for {offered}."
    )


def select_manifest(document: Mapping[str, Any], name: str | None, what: str) -> Descriptor:
    """Return the entry of a layout's index with that tag, or the only one. NotFoundError lists the existing tags."""
    listed = document["manifests"] if is_index(document) else []
    entries = [entry for entry in listed if isinstance(entry, dict)]
    tags = [_find_tag(entry) for entry in entries]
    matches = [entry for entry, tag in zip(entries, tags, strict=True) if tag == name] if name else entries
    if len(matches) == 1:
        return _parse_descriptor(matches[0], f"The index of {what}")
    known = ", ".join(tag for tag in tags if tag)[:300] or "none"
    problem = (
        f"contains {len(entries)} images; specify one"
        if not name
        else f"has {len(matches) or 'no'} images tagged {name!r}"
    )
    raise NotFoundError(f"{what} {problem}. Tags in it: {known}.")


def _find_tag(entry: Mapping[str, Any]) -> str | None:
    annotations = entry.get("annotations")
    tag = annotations.get("org.opencontainers.image.ref.name") if isinstance(annotations, dict) else None
    return tag if isinstance(tag, str) else None


def parse_manifest(content: bytes, what: str) -> Manifest:
    document = parse_json(content, f"The manifest of {what}")
    layers = document.get("layers")
    if document.get("schemaVersion") == 1:
        raise UnsupportedError(
            f"{what} has a manifest of schema version 1, which registries dropped in 2017. Push the image again."
        )
    if not isinstance(layers, list) or not isinstance(document.get("config"), dict):
        raise UnsupportedError(f"{what} is not an image: its manifest has no layers and no configuration.")
    if any(isinstance(layer, dict) and layer.get("urls") for layer in layers):
        raise UnsupportedError(
            f"{what} has layers that are not stored in its registry, as Windows images do. This is not supported."
        )
    blobs = tuple(_parse_descriptor(layer, f"The manifest of {what}") for layer in layers)
    return Manifest(compute_digest(content), _parse_descriptor(document["config"], f"The manifest of {what}"), blobs)


def parse_config(content: bytes, what: str, layers: int) -> Config:
    """Parse a configuration. `layers` is the number of layers in the manifest. Raises UnsupportedError for an image of
    another platform."""
    document = parse_json(content, f"The configuration of {what}")
    system, architecture = document.get("os", "linux"), document.get("architecture", ARCHITECTURE)
    if system != "linux" or architecture != ARCHITECTURE:
        raise UnsupportedError(
            f"{what} is built for {system}/{architecture}, but this machine is linux/{ARCHITECTURE}."
        )
    root = document.get("rootfs")
    diff_ids = root.get("diff_ids") if isinstance(root, dict) else None
    if not _is_text_list(diff_ids) or not all(DIGEST.fullmatch(diff_id) for diff_id in diff_ids or ()):
        raise UnsupportedError(f"The configuration of {what} does not list its layers by their sha256.")
    assert diff_ids is not None
    if len(diff_ids) != layers:
        raise InvalidInputError(
            f"{what} is inconsistent: its manifest has {layers} layers and its configuration {len(diff_ids)}."
        )
    if not diff_ids or len(diff_ids) > MAX_LAYERS:
        raise UnsupportedError(
            f"{what} has {len(diff_ids)} layers, but 1 to {MAX_LAYERS} are supported. Squash the image."
        )
    settings = document.get("config")
    if not isinstance(settings, dict):
        settings = {}
    workdir, user = settings.get("WorkingDir"), settings.get("User")
    return Config(
        tuple(diff_ids),
        _parse_environment(settings.get("Env")),
        user if isinstance(user, str) else "",
        workdir if isinstance(workdir, str) and workdir.startswith("/") and "\0" not in workdir else None,
    )


def _parse_environment(raw: Any) -> dict[str, str]:
    if not _is_text_list(raw):
        return {}
    pairs = (line.partition("=") for line in raw)
    return {key: value for key, equals, value in pairs if key and equals and "\0" not in key + value}


def _is_text_list(raw: Any) -> bool:
    return isinstance(raw, Sequence) and not isinstance(raw, str) and all(isinstance(item, str) for item in raw)


def _parse_descriptor(raw: Any, where: str) -> Descriptor:
    digest, size = (raw.get("digest"), raw.get("size")) if isinstance(raw, dict) else (None, None)
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise UnsupportedError(f"{where} contains a digest that is not sha256.")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidInputError(f"{where} contains an entry without a valid size.")
    return Descriptor(digest, size)
