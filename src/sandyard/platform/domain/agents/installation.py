"""Bring an agent into a sandbox: install its program, and write the files that it needs at its start."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import shlex
from collections.abc import AsyncIterator, Callable, Mapping

from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.ids import make_random_id
from sandyard.kit.text import append_quote, make_storable
from sandyard.platform.domain.agents.profiles.model import Install, Launch, Profile
from sandyard.platform.domain.sandboxes.e2b import (
    CommandEnded,
    CommandOutput,
    CommandSpec,
    EndReason,
    EngineError,
    NotEnoughSpaceError,
    SandboxEngine,
)
from sandyard.platform.settings import PlatformSettings

CHECK_S = 60.0
TAIL_CHARACTERS = 2000
"""How much of the end of an install's output is shown when it fails."""
INSTALLED = "is installed"
LINE_CHARACTERS = 300
PROGRESS_S = 0.2
_KEPT_BYTES = 16 << 10

INLINE_BYTES = 64 << 10
"""Larger files do not fit into an argument."""
BATCH_BYTES = 512 << 10
WRITE_TIMEOUT_S = 60.0

# One install at a time in a sandbox, even across platform restarts. Processes that the script leaves running do not hold the lock.
_INSTALL_SCRIPT = """mkdir -p "$HOME/.sandyard" && exec 9>>"$HOME/.sandyard/install.lock" || exit 1
if command -v flock >/dev/null; then flock 9; fi
if {check} >/dev/null 2>&1 9>&-; then exit 0; fi
script=$SANDYARD_INSTALL
unset SANDYARD_INSTALL
bash -c "$script" install 9>&-
"""
# Arguments: for each file its path, its hash and its content in base64. With - as content, print the hash if the file differs.
_WRITE_SCRIPT = """umask 077
while [ $# -ge 3 ]; do
  path=$1 hash=$2 data=$3
  shift 3
  if [ -f "$path" ] && ! [ -L "$path" ] && read -r found _ < <(sha256sum <"$path") && [ "$found" = "$hash" ]; then continue; fi
  if [ "$data" = - ]; then printf '%s\\n' "$hash"; continue; fi
  if [ -d "$path" ]; then echo "$path: Is a directory" >&2; exit 1; fi
  mkdir -p -- "${path%/*}" && printf %s "$data" | base64 -d >"$path.$$" && mv -f -- "$path.$$" "$path" || exit 1
done
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
    """Install the agent unless it is there. Returns whether it was installed.

    `progress` is called at the start, at the end (INSTALLED), and now and then with a line of output. Safe to call
    concurrently. If the caller is cancelled, the install continues, and the next call waits for it and uses its result.
    Raises AgentInstallError.
    """
    install = profile.install
    if install is None or await _is_installed(engine, engine_id, install):
        return False
    progress(f"Installing {profile.title}")
    output = _InstallOutput(progress)
    ended = await _run_install(engine, engine_id, install, settings, output)
    if ended.reason is EndReason.TIMED_OUT:
        raise _install_error(profile, f"did not finish within {install.timeout_s:g} s", output.tail)
    if ended.reason is not EndReason.EXITED:
        raise _install_error(profile, "was stopped from outside; try again", output.tail)
    if ended.code != 0:
        raise _install_error(profile, f"failed with exit code {ended.code}", output.tail)
    if not await _is_installed(engine, engine_id, install):
        raise _install_error(
            profile, f"succeeded, but {shlex.join(install.check)!r} does not find the agent", output.tail
        )
    progress(f"{profile.title} {INSTALLED}")
    return True


async def _is_installed(engine: SandboxEngine, engine_id: str, install: Install) -> bool:
    ran = await engine.programs.run(engine_id, install.check, timeout_s=CHECK_S, limit=1024, idempotent=True)
    return ran.exit_code == 0 or ran.truncated


async def _run_install(
    engine: SandboxEngine, engine_id: str, install: Install, settings: PlatformSettings, output: _InstallOutput
) -> CommandEnded:
    envs = {"SANDYARD_INSTALL": install.script, "CI": "1", "DEBIAN_FRONTEND": "noninteractive"}
    if settings.npm_registry is not None:
        envs |= dict.fromkeys(("npm_config_registry", "NPM_CONFIG_REGISTRY"), settings.npm_registry)
    spec = CommandSpec(
        id=make_random_id("install-"),
        command=_INSTALL_SCRIPT.format(check=shlex.join(install.check)),
        envs=envs,
        timeout_s=install.timeout_s,
    )
    ended = CommandEnded(EndReason.LOST)
    async with contextlib.aclosing(engine.commands.start(engine_id, spec)) as events:  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, CommandOutput):
                output.take(event.data)
            elif isinstance(event, CommandEnded):
                ended = event
    output.end()
    with contextlib.suppress(SandyardError):
        await engine.commands.forget(engine_id, spec.id)
    return ended


class _InstallOutput:
    """Collect the output of an install: keep its end, and report lines at a readable rate."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._kept = b""
        self._reported_at = 0.0

    @property
    def tail(self) -> str:
        return make_storable(self._kept.decode(errors="replace")).strip()[-TAIL_CHARACTERS:]

    def take(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-_KEPT_BYTES:]
        now = asyncio.get_running_loop().time()
        if now - self._reported_at >= PROGRESS_S and self._report_line(whole=True):
            self._reported_at = now

    def end(self) -> None:
        self._report_line(whole=False)

    def _report_line(self, *, whole: bool) -> bool:
        lines = (
            self.tail.splitlines() if not whole else make_storable(self._kept.decode(errors="replace")).split("\n")[:-1]
        )
        line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if line:
            self._progress(line[:LINE_CHARACTERS])
        return bool(line)


