"""The JSON documents of images: indexes, manifests and configurations, read as hostile input. Nothing here asks anybody."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandyard.engine.images.reference import DIGEST
from sandyard.kit import bounded_json
from sandyard.kit.errors import InvalidInputError, NotFoundError, UnsupportedError

LARGEST, MOST_VALUES = 8 << 20, 50_000
"""Bytes and JSON values of one document."""
MOST_LAYERS = 100
"""A sandbox stands on at most 119 directories, and whoever builds on an image wants some for itself."""
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
    """A blob by its content. `size` is what it must have."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    digest: str
    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """Of an image's configuration, what matters to a sandbox. `diff_ids` are the layers' digests without compression, lowest first."""

    diff_ids: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str | None = None


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def parse_json(content: bytes, what: str) -> dict[str, Any]:
    try:
        document = bounded_json.parse(content, largest=LARGEST, values=MOST_VALUES)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidInputError(f"{what} is not a JSON object.")
    return document


def is_index(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("manifests"), list)


def choose(document: Mapping[str, Any], what: str) -> Descriptor:
    """Of an index, the manifest for this machine. Raises UnsupportedError, which says for which machines there is one."""
    seen = []
    for entry in document["manifests"]:
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if not isinstance(platform, dict):
            platform = {}
        system, architecture = platform.get("os", "linux"), platform.get("architecture", ARCHITECTURE)
        if system == "linux" and architecture == ARCHITECTURE:
            return _descriptor(entry, f"The index of {what}")
        if system != "unknown":  # attestations
            seen.append(f"{system}/{architecture}")
    offered = ", ".join(dict.fromkeys(seen))[:300] or "no machine at all"
    raise UnsupportedError(
        f"{what} is not made for linux/{ARCHITECTURE}, which this machine is. It is made for {offered}."
    )


def named(document: Mapping[str, Any], name: str | None, what: str) -> Descriptor:
    """Of the index of a layout, the entry with that tag, or the only one. NotFoundError lists the tags there are."""
    entries = [entry for entry in document.get("manifests", ()) if isinstance(entry, dict)]
    tags = [(entry.get("annotations") or {}).get("org.opencontainers.image.ref.name") for entry in entries]
    fitting = [entry for entry, tag in zip(entries, tags, strict=True) if tag == name] if name else entries
    if len(fitting) == 1:
        return _descriptor(fitting[0], f"The index of {what}")
    known = ", ".join(str(tag) for tag in tags if tag)[:300] or "none"
    said = (
        f"holds {len(entries)} images; say which one"
        if not name
        else f"has {len(fitting) or 'no'} images tagged {name!r}"
    )
    raise NotFoundError(f"{what} {said}. Tags in it: {known}.")


def read_manifest(content: bytes, what: str) -> Manifest:
    document = parse_json(content, f"The manifest of {what}")
    layers = document.get("layers")
    if document.get("schemaVersion") == 1:
        raise UnsupportedError(
            f"{what} has a manifest of the first version, which registries gave up in 2017. Push the image again."
        )
    if not isinstance(layers, list) or not isinstance(document.get("config"), dict):
        raise UnsupportedError(f"{what} is no image: its manifest has no layers and no configuration.")
    if any(isinstance(layer, dict) and layer.get("urls") for layer in layers):
        raise UnsupportedError(
            f"{what} has layers that are kept elsewhere than in its registry; only images of Windows do."
        )
    found = tuple(_descriptor(layer, f"The manifest of {what}") for layer in layers)
    return Manifest(digest_of(content), _descriptor(document["config"], f"The manifest of {what}"), found)


def read_config(content: bytes, what: str, layers: int) -> Config:
    """`layers`: how many the manifest has. Raises UnsupportedError for an image of another kind of machine."""
    document = parse_json(content, f"The configuration of {what}")
    system, architecture = document.get("os", "linux"), document.get("architecture", ARCHITECTURE)
    if system != "linux" or architecture != ARCHITECTURE:
        raise UnsupportedError(f"{what} is made for {system}/{architecture}; this machine is linux/{ARCHITECTURE}.")
    root = document.get("rootfs")
    diff_ids = root.get("diff_ids") if isinstance(root, dict) else None
    if not _texts(diff_ids) or not all(DIGEST.fullmatch(one) for one in diff_ids or ()):
        raise UnsupportedError(f"The configuration of {what} does not list its layers by their sha256.")
    assert diff_ids is not None
    if len(diff_ids) != layers:
        raise InvalidInputError(
            f"{what} contradicts itself: {layers} layers in its manifest, {len(diff_ids)} in its configuration."
        )
    if not diff_ids or len(diff_ids) > MOST_LAYERS:
        raise UnsupportedError(
            f"{what} has {len(diff_ids)} layers; between 1 and {MOST_LAYERS} can be used. Squash it."
        )
    settings = document.get("config")
    if not isinstance(settings, dict):
        settings = {}
    workdir, user = settings.get("WorkingDir"), settings.get("User")
    return Config(
        tuple(diff_ids),
        _environment(settings.get("Env")),
        user if isinstance(user, str) else "",
        workdir if isinstance(workdir, str) and workdir.startswith("/") and "\0" not in workdir else None,
    )


def _environment(raw: Any) -> dict[str, str]:
    if not _texts(raw):
        return {}
    pairs = (line.partition("=") for line in raw)
    return {key: value for key, equals, value in pairs if key and equals and "\0" not in key + value}


def _texts(raw: Any) -> bool:
    return isinstance(raw, Sequence) and not isinstance(raw, str) and all(isinstance(one, str) for one in raw)


def _descriptor(raw: Any, where: str) -> Descriptor:
    digest, size = (raw.get("digest"), raw.get("size")) if isinstance(raw, dict) else (None, None)
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise UnsupportedError(f"{where} names something by another digest than sha256.")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidInputError(f"{where} does not say how large something is.")
    return Descriptor(digest, size)
