"""Builds the files of test images: tar archives, and OCI layouts of them. `rootfs` is a minimal Linux system: busybox and a few files."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
MTIME = 1_700_000_000
APPLETS = """
    sh ash cat chmod chown cp echo env false find head id ls mkdir mv ps readlink rm sleep stat test touch true wc which whoami
""".split()
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, content: bytes | str = b"", kind: bytes = tarfile.REGTYPE, **fields: Any) -> Entry:
    """Return a file, or an entry of another `kind`. `fields` are attributes of `TarInfo`."""
    info = tarfile.TarInfo(name)
    raw = content.encode() if isinstance(content, str) else content
    info.type, info.size, info.mtime = kind, len(raw), MTIME
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info, raw


def folder(name: str, mode: int = 0o755, **fields: Any) -> Entry:
    return entry(name, kind=tarfile.DIRTYPE, mode=mode, **fields)


def link(name: str, target: str) -> Entry:
    return entry(name, kind=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> Entry:
    return entry(name, kind=tarfile.LNKTYPE, linkname=target)


def tar(*entries: Entry) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as file:
        for info, content in entries:
            file.addfile(info, io.BytesIO(content))
    return out.getvalue()


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_busybox() -> bytes:
    """Return the binary of Debian's busybox-static."""
    path = shutil.which("busybox")
    assert path, "the tests need busybox-static: scripts/system-packages tests"
    return Path(path).read_bytes()


def rootfs(*more: Entry) -> bytes:
    """Return a layer with a complete system, without bash, sudo and a user."""
    return tar(
        folder("bin"),
        entry("bin/busybox", read_busybox(), mode=0o755),
        *(link(f"bin/{name}", "busybox") for name in APPLETS),
        folder("etc"),
        entry("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n"),
        entry("etc/group", "root:x:0:\nnode:x:1000:\n"),
        folder("tmp", 0o1777),
        *more,
    )


@functools.lru_cache(16)
def _compress(layer: bytes) -> bytes:
    return gzip.compress(layer, compresslevel=1, mtime=0)


class Layout:
    """An OCI layout directory to which images are added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.entries: list[dict[str, Any]] = []

    def add_blob(self, content: bytes, kind: str) -> dict[str, Any]:
        digest = sha256(content)
        (self.path / "blobs/sha256" / digest.removeprefix("sha256:")).write_bytes(content)
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def add_image(
        self,
        layers: Sequence[bytes],
        settings: dict[str, Any] | None = None,
        *,
        architecture: str = ARCHITECTURE,
        blobs: Sequence[bytes] | None = None,
        **config: Any,
    ) -> dict[str, Any]:
        """Add an image and return the descriptor of its manifest. `blobs`: the stored layers, if they are not to be compressed with gzip."""
        descriptors = [self.add_blob(raw, LAYER) for raw in blobs or [_compress(layer) for layer in layers]]
        document = {
            "architecture": architecture,
            "os": "linux",
            "config": settings or {},
            "rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]},
            **config,
        }
        config_descriptor = self.add_blob(json.dumps(document).encode(), CONFIG)
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config_descriptor, "layers": descriptors}
        return self.add_blob(json.dumps(manifest).encode(), MANIFEST)

    def add_index(self, images: Iterable[dict[str, Any]]) -> dict[str, Any]:
        return self.add_blob(
            json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(images)}).encode(), INDEX
        )

    def tag(self, descriptor: dict[str, Any], name: str = "latest") -> Path:
        """Name an image and return the path of the layout."""
        self.entries.append({**descriptor, "annotations": {"org.opencontainers.image.ref.name": name}})
        (self.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self.entries}))
        return self.path


def write_archive(folder: Path, file: Path) -> Path:
    """Write the layout as one tar file."""
    with tarfile.open(file, "w") as out:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                out.add(path, str(path.relative_to(folder)))
    return file


def write_docker_archive(
    file: Path, layers: Sequence[bytes], name: str, settings: dict[str, Any] | None = None
) -> Path:
    """Write an image in the format of `docker save`."""
    config = json.dumps(
        {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": settings or {},
            "rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]},
        }
    ).encode()
    label = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": label, "RepoTags": [name], "Layers": names}]
    content = tar(
        *(entry(path, layer) for path, layer in zip(names, layers, strict=True)),
        entry(label, config),
        entry("manifest.json", json.dumps(manifest)),
    )
    file.write_bytes(content)
    return file
