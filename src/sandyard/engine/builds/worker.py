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
from sandyard.engine.builds.cache import LayerCache, start_key, step_key
from sandyard.engine.builds.files import Archives
from sandyard.engine.builds.logs import BuildLog
from sandyard.engine.builds.model import BASE, FINALIZE, Build, BuildFailedError, Layer, Recipe, Step
from sandyard.engine.builds.start_check import verify_start_command
from sandyard.engine.sandboxes.internal_sandboxes import HoldSnapshots, InternalSandbox, InternalSandboxes
from sandyard.engine.sandboxes.model import Start, Template
from sandyard.kit.errors import SandyardError

T = TypeVar("T")


class Worker:
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
        patience_s: float,
    ) -> None:
        self._build = build
        self._recipe = recipe
        self._bases = bases
        self._cache = cache
        self._internal = internal
        self._log = log
        self._patience_s = patience_s
        self._executor = steps.Executor(archives, log)
        self._used: list[str] = []

    async def work(self, hold: HoldSnapshots) -> Layer:
        """Run the build. The result is held until the caller has recorded it. Raises BuildFailedError, with the step."""
        with _attribute_errors(BASE):
            base = await self._base(hold)
        try:
            layer = await self._build_steps(base.layer, hold)
            with _attribute_errors(FINALIZE):
                return await self._finish(layer, base)
        finally:
            self._cache.use(self._used)

    async def _base(self, hold: HoldSnapshots) -> Base:
        recipe = self._recipe
        self._log.say(f"[base] FROM {recipe.image or recipe.template}", step=BASE)
        base = await self._bases.find(recipe, lambda sentence: self._log.say(sentence, step=BASE))
        hold(base.layer.snapshots)
        return base

    async def _build_steps(self, layer: Layer, hold: HoldSnapshots) -> Layer:
        todo = list(enumerate(self._recipe.steps, 1))
        forced = self._recipe.force
        while todo:  # cached layers, from the first step on
            number, step = todo[0]
            forced = forced or step.force
            found = None if forced else self._cache.find(step_key(layer.key, step))
            if found is None:
                break
            self._announce(number, step, found.key, cached=True)
            hold(found.snapshots)
            self._used.append(found.key)
            layer = found
            todo.pop(0)
        while todo and not steps.needs_sandbox(todo[0][1]):
            number, step = todo.pop(0)
            layer = replace(layer, key=step_key(layer.key, step), state=steps.apply_plain_step(step, layer.state))
            self._announce(number, step, layer.key)
            self._cache.put(layer)
        if todo:
            async with self._open_sandbox(layer) as sandbox:
                for number, step in todo:
                    with _attribute_errors(str(number)):
                        layer = await self._do(sandbox, number, step, layer, hold)
        return layer

    async def _do(self, sandbox: InternalSandbox, number: int, step: Step, before: Layer, hold: HoldSnapshots) -> Layer:
        key = step_key(before.key, step)
        self._announce(number, step, key)
        if not steps.needs_sandbox(step):
            layer = replace(before, key=key, state=steps.apply_plain_step(step, before.state))
        else:
            work = self._executor.do(sandbox, step, before.state, self._prefix(number), str(number))
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
            command, ready = _in_place(base), base.start.ready
        if not command and not ready:
            return layer
        key = start_key(layer.key, command, ready)
        found = None if self._is_forced() else self._cache.find(key)
        if found is not None:
            self._log.say(f"CACHED [finalize] The start command was seen to be ready [{key}]", step=FINALIZE)
            self._used.append(key)
            return found
        async with self._open_sandbox(layer) as sandbox:
            check = verify_start_command(
                sandbox, self._executor, layer.state, command, ready, patience_s=self._patience_s
            )
            ready = await self._run_unless_ended(sandbox, check)
        finished = replace(layer, key=key, start=Start(command, ready) if command else None)
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
        doing = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self._internal.wait_for_end(sandbox))
        try:
            await asyncio.wait({doing, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise BuildFailedError(
                    f"The sandbox of the build ended: {ended.result()}. It may have needed more than "
                    f"{sandbox.limits.memory_mb} MiB of memory (memory_mb of the build)."
                )
            return doing.result()
        finally:
            for task in (doing, ended):
                task.cancel()
            await asyncio.gather(doing, ended, return_exceptions=True)

    def _prefix(self, number: int) -> str:
        return f"builder {number}/{len(self._recipe.steps)}"

    def _announce(self, number: int, step: Step, key: str, *, cached: bool = False) -> None:
        mark = "CACHED " if cached else ""
        self._log.say(f"{mark}[{self._prefix(number)}] {step} [{key}]", step=str(number))


def _in_place(base: Base) -> str:
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
        known = error.step if isinstance(error, BuildFailedError) else None
        raise BuildFailedError(error.message, known or step) from error
