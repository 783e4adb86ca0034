"""Maps template names to directories: the engine's `Templates`, kept in memory.

`base` is the default template. Until it is built, `host` replaces it, so that an engine can serve immediately; the
build runs in a separate process, and names switch over when it is complete. Sandboxes created from the replacement keep
it. In the same way `base` replaces `code-interpreter`: sandboxes can be created, but the code interpreter does not work
in them. Nothing replaces `desktop` and `docker`: they are listed from the start, and built on first use.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandyard.engine.contract import Layers
from sandyard.engine.drivers.layer_names import TRUST
from sandyard.engine.sandboxes.model import Template, TemplateStatus
from sandyard.engine.templates import base, desktop, docker, host, interpreter, interpreter_program, layered
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion
from sandyard.engine.templates.requirements import list_missing_requirements
from sandyard.engine.templates.trust import Trust, read_trust, write_layer
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.python import SAFE_FOLDER, make_python_command, make_python_environment

log = get_logger(__name__)

ALIASES: Mapping[str, tuple[str, ...]] = {
    base.NAME: (base.NAME,),
    interpreter.NAME: interpreter.ALIASES,
    desktop.NAME: (desktop.NAME,),
    docker.NAME: (docker.NAME,),
    host.NAME: (host.NAME,),
}
LAYERED: Mapping[str, Callable[[TemplateFolder], bool]] = {
    interpreter.NAME: interpreter.is_stale,
    desktop.NAME: desktop.LAYER.is_stale,
    docker.NAME: docker.LAYER.is_stale,
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


@dataclass(slots=True)
class FirstUseBuild:
    """The build of a template on first use. Without `enabled`, only an operator builds it."""

    enabled: bool
    task: asyncio.Task[None] | None = None
    failure: str | None = None

    @property
    def status(self) -> TemplateStatus:
        """Return the status of the template until it is built."""
        if self.task is not None and not self.task.done():
            return TemplateStatus.BUILDING
        return TemplateStatus.WAITING if self.failure is None else TemplateStatus.ERROR


class Catalogue:
    """Call `open` first; it blocks briefly. `resolve` and `list` answer from memory. Call `start` and `close` in the
    event loop that serves."""

    def __init__(
        self,
        directory: Path,
        *,
        carry_host_trust: bool = True,
        build_desktop: bool = True,
        build_docker: bool = True,
        authority: bytes | None = None,
        trust_directory: Path | None = None,
    ) -> None:
        """`authority` is the certificate of an additional authority that this engine's sandboxes trust; layers with it
        are created in `trust_directory`."""
        self._folder = TemplateFolder(directory)
        self._carry_host_trust = carry_host_trust
        self._first_use = {
            desktop.NAME: FirstUseBuild(enabled=build_desktop),
            docker.NAME: FirstUseBuild(enabled=build_docker),
        }
        self._authorities = (authority,) if authority is not None else ()
        self._trust_folder = (
            TemplateFolder(trust_directory, TRUST)
            if authority is not None and trust_directory is not None
            else self._folder
        )
        self._names: dict[str, Template] = {}
        self._templates: tuple[Template, ...] = ()
        self._builder: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._language_builder: asyncio.Task[None] | None = None
        self._languages: dict[str, str] = {}  # languages to add, with the reason of a failure or an empty string
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
        """Return the usable templates, the folder's stamp before it was read, and whether `host` replaces `base`."""
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
        templates.append(self._make_desktop_template(desktop.LAYER.find_newest(self._folder), trust))
        templates.append(self._make_docker_template(docker.LAYER.find_newest(self._folder), trust))
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
        """Start building missing and outdated templates in the background. Returns at once."""
        self._builder = asyncio.create_task(self._build_outdated())
        self._watcher = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Cancel a running build; it leaves nothing behind."""
        for task in (self._watcher, *self._list_builders()):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def wait_for_builds(self) -> None:
        """Wait until no build is running. A build that failed is logged."""
        await asyncio.gather(*self._list_builders())

    def _list_builders(self) -> Sequence[asyncio.Task[None]]:
        first_use = (build.task for build in self._first_use.values())
        return [task for task in (self._builder, self._language_builder, *first_use) if task is not None]

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
        (name,) = template.aliases  # only those in `_first_use` may not be ready
        build = self._first_use[name]
        command = f"`sandyard template build {name}` on the engine's machine"
        missing = list_missing_requirements()
        if failure := "; ".join(missing) or build.failure:
            return f"could not be built: {failure}. Run {command} to try again."
        if not build.enabled:
            return f"is not built. Run {command} to build it."
        if build.task is None or build.task.done():
            log.info("template_wanted", template=name)
            build.task = asyncio.create_task(self._build_on_first_use(name))
            self._set_status(name, TemplateStatus.BUILDING)
        progress = self._progress.get(name)
        return (
            f"is being built on first use and will be ready in a few minutes{f' ({progress})' if progress else ''}. "
            f"Try again then, or run {command} to wait for it."
        )

    async def _build_on_first_use(self, name: str) -> None:
        if self._builder is not None:
            await asyncio.wait((self._builder,))  # it may be building the base
        failure = self._first_use[name].failure = await self.build(name)
        if failure is not None:
            self._set_status(name, TemplateStatus.ERROR)
        else:
            await self._refresh()
            log.info("template_ready", template=name)

    def _set_status(self, name: str, status: TemplateStatus) -> None:
        """Set the status that is shown until the template is built."""
        template_id = make_template_id(name)
        templates = [
            replace(template, status=status) if template.id == template_id and not template.ready else template
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
        for name in [*outdated, interpreter.NAME, *self._first_use]:
            if name in LAYERED and not await self._is_out_of_date(name):
                continue
            if name == base.NAME and self._host_replaces_base:
                log.info("template_standin", wanted=base.NAME, served=host.NAME, reason=f"{base.NAME} is being built")
            if await self.build(name) is None:
                await self._refresh()
                log.info("template_ready", template=name)

    async def _is_out_of_date(self, name: str) -> bool:
        """Return whether a template on top of `base` has to be rebuilt. Call it after `base` was built."""
        if name in self._first_use and not self._first_use[name].enabled:
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
                *make_python_command("sandyard.engine.templates", *where, *build),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=1 << 20,
                cwd=SAFE_FOLDER,
                env=make_python_environment(),
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
        layers: Layers = (self._folder.name_layer(version),)
        if not trust.is_empty:
            layers = (self._trust_folder.name_layer(self._ensure_trust_layer(trust, version)), *layers)
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
            layers=(*above, self._folder.name_layer(program), self._folder.name_layer(version), bottom),
            start=interpreter_program.START,
            memory_mb=interpreter.MEMORY_MB,
        )

    def _make_desktop_template(self, version: TemplateVersion | None, trust: Trust) -> Template:
        cpu_count, memory_mb = desktop.get_cpu_count(), desktop.get_memory_mb()
        plain = self._make_first_use_template(desktop.NAME, version, trust)
        return replace(plain, cpu_count=cpu_count, memory_mb=memory_mb)

    def _make_docker_template(self, version: TemplateVersion | None, trust: Trust) -> Template:
        plain = self._make_first_use_template(docker.NAME, version, trust)
        return replace(plain, start=docker.START, containers=True, memory_mb=docker.get_memory_mb())

    def _make_first_use_template(self, name: str, version: TemplateVersion | None, trust: Trust) -> Template:
        """Return a template that is one layer on top of `base`, or without layers and not ready if it is not built."""
        if version is None:
            status = self._first_use[name].status
            return Template(
                make_template_id(name), layers=(), aliases=ALIASES[name], status=status, can_be_overridden=True
            )
        base_version = layered.find_base(self._folder, version)
        assert base_version is not None  # otherwise it would not be the newest
        plain = self._make_template(name, base_version, trust, BASE_ENV)
        *above, bottom = plain.layers
        return replace(plain, layers=(*above, self._folder.name_layer(version), bottom), can_be_overridden=True)

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
