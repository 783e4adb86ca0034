"""Image names, in the notation of Docker and skopeo.

python:3.12   ghcr.io/owner/name:tag   localhost:5000/name@sha256:…   a registry; without one, Docker Hub
oci:/path[:tag]   oci-archive:/path.tar[:tag]   docker-archive:/path.tar[:name:tag]   on the engine's machine
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sandyard.kit.errors import InvalidInputError

MAX_LENGTH = 1000
HUB, HUB_API = "docker.io", "registry-1.docker.io"
_HUB_NAMES = frozenset({HUB, "index.docker.io", HUB_API})
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})(?:\.[A-Za-z0-9-]{1,63})*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Kind = Literal["oci", "oci-archive", "docker-archive"]
_KINDS: tuple[Kind, ...] = ("oci", "oci-archive", "docker-archive")


@dataclass(frozen=True, slots=True)
class Remote:
    """An image in a registry. `host` is the host to contact, with its port; the tag is ignored if there is a digest."""

    host: str
    repository: str
    tag: str
    digest: str | None

    @property
    def version(self) -> str:
        return self.digest or self.tag

    def __str__(self) -> str:
        host = HUB if self.host == HUB_API else self.host
        return f"{host}/{self.repository}{f'@{self.digest}' if self.digest else f':{self.tag}'}"


@dataclass(frozen=True, slots=True)
class Local:
    """An image on the engine's machine. `path` is absolute; `name` selects one of several images in a file."""

    kind: Kind
    path: str
    name: str | None

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}{f':{self.name}' if self.name else ''}"


def parse(text: str) -> Remote | Local:
    """Parse an image name. InvalidInputError explains the notation."""
    text = text.strip()
    if not text or len(text) > MAX_LENGTH or any(letter <= " " or letter == "\x7f" for letter in text):
        raise _make_name_error(text)
    kind, colon, rest = text.partition(":")
    for known in _KINDS:
        if colon and kind == known:
            return _parse_local(known, rest)
    if text.startswith("docker://"):
        text = text.removeprefix("docker://")
    return _parse_remote(text)


def _parse_local(kind: Kind, rest: str) -> Local:
    path, colon, name = rest.partition(":")
    if not path.startswith("/") or "\0" in rest or (colon and not name):
        raise InvalidInputError(
            f"{kind}: must be followed by an absolute path on the engine's machine and, optionally, ':' and a tag: "
            f"{kind}:/images/app{'' if kind == 'oci' else '.tar'}:1.0"
        )
    return Local(kind, path, name or None)


def _parse_remote(text: str) -> Remote:
    rest, at, digest = text.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise InvalidInputError(
            f"The digest of the image {text[:200]!r} is not valid. It must be sha256: and 64 hexadecimal digits."
        )
    host, slash, name = rest.partition("/")
    if not slash or not (set(host) & set(".:") or host == "localhost" or host != host.lower()):
        host, name = HUB, rest
    name, colon, tag = name.partition(":")
    if not _HOST.fullmatch(host) or not _NAME.fullmatch(name) or len(name) > 255 or (colon and not _TAG.fullmatch(tag)):
        raise _make_name_error(text)
    host = host.lower()
    if host in _HUB_NAMES:
        host, name = HUB_API, name if "/" in name else f"library/{name}"
    return Remote(host, name, tag or "latest", digest or None)


def _make_name_error(text: str) -> InvalidInputError:
    return InvalidInputError(
        f"{text[:200]!r} is not a valid image name. Use a name like python:3.12, ghcr.io/owner/name:tag or "
        "localhost:5000/name@sha256:…, or, on the engine's machine, oci:/path, oci-archive:/path.tar or docker-archive:/path.tar."
    )
