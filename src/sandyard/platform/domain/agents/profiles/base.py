"""What the built-in agents' profiles are made of."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from sandyard.platform.domain.agents.model import Install, Launch, LaunchWish, ModelApi

AGENTS = ".sandyard/agents"
"""Below the home of a sandbox's user: what was installed, a folder for each program and version."""
NODE = "24.11.1"
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


def npm_install(package: str, version: str, binary: str, *, node: int = 20, timeout_s: float = 900) -> Install:
    """A program from npm, at exactly this version, in a folder of its own below the user's home: `npm_program` is its path.

    The registry is npm's own setting or `npm_config_registry`. Where the sandbox's Node is older than `node`, a newer one is
    installed beside it, for this program alone. `package` and `version` are the platform's own words, never somebody's input."""
    folder = f'"$HOME"/{shlex.quote(_folder(package, version))}'
    program = f"{folder}/bin/{shlex.quote(binary)}"
    packages = shlex.quote(f"{package}@{version}")
    script = _NPM.format(
        folder=folder,
        program=program,
        package=packages,
        binary=shlex.quote(binary),
        node=node,
        newer=shlex.quote(f"node@{NODE}"),
    )
    return Install(version, ("bash", "-c", f"test -x {program}"), script, timeout_s)


def npm_program(home: str, package: str, version: str, binary: str) -> str:
    """Where `npm_install` puts it."""
    return f"{home}/{_folder(package, version)}/bin/{binary}"


def _folder(package: str, version: str) -> str:
    return f"{AGENTS}/{package.lstrip('@').replace('/', '-')}-{version}"


# What starts the program is written last, and whole: where it is, everything is.
_NPM = """\
folder={folder} program={program} binary={binary}
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
  echo "There is no Node with npm in this sandbox, which {package} is installed with. Use a template that has them." >&2
  exit 1
fi
packages=({package})
found=$(node -p 'process.versions.node.split(".")[0]') || exit 1
if [ "$found" -lt {node} ]; then packages+=({newer}); fi
rm -rf "$folder"
mkdir -p "$folder/bin" || exit 1
echo '{{"private":true}}' >"$folder/package.json"
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false npm_config_progress=false
npm install --prefix "$folder" --omit=dev --no-save "${{packages[@]}}" || exit 1
if ! [ -x "$folder/node_modules/.bin/$binary" ]; then
  echo "{package} is installed, and has no program $binary." >&2
  exit 1
fi
{{
  echo '#!/bin/sh'
  echo 'here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1'
  echo 'PATH="$here/node_modules/.bin:$PATH" exec "$here/node_modules/.bin/'"$binary"'" "$@"'
}} >"$program.new" && chmod 755 "$program.new" && mv "$program.new" "$program"
"""
