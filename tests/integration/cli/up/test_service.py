"""The unit of `sandyard install-service`: systemd accepts it, and sandboxes work with its restrictions."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from sandyard.cli.service import REFUSED_CAPABILITIES
from tests.harness.up import Installation, run_json

pytestmark = pytest.mark.timeout(300)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("command", [["install-service"], ["host", "install-service"]])
def test_systemd_accepts_the_unit(tmp_path: Path, command: list[str]) -> None:
    unit = tmp_path / "sandyard.service"
    unit.write_text(CliRunner().invoke(cli, [*command, "--print", "--data-dir", str(tmp_path / "my %data")]).stdout)
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, ""), "no warning either"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A service manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        yield listener


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_sandboxes_work_with_the_restrictions_of_the_unit(manager: socket.socket) -> None:
    dropped = ",".join(f"-{name.removeprefix('CAP_').lower()}" for name in REFUSED_CAPABILITIES)
    wrapper = ("setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}", "--")
    running = Installation(settings={"NOTIFY_SOCKET": manager.getsockname()}, wrapper=wrapper)
    try:
        assert manager.recv(100) == b"READY=1"
        sandbox = run_json(running, "sandbox", "create")["id"]
        written = running.ok(
            "sandbox",
            "exec",
            sandbox,
            "echo kept > file && sudo id -u && sudo chmod u+s file",
        )
        assert written == "0\n"
        running.ok("sandbox", "pause", sandbox)
        running.ok("sandbox", "resume", sandbox)
        copy = run_json(running, "sandbox", "fork", sandbox)
        name = copy.get("items", [copy])[0]["id"]
        assert running.ok("sandbox", "exec", name, "cat file") == "kept\n"
    finally:
        running.stop()
