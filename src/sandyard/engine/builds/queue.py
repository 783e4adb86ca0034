"""The queue of started builds: a few run at a time and the others wait; each ends as ready or with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from sandyard.engine.builds import steps
from sandyard.engine.builds.base import Bases
from sandyard.engine.builds.cache import LayerCache
from sandyard.engine.builds.files import Archives
from sandyard.engine.builds.logs import BuildLog
from sandyard.engine.builds.model import (
    Build,
    BuildFailedError,
    BuildStatus,
    BuiltTemplate,
    Layer,
    LogLine,
    Reason,
    Recipe,
)
from sandyard.engine.builds.registry import BuiltTemplates
from sandyard.engine.builds.repository import BuildRepository
from sandyard.engine.builds.worker import BuildWorker
from sandyard.engine.sandboxes.internal_sandboxes import InternalSandboxes
from sandyard.engine.sandboxes.model import LogLevel
from sandyard.engine.settings import EngineSettings
from sandyard.kit.clock import Clock
from sandyard.kit.errors import NoSpaceError, NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet

log = get_logger(__name__)

START_WAIT_S = 0.05
"""How long `start` waits for the build to end, so that the first status request of a fully cached build shows it as
done."""
LOGS_IN_MEMORY = 8
CRASHED = "The engine ended during the build. Build again: completed steps are cached."
STOPPED = "The engine was stopped during the build. Build again: completed steps are cached."
FAILED = "The build failed because of an internal error; see the engine's log. Try again, or report it."


class BuildQueue:
    def __init__(
        self,
        *,
        repository: BuildRepository,
        built: BuiltTemplates,
        cache: LayerCache,
        archives: Archives,
        bases: Bases,
        internal: InternalSandboxes,
        settings: EngineSettings,
        clock: Clock,
    ) -> None:
        self._repository = repository
        self._built = built
        self._cache = cache
        self._archives = archives
        self._bases = bases
        self._internal = internal
        self._settings = settings
        self._clock = clock
        self._slots = asyncio.Semaphore(settings.build_concurrency)
        self._tasks = TaskSet("builds")
        self._running: dict[str, asyncio.Task[None]] = {}  # by build, including builds that wait for a slot
        self._reasons: dict[str, str] = {}  # for builds that are being cancelled
        self._logs: dict[str, BuildLog] = {}

    def open(self) -> None:
        """Mark builds that the last engine did not finish as failed."""
        for build in [build for build in self._built.iterate_builds() if build.started and not build.status.final]:
            lines = self._repository.list_lines(build.id)
            line = LogLine(self._clock.now(), LogLevel.ERROR, f"Build failed: {CRASHED}")
            self._repository.add_lines(build.id, len(lines), [line])
            self._record_end(build, reason=Reason(CRASHED))
        self._cache.shrink()

    async def close(self) -> None:
        """Cancel all builds."""
        await self._tasks.cancel()

    async def start(self, template: BuiltTemplate, build: Build, recipe: Recipe) -> None:
        """Queue the build and return. A build that has nothing to do has ended by then."""
        running = [other for other in self._built.list_builds(template.id) if other.id in self._running]
        replaced = [other for other in running if set(other.tags) & set(build.tags)]
        build = self._built.change_build(build, started=True)
        self._logs[build.id] = BuildLog(self._repository, self._clock, build.id, self._settings.build_log_lines)
        # register it before waiting for anything, so that a newer build or a cancellation can find it
        before = [self._running[other.id] for other in replaced]
        task = self._running[build.id] = self._tasks.spawn(self._run(template, build, recipe, before))
        task.add_done_callback(lambda _: self._clean_up_after(build))
        await self.cancel(replaced, f"A newer build of '{template.name}' was started.")
        await asyncio.wait({task}, timeout=START_WAIT_S)
        if self._built.build(template.id, build.id) is None:
            raise NotFoundError(f"The template '{template.name}' was deleted.")

    async def cancel(self, builds: Iterable[Build], reason: str) -> None:
        """Cancel the builds and return when they have ended; builds that have not started fail too."""
        ending = []
        for build in builds:
            task = self._running.get(build.id)
            if task is not None:
                self._reasons[build.id] = reason
                task.cancel()
                ending.append(task)
            elif not build.status.final:
                self._record_end(build, reason=Reason(reason), started=True)
        if ending:
            await asyncio.wait(ending)

    def log(self, build_id: str) -> Sequence[LogLine]:
        build_log = self._logs.get(build_id)
        return self._repository.list_lines(build_id) if build_log is None else build_log.lines

    async def _run(
        self, template: BuiltTemplate, build: Build, recipe: Recipe, before: Sequence[asyncio.Task[None]]
    ) -> None:
        """Run the build after those in `before`, which it replaces, have ended."""
        build_log = self._logs[build.id]
        started_at = self._clock.now()
        try:
            if before:
                await asyncio.wait(before)
            async with self._slots:
                build = self._built.change_build(build, status=BuildStatus.BUILDING)
                log.info("build_started", template=template.id, build=build.id)
                build_log.add_message(f"Building template {template.id}/{build.id}")
                with self._internal.hold_snapshots() as hold:
                    async with asyncio.timeout(self._settings.build_timeout_s):
                        product = await self._create_worker(build, recipe, build_log).work(hold)
                    build_log.add_message(f"Build finished, took {self._clock.now() - started_at:.1f}s")
                    build_log.flush()
                    self._record_end(build, product=product)
        except asyncio.CancelledError:
            self._fail(build, build_log, Reason(self._reasons.get(build.id, STOPPED)))
            if build.id not in self._reasons:
                raise
        except TimeoutError:
            limit = self._settings.build_timeout_s
            self._fail(build, build_log, Reason(f"The build timed out after {limit:g} s (build_timeout_s)."))
        except BuildFailedError as error:
            if isinstance(error.__cause__, NoSpaceError):
                self._cache.shrink(0)  # free the unused layers for the next build
            self._fail(build, build_log, Reason(error.message, error.step))
        except SandyardError as error:
            self._fail(build, build_log, Reason(error.message))
        except Exception as error:
            log.error("build_crashed", build=build.id, exc=error)  # noqa: TRY400
            self._fail(build, build_log, Reason(FAILED))

    def _create_worker(self, build: Build, recipe: Recipe, build_log: BuildLog) -> BuildWorker:
        for number, step in enumerate(recipe.steps, 1):
            try:
                steps.validate_step(step)
            except SandyardError as error:
                raise BuildFailedError(error.message, str(number)) from error
        return BuildWorker(
            build,
            recipe,
            bases=self._bases,
            cache=self._cache,
            archives=self._archives,
            internal=self._internal,
            log=build_log,
            start_timeout_s=self._settings.start_patience_s,
        )

    def _fail(self, build: Build, build_log: BuildLog, reason: Reason) -> None:
        if self._built.build(build.template_id, build.id) is None:
            return  # its template and its log are deleted
        build_log.add_message(f"Build failed: {reason.message}", step=reason.step, level=LogLevel.ERROR)
        try:
            build_log.flush()
        except SandyardError as error:
            log.warning("build_log_lost", build=build.id, reason=error.message)
        self._record_end(build, reason=reason)

    def _record_end(
        self, build: Build, *, product: Layer | None = None, reason: Reason | None = None, started: bool = True
    ) -> None:
        if self._built.build(build.template_id, build.id) is None:
            return  # its template is deleted
        status = BuildStatus.ERROR if product is None else BuildStatus.READY
        changes: dict[str, Any] = {"product": product, "reason": reason, "finished_at": self._clock.now()}
        try:
            self._built.change_build(build, status=status, started=started, **changes)
        except SandyardError as error:
            if product is not None:
                raise
            # the row may stay unfinished: the next engine finds it and marks the build as failed
            log.warning("build_end_not_recorded", build=build.id, reason=error.message)
            self._built.change_build(build, persist=False, status=status, started=started, **changes)
        log.info("build_ended", build=build.id, status=status.value, reason=reason.message if reason else None)

    def _clean_up_after(self, build: Build) -> None:
        current = self._built.build(build.template_id, build.id)
        # a task that is cancelled before it first runs does not reach its own error handling
        if current is not None and not current.status.final:
            self._fail(current, self._logs[build.id], Reason(self._reasons.get(build.id, STOPPED)))
        self._running.pop(build.id, None)
        self._reasons.pop(build.id, None)
        self._cache.shrink()
        while len(self._logs) > LOGS_IN_MEMORY + len(self._running):
            self._logs.pop(next(key for key in self._logs if key not in self._running))
