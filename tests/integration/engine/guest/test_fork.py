"""Guest agents forked from a prepared process, as the zygote forks them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.engine.guest.client import SOURCE, GuestAgent

ZYGOTE = """
import os, resource, signal, socket, sys
from sandyard.engine.guest import GuestConfig, prepare, serve

def surroundings():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    files = {name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)}
    return os.getcwd(), files, mask, resource.getrlimit(resource.RLIMIT_NOFILE)

before = surroundings()
prepare()
assert surroundings() == before, (before, surroundings())
secret = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
os.set_inheritable(secret, True)
listeners = []
for number in range(3):
    listeners.append(socket.socket(socket.AF_UNIX))
    listeners[-1].bind(f"agent-{number}.sock")
    listeners[-1].listen()
for number, listener in enumerate(listeners):
    pid = os.fork()
    if not pid:
        serve(listener, GuestConfig(root="root", warm_up=number == 2))
    print(pid, flush=True)
sys.stdin.read()
"""


class ForkedAgent(GuestAgent):
    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self.pid = pid

    def private_kilobytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ForkedAgent]]:
    directory = tmp_path_factory.mktemp("zygote")
    (directory / "root/home/user").mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "AGENT_SECRET": "do not leak"}
    zygote = subprocess.Popen(
        [sys.executable, "-c", ZYGOTE],
        cwd=directory,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    pids = [int(zygote.stdout.readline()) for _ in range(3)]
    agents = [ForkedAgent(str(directory / f"agent-{number}.sock"), pid) for number, pid in enumerate(pids)]
    yield agents
    for agent in agents:
        os.kill(agent.pid, 15)
    zygote.communicate()
    assert zygote.returncode == 0


def test_a_forked_agent_inherits_nothing_private_from_its_parent(forked: list[ForkedAgent]) -> None:
    client = forked[0].client()
    run = client.shell("env; ls /proc/self/fd | wc -l")
    assert run.end is not None
    assert run.end["exitCode"] == 0
    assert "AGENT_SECRET" not in run.stdout
    assert run.stdout.endswith("\n4\n")  # the three standard streams, and the one that ls opens
    links = [str(link.readlink()) for link in Path(f"/proc/{forked[0].pid}/fd").iterdir()]
    assert "/" not in links, "no descriptor of the parent may be open in the agent"
    assert Path(f"/proc/{forked[0].pid}/cwd").readlink() == Path("/")


def test_an_idle_agent_has_little_private_memory(forked: list[ForkedAgent]) -> None:
    forked[1].client().close()
    time.sleep(0.2)
    assert forked[1].private_kilobytes() < 4096


def test_a_warmed_up_agent_has_already_run_code(forked: list[ForkedAgent]) -> None:
    deadline = time.monotonic() + 20
    while not count_faults_of_ended_children(forked[2].pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not count_faults_of_ended_children(forked[1].pid), "an agent without a warm-up has run nothing"
    assert forked[2].client().shell("echo warm").stdout == "warm\n"
    assert forked[2].private_kilobytes() < 6000


def count_faults_of_ended_children(pid: int) -> int:
    """Return the page faults of the children that this process has waited for: more than 0 once it has run a program."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[8])
