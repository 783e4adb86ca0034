"""What the built-in agents' profiles are made of."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandyard.platform.domain.agents.model import Install, Launch, LaunchWish, ModelApi

AGENTS = ".sandyard/agents"
"""Below the home of a sandbox's user: what was installed, a folder for each program and version."""
NODE = "24.21.0"
"""The Node that is installed beside a program which finds too old a one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A profile that comes with the platform. `start` makes the command line."""

    name: str
    title: str
    description: str
    start: Callable[[LaunchWish], Launch]
    demo: bool = False
    install: Install | None = None
    apis: tuple[ModelApi, ...] = ()
    models: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    unasked_modes: tuple[str, ...] = ()
    auth_method: str | None = None

    def launch(self, wish: LaunchWish) -> Launch:
        return self.start(wish)


def read_lock(name: str) -> str:
    """The package-lock.json that comes with the platform under this name, made by `scripts/agent-locks`."""
    lock = json.loads((Path(__file__).parents[1] / "locks" / f"{name}.json").read_text())
    return json.dumps(lock, separators=(",", ":"))


def npm_install(
    package: str,
    version: str,
    binary: str,
    *,
    lock: str,
    script: str | None = None,
    node: int = 20,
    timeout_s: float = 900,
) -> Install:
    """A program from npm, at exactly this version, in a folder of its own below the user's home: `npm_program` is its path.

    `lock` is a package-lock.json: what it names is installed, each as its digest says, and nothing else; no script of a package is
    run. `script`: the one of the program's own that is needed all the same. The registry is npm's own setting or
    `npm_config_registry`. Where the sandbox's Node is older than `node`, a newer one is installed beside it, for this program alone.
    All of these are the platform's own words, never somebody's input."""
    folder = f'"$HOME"/{shlex.quote(_folder(package, version))}'
    program = f"{folder}/bin/{shlex.quote(binary)}"
    text = _NPM.format(
        folder=folder,
        program=program,
        package=package,
        manifest=shlex.quote(_manifest(lock)),
        lock=shlex.quote(lock),
        run=f"(cd {shlex.quote(f'node_modules/{package}')} && node {shlex.quote(script)})" if script else "true",
        binary=shlex.quote(binary),
        node=node,
        newer=shlex.quote(_manifest(_NODE_LOCK)),
        newer_lock=shlex.quote(_NODE_LOCK),
    )
    return Install(version, ("bash", "-c", f"test -x {program}"), text, timeout_s)


def npm_program(home: str, package: str, version: str, binary: str) -> str:
    """Where `npm_install` puts it."""
    return f"{home}/{_folder(package, version)}/bin/{binary}"


def _manifest(lock: str) -> str:
    """The package.json that a lock is of."""
    return json.dumps({"private": True, **json.loads(lock)["packages"][""]}, separators=(",", ":"))


def _folder(package: str, version: str) -> str:
    return f"{AGENTS}/{package.lstrip('@').replace('/', '-')}-{version}"


_NODE_LOCK = read_lock("node")

# What starts the program is written last, and whole: where it is, everything is.
_NPM = """\
folder={folder} program={program} binary={binary}
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
  echo "There is no Node with npm in this sandbox, which {package} is installed with. Use a template that has them." >&2
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
  echo "{package} is installed, and has no program $binary." >&2
  exit 1
fi
{{
  echo '#!/bin/sh'
  echo 'here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1'
  echo 'PATH="$here/node_modules/.bin:$here/node/node_modules/.bin:$PATH" exec "$here/node_modules/.bin/'"$binary"'" "$@"'
}} >"$program.new" && chmod 755 "$program.new" && mv "$program.new" "$program"
"""
