"""Images: from a reference to layers for sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandyard.engine.images import documents, local, reference
from sandyard.engine.images.auth import Login
from sandyard.engine.images.clouds import Clouds, get_login
from sandyard.engine.images.documents import Config
from sandyard.engine.images.http_client import HttpClient
from sandyard.engine.images.image_changes import make_adapt_options
from sandyard.engine.images.layers import Budget, Layer, LayerFolder
from sandyard.engine.images.model import Image, RegistryAuth, Report
from sandyard.engine.images.registry import Registry, Spool
from sandyard.engine.images.registry_access import RegistryPolicy
from sandyard.engine.images.source import Source, SourceImage
from sandyard.engine.settings import EngineSettings
from sandyard.engine.templates.trust import Trust, read_trust
from sandyard.kit.errors import InvalidInputError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_CONCURRENT_LAYERS = 3  # layers of one image fetched concurrently
_COLLECT_INTERVAL_S = 3600.0


@dataclass(frozen=True, slots=True)
class Options:
    """The engine's settings about images."""

    dirs: tuple[Path, ...] = ()
    policy: RegistryPolicy = field(default_factory=RegistryPolicy)
    max_bytes: int = 16 << 30
    max_files: int = 1_000_000
    reserve_bytes: int = 2 << 30
    keep_s: float = 7 * 24 * 3600
    carry_host_trust: bool = True
    authorities: tuple[bytes, ...] = ()  # certificates of additional authorities that sandboxes trust
    clouds: Clouds = field(default_factory=Clouds)

    @classmethod
    def from_settings(cls, settings: EngineSettings, authority: bytes | None = None) -> Options:
        hosts = [
            frozenset(name.lower() for name in names)
            for names in (settings.images_registries, settings.images_insecure)
        ]
        return cls(
            dirs=settings.images_dirs,
            policy=RegistryPolicy(hosts[0], hosts[1], private=settings.lan == "allow"),
            max_bytes=settings.images_max_mb << 20,
            max_files=settings.images_max_files,
            reserve_bytes=settings.disk_reserve_mb << 20,
            keep_s=settings.images_keep_s,
            carry_host_trust=settings.carry_host_trust,
            authorities=(authority,) if authority is not None else (),
        )


