"""The `base` template: a clean Debian or Ubuntu of the machine's own release, built with mmdebstrap, plus Node.

The build runs in separate mount and pid namespaces that end with this process: if it is killed, no mount and no process
is left, only a directory that the next build removes.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.templates import node, sources, trust
from sandyard.engine.templates.folder import (
    ROOTFS,
    TemplateFolder,
    TemplateVersion,
    remove_tree,
    require_space,
    use_default_umask,
)
from sandyard.engine.templates.progress import MmdebstrapProgress, Report
from sandyard.kit.errors import SandyardError
from sandyard.kit.python import SAFE_FOLDER

NAME = "base"
FORMAT = 2  # increase it when the build changes in a way that nothing else in the recipe reflects
PACKAGES = tuple(
    """
    bash sudo git curl wget ca-certificates openssl openssh-client openssh-server openssh-sftp-server rsync attr mount
    python3 python3-pip python3-venv python3-dev python-is-python3 build-essential pkg-config
    procps psmisc lsof iproute2 netcat-openbsd ncurses-bin tzdata
    less nano vim-tiny file tree patch jq ripgrep sqlite3
    unzip zip xz-utils bzip2 zstd
    """.split()
)
DPKG_OPTIONS = (
    "force-unsafe-io",  # the tree is synced once, when it is published; fsync per file is not worth it in a sandbox
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/bin/*-lto-dump-*",
    "path-exclude=/usr/lib/python3*/config-*/*.a",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    # a sandbox is already an isolated environment, so `pip install` may write to the system
    "path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED",
)
MERGED_USR_HOOKS = Path("/usr/share/mmdebstrap/hooks/maybe-merged-usr")
CUSTOMIZE_SCRIPT = Path(__file__).with_name("base-customize.sh")
REQUIRED_BYTES = 3 << 30
NODE_SHARE = 0.12  # part of the progress bar for downloading Node
LOG_TAIL_LINES = 15


class BuildError(SandyardError):
    """Could not build the template."""

    code, status = "build_failed", 500


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines the tree's contents, except the current state of the archives."""

    release: sources.Release
    machine: str
    packages: tuple[str, ...] = PACKAGES

    @property
    def digest(self) -> str:
        parts = [str(FORMAT), self.release.id, self.release.codename, self.machine, *self.packages, *DPKG_OPTIONS]
        files = [CUSTOMIZE_SCRIPT.read_text(), node.LOCK.read_text()]
        return hashlib.sha256(json.dumps([parts, files]).encode()).hexdigest()[:16]


def make_recipe() -> Recipe:
    """Return the recipe for this machine. Raises UnsupportedError if its release is not supported."""
    return Recipe(sources.read_release(), platform.machine())


def build(folder: TemplateFolder, report: Report, *, force: bool = False) -> TemplateVersion:
    """Build `base`, or wait for another builder, and return the resulting version. With `force` it is rebuilt from the
    current archives even if it exists. Blocks for a minute or more. Raises BuildError with the end of the log."""
    recipe = make_recipe()
    with folder.open_build_directory(NAME) as work, use_default_umask():
        if not force and (existing := folder.find(NAME, recipe.digest)):
            return existing
        require_space(folder.directory, REQUIRED_BYTES, "Building template base")
        report.update(0.0, "downloading node")
        node_tree = node.fetch_node(work)
        _debootstrap(recipe, work, node_tree, report)
        remove_tree(node_tree)
        details = {"release": recipe.release.name, "machine": recipe.machine, "size": measure_size(work / ROOTFS)}
        report.update(0.99, "writing to disk")
        version = folder.make_version(
            NAME, recipe.digest, f"{recipe.release.name} with build tools, Python and Node", details
        )
        return folder.publish(work, version)


def run_build(command: Sequence[str], feed: Callable[[str], None]) -> tuple[int, Sequence[str]]:
    """Run a program that builds a template, and pass each line of its output to `feed`. Return its exit code and its last
    lines. If an exception is raised meanwhile, it is killed."""
    output_end: deque[str] = deque(maxlen=LOG_TAIL_LINES)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=SAFE_FOLDER
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                output_end.append(line.rstrip())
                feed(line)
        except BaseException:
            process.kill()
            raise
    return process.returncode, output_end


def _debootstrap(recipe: Recipe, work: Path, node_tree: Path, report: Report) -> None:
    """Build the tree in `work / ROOTFS`. The files with this machine's credentials are readable only by the engine's user."""
    archives = sources.read_sources(recipe.release)
    sources_file, settings_file = work / "host.sources", work / "apt.conf"
    sources_file.write_text("\n".join(source.format_stanza() for source in archives))
    settings_file.write_text("".join(f'{key} "{value}";\n' for key, value in trust.read_apt_settings()))
    command = [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
        *("mmdebstrap", "--verbose", "--mode=root", "--format=directory", "--variant=apt"),
        *(f"--dpkgopt={option}" for option in DPKG_OPTIONS),
        f"--aptopt={settings_file}",
        *([f"--hook-directory={MERGED_USR_HOOKS}"] if MERGED_USR_HOOKS.is_dir() else []),
        f"--include={','.join(recipe.packages)}",
        f'--customize-hook=sh {shlex.quote(str(CUSTOMIZE_SCRIPT))} "$1" {shlex.quote(str(node_tree))}',
        *(recipe.release.codename, str(work / ROOTFS), str(sources_file)),
    ]
    progress = MmdebstrapProgress(
        lambda part, activity: report.update(NODE_SHARE + part * (0.99 - NODE_SHARE), activity)
    )
    exit_code, output_end = run_build(command, progress.feed)
    sources_file.unlink()
    settings_file.unlink()
    if exit_code:
        raise BuildError("Could not build template base. Last output of mmdebstrap:\n  " + "\n  ".join(output_end))
    _write_sources(archives, work / ROOTFS)
    for device in (work / ROOTFS / "dev").iterdir():  # a sandbox has its own /dev
        remove_tree(device)


def _write_sources(archives: list[sources.Source], root: Path) -> None:
    """Write the apt sources of the template: the same archives and keys, but without passwords.

    The apt settings of the build are removed. A sandbox gets those that it needs when it is created (`trust`).
    """
    for path in [
        root / "etc/apt/sources.list",
        root / "etc/apt/apt.conf.d/99mmdebstrap",
        *(root / "etc/apt/sources.list.d").iterdir(),
    ]:
        path.unlink(missing_ok=True)
    public = [sources.strip_credentials(source) for source in archives]
    (root / "etc/apt/sources.list.d/host.sources").write_text("\n".join(source.format_stanza() for source in public))
    for source in public:
        keyring = root / source.keyring.lstrip("/")
        if source.keyring.startswith("/") and not keyring.exists():
            keyring.parent.mkdir(parents=True, exist_ok=True)
            keyring.write_bytes(Path(source.keyring).read_bytes())


def measure_size(tree: Path) -> str:
    """Return the disk space that a tree uses, for users: "812 MiB"."""
    result = subprocess.run(["du", "-sm", str(tree)], capture_output=True, text=True, check=True)
    return f"{result.stdout.split()[0]} MiB"
