"""Which name means which directories: the engine's `Templates`, kept in memory.

`base` is what clients get when they name nothing. While it is not built, `host` stands in for it, so that an engine
serves from its first second; the build runs in a process of its own, and names switch over when it is whole. Sandboxes
that stand on the stand-in keep it. In the same way `base` stands in for `code-interpreter`: sandboxes are had, only the
code interpreter does not answer in them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sandyard.engine.contract import Layers
from sandyard.engine.sandboxes.model import Template
from sandyard.engine.templates import base, host, interpreter, interpreter_program
from sandyard.engine.templates.folder import ROOTFS, Folder, Version
from sandyard.engine.templates.needs import missing_for_base
from sandyard.engine.templates.trust import Trust, read_trust, write_layer
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.python import SAFE_FOLDER, python_command, python_environment

log = get_logger(__name__)

ALIASES: Mapping[str, tuple[str, ...]] = {
    base.NAME: (base.NAME,),
    interpreter.NAME: interpreter.ALIASES,
    host.NAME: (host.NAME,),
}
PATIENCE = 15
TAGS = frozenset({"default", "latest"})
ENV = {"LANG": "C.UTF-8"}
# native modules find Node's headers without a download
BASE_ENV = {"npm_package_config_node_gyp_nodedir": "/usr/local"}
HOST_ENV = {"NPM_CONFIG_PREFIX": "/usr/local"}  # where `npm install -g` may write, whatever the machine's npm thinks


class Catalogue:
    """`open` blocks for a moment and comes first; `resolve` and `list` answer from memory. `start` and `close` belong
    to the event loop that serves."""

    def __init__(self, directory: Path, *, carry_host_trust: bool = True) -> None:
        self._folder = Folder(directory)
        self._carry = carry_host_trust
        self._names: dict[str, Template] = {}
        self._templates: tuple[Template, ...] = ()
        self._builder: asyncio.Task[None] | None = None
        self._standing_in = False

    def open(self) -> None:
        """See what is built; make `host` when there is nothing else to serve. Blocks for up to a few seconds. Raises
        what `host.build` raises when not even that can be made."""
        self._folder.prepare()
        if self._newest(base.NAME) is None:
            if self._newest(host.NAME) is None:
                log.info("template_building", template=host.NAME)
            host.build(self._folder)
        self.refresh()

    def refresh(self) -> None:
        """Look at the folder again and switch names over to the newest versions."""
        built_base, built_host = self._newest(base.NAME), self._newest(host.NAME)
        trust = read_trust() if self._carry else Trust()
        templates = []
        if built_base:
            templates.append(self._template(base.NAME, built_base, trust, BASE_ENV))
        elif built_host:
            templates.append(self._template(base.NAME, built_host, trust, HOST_ENV))
        if built_host:
            templates.append(self._template(host.NAME, built_host, trust, HOST_ENV))
        if built := interpreter.newest(self._folder):
            templates.append(self._interpreter(built, trust))
        elif templates:
            templates[0] = replace(templates[0], aliases=(*templates[0].aliases, *interpreter.ALIASES))
        names = {name: template for template in templates for name in (template.id, *template.aliases)}
        self._standing_in = built_base is None
        self._names, self._templates = names, tuple(templates)

    def resolve(self, name: str) -> Template | None:
        plain, colon, tag = name.partition(":")
        return self._names.get(plain) if not colon or tag in TAGS else None

    def list(self) -> Sequence[Template]:
        return self._templates

    async def start(self) -> None:
        """Begin, in the background, whatever is missing or out of date. Returns at once."""
        self._builder = asyncio.create_task(self._bring_up_to_date())

    async def close(self) -> None:
        """Stop a build that is under way; it leaves nothing behind."""
        if self._builder:
            self._builder.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._builder

    async def _bring_up_to_date(self) -> None:
        wanted = [host.NAME] if self._folder.find(host.NAME, host.fingerprint()) is None else []
        if self._stale_base():
            lacking = missing_for_base()
            if not lacking:
                wanted.append(base.NAME)
            elif self._standing_in:
                log.warning("template_standin", wanted=base.NAME, served=host.NAME, reason="; ".join(lacking))
        for name in [*wanted, interpreter.NAME]:
            if name == interpreter.NAME and not await self._wants_interpreter():
                continue
            if name == base.NAME and self._standing_in:
                log.info("template_standin", wanted=base.NAME, served=host.NAME, reason=f"{base.NAME} is being built")
            if await self._build(name):
                await asyncio.to_thread(self.refresh)
                log.info("template_ready", template=name)

    async def _wants_interpreter(self) -> bool:
        """Looked at when its turn comes: `base` may be a new one by then."""
        return not missing_for_base() and await asyncio.to_thread(interpreter.is_stale, self._folder)

    def _stale_base(self) -> bool:
        with contextlib.suppress(SandyardError):
            return self._folder.find(base.NAME, base.recipe().digest) is None
        return self._standing_in

    async def _build(self, name: str) -> bool:
        """In another process: minutes of work, and a crash of it is not ours. It ends with us."""
        where = ("--templates-dir", str(self._folder.directory))
        build = ("build", name, "--parent", str(os.getpid()))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *python_command("sandyard.engine.templates", *where, *build),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            cwd=SAFE_FOLDER,
            env=python_environment(),
        )
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            await _end(process)
            raise
        if process.returncode:
            log.error("template_build_failed", template=name, output=output.decode(errors="replace")[-2000:])
        return process.returncode == 0

    def _newest(self, name: str) -> Version | None:
        return next(iter(self._folder.versions(name)), None)

    def _template(self, name: str, version: Version, trust: Trust, env: Mapping[str, str]) -> Template:
        layers: Layers = (str(version.rootfs),)
        if not trust.empty:
            layers = (str(self._trust_layer(trust, version).rootfs), *layers)
        return Template(id=template_id(name), layers=layers, aliases=ALIASES[name], env={**ENV, **env, **trust.env})

    def _interpreter(self, version: Version, trust: Trust) -> Template:
        below = interpreter.base_of(self._folder, version)
        assert below is not None  # or it would not be the newest
        program = interpreter_program.layer(self._folder, interpreter.python_of(below))
        plain = self._template(interpreter.NAME, below, trust, BASE_ENV)
        *above, bottom = plain.layers
        return replace(
            plain,
            layers=(*above, str(program.rootfs), str(version.rootfs), bottom),
            start=interpreter_program.START,
            memory_mb=interpreter.MEMORY_MB,
        )

    def _trust_layer(self, trust: Trust, version: Version) -> Version:
        """The layer that carries `trust` into this very version, made when there is none yet."""
        digest = hashlib.sha256(f"{trust.digest} {version.name} {version.version}".encode()).hexdigest()[:16]
        if found := self._folder.find("trust", digest):
            return found
        with self._folder.building("trust") as work:
            if found := self._folder.find("trust", digest):
                return found
            write_layer(trust, version.rootfs, work / ROOTFS)
            carried = {"certificates": str(len(trust.certificates)), "left_out": ", ".join(trust.left_out)}
            made = self._folder.new_version("trust", digest, f"for {version.name} {version.version}", carried)
            log.info("template_trust_carried", template=version.name, **carried)
            return self._folder.publish(work, made)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Give a build the time to remove what it has made so far."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def template_id(name: str) -> str:
    """Twenty lower-case letters and digits, as E2B's; the same on every machine and for every version."""
    digest = hashlib.sha256(f"sandyard template {name}".encode()).digest()
    return base64.b32encode(digest).decode().lower()[:20]
