"""Environments of clients, below .cache, made from the registries that this machine's pip, npm and apt are set up for."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.protocol.clients.table import Client
from tests.protocol.engine import ROOT

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
    """The folder with the client's packages, made anew when they have changed. Raises CalledProcessError."""
    wanted = hashlib.sha256(json.dumps([client.packages, client.python, sys.version]).encode()).hexdigest()
    folder = CACHE / client.slug
    stamp = folder / ".stamp"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if client.node:
            (folder / "package.json").write_text('{"private": true}')
            options = ("--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            _run(str(NODE / "npm"), "install", *options, *client.packages, cwd=folder)
        elif client.python:
            # pip asks what runs it for its version, too, whatever it is told
            wheels = ("--only-binary", ":all:", "--python-version", client.python, "--ignore-requires-python")
            _run(*_pip(sys.executable), "--target", str(folder / "packages"), *wheels, *client.packages)
        else:
            _run(sys.executable, "-m", "venv", str(folder))
            _run(*_pip(str(folder / "bin/python")), *client.packages)
        stamp.write_text(wanted)
    return folder


def command(client: Client, folder: Path, variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """What runs the client's script, and its environment. `variables` may hold paths."""
    if client.node:
        shutil.copy(client.script, folder / client.script.name)  # Node looks for packages beside the script
        return [str(NODE / "node"), str(folder / client.script.name)], variables
    if not client.python:
        return [str(folder / "bin/python"), "-P", str(client.script)], variables
    seen = {
        name: f"/host{value}" if value.startswith("/") and name != "PATH" else value
        for name, value in variables.items()
    }
    seen |= {"PYTHONPATH": f"/host{folder / 'packages'}", "HOME": "/root", "TMPDIR": "/tmp"}
    return ["sh", "-euc", _IN_DEBIAN, str(debian()), "python3", "-P", f"/host{client.script}"], seen


def debian() -> Path:
    """A Debian with a newer Python, as a folder to change the root to."""
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


def _run(*words: str, cwd: Path | None = None) -> None:
    variables = {**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        words, cwd=cwd, env=variables, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(words)}\n{(done.stdout + done.stderr)[-3000:]}")
