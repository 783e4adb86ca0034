"""A Ray cluster on one machine: each node is in a network of its own, all on one bridge. Needs root, and `make setup-ray`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandyard.engine.hosts.ray_cluster.credentials import create
from sandyard.engine.hosts.ray_cluster.keeper import find_service
from sandyard.engine.hosts.ray_cluster.nodes import HEAD_PORT
from tests.harness.engine import Engine
from tests.harness.processes import ROOT, kill_users

PYTHON = ROOT / ".venv-ray/bin/python"
STOP_SECONDS = 30


class EngineWithRay(Engine):
    """An engine that runs in the environment that has Ray."""

    def _launch(self, arguments: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(make_command(*arguments), env=variables, cwd=ROOT, stdout=log, stderr=log)


class Network:
    """A bridge, to which the networks of nodes are connected. This machine has its first address."""

    def __init__(self) -> None:
        number = os.getpid() % (50 * 250)
        self._prefix = f"10.{200 + number // 250}.{number % 250}"
        self._name = f"syr{number}"
        self.address = self.get_address(1)
        _ip("link", "add", self._name, "type", "bridge")
        _ip("address", "add", f"{self.address}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        self._namespaces: list[str] = []

    def get_address(self, number: int) -> str:
        return f"{self._prefix}.{number}"

    def add(self, number: int) -> Path:
        """Return a new network namespace with the address of this number."""
        name = f"{self._name}-{number}"
        _ip("netns", "add", name)
        self._namespaces.append(name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", self._name, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "address", "add", f"{self.get_address(number)}/24", "dev", "eth0")
        _ip("-n", name, "route", "add", "default", "via", self.address)
        return Path("/run/netns") / name

    def close(self) -> None:
        for name in self._namespaces:
            _ip("netns", "delete", name)
        _ip("link", "delete", self._name)


@dataclass
class Node:
    """A machine of the cluster. A thread restarts Ray whenever it ends, as systemd would."""

    address: str
    folder: Path
    credentials: Path
    namespace: Path | None = None  # None: this machine's network
    arguments: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)
    is_head: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.log = self.folder / "ray.log"
        self.data = self.folder / "host"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stopping = threading.Event()
        self._launch()
        self._thread = threading.Thread(target=self._restart, args=(self._stopping,), daemon=True)
        self._thread.start()

    def _launch(self) -> None:
        options = ("--address", self.address, "--credentials", str(self.credentials), *self.arguments)
        command = make_command("host", "ray", "node", *options, "--", f"--temp-dir={self.folder}/t")
        if self.is_head:  # a head does not start while processes of Ray are running
            command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", *command]
        command = [*self._enter, *command]
        variables = {**os.environ, "SANDYARD_DATA_DIR": str(self.data), **self.variables}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=variables, cwd="/", stdout=log, stderr=log, start_new_session=True
            )

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", f"--net={self.namespace}"] if self.namespace is not None else []

    def _restart(self, stopping: threading.Event) -> None:
        while not stopping.wait(0.5):
            assert self._process is not None
            if self._process.poll() is not None and not stopping.wait(2):
                self._launch()

    def kill(self) -> None:
        """Kill all processes of Ray on this node at once, and do not start them again. Its host service is not one of them."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        if self._process is None:
            return
        for pid in _list_descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)
        self._process = None

    def list_processes(self, title: str) -> list[int]:
        """Return the processes of Ray on this node whose title starts with this."""
        assert self._process is not None
        found = _list_descendants(self._process.pid)
        return [pid for pid in found if Path(f"/proc/{pid}/cmdline").read_text().startswith(title)]

    def find_service(self) -> int | None:
        """Return the process id of the host service on this node."""
        return find_service(self.data)

    def kill_service(self) -> int:
        """Kill the host service, and return the id that its process had."""
        pid = self.find_service()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> None:
        """Kill everything that runs on this node."""
        self.kill()
        if (pid := self.find_service()) is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            while self.find_service() is not None and time.monotonic() < deadline:
                time.sleep(0.1)
        kill_users(self.data)  # also a service that a keeper was just starting
        if (self.data / "identity/host.json").exists():  # remove what a failed test has left
            command = make_command("host", "leave", "--force", "--data-dir", str(self.data))
            subprocess.run([*self._enter, *command], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def tail(self) -> str:
        logs = [log for log in (self.log, self.data / "service.log") if log.exists()]
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


class RayCluster:
    """A head, the engine's own machine, and nodes for sandboxes."""

    def __init__(self, folder: Path, nodes: int, variables: dict[str, str]) -> None:
        self.folder = folder
        self.network = Network()
        self.address = f"{self.network.get_address(2)}:{HEAD_PORT}"
        numbers = range(1, 3 + nodes)
        addresses = [self.network.get_address(number) for number in numbers]
        self.credentials = create(folder / "c", addresses)
        member = ("--head", self.address)
        self.engine = Node(addresses[0], folder / "1", self.credentials[0], arguments=(*member, "--no-sandboxes"))
        self.head = Node(
            addresses[1],
            folder / "2",
            self.credentials[1],
            namespace=self.network.add(2),
            arguments=("--no-sandboxes",),
            is_head=True,
        )
        self.nodes = [
            Node(
                addresses[number - 1],
                folder / str(number),
                self.credentials[number - 1],
                namespace=self.network.add(number),
                arguments=member,
                variables=variables,
            )
            for number in numbers[2:]
        ]

    @property
    def all(self) -> Sequence[Node]:
        return (self.head, self.engine, *self.nodes)

    def stop(self) -> None:
        for node in self.all:
            node.stop()
        self.network.close()

    def tail(self) -> str:
        return "\n\n".join(node.tail() for node in self.all)


def make_command(*arguments: str) -> list[str]:
    return [str(PYTHON), "-P", "-m", "sandyard", *arguments]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _list_descendants(pid: int) -> list[int]:
    """Return a process and its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for process in found:
        found += parents.get(process, [])
    return found
