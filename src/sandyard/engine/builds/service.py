"""All operations on builds that a protocol may call. `queue.py` handles a build after it was started."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from sandyard.engine.builds.base import Bases
from sandyard.engine.builds.cache import LayerCache
from sandyard.engine.builds.files import Archives, validate_hash
from sandyard.engine.builds.model import (
    DEFAULT_TAG,
    Assignment,
    Build,
    BuildStatus,
    BuiltTemplate,
    LogLine,
    Recipe,
    Size,
)
from sandyard.engine.builds.queue import BuildQueue
from sandyard.engine.builds.registry import BuiltTemplates
from sandyard.engine.builds.repository import BuildRepository
from sandyard.engine.images.service import Images
from sandyard.engine.sandboxes.model import SnapshotQuery, Templates
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.sandboxes.snapshots import split_name
from sandyard.engine.settings import EngineSettings
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.ids import make_random_id
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

MAX_CPUS, MIN_MEMORY_MB, MAX_MEMORY_MB = 128, 128, 1 << 20
MAX_TAGS, MAX_STEPS = 100, 1000
_TAG = re.compile(r"[a-z0-9][a-z0-9_.-]{0,127}")


class Builds:
    """`machine` are the machine's own templates, whose names are reserved. Create it before `sandboxes` is opened, so
    that no layer is removed as a leftover; `open` it afterwards."""

    def __init__(
        self,
        *,
        repository: BuildRepository,
        built: BuiltTemplates,
        sandboxes: Sandboxes,
        machine: Templates,
        images: Images,
        settings: EngineSettings,
        folder: Path,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._built = built
        self._sandboxes = sandboxes
        self._machine = machine
        self.archives = Archives(
            folder,
            repository.database,
            limit_mb=settings.build_upload_mb,
            kept_mb=settings.build_files_kept_mb,
            reserve_mb=settings.disk_reserve_mb,
        )
        self.cache = LayerCache(repository, self._clock, settings.build_layers_kept)
        self.cache.load()
        self._queue = BuildQueue(
            repository=repository,
            built=built,
            cache=self.cache,
            archives=self.archives,
            bases=Bases(sandboxes.resolve_template, images),
            internal=sandboxes.internal,
            settings=settings,
            clock=self._clock,
        )
        sandboxes.internal.register_keeper(lambda: built.list_snapshots() | self.cache.list_snapshots())

    async def open(self) -> None:
        """Mark builds that the last engine did not finish as failed."""
        self.archives.open()
        self._queue.open()

    async def close(self) -> None:
        """Cancel the running builds. Idempotent."""
        await self._queue.close()

    def count_unfinished(self) -> dict[BuildStatus, int]:
        """Return how many started builds have each status that is not final."""
        builds = [build for build in self._built.iterate_builds() if build.started and not build.status.final]
        return {status: sum(build.status is status for build in builds) for status in BuildStatus if not status.final}

    def uses_layer(self, layer: str) -> bool:
        """Return whether a built template or a cached layer needs this layer; then its owner must not remove it yet."""
        return self._built.uses_layer(layer) or self.cache.uses_layer(layer)

    # Templates -------------------------------------------------------------------------------------------------------

    def list_templates(self) -> Sequence[BuiltTemplate]:
        return self._built.list_templates()

    def find(self, name: str) -> BuiltTemplate | None:
        """Return the template by id or name, with or without a tag, or None."""
        return self._built.find(name)

    def get(self, name: str) -> BuiltTemplate:
        """Return the template. Raises NotFoundError, or ForbiddenError for one of the machine's own."""
        template = self._built.find(name)
        if template is not None:
            return template
        if self._machine.resolve(name) is not None:
            raise ForbiddenError(
                f"The template {name} is managed on the engine's machine (`sandyard template`) and can't be changed through the API."
            )
        raise NotFoundError(f"template '{name[:200]}' not found")

    def set_public(self, name: str, public: bool) -> BuiltTemplate:
        """Set whether the template is public. Raises NotFoundError or ForbiddenError."""
        return self._built.change(self.get(name), public=public)

    async def delete(self, name: str) -> None:
        """Delete a template with all its tags. A running build is cancelled; sandboxes created from it keep running."""
        template = self.get(name)
        if ":" in name and name.partition(":")[2] != DEFAULT_TAG:
            raise InvalidInputError(
                "A template can only be deleted as a whole. Leave out the tag, or remove only the tag."
            )
        builds = self._built.list_builds(template.id)
        self._built.remove(template)
        log.info("template_deleted", template=template.id, name=template.name)
        await self._queue.cancel(builds, "The template was deleted.")

    # Builds ----------------------------------------------------------------------------------------------------------

    def request(self, name: str, tags: Iterable[str], size: Size) -> tuple[BuiltTemplate, Build]:
        """Create a build of a new or existing template; it waits for its recipe. `name` may contain a tag."""
        _check_size(size)
        plain, tag = split_name(name)
        unique = tuple(dict.fromkeys([*([tag] if tag else []), *(validate_tag(text, plain) for text in tags)]))
        if len(unique) > MAX_TAGS:
            raise InvalidInputError(f"A build can have at most {MAX_TAGS} tags.")
        template = self._built.find(plain) or self._new_template(plain)
        now = self._clock.now()
        build = Build(str(uuid.uuid4()), template.id, BuildStatus.WAITING, now, now, size, unique or (DEFAULT_TAG,))
        return template, self._built.add_build(build)

    async def start(self, name: str, build_id: str, recipe: Recipe) -> None:
        """Start a build. An earlier build for one of the same tags is cancelled. Raises ConflictError if it was already
        started."""
        template, build = self.build(name, build_id)
        if build.started:
            raise ConflictError(f"The build '{build_id}' was already started. Request a new one.")
        if (recipe.image is None) == (recipe.template is None):
            raise InvalidInputError("A build needs exactly one of fromImage and fromTemplate.")
        if len(recipe.steps) > MAX_STEPS:
            raise InvalidInputError(f"A build can have at most {MAX_STEPS} steps.")
        await self._queue.start(template, build, recipe)

    def list_builds(self, template: BuiltTemplate) -> Sequence[Build]:
        """Return the builds, newest first."""
        return self._built.list_builds(template.id)

    def build(self, name: str, build_id: str) -> tuple[BuiltTemplate, Build]:
        """Return a build and its template. Raises NotFoundError."""
        template = self._built.find(name)
        build = None if template is None else self._built.build(template.id, build_id)
        if template is None or build is None:
            raise NotFoundError(f"Build '{build_id[:100]}' of the template '{name[:200]}' not found.")
        return template, build

    def log(self, build: Build) -> Sequence[LogLine]:
        return self._queue.log(build.id)

    async def cancel(self, name: str, build_id: str) -> None:
        """Cancel a build. Raises ConflictError if it has ended."""
        _, build = self.build(name, build_id)
        if build.status.final:
            raise ConflictError(f"The build '{build_id}' has already ended: {build.status.value}.")
        await self._queue.cancel([build], "The build was cancelled.")

    # Files -----------------------------------------------------------------------------------------------------------

    def prepare_upload(self, name: str, files_hash: str) -> tuple[bool, str]:
        """Return whether the files with this hash are already stored, and a token for uploading them. Raises
        NotFoundError."""
        if self._built.find(name) is None:
            raise NotFoundError(f"template '{name[:200]}' not found")
        return self.archives.has(validate_hash(files_hash)), self.archives.create_token(files_hash)

    async def upload(self, files_hash: str, token: str, body: AsyncIterator[bytes], declared_size: int | None) -> None:
        """Store an upload. Raises ForbiddenError if the token is not valid."""
        self.archives.check_token(validate_hash(files_hash), token)
        await self.archives.receive(files_hash, body, declared_size)

    # Tags ------------------------------------------------------------------------------------------------------------

    def list_tags(self, template: BuiltTemplate) -> dict[str, list[Assignment]]:
        """Return the assignments of each tag, oldest first."""
        return self._built.list_tags(template.id)

    def assign(self, target: str, tags: Iterable[str]) -> tuple[Build, Sequence[str]]:
        """Assign tags to the build that `name[:tag]` refers to; they are removed from other builds."""
        template = self.get(target)
        names = [validate_tag(tag, template.name) for tag in tags]
        if not names:
            raise InvalidInputError("tags must not be empty.")
        tag = target.strip().lower().partition(":")[2] or DEFAULT_TAG
        build = self._built.find_tagged(template.id, tag)
        if build is None:
            raise NotFoundError(f"The template '{template.name}' has no tag '{tag[:100]}'.")
        self._built.assign(build, names)
        return build, names

    def remove_tags(self, name: str, tags: Iterable[str]) -> None:
        """Remove tags. Raises NotFoundError if one of them does not exist; then none is removed."""
        template = self.get(name)
        names = [validate_tag(tag, template.name) for tag in tags]
        if not names:
            raise InvalidInputError("tags must not be empty.")
        if DEFAULT_TAG in names:
            raise InvalidInputError(f"The tag '{DEFAULT_TAG}' can't be removed. Delete the template instead.")
        existing = self._built.list_tags(template.id)
        for tag in names:
            if tag not in existing:
                raise NotFoundError(f"The template '{template.name}' has no tag '{tag}'.")
        self._built.remove_tags(template.id, names)

    def _new_template(self, name: str) -> BuiltTemplate:
        if self._machine.resolve(name) is not None:
            raise ForbiddenError(
                f"The name {name} is reserved for a template of the engine's machine. Choose another name."
            )
        if self._sandboxes.list_snapshots(SnapshotQuery(name=name, limit=1)).items:
            raise ConflictError(
                f"A snapshot with the name {name!r} already exists. Choose another name, or delete the snapshot."
            )
        now = self._clock.now()
        template = BuiltTemplate(make_random_id("", 20), name, public=False, created_at=now, updated_at=now)
        self._built.add(template)
        log.info("template_registered", template=template.id, name=name)
        return template


def validate_tag(text: str, name: str) -> str:
    """Return a tag from a client's `tag`, or `name:tag` with the template's own name. Raises InvalidInputError."""
    before, colon, after = text.strip().lower().rpartition(":")
    if (colon and before != name) or not _TAG.fullmatch(after):
        raise InvalidInputError(
            f"Invalid tag: {text[:200]!r}. Use at most 128 lowercase letters, digits, '-', '_' and '.'."
        )
    return after


def _check_size(size: Size) -> None:
    if size.cpu_count is not None and size.cpu_count < 1:
        raise InvalidInputError("CPU count must be at least 1")
    if size.cpu_count is not None and size.cpu_count > MAX_CPUS:
        raise InvalidInputError(f"CPU count can't be higher than {MAX_CPUS}")
    memory = size.memory_mb
    if memory is not None and memory < MIN_MEMORY_MB:
        raise InvalidInputError(f"Memory must be at least {MIN_MEMORY_MB} MiB")
    if memory is not None and memory >= MAX_MEMORY_MB:
        raise InvalidInputError(f"Memory can't be higher than {MAX_MEMORY_MB} MiB")
    if memory is not None and memory % 2:
        raise InvalidInputError("Memory must be divisible by 2")
