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
from sandyard.engine.images.auth import Authority, Login
from sandyard.engine.images.documents import Descriptor
from sandyard.engine.images.reference import Remote
from sandyard.engine.images.source import Blob, Content, SourceImage
from sandyard.engine.images.web import TransientError, Web
from sandyard.kit.errors import ForbiddenError, InvalidInputError, NoSpaceError, NotFoundError, UnreachableError
from sandyard.kit.pacing import take_turn

_WRITE_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Spool:
    """The directory for layers while they are unpacked. `most` limits the size of one layer, and `reserve` is left free."""

    folder: Path
    most: int
    reserve: int

    def check(self, size: int, what: object) -> None:
        if size > self.most:
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
    def __init__(self, web: Web, remote: Remote, login: Callable[[], Awaitable[Login | None]], spool: Spool) -> None:
        self._web = web
        self._remote = remote
        self._spool = spool
        self._with_login = False
        self._authority = Authority(web, remote.repository, self._remember_login(login))
        place = httpx.URL(f"//{remote.host}")
        scheme = "http" if web.policy.allows_plain_http(place.host, place.port) else "https"
        self._base = f"{scheme}://{remote.host}/v2/{remote.repository}"

    def _remember_login(self, login: Callable[[], Awaitable[Login | None]]) -> Callable[[], Awaitable[Login | None]]:
        known: list[Login | None] = []

        async def ask() -> Login | None:
            if not known:
                known.append(await login())
                self._with_login = known[0] is not None
            return known[0]

        return ask

    async def find(self) -> SourceImage:
        what = str(self._remote)
        content = await self._manifest(self._remote.version)
        if self._remote.digest and documents.digest_of(content) != self._remote.digest:
            raise InvalidInputError(f"The registry's response for {what} does not match that digest.")
        document = documents.parse_json(content, f"The manifest of {what}")
        if documents.is_index(document):
            chosen = documents.choose(document, what)
            content = await self._manifest(chosen.digest)
            if documents.digest_of(content) != chosen.digest:
                raise InvalidInputError(f"The registry's response for {what} does not match the digest in its index.")
        manifest = documents.read_manifest(content, what)
        config = await self._config(manifest.config)
        layers = tuple(Blob(layer.digest, layer.size, layer.digest) for layer in manifest.layers)
        return SourceImage(manifest.digest, config, layers)

    async def _manifest(self, wanted: str) -> bytes:
        return await self._document(f"{self._base}/manifests/{wanted}", {"Accept": ", ".join(documents.ACCEPTED)})

    async def _config(self, descriptor: Descriptor) -> bytes:
        if descriptor.size > documents.LARGEST:
            raise InvalidInputError(
                f"The configuration of {self._remote} is larger than {documents.LARGEST >> 20} MiB."
            )
        content = await self._document(f"{self._base}/blobs/{descriptor.digest}", {})
        if documents.digest_of(content) != descriptor.digest:
            raise InvalidInputError(f"The configuration of {self._remote} does not match the digest in its manifest.")
        return content

    async def _document(self, url: str, headers: Mapping[str, str]) -> bytes:
        while True:
            sent = self._authority.header
            answer = await self._web.ask(url, {**headers, **_authorization(sent)}, documents.LARGEST)
            if answer.status != 401:
                break
            if await self._authority.answer_challenge(answer.headers.get("www-authenticate", ""), sent) in (None, sent):
                break
        self._check(answer.status)
        return answer.body

    @contextlib.asynccontextmanager
    async def fetch(self, blob: Blob) -> AsyncIterator[Content]:
        self._spool.check(blob.size, self._remote)
        with tempfile.TemporaryFile(dir=self._spool.folder) as file:
            await self._download(blob, file.fileno())
            yield Content(file.fileno(), 0, blob.size)

    async def _download(self, blob: Blob, fd: int) -> None:
        attempt = refusals = 0
        while True:
            sent = self._authority.header
            try:
                async with self._web.open(f"{self._base}/blobs/{blob.name}", _authorization(sent)) as response:
                    if response.status_code == 401 and refusals < 2:  # tokens last minutes, but layers may take longer
                        refusals += 1
                        if await self._authority.answer_challenge(
                            response.headers.get("www-authenticate", ""), sent
                        ) not in (
                            None,
                            sent,
                        ):
                            continue
                    self._check(response.status_code)
                    await self._write(blob, response, fd)
                    return
            except httpx.TransportError as error:
                await self._web.wait_before_retry(
                    TransientError(f"The connection to the registry {self._remote.host} was lost: {str(error)[:200]}."),
                    attempt,
                )
            except TransientError as error:
                await self._web.wait_before_retry(error, attempt)
            attempt += 1

    async def _write(self, blob: Blob, response: httpx.Response, fd: int) -> None:
        os.ftruncate(fd, 0)
        sha, at = hashlib.sha256(), 0
        held: list[bytes] = []

        async def put() -> None:
            nonlocal at
            data = b"".join(held)
            held.clear()
            await asyncio.to_thread(_store, fd, data, at, sha)
            at += len(data)

        size = 0
        async for chunk in response.aiter_raw():
            await take_turn("images")
            size += len(chunk)
            if size > blob.size:
                break
            held.append(chunk)
            if size - at >= _WRITE_AT_ONCE:
                await put()
        await put()
        if size < blob.size:
            raise TransientError(f"The registry {self._remote.host} closed the connection in the middle of a layer.")
        if size > blob.size or f"sha256:{sha.hexdigest()}" != blob.digest:
            raise InvalidInputError(f"A layer of {self._remote} does not match the digest and size in its manifest.")

    def _check(self, status: int) -> None:
        what, host = self._remote, self._remote.host
        if status in (401, 403):
            if self._with_login:
                raise ForbiddenError(f"The registry {host} rejected these credentials for {what}.")
            raise ForbiddenError(f"The registry {host} requires credentials for {what}, or the image does not exist.")
        if status == 404:
            raise NotFoundError(f"Image {what} not found.")
        if status != 200:
            raise UnreachableError(f"The registry {host} returned status {status} for {what}.")


def _authorization(header: str | None) -> dict[str, str]:
    return {"Authorization": header} if header else {}


def _store(fd: int, data: bytes, at: int, sha: hashlib._Hash) -> None:
    sha.update(data)
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
