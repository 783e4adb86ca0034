"""Install the environments of clients below .cache, from the registries configured for pip, npm and apt on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness.processes import ROOT
from tests.protocol.clients.table import Client

CACHE = ROOT / ".cache" / "clients"
NODE = ROOT / ".venv-node" / "bin"
INSTALL_SECONDS = 1500
DEBIAN, DEBIAN_PYTHON = "trixie", "3.13"
_IN_DEBIAN = """
mount --rbind / "$0/host"
for name in resolv.conf nsswitch.conf; do mount --bind "/etc/$name" "$0/etc/$name"; done
mount --rbind /proc "$0/proc"
mount --rbind /dev "$0/dev"
exec chroot "$0" "$@"
"""


def prepare(client: Client) -> Path:
    """Return the directory with the client's packages, installed again if the packages have changed. Raises AssertionError."""
    fingerprint = hashlib.sha256(json.dumps([client.packages, client.python, sys.version]).encode()).hexdigest()
    folder = CACHE / client.slug
    stamp = folder / ".stamp"
    if not stamp.exists() or stamp.read_text() != fingerprint:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if client.node:
            (folder / "package.json").write_text('{"private": true}')
            options = ("--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            _run(str(NODE / "npm"), "install", *options, *client.packages, cwd=folder)
        elif client.python:
            # pip also checks the version of the Python that runs it, despite --python-version
            wheels = ("--only-binary", ":all:", "--python-version", client.python, "--ignore-requires-python")
            _run(*_pip(sys.executable), "--target", str(folder / "packages"), *wheels, *client.packages)
        else:
            _run(sys.executable, "-m", "venv", str(folder))
            _run(*_pip(str(folder / "bin/python")), *client.packages)
        stamp.write_text(fingerprint)
    return folder


def command(client: Client, folder: Path, variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs the client's script, and its environment. Values in `variables` may be paths."""
    if client.node:
        shutil.copy(client.script, folder / client.script.name)  # Node looks for packages beside the script
        return [str(NODE / "node"), str(folder / client.script.name)], variables
    if not client.python:
        return [str(folder / "bin/python"), "-P", str(client.script)], variables
    mapped = {
        name: f"/host{value}" if value.startswith("/") and name != "PATH" else value
        for name, value in variables.items()
    }
    mapped |= {"PYTHONPATH": f"/host{folder / 'packages'}", "HOME": "/root", "TMPDIR": "/tmp"}
    return ["sh", "-euc", _IN_DEBIAN, str(prepare_debian()), "python3", "-P", f"/host{client.script}"], mapped


def prepare_debian() -> Path:
    """Return a root directory with a Debian that has a newer Python."""
    root = CACHE / DEBIAN
    if not (root / "usr/bin" / f"python{DEBIAN_PYTHON}").exists():
        shutil.rmtree(root, ignore_errors=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        sites = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Codename: bookworm"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        packages = "--include=python3,ca-certificates"
        _run("mmdebstrap", "--variant=minbase", packages, DEBIAN, str(root), f"deb {sites[0]} {DEBIAN} main")
        (root / "host").mkdir()
        (root / "etc/nsswitch.conf").touch()
        (root / "etc/resolv.conf").touch()
    return root


def _pip(python: str) -> tuple[str, ...]:
    return (python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-warn-script-location")


def _run(*command_line: str, cwd: Path | None = None) -> None:
    variables = {**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        command_line, cwd=cwd, env=variables, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if result.returncode:
        raise AssertionError(f"{' '.join(command_line)}\n{(result.stdout + result.stderr)[-3000:]}")
