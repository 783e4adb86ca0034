"""Building blocks for the profiles of built-in agents."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandyard.platform.domain.agents.profiles.model import Install, Launch, LaunchRequest
from sandyard.platform.domain.models.model import ModelApi

AGENTS_FOLDER = ".sandyard/agents"
"""Where agents are installed below the home folder: one folder per program and version."""
NODE = "24.21.0"
"""The version of Node that is installed for a program if the sandbox's Node is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInProfile:
    """A profile that comes with the platform; see `Profile`. `make_launch` returns how to start the agent."""

    name: str
    title: str
    description: str
    make_launch: Callable[[LaunchRequest], Launch]
    demo: bool = False
    install: Install | None = None
    apis: tuple[ModelApi, ...] = ()
    models: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    unasked_modes: tuple[str, ...] = ()
    auth_method: str | None = None

    def launch(self, request: LaunchRequest) -> Launch:
        return self.make_launch(request)


def read_lock(name: str) -> str:
    """Return the package-lock.json that comes with the platform under this name, made by `scripts/agent-locks`."""
    lock = json.loads((Path(__file__).parent / "locks" / f"{name}.json").read_text())
    return json.dumps(lock, separators=(",", ":"))


def make_npm_install(
    package: str,
    version: str,
    binary: str,
    *,
    lock: str,
    script: str | None = None,
    configure: str = "true",
    node: int = 20,
    timeout_s: float = 900,
) -> Install:
    """Return the installation of exactly this version of a program from npm, in its own folder below the home folder. `get_npm_program_path`
    returns its path.

    `lock` is a package-lock.json: only what it names is installed, verified by digest, and no package scripts are run.
    `script` is the one script of the program itself that is needed nevertheless. `configure`: a Bash command that runs at
    the end, for files that the program looks for. The registry is npm's own setting or `npm_config_registry`. If the sandbox's Node is
    older than `node`, a newer one is installed for this program alone. All arguments come from the platform, never from user input.
    """
    folder = f'"$HOME"/{shlex.quote(_get_program_folder(package, version))}'
    program = f"{folder}/bin/{shlex.quote(binary)}"
    text = _NPM_SCRIPT.format(
        folder=folder,
        program=program,
        package=package,
        manifest=shlex.quote(_build_manifest(lock)),
        lock=shlex.quote(lock),
        run=f"(cd {shlex.quote(f'node_modules/{package}')} && node {shlex.quote(script)})" if script else "true",
        configure=configure,
        binary=shlex.quote(binary),
        node=node,
        newer=shlex.quote(_build_manifest(_NODE_LOCK)),
        newer_lock=shlex.quote(_NODE_LOCK),
    )
    return Install(version, ("bash", "-c", f"test -x {program}"), text, timeout_s)


def get_npm_program_path(home: str, package: str, version: str, binary: str) -> str:
    """Return the path where `make_npm_install` puts the program."""
    return f"{home}/{_get_program_folder(package, version)}/bin/{binary}"


def _build_manifest(lock: str) -> str:
    """Return the package.json that belongs to a lock."""
    return json.dumps({"private": True, **json.loads(lock)["packages"][""]}, separators=(",", ":"))


def _get_program_folder(package: str, version: str) -> str:
    return f"{AGENTS_FOLDER}/{package.lstrip('@').replace('/', '-')}-{version}"


_NODE_LOCK = read_lock("node")

# The start script is written last and atomically: if it exists, the installation is complete.
_NPM_SCRIPT = """\
folder={folder} program={program} binary={binary}
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
  echo "Installing {package} requires Node with npm, which this sandbox does not have. Use a template that includes them." >&2
  exit 1
fi
found=$(node -p 'process.versions.node.split(".")[0]') || exit 1
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/node" || exit 1
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false npm_config_progress=false
install_locked() {{
  printf '%s' "$2" >"$1/package.json" && printf '%s' "$3" >"$1/package-lock.json" || return 1
  (cd "$1" && npm ci --ignore-scripts --omit=dev)
}}
if [ "$found" -lt {node} ]; then install_locked "$folder/node" {newer} {newer_lock} || exit 1; fi
install_locked "$folder" {manifest} {lock} || exit 1
PATH="$folder/node/node_modules/.bin:$PATH"
(cd "$folder" && {run}) || exit 1
if ! [ -x "$folder/node_modules/.bin/$binary" ]; then
  echo "{package} was installed but does not contain the program $binary." >&2
  exit 1
fi
{{ {configure}; }} || exit 1
{{
  echo '#!/bin/sh'
  echo 'here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1'
  echo 'PATH="$here/node_modules/.bin:$here/node/node_modules/.bin:$PATH" exec "$here/node_modules/.bin/'"$binary"'" "$@"'
}} >"$program.new" && chmod 755 "$program.new" && mv "$program.new" "$program"
"""