class Images:
    """All images of one engine, below `folder`, which belongs to it alone. Call `prepare` first, before the driver
    opens, because the driver looks for layers only in folders that exist by then."""

    def __init__(self, folder: Path, options: Options = Options()) -> None:  # noqa: B008 - frozen
        self._options = options
        self._folder = LayerFolder(folder, options.keep_s)
        self._collecting: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Create the folders. Blocks briefly, longer if incomplete leftovers have to be removed."""
        self._folder.prepare()

    def start(self, uses_layer: Callable[[str], bool]) -> None:
        """Start removing unused layers in the background. `uses_layer` returns whether a sandbox, snapshot or template
        needs one."""
        self._collecting = asyncio.get_running_loop().create_task(self._collect_forever(uses_layer))

    async def close(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._collecting

    async def resolve(self, name: str, auth: RegistryAuth | None, report: Report) -> Image:
        """Return the image of that name, fetched if needed. Contacts its source each time: a tag may have moved, and
        the caller must be allowed to access it. Layers that already exist are not fetched again.

        Raises InvalidInputError, ForbiddenError, NotFoundError, UnreachableError, BusyError, NoSpaceError or
        UnsupportedError, each with a message for the client. Cancellable.
        """
        parsed = reference.parse(name)
        what = str(parsed)
        async with self._open_source(parsed, auth) as source:
            report(f"Looking for {what}")
            image = await source.find()
            config = documents.parse_config(image.config, what, len(image.layers))
            layers = await self._fetch_layers(image, config, source, what, report)
        stack = _make_stack(layers)
        if not stack:
            raise InvalidInputError(f"The image {what} is empty: none of its layers contains a file.")
        trust = await asyncio.to_thread(read_trust) if self._options.carry_host_trust else Trust()
        trust = trust.with_authorities(self._options.authorities)
        options = make_adapt_options(config.user, config.env.get("PATH"), trust)
        adapted, user = await self._folder.adapt(stack, options, f"The image {what}")
        report(f"{what} is ready: {image.digest}")
        log.info("image_resolved", image=what, digest=image.digest, layers=len(stack))
        return Image(
            layers=(adapted, *(layer.name for layer in stack)),
            digest=image.digest,
            env={**trust.env, **config.env},
            user=user,
            workdir=config.workdir,
        )

    @property
    def layer_folder(self) -> LayerFolder:
        return self._folder

    async def collect(self, uses_layer: Callable[[str], bool]) -> int:
        """Remove unused layers once. Return how many were removed."""
        return await self._folder.collect(uses_layer)

    @contextlib.asynccontextmanager
    async def _open_source(
        self, parsed: reference.Remote | reference.Local, auth: RegistryAuth | None
    ) -> AsyncIterator[Source]:
        if isinstance(parsed, reference.Local):
            fd = await asyncio.to_thread(local.open_allowed, parsed, self._options.dirs)
            try:
                yield local.Layout(fd, parsed) if parsed.kind == "oci" else local.Archive(fd, parsed)
            finally:
                os.close(fd)
            return
        # in a thread, because it reads the system's trust store
        async with await asyncio.to_thread(HttpClient, self._options.policy) as client:

            async def login() -> Login | None:
                return None if auth is None else await get_login(auth, client, self._options.clouds)

            spool = Spool(self._folder.spool, self._options.max_bytes, self._options.reserve_bytes)
            yield Registry(client, parsed, login, spool)

    async def _fetch_layers(
        self, image: SourceImage, config: Config, source: Source, what: str, report: Report
    ) -> list[Layer]:
        """Return all layers, lowest first."""
        compressed = sum(blob.size for blob in image.layers)
        if compressed > self._options.max_bytes:
            raise InvalidInputError(
                f"The image {what} has {compressed >> 20} MiB; the limit is {self._options.max_bytes >> 20} MiB (setting images_max_mb)."
            )
        slots = asyncio.Semaphore(_CONCURRENT_LAYERS)
        count = len(image.layers)
        left_bytes, left_files = self._options.max_bytes, self._options.max_files

        async def fetch(number: int) -> Layer:
            nonlocal left_bytes, left_files
            async with slots:
                blob, diff_id = image.layers[number], config.diff_ids[number]
                budget = Budget(max(left_bytes, 0), max(left_files, 0), self._options.reserve_bytes)
                title = f"Layer {number + 1} of {count} of {what}"
                layer = await self._folder.ensure(diff_id, blob, source, budget, title)
                left_bytes, left_files = left_bytes - layer.bytes, left_files - layer.entries
                report(
                    f"Layer {number + 1} of {count}: {layer.entries} entries, {layer.bytes >> 20} MiB{_describe_skipped(layer)}"
                )
                return layer

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(fetch(number)) for number in range(count)]
        except BaseExceptionGroup as failures:  # the first one; it cancelled the others
            raise failures.exceptions[0] from None
        if left_bytes < 0 or left_files < 0:
            raise InvalidInputError(
                f"The image {what} unpacks to more than the limit for images (settings images_max_mb, images_max_files)."
            )
        return [task.result() for task in tasks]

    async def _collect_forever(self, uses_layer: Callable[[str], bool]) -> None:
        while True:
            await asyncio.sleep(_COLLECT_INTERVAL_S)
            try:
                await self.collect(uses_layer)
            except OSError as error:
                log.warning("image_layers_not_collected", reason=str(error))


def _make_stack(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers topmost first, as a sandbox uses them: without empty ones, without those that an opaque root
    hides, and without duplicates. A layer that occurs again further up hides its lower occurrence."""
    stack: dict[str, Layer] = {}
    for layer in reversed(layers):
        if layer.entries or layer.opaque_root:
            stack.setdefault(layer.path, layer)
        if layer.opaque_root:
            break
    return list(stack.values())


def _describe_skipped(layer: Layer) -> str:
    notes = [f"{layer.devices} device nodes skipped"] if layer.devices else []
    if layer.strangers:
        notes.append(f"{layer.strangers} owners above id 65535 mapped to nobody")
    return f" ({', '.join(notes)})" if notes else ""
