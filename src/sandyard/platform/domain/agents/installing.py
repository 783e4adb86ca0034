"""How an agent comes into a sandbox that lacks it."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable

from sandyard.kit.errors import SandyardError
from sandyard.kit.ids import random_id
from sandyard.kit.text import storable
from sandyard.platform.domain.agents.model import Install, Profile
from sandyard.platform.domain.sandboxes.e2b import CommandSpec, Ended, EndReason, Output, SandboxEngine
from sandyard.platform.settings import PlatformSettings

CHECK_S = 60.0
SAID = 2000
"""How much of the end of what an install said is told when it fails."""
INSTALLED = "is installed"
LINE = 300
PROGRESS_S = 0.2
_KEPT = 16 << 10

# One at a time in a sandbox, whoever began it: one that a dead platform has left behind is waited for. Whatever the script
# leaves running does not hold the lock.
_SCRIPT = """mkdir -p "$HOME/.sandyard" && exec 9>>"$HOME/.sandyard/install.lock" || exit 1
if command -v flock >/dev/null; then flock 9; fi
if {check} >/dev/null 2>&1 9>&-; then exit 0; fi
script=$SANDYARD_INSTALL
unset SANDYARD_INSTALL
bash -c "$script" install 9>&-
"""


class AgentInstallError(SandyardError):
    """The agent could not be installed in the sandbox."""

    code, status = "agent_install_failed", 502


async def ensure_installed(
    engine: SandboxEngine,
    engine_id: str,
    profile: Profile,
    settings: PlatformSettings,
    progress: Callable[[str], None],
) -> bool:
    """False: it was there. `progress` hears of its begin and its end (INSTALLED), and in between now and then a line of what it
    says. Safe when several do it at once; when the caller is cancelled the install goes on, and the next call finds what came of
    it. AgentInstallError."""
    install = profile.install
    if install is None or await _there(engine, engine_id, install):
        return False
    progress(f"Installing {profile.title}")
    said = _Said(progress)
    ended = await _run(engine, engine_id, install, settings, said)
    if ended.reason is EndReason.TIMED_OUT:
        raise _failed(profile, f"did not finish within {install.timeout_s:g} s", said.tail)
    if ended.reason is not EndReason.EXITED:
        raise _failed(profile, "was stopped from outside; try again", said.tail)
    if ended.code != 0:
        raise _failed(profile, f"failed with exit code {ended.code}", said.tail)
    if not await _there(engine, engine_id, install):
        raise _failed(profile, f"succeeded, but {shlex.join(install.check)!r} does not find the agent", said.tail)
    progress(f"{profile.title} {INSTALLED}")
    return True


async def _there(engine: SandboxEngine, engine_id: str, install: Install) -> bool:
    ran = await engine.run(engine_id, install.check, timeout_s=CHECK_S, limit=1024, idempotent=True)
    return ran.exit_code == 0 or ran.truncated


async def _run(
    engine: SandboxEngine, engine_id: str, install: Install, settings: PlatformSettings, said: _Said
) -> Ended:
    envs = {"SANDYARD_INSTALL": install.script, "CI": "1", "DEBIAN_FRONTEND": "noninteractive"}
    if settings.npm_registry is not None:
        envs |= dict.fromkeys(("npm_config_registry", "NPM_CONFIG_REGISTRY"), settings.npm_registry)
    spec = CommandSpec(
        id=random_id("install-"),
        command=_SCRIPT.format(check=shlex.join(install.check)),
        envs=envs,
        timeout_s=install.timeout_s,
    )
    ended = Ended(EndReason.LOST)
    async with contextlib.aclosing(engine.commands.start(engine_id, spec)) as events:  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, Output):
                said.take(event.data)
            elif isinstance(event, Ended):
                ended = event
    said.end()
    with contextlib.suppress(SandyardError):
        await engine.commands.forget(engine_id, spec.id)
    return ended


class _Said:
    """What an install says: its end is kept, and lines of it are told, not more often than somebody could read them."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._kept = b""
        self._told = 0.0

    @property
    def tail(self) -> str:
        return storable(self._kept.decode(errors="replace")).strip()[-SAID:]

    def take(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-_KEPT:]
        now = asyncio.get_running_loop().time()
        if now - self._told >= PROGRESS_S and self._tell(whole=True):
            self._told = now

    def end(self) -> None:
        self._tell(whole=False)

    def _tell(self, *, whole: bool) -> bool:
        lines = self.tail.splitlines() if not whole else storable(self._kept.decode(errors="replace")).split("\n")[:-1]
        line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if line:
            self._progress(line[:LINE])
        return bool(line)


def _failed(profile: Profile, how: str, tail: str) -> AgentInstallError:
    said = f" It said: {tail}" if tail else ""
    return AgentInstallError(f"The installation of {profile.title} {how}.{said}")
