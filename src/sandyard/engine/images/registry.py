"""An image in a registry, accessed with the HTTP API V2. All content is verified against the digest it was requested by."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from sandyard.engine.images import documents
from sandyard.engine.images.auth import Login, RegistryAuthenticator
from sandyard.engine.images.documents import Descriptor
from sandyard.engine.images.http_client import HttpClient, TransientError
from sandyard.engine.images.reference import Remote
from sandyard.engine.images.source import Blob, Content, SourceImage
from sandyard.kit.errors import ForbiddenError, InvalidInputError, NoSpaceError, NotFoundError, UnreachableError
from sandyard.kit.pacing import take_turn

_WRITE_BYTES = 1 << 20
_MAX_REFUSALS = 2  # of one request; its token server could issue new tokens forever


@dataclass(frozen=True, slots=True)
class Spool:
    """The directory for layers while they are unpacked. `max_bytes` limits the size of one layer, and `reserve` is left free."""

    folder: Path
    max_bytes: int
    reserve: int

    def check(self, size: int, what: object) -> None:
        """Raise InvalidInputError or NoSpaceError if a layer of this size cannot be stored."""
        if size > self.max_bytes:
            raise InvalidInputError(
                f"A layer of {what} has {size >> 20} MiB, which exceeds the limit for images (setting images_max_mb)."
            )
        disk = os.statvfs(self.folder)
        if disk.f_bavail * disk.f_frsize < self.reserve + size:
            raise NoSpaceError(
                f"A layer of {what} has {size >> 20} MiB, which do not fit on the disk next to the engine's reserve (setting "
                "disk_reserve_mb)."
            )


class Registry:
    def __init__(
        self, client: HttpClient, remote: Remote, login: Callable[[], Awaitable[Login | None]], spool: Spool
    ) -> None:
        self._client = client
        self._remote = remote
        self._spool = spool
        self._with_login = False
        self._authenticator = RegistryAuthenticator(client, remote.repository, self._cache_login(login))
        address = httpx.URL(f"//{remote.host}")
        scheme = "http" if client.policy.allows_plain_http(address.host, address.port) else "https"
        self._base = f"{scheme}://{remote.host}/v2/{remote.repository}"

    def _cache_login(self, login: Callable[[], Awaitable[Login | None]]) -> Callable[[], Awaitable[Login | None]]:
        cached: list[Login | None] = []

        async def get_login() -> Login | None:
            if not cached:
                cached.append(await login())
                self._with_login = cached[0] is not None
            return cached[0]

        return get_login

    async def find(self) -> SourceImage:
        what = str(self._remote)
        content = await self._get_manifest(self._remote.version)
        if self._remote.digest and documents.compute_digest(content) != self._remote.digest:
            raise InvalidInputError(f"The registry's response for {what} does not match that digest.")
        document = documents.parse_json(content, f"The manifest of {what}")
        if documents.is_index(document):
            chosen = documents.choose_manifest(document, what)
            content = await self._get_manifest(chosen.digest)
            if documents.compute_digest(content) != chosen.digest:
                raise InvalidInputError(f"The registry's response for {what} does not match the digest in its index.")
        manifest = documents.parse_manifest(content, what)
        config = await self._get_config(manifest.config)
        layers = tuple(Blob(layer.digest, layer.size, layer.digest) for layer in manifest.layers)
        return SourceImage(manifest.digest, config, layers)

    async def _get_manifest(self, version: str) -> bytes:
        return await self._get_document(f"{self._base}/manifests/{version}", {"Accept": ", ".join(documents.ACCEPTED)})

    async def _get_config(self, descriptor: Descriptor) -> bytes:
        if descriptor.size > documents.MAX_BYTES:
            raise InvalidInputError(
                f"The configuration of {self._remote} is larger than {documents.MAX_BYTES >> 20} MiB."
            )
        content = await self._get_document(f"{self._base}/blobs/{descriptor.digest}", {})
        if documents.compute_digest(content) != descriptor.digest:
            raise InvalidInputError(f"The configuration of {self._remote} does not match the digest in its manifest.")
        return content

    async def _get_document(self, url: str, headers: Mapping[str, str]) -> bytes:
        for refusals in range(_MAX_REFUSALS + 1):
            sent = self._authenticator.header
            response = await self._client.request(url, {**headers, **_make_authorization(sent)}, documents.MAX_BYTES)
            if response.status != 401 or refusals == _MAX_REFUSALS:
                break
            challenge = response.headers.get("www-authenticate", "")
            if await self._authenticator.answer_challenge(challenge, sent) in (None, sent):
                break
        self._check_status(response.status)
        return response.body

    @contextlib.asynccontextmanager
    async def fetch(self, blob: Blob) -> AsyncIterator[Content]:
        self._spool.check(blob.size, self._remote)
        with tempfile.TemporaryFile(dir=self._spool.folder) as file:
            await self._download(blob, file.fileno())
            yield Content(file.fileno(), 0, blob.size)

    async def _download(self, blob: Blob, fd: int) -> None:
        attempt = refusals = 0
        while True:
            sent = self._authenticator.header
            try:
                async with self._client.open(f"{self._base}/blobs/{blob.name}", _make_authorization(sent)) as response:
                    if (
                        response.status_code == 401 and refusals < _MAX_REFUSALS
                    ):  # tokens last minutes, but layers may take longer
                        refusals += 1
                        challenge = response.headers.get("www-authenticate", "")
                        if await self._authenticator.answer_challenge(challenge, sent) not in (None, sent):
                            continue
                    self._check_status(response.status_code)
                    await self._write(blob, response, fd)
                    return
            except httpx.TransportError as error:
                await self._client.wait_before_retry(
                    TransientError(f"The connection to the registry {self._remote.host} was lost: {str(error)[:200]}."),
                    attempt,
                )
            except TransientError as error:
                await self._client.wait_before_retry(error, attempt)
            attempt += 1

    async def _write(self, blob: Blob, response: httpx.Response, fd: int) -> None:
        os.ftruncate(fd, 0)
        sha, written = hashlib.sha256(), 0
        pending: list[bytes] = []

        async def flush() -> None:
            nonlocal written
            data = b"".join(pending)
            pending.clear()
            await asyncio.to_thread(_write_and_hash, fd, data, written, sha)
            written += len(data)

        size = 0
        async for chunk in response.aiter_raw():
            await take_turn("images")
            size += len(chunk)
            if size > blob.size:
                break
            pending.append(chunk)
            if size - written >= _WRITE_BYTES:
                await flush()
        await flush()
        if size < blob.size:
            raise TransientError(f"The registry {self._remote.host} closed the connection in the middle of a layer.")
        if size > blob.size or f"sha256:{sha.hexdigest()}" != blob.digest:
            raise InvalidInputError(f"A layer of {self._remote} does not match the digest and size in its manifest.")

    def _check_status(self, status: int) -> None:
        what, host = self._remote, self._remote.host
        if status in (401, 403):
            if self._with_login:
                raise ForbiddenError(f"The registry {host} rejected these credentials for {what}.")
            raise ForbiddenError(f"The registry {host} requires credentials for {what}, or the image does not exist.")
        if status == 404:
            raise NotFoundError(f"Image {what} not found.")
        if status != 200:
            raise UnreachableError(f"The registry {host} returned status {status} for {what}.")


def _make_authorization(header: str | None) -> dict[str, str]:
    return {"Authorization": header} if header else {}


def _write_and_hash(fd: int, data: bytes, offset: int, sha: hashlib._Hash) -> None:
    sha.update(data)
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
