"""Hosts that have joined an engine, for tests: each a data directory and a host service, perhaps in a network of its own."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2b import Sandbox
from e2b.exceptions import ServiceBusyException

from sandyard.kit.listen import free_port
from tests.harness.cables import Cable
from tests.harness.engine import Engine
from tests.harness.processes import ROOT, Program
from tests.harness.releases import Release

SECONDS = 240


def wait_until(condition: Callable[[], Any], explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)


@dataclass
class Host:
    """A machine that has joined: a data directory and its host service."""

    name: str
    folder: Path
    driver: str
    cable: Cable | None = None  # to a network of its own
    process: Program | None = None
    release: Release | None = None

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def join(self, engine: Engine) -> None:
        with engine.client() as client:
            token = client.post("/hosts/tokens", json={"lifetime": 600.0}).json()["token"]
        self._run("join", token, "--name", self.name, "--port", str(free_port()), "--address", self.address).wait(60)
        assert (self.folder / "identity/host.json").exists(), self.log.read_text()

    @property
    def address(self) -> str:
        return "127.0.0.1" if self.cable is None else str(self.cable.far)

    def serve(self) -> None:
        self.process = self._run("serve", "--listen", self.address, "--driver", self.driver)

    def _run(self, command: str, *arguments: str) -> Program:
        data = ["--data-dir", str(self.folder)]
        return Program(
            ["host", command, *arguments, *data],
            {**os.environ},
            ROOT,
            out=self.log,
            err=self.log,
            network=None if self.cable is None else self.cable.namespace,
            release=self.release,
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def upgrade(self, release: Release) -> None:
        """Restart the service as another release."""
        self.stop()
        self.release = release
        self.serve()

    def list_sandboxes(self) -> list[str]:
        """Return the sandboxes that are on the disk."""
        return self._list_files("fake/sandboxes", "store/sandboxes")

    def list_leftovers(self) -> list[str]:
        """Return what is on the disk of sandboxes and snapshots, and of copies of snapshots."""
        return self.list_sandboxes() + self._list_files("fake/snapshots", "store/snapshots", "layers/hosts/snap")

    def _list_files(self, *folders: str) -> list[str]:
        return [str(path) for folder in folders for path in (self.folder / folder).glob("*")]

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


@dataclass
class Cluster:
    engine: Engine
    hosts: dict[str, Host]
    created: list[Sandbox] = field(default_factory=list)

    def create(self, **options: Any) -> Sandbox:
        urls: dict[str, Any] = {"api_url": self.engine.url, "sandbox_url": self.engine.url, "api_key": self.engine.key}
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                self.created.append(Sandbox.create(timeout=600, **urls, **options))
                return self.created[-1]
            except ServiceBusyException:  # the template is being copied to the hosts
                assert time.monotonic() < deadline, self.explain()

    def create_elsewhere(self, other: Sandbox) -> Sandbox:
        """Create a sandbox on another host. Until that host has got the template, all sandboxes run where the first does."""
        deadline = time.monotonic() + SECONDS
        while self.find_host(sandbox := self.create()) is self.find_host(other):
            assert time.monotonic() < deadline, self.explain()
            self.created.pop().kill()
            time.sleep(1)
        return sandbox

    def list(self) -> dict[str, Any]:
        with self.engine.client() as client:
            return {host["name"]: host for host in client.get("/hosts").json()["hosts"]}

    def wait_for(self, state: str, *names: str) -> None:
        wait_until(lambda: all(self.list()[name]["state"] == state for name in names), self.explain)

    def explain(self) -> str:
        logs = [host.log.read_text()[-2000:] for host in self.hosts.values()]
        return "\n\n".join([json.dumps(self.list(), indent=1), self.engine.tail(), *logs])

    def find_host(self, sandbox: Sandbox) -> Host:
        with contextlib.closing(sqlite3.connect(f"file:{self.engine.data}/engine.db?mode=ro", uri=True)) as database:
            query = "SELECT handle FROM sandboxes WHERE id = ?"
            (handle,) = database.execute(query, (sandbox.sandbox_id,)).fetchone()
        host_id = json.loads(handle)["data"]["host"]
        return next(self.hosts[name] for name, host in self.list().items() if host["hostID"] == host_id)

    def drain(self, host: Host, *, draining: bool = True, evacuating: bool = True) -> None:
        """Give the host no new sandboxes, and with `evacuating` move those that it has."""
        change = {"draining": draining, "evacuating": draining and evacuating}
        with self.engine.client() as client:
            client.patch(f"/hosts/{host.name}", json=change).raise_for_status()


@contextlib.contextmanager
def start_cluster(names: Sequence[str], settings: dict[str, str], driver: str) -> Iterator[Cluster]:
    """Start an engine and hosts with networks of their own, and check that they leave nothing behind. This needs root."""
    cables = [Cable(number) for number in range(len(names))]
    engine = Engine({**settings, "JOIN_PORT": "0", "JOIN_ADDRESS": str(cables[0].near), "DRIVER": driver})
    engine.start()
    hosts = {name: Host(name, engine.folder / name, driver, cable) for name, cable in zip(names, cables, strict=True)}
    cluster = Cluster(engine, hosts)
    try:
        for host in hosts.values():
            host.join(engine)
            host.serve()
        cluster.wait_for("ready", *names)
        yield cluster
    finally:
        engine.clear()
        for host in hosts.values():
            host.stop()
        left = engine.stop()
        for cable in cables:
            cable.close()
    assert not left
