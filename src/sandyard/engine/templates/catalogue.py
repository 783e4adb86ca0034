"""Maps template names to directories: the engine's `Templates`, kept in memory.

`base` is the default template. Until it is built, `host` replaces it, so that an engine can serve immediately; the
build runs in a separate process, and names switch over when it is complete. Sandboxes created from the replacement keep
it. In the same way `base` replaces `code-interpreter`: sandboxes can be created, but the code interpreter does not work
in them. Nothing replaces `desktop`: it is listed from the start, and built on first use.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sandyard.engine.contract import Layers
from sandyard.engine.sandboxes.model import Template, TemplateStatus
from sandyard.engine.templates import base, desktop, host, interpreter, interpreter_program, layered
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion
from sandyard.engine.templates.requirements import list_missing_requirements
from sandyard.engine.templates.trust import Trust, read_trust, write_layer
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.python import SAFE_FOLDER, python_command, python_environment

log = get_logger(__name__)

ALIASES: Mapping[str, tuple[str, ...]] = {
    base.NAME: (base.NAME,),
    interpreter.NAME: interpreter.ALIASES,
    desktop.NAME: (desktop.NAME,),
    host.NAME: (host.NAME,),
}
LAYERED: Mapping[str, Callable[[TemplateFolder], bool]] = {
    interpreter.NAME: interpreter.is_stale,
    desktop.NAME: desktop.is_stale,
}
"""Templates on top of `base`, and whether an engine rebuilds them when it starts."""
STOP_TIMEOUT_S = 15
MAX_LOG_LINES = 200
WATCH_SECONDS = 5.0
TAGS = frozenset({"default", "latest"})
ENV = {"LANG": "C.UTF-8"}
# lets native modules find Node's headers without a download
BASE_ENV = {"npm_package_config_node_gyp_nodedir": "/usr/local"}
# a location where `npm install -g` may write, regardless of the machine's npm settings
HOST_ENV = {"NPM_CONFIG_PREFIX": "/usr/local"}


class Catalogue:
    """Call `open` first; it blocks briefly. `resolve` and `list` answer from memory. Call `start` and `close` in the
    event loop that serves."""

    def __init__(
        self,
        directory: Path,
        *,
        carry_host_trust: bool = True,
        build_desktop: bool = True,
        authority: bytes | None = None,
        trust_directory: Path | None = None,
    ) -> None:
        """`authority` is the certificate of an additional authority that this engine's sandboxes trust; layers with it
        are created in `trust_directory`."""
        self._folder = TemplateFolder(directory)
        self._carry_host_trust = carry_host_trust
        self._build_desktop = build_desktop
        self._authorities = (authority,) if authority is not None else ()
        self._trust_folder = (
            TemplateFolder(trust_directory) if authority is not None and trust_directory is not None else self._folder
        )
        self._names: dict[str, Template] = {}
        self._templates: tuple[Template, ...] = ()
        self._builder: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._language_builder: asyncio.Task[None] | None = None
        self._languages: dict[str, str] = {}  # languages to add, with the reason of a failure or an empty string
        self._desktop_builder: asyncio.Task[None] | None = None
        self._desktop_failure: str | None = None
        self._progress: dict[str, str] = {}  # latest progress of templates that are being built
        self._served_stamp: tuple[int, ...] = ()
        self._host_replaces_base = False

    def open(self) -> None:
        """Find the built templates; create `host` if there is nothing else to serve. Blocks for up to a few seconds.
        Raises what `host.build` raises if that fails too."""
        self._folder.prepare()
        if self._find_newest(base.NAME) is None:
            if self._find_newest(host.NAME) is None:
                log.info("template_building", template=host.NAME)
            host.build(self._folder)
        self.refresh()

    def refresh(self) -> None:
        """Read the folder again and switch names to the newest versions. Blocks."""
        self._serve(*self._read_folder())

    async def _refresh(self) -> None:
        """Like `refresh`, but called in the event loop: reads in a thread, then switches."""
        self._serve(*await asyncio.to_thread(self._read_folder))

    def _read_folder(self) -> tuple[Sequence[Template], tuple[int, ...], bool]:
        """Return what can be served, the folder's stamp before it was read, and whether `host` replaces `base`."""
        stamp = self._get_stamp()
        built_base, built_host = self._find_newest(base.NAME), self._find_newest(host.NAME)
        trust = (read_trust() if self._carry_host_trust else Trust()).with_authorities(self._authorities)
        templates = []
        if built_base:
            templates.append(self._make_template(base.NAME, built_base, trust, BASE_ENV))
        elif built_host:
            templates.append(self._make_template(base.NAME, built_host, trust, HOST_ENV))
        if built_host:
            templates.append(self._make_template(host.NAME, built_host, trust, HOST_ENV))
        if built := interpreter.find_newest(self._folder):
            templates.append(self._make_interpreter_template(built, trust))
        elif templates:
            templates[0] = replace(templates[0], aliases=(*templates[0].aliases, *interpreter.ALIASES))
        templates.append(self._make_desktop_template(desktop.find_newest(self._folder), trust))
        return templates, stamp, built_base is None

    def _serve(self, templates: Sequence[Template], stamp: tuple[int, ...], host_replaces_base: bool) -> None:
        self._served_stamp, self._host_replaces_base = stamp, host_replaces_base
        self._names = {name: template for template in templates for name in (template.id, *template.aliases)}
        self._templates = tuple(templates)

    def resolve(self, name: str) -> Template | None:
        plain, colon, tag = name.partition(":")
        return self._names.get(plain) if not colon or tag in TAGS else None

    def list(self) -> Sequence[Template]:
        return self._templates

    async def start(self) -> None:
        """Start building whatever is missing or outdated, in the background. Returns at once."""
        self._builder = asyncio.create_task(self._build_outdated())
        self._watcher = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Cancel a running build; it leaves nothing behind."""
        for task in (self._watcher, self._builder, self._language_builder, self._desktop_builder):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def wait_for_builds(self) -> None:
        """Wait until no build is running. A build that failed is logged."""
        running = (task for task in (self._builder, self._language_builder, self._desktop_builder) if task is not None)
        await asyncio.gather(*running)

    def add_language(self, template: str | None, language: str) -> str | None:
        """Add a kernel to the code interpreter's template in the background and return a message for the client. None
        if the language is not one of `interpreter.EXTRAS`, and for a sandbox of another template, whose programs may
        request anything."""
        if template not in interpreter.ALIASES or language not in interpreter.EXTRAS:
            return None
        name = interpreter.TITLES[language]
        command = f"sandyard template build {interpreter.NAME} --with {language}"
        if language in interpreter.get_extras(interpreter.find_newest(self._folder)):
            return (
                f"This sandbox was created before {name} was added to {interpreter.ALIASES[0]}. New sandboxes have it."
            )
        missing = list_missing_requirements()
        failure = "; ".join(missing) if missing else self._languages.get(language)
        if failure:
            return f"{name} is not installed, and adding it failed: {failure}. Run `{command}` on the engine's machine to try again."
        if language not in self._languages:
            self._languages[language] = ""
            log.info("template_language_wanted", template=interpreter.NAME, language=language)
            if self._language_builder is None or self._language_builder.done():
                self._language_builder = asyncio.create_task(self._add_languages())
        return (
            f"{name} is not installed yet. It is being added to {interpreter.ALIASES[0]} and will be available in new sandboxes in a few "
            f"minutes. Run `{command}` on the engine's machine to see the progress."
        )

    async def _add_languages(self) -> None:
        if self._builder is not None:
            await asyncio.wait((self._builder,))  # it may be building the template that they are added to
        while missing := [language for language, failure in self._languages.items() if not failure]:
            reason = await self.build(interpreter.NAME, "--with", ",".join(missing))
            if reason is None:
                await self._refresh()
                log.info("template_ready", template=interpreter.NAME, languages=",".join(missing))
            for language in missing:
                if reason is None:
                    del self._languages[language]
                else:
                    self._languages[language] = reason

    def make_ready(self, template: Template) -> str:
        """Build a template that is not ready in the background. Return a message for the client that follows the
        template's name."""
        assert template.id == make_template_id(desktop.NAME), template.id  # the only template that may not be ready
        command = f"`sandyard template build {desktop.NAME}` on the engine's machine"
        missing = list_missing_requirements()
        if failure := "; ".join(missing) or self._desktop_failure:
            return f"could not be built: {failure}. Run {command} to try again."
        if not self._build_desktop:
            return f"is not built. Run {command} to build it."
        if self._desktop_builder is None or self._desktop_builder.done():
            log.info("template_wanted", template=desktop.NAME)
            self._desktop_builder = asyncio.create_task(self._build_desktop_template())
            self._set_desktop_status(TemplateStatus.BUILDING)
        progress = self._progress.get(desktop.NAME)
        return (
            f"is being built on first use and will be ready in a few minutes{f' ({progress})' if progress else ''}. "
            f"Try again then, or run {command} to wait for it."
        )

    async def _build_desktop_template(self) -> None:
        if self._builder is not None:
            await asyncio.wait((self._builder,))  # it may be building the base
        self._desktop_failure = await self.build(desktop.NAME)
        if self._desktop_failure is not None:
            self._set_desktop_status(TemplateStatus.ERROR)
        else:
            await self._refresh()
            log.info("template_ready", template=desktop.NAME)

    def _set_desktop_status(self, status: TemplateStatus) -> None:
        """Set the status that is shown until the template is built."""
        desktop_id = make_template_id(desktop.NAME)
        templates = [
            replace(template, status=status) if template.id == desktop_id and not template.ready else template
            for template in self._templates
        ]
        self._serve(templates, self._served_stamp, self._host_replaces_base)

    async def _watch(self) -> None:
        """Serve templates that others build (`sandyard template build`, another engine) without a restart."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if await asyncio.to_thread(self._get_stamp) != self._served_stamp:
                await self._refresh()
                log.info("templates_changed")

    def _get_stamp(self) -> tuple[int, ...]:
        """Return a value that changes whenever a version is published."""
        times = []
        for name in ALIASES:
            with contextlib.suppress(OSError):
                times.append((self._folder.directory / name).stat().st_mtime_ns)
        return tuple(times)

    async def _build_outdated(self) -> None:
        outdated = [host.NAME] if self._folder.find(host.NAME, host.compute_fingerprint()) is None else []
        if self._is_base_stale():
            missing = list_missing_requirements()
            if not missing:
                outdated.append(base.NAME)
            elif self._host_replaces_base:
                log.warning("template_standin", wanted=base.NAME, served=host.NAME, reason="; ".join(missing))
        for name in [*outdated, interpreter.NAME, desktop.NAME]:
            if name in LAYERED and not await self._is_out_of_date(name):
                continue
            if name == base.NAME and self._host_replaces_base:
                log.info("template_standin", wanted=base.NAME, served=host.NAME, reason=f"{base.NAME} is being built")
            if await self.build(name) is None:
                await self._refresh()
                log.info("template_ready", template=name)

    async def _is_out_of_date(self, name: str) -> bool:
        """Return whether a template on top of `base` has to be rebuilt. Call it after `base` was built."""
        if name == desktop.NAME and not self._build_desktop:
            return False
        return not list_missing_requirements() and await asyncio.to_thread(LAYERED[name], self._folder)

    def _is_base_stale(self) -> bool:
        with contextlib.suppress(SandyardError):
            return self._folder.find(base.NAME, base.make_recipe().digest) is None
        return self._host_replaces_base

    async def build(self, name: str, *options: str) -> str | None:
        """Build in a separate process, because it takes minutes and may crash. The process ends with the engine. Return
        why it failed, or None."""
        where = ("--templates-dir", str(self._folder.directory))
        build = ("build", name, *options, "--parent", str(os.getpid()))
        try:
            process = await asyncio.create_subprocess_exec(
                *python_command("sandyard.engine.templates", *where, *build),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=1 << 20,
                cwd=SAFE_FOLDER,
                env=python_environment(),
            )
        except OSError as error:
            log.error("template_build_failed", template=name, output=str(error))  # noqa: TRY400
            return f"could not start the build ({error})"
        assert process.stdout is not None
        lines: deque[str] = deque(maxlen=MAX_LOG_LINES)
        try:
            async for line in process.stdout:
                lines.append(line.decode(errors="replace").rstrip())
                title, _, rest = lines[-1].partition(": ")
                if title == f"template {name}":
                    self._progress[name] = rest
            await process.wait()
        except ValueError:  # a line above the limit
            await _stop(process)
            lines.append("a line of its output is too long")
        except asyncio.CancelledError:
            await _stop(process)
            raise
        finally:
            self._progress.pop(name, None)
        if not process.returncode:
            return None
        log.error("template_build_failed", template=name, output="\n".join(lines)[-2000:])
        output = [line.strip() for line in lines if line.strip()]
        return (output or ["no reason was given"])[-1][:300].rstrip(".")

    def _find_newest(self, name: str) -> TemplateVersion | None:
        return next(iter(self._folder.list_versions(name)), None)

    def _make_template(self, name: str, version: TemplateVersion, trust: Trust, env: Mapping[str, str]) -> Template:
        layers: Layers = (str(version.rootfs),)
        if not trust.is_empty:
            layers = (str(self._ensure_trust_layer(trust, version).rootfs), *layers)
        return Template(
            id=make_template_id(name), layers=layers, aliases=ALIASES[name], env={**ENV, **env, **trust.env}
        )

    def _make_interpreter_template(self, version: TemplateVersion, trust: Trust) -> Template:
        base_version = layered.find_base(self._folder, version)
        assert base_version is not None  # otherwise it would not be the newest
        program = interpreter_program.ensure_layer(self._folder, interpreter.get_python_version(base_version))
        plain = self._make_template(interpreter.NAME, base_version, trust, BASE_ENV)
        *above, bottom = plain.layers
        return replace(
            plain,
            layers=(*above, str(program.rootfs), str(version.rootfs), bottom),
            start=interpreter_program.START,
            memory_mb=interpreter.MEMORY_MB,
        )

    def _make_desktop_template(self, version: TemplateVersion | None, trust: Trust) -> Template:
        cpu_count, memory_mb = desktop.get_cpu_count(), desktop.get_memory_mb()
        if version is None:
            return Template(
                make_template_id(desktop.NAME),
                layers=(),
                aliases=ALIASES[desktop.NAME],
                status=self._desktop_status,
                can_be_overridden=True,
                cpu_count=cpu_count,
                memory_mb=memory_mb,
            )
        base_version = layered.find_base(self._folder, version)
        assert base_version is not None  # otherwise it would not be the newest
        plain = self._make_template(desktop.NAME, base_version, trust, BASE_ENV)
        *above, bottom = plain.layers
        layers = (*above, str(version.rootfs), bottom)
        return replace(plain, layers=layers, can_be_overridden=True, cpu_count=cpu_count, memory_mb=memory_mb)

    @property
    def _desktop_status(self) -> TemplateStatus:
        """Return the status until it is built."""
        if self._desktop_builder is not None and not self._desktop_builder.done():
            return TemplateStatus.BUILDING
        return TemplateStatus.WAITING if self._desktop_failure is None else TemplateStatus.ERROR

    def _ensure_trust_layer(self, trust: Trust, version: TemplateVersion) -> TemplateVersion:
        """Return the layer that adds `trust` to this version, creating it if needed."""
        digest = hashlib.sha256(f"{trust.digest} {version.name} {version.version}".encode()).hexdigest()[:16]
        folder = self._trust_folder
        if existing := folder.find("trust", digest):
            return existing
        with folder.open_build_directory("trust") as work:
            if existing := folder.find("trust", digest):
                return existing
            write_layer(trust, version.rootfs, work / ROOTFS)
            details = {"certificates": str(len(trust.certificates)), "left_out": ", ".join(trust.left_out)}
            trust_version = folder.make_version("trust", digest, f"for {version.name} {version.version}", details)
            log.info("template_trust_carried", template=version.name, **details)
            return folder.publish(work, trust_version)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Give a build time to remove what it has created so far."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def make_template_id(name: str) -> str:
    """Return an id of twenty lower-case letters and digits, like E2B's; the same on every machine and for every
    version."""
    digest = hashlib.sha256(f"sandyard template {name}".encode()).digest()
    return base64.b32encode(digest).decode().lower()[:20]
