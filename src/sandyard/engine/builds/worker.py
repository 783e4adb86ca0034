"""Runs one build, from its base to a template: cached layers are reused, and the rest runs in a separate sandbox.

Nothing is visible before the end. The result of each successful step is immediately kept as a layer, so a build that
fails later or is ended by a crash can be resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from shlex import quote
from typing import TypeVar

from sandyard.engine.builds import steps
from sandyard.engine.builds.base import Base, Bases
from sandyard.engine.builds.cache import LayerCache, compute_start_key, compute_step_key
from sandyard.engine.builds.files import Archives
from sandyard.engine.builds.logs import BuildLog
from sandyard.engine.builds.model import BASE, FINALIZE, Build, BuildFailedError, Layer, Recipe, Step
from sandyard.engine.builds.start_check import verify_start_command
from sandyard.engine.sandboxes.internal_sandboxes import HoldSnapshots, InternalSandbox, InternalSandboxes
from sandyard.engine.sandboxes.model import StartCommand, Template
from sandyard.kit.errors import SandyardError

T = TypeVar("T")


class BuildWorker:
    """Runs a single build."""

    def __init__(
        self,
        build: Build,
        recipe: Recipe,
        *,
        bases: Bases,
        cache: LayerCache,
        archives: Archives,
        internal: InternalSandboxes,
        log: BuildLog,
        start_timeout_s: float,
    ) -> None:
        self._build = build
        self._recipe = recipe
        self._bases = bases
        self._cache = cache
        self._internal = internal
        self._log = log
        self._start_timeout_s = start_timeout_s
        self._executor = steps.Executor(archives, log)
        self._used: list[str] = []

    async def work(self, hold: HoldSnapshots) -> Layer:
        """Run the build. The result is held until the caller has recorded it. Raises BuildFailedError, with the step."""
        with _attribute_errors(BASE):
            base = await self._find_base(hold)
        try:
            layer = await self._build_steps(base.layer, hold)
            with _attribute_errors(FINALIZE):
                return await self._finish(layer, base)
        finally:
            self._cache.mark_used(self._used)

    async def _find_base(self, hold: HoldSnapshots) -> Base:
        recipe = self._recipe
        self._log.add_message(f"[base] FROM {recipe.image or recipe.template}", step=BASE)
        base = await self._bases.find(recipe, lambda message: self._log.add_message(message, step=BASE))
        hold(base.layer.snapshots)
        return base

    async def _build_steps(self, layer: Layer, hold: HoldSnapshots) -> Layer:
        remaining = list(enumerate(self._recipe.steps, 1))
        forced = self._recipe.force
        while remaining:  # reuse cached layers, from the first step on
            number, step = remaining[0]
            forced = forced or step.force
            cached = None if forced else self._cache.find(compute_step_key(layer.key, step))
            if cached is None:
                break
            self._announce(number, step, cached.key, cached=True)
            hold(cached.snapshots)
            self._used.append(cached.key)
            layer = cached
            remaining.pop(0)
        while remaining and not steps.needs_sandbox(remaining[0][1]):
            number, step = remaining.pop(0)
            layer = replace(
                layer, key=compute_step_key(layer.key, step), state=steps.apply_plain_step(step, layer.state)
            )
            self._announce(number, step, layer.key)
            self._cache.put(layer)
        if remaining:
            async with self._open_sandbox(layer) as sandbox:
                for number, step in remaining:
                    with _attribute_errors(str(number)):
                        layer = await self._run_step(sandbox, number, step, layer, hold)
        return layer

    async def _run_step(
        self, sandbox: InternalSandbox, number: int, step: Step, before: Layer, hold: HoldSnapshots
    ) -> Layer:
        key = compute_step_key(before.key, step)
        self._announce(number, step, key)
        if not steps.needs_sandbox(step):
            layer = replace(before, key=key, state=steps.apply_plain_step(step, before.state))
        else:
            work = self._executor.run_step(sandbox, step, before.state, self._prefix(number), str(number))
            state, changed = await self._run_unless_ended(sandbox, work)
            layer = replace(before, key=key, state=state)
            if changed:
                layers, snapshots = await self._internal.save(sandbox, hold)
                layer = Layer(key, layers, snapshots, state)
        self._cache.put(layer)
        self._log.flush()
        return layer

    async def _finish(self, layer: Layer, base: Base) -> Layer:
        """Verify that the start command becomes ready, in a sandbox like those that clients get."""
        command, ready = self._recipe.start, self._recipe.ready
        if not command and not ready and base.start is not None:
            command, ready = _make_inherited_command(base), base.start.ready
        if not command and not ready:
            return layer
        key = compute_start_key(layer.key, command, ready)
        cached = None if self._is_forced() else self._cache.find(key)
        if cached is not None:
            self._log.add_message(f"CACHED [finalize] The start command was verified before [{key}]", step=FINALIZE)
            self._used.append(key)
            return cached
        async with self._open_sandbox(layer) as sandbox:
            check = verify_start_command(
                sandbox, self._executor, layer.state, command, ready, timeout_s=self._start_timeout_s
            )
            ready = await self._run_unless_ended(sandbox, check)
        finished = replace(layer, key=key, start=StartCommand(command, ready) if command else None)
        self._cache.put(finished)
        return finished

    def _is_forced(self) -> bool:
        return self._recipe.force or any(step.force for step in self._recipe.steps)

    def _open_sandbox(self, layer: Layer) -> contextlib.AbstractAsyncContextManager[InternalSandbox]:
        size = self._build.size
        template = Template(
            id=self._build.template_id,
            layers=layer.layers,
            env=layer.state.env,
            defaults=layer.state.defaults,
            snapshots=layer.snapshots,
            cpu_count=size.cpu_count,
            memory_mb=size.memory_mb,
            disk_mb=size.disk_mb,
        )
        return self._internal.open(template)

    async def _run_unless_ended(self, sandbox: InternalSandbox, work: Awaitable[T]) -> T:
        """Return the work's result. Raises BuildFailedError as soon as the sandbox has ended."""
        work_task = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self._internal.wait_for_end(sandbox))
        try:
            await asyncio.wait({work_task, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not work_task.done():
                raise BuildFailedError(
                    f"The sandbox of the build ended: {ended.result()}. It may have needed more than "
                    f"{sandbox.limits.memory_mb} MiB of memory (memory_mb of the build)."
                )
            return work_task.result()
        finally:
            for task in (work_task, ended):
                task.cancel()
            await asyncio.gather(work_task, ended, return_exceptions=True)

    def _prefix(self, number: int) -> str:
        return f"builder {number}/{len(self._recipe.steps)}"

    def _announce(self, number: int, step: Step, key: str, *, cached: bool = False) -> None:
        mark = "CACHED " if cached else ""
        self._log.add_message(f"{mark}[{self._prefix(number)}] {step} [{key}]", step=str(number))


def _make_inherited_command(base: Base) -> str:
    """Return a command that runs an inherited start command in its original directory, regardless of later WORKDIR
    steps."""
    assert base.start is not None
    workdir = base.layer.state.workdir
    return base.start.command if workdir is None else f"cd {quote(workdir)} && {{ {base.start.command}\n}}"


@contextlib.contextmanager
def _attribute_errors(step: str) -> Iterator[None]:
    """Attribute errors in the block to this step."""
    try:
        yield
    except SandyardError as error:
        failed_step = error.step if isinstance(error, BuildFailedError) else None
        raise BuildFailedError(error.message, failed_step or step) from error
