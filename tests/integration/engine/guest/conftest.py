"""Guest agents for the tests: one on the host below a directory, and one that is pid 1 of its own namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.engine.guest.client import Client, GuestAgent


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the agent of this module uses as /."""
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def agent(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestAgent]:
    agent = GuestAgent.on_host(tmp_path_factory.mktemp("run") / "agent.sock", root)
    yield agent
    agent.stop()


@pytest.fixture
def dial(agent: GuestAgent) -> Iterator[Callable[[], Client]]:
    """Open new connections to the agent, which are closed at the end of the test."""
    clients: list[Client] = []

    def connect() -> Client:
        clients.append(agent.client())
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(dial: Callable[[], Client]) -> Client:
    return dial()


@pytest.fixture
def home(agent: GuestAgent, root: Path) -> Path:
    """The user's home directory, empty."""
    home = root / "home" / "user"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    return home


@pytest.fixture(scope="module")
def init_agent() -> Iterator[GuestAgent]:
    """An agent as in a sandbox: root, pid 1 of a pid namespace, with accounts of its own. Its files are those of the host."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare(1)")
    # Not pytest's directory, which is private: the user must be able to enter the home directory in here.
    with tempfile.TemporaryDirectory(prefix="guest-init-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        home = directory / "home"
        home.mkdir()
        os.chown(home, 1000, 1000)
        accounts = f"root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::{home}:/bin/bash\nother:x:1001:1001::/:/bin/sh\n"
        (directory / "passwd").write_text(accounts)
        (directory / "group").write_text("root:x:0:\nuser:x:1000:\nstaff:x:2000:user,other\n")
        command = [sys.executable, "-m", "sandyard.engine.guest", "--socket", str(directory / "agent.sock")]
        bind = f"mount --bind {directory}/passwd /etc/passwd && mount --bind {directory}/group /etc/group"
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
        if subprocess.run([*unshare, bind], capture_output=True, check=False).returncode:
            pytest.skip("namespaces are not available here")
        agent = GuestAgent(str(directory / "agent.sock"), [*unshare, f"{bind} && exec {' '.join(command)}"])
        yield agent
        agent.process.kill()
        agent.process.wait()
