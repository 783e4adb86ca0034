"""Agents to talk to: one on the host below a directory, and one that is pid 1 of its own namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.engine.guest.client import Agent, Client


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for / to the agent of this module."""
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def agent(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    agent = Agent.on_host(tmp_path_factory.mktemp("run") / "agent.sock", root)
    yield agent
    agent.stop()


@pytest.fixture
def dial(agent: Agent) -> Iterator[Callable[[], Client]]:
    """New connections to the agent, closed at the end of the test."""
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
def home(agent: Agent, root: Path) -> Path:
    """The user's home directory, empty."""
    home = root / "home" / "user"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    return home


@pytest.fixture(scope="module")
def init_agent() -> Iterator[Agent]:
    """An agent as a sandbox has it: root, pid 1 of a pid namespace, with accounts of its own. Files are the host's."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare(1)")
    # Not pytest's directory: that one is private, and the user has to get to the home in here.
    with tempfile.TemporaryDirectory(prefix="guest-init-") as name:
        place = Path(name)
        place.chmod(0o711)
        home = place / "home"
        home.mkdir()
        os.chown(home, 1000, 1000)
        accounts = f"root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::{home}:/bin/bash\nother:x:1001:1001::/:/bin/sh\n"
        (place / "passwd").write_text(accounts)
        (place / "group").write_text("root:x:0:\nuser:x:1000:\nstaff:x:2000:user,other\n")
        command = [sys.executable, "-m", "sandyard.engine.guest", "--socket", str(place / "agent.sock")]
        bind = f"mount --bind {place}/passwd /etc/passwd && mount --bind {place}/group /etc/group"
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
        if subprocess.run([*unshare, bind], capture_output=True, check=False).returncode:
            pytest.skip("no namespaces here")
        agent = Agent(str(place / "agent.sock"), [*unshare, f"{bind} && exec {' '.join(command)}"])
        yield agent
        agent.process.kill()
        agent.process.wait()