def _install_error(profile: Profile, how: str, tail: str) -> AgentInstallError:
    return AgentInstallError(append_quote(f"The installation of {profile.title} {how}.", tail))


async def put_files(engine: SandboxEngine, engine_id: str, launch: Launch) -> None:
    """Write the files completely, readable only by the sandbox's user. Files that already have the same content are not
    touched.

    Idempotent. All small files are written in batches, each with one command in the sandbox.
    """
    for path in launch.files:
        if not path.startswith("/") or "\0" in path or path.endswith("/"):
            raise InvalidInputError(f"An agent's file needs an absolute path: {path!r}.")
    small = {path: content for path, content in launch.files.items() if len(content) <= INLINE_BYTES}
    for batch in _split_into_batches(small):
        await _run_write_script(engine, engine_id, [_build_entry(path, content) for path, content in batch.items()])
    large = {path: content for path, content in launch.files.items() if len(content) > INLINE_BYTES}
    if large:
        missing_hashes = await _run_write_script(
            engine, engine_id, [(path, _hash(content), "-") for path, content in large.items()]
        )
        for path, content in large.items():
            if _hash(content) in missing_hashes:
                await engine.files.write(engine_id, path, _iterate_chunks(content))


async def _run_write_script(engine: SandboxEngine, engine_id: str, entries: list[tuple[str, str, str]]) -> list[str]:
    argv = ["bash", "-c", _WRITE_SCRIPT, "sandyard", *(word for entry in entries for word in entry)]
    ran = await engine.programs.run(engine_id, argv, timeout_s=WRITE_TIMEOUT_S, idempotent=True)
    if ran.exit_code == 0:
        return ran.stdout.decode(errors="replace").split()
    stderr = ran.stderr.strip()[-500:]
    if "No space left on device" in stderr or "Disk quota exceeded" in stderr:
        raise NotEnoughSpaceError
    raise EngineError(append_quote("The agent's files could not be written to the sandbox.", stderr))


def _split_into_batches(files: Mapping[str, bytes]) -> list[dict[str, bytes]]:
    batches: list[dict[str, bytes]] = []
    size = BATCH_BYTES
    for path, content in files.items():
        if size + len(content) > BATCH_BYTES:
            batches.append({})
            size = 0
        batches[-1][path] = content
        size += len(content)
    return batches


def _build_entry(path: str, content: bytes) -> tuple[str, str, str]:
    return path, _hash(content), base64.b64encode(content).decode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def _iterate_chunks(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 1 << 20):
        yield content[at : at + (1 << 20)]
