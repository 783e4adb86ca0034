"""What a hostile agent would try, from inside, as root of its sandbox: all of it fails, and nobody else notices."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2b import CommandExitException, NotEnoughSpaceException, NotFoundException, Sandbox, SandboxException
from e2b.exceptions import TimeoutException

from tests.acceptance.conftest import DISK_MB, DOMAIN, IO_MBPS, PIDS
from tests.acceptance.platform import until
from tests.protocol.engine import Engine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the namespace driver's full isolation needs root")

NewSandbox = Callable[..., Sandbox]
ATTACKS = (Path(__file__).parent / "attacks.py").read_text()


def attack(sandbox: Sandbox, *names: str, user: str = "root") -> dict[str, str]:
    """Run attempts inside; those that got through, with what they got."""
    sandbox.files.write("/tmp/attacks.py", ATTACKS, user="root")
    said = sandbox.commands.run(f"python3 /tmp/attacks.py {' '.join(names)}", user=user, timeout=120).stdout
    outcome = json.loads(said)
    assert outcome, "no attempt was made"
    return {name: got for name, (what, got) in outcome.items() if what != "failed"}


COUNTS_SOCKETS = pytest.mark.skipif(
    not Path("/sys/fs/cgroup/memory/memory.kmem.tcp.limit_in_bytes").exists(),
    reason="with cgroup v2 a sandbox of this size ends at its memory before it holds too much of the machine's TCP memory",
)
COUNTED = ("inotify_instance", "message_queue", "queued_signal", "terminal")


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file of the host, readable by everybody there, that nobody inside may see or change."""
    path = tmp_path / "canary"
    path.write_text(secrets.token_hex(16))
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    return path


@contextlib.contextmanager
def service(address: str | bytes, family: int = socket.AF_INET) -> Iterator[int]:
    """A listener of the host's that greets whoever gets there; gives its port."""
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, 0) if family == socket.AF_INET else address)
        server.listen()

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.sendall(b"secret")
                    connection.close()

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        yield server.getsockname()[1] if family == socket.AF_INET else 0
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("user", ["root", "user"])
def test_the_kernel_and_the_agent_give_nothing_away(sandbox: Sandbox, user: str) -> None:
    assert attack(sandbox, user=user) == {}


def test_host_files_are_not_there(sandbox: Sandbox, canary: Path) -> None:
    ways = [f"{way}:{canary}" for way in ("canary_by_path", "canary_by_processes", "chroot_escape")]
    assert attack(sandbox, *ways) == {}


def test_symlinks_and_dots_stay_inside(sandbox: Sandbox, canary: Path) -> None:
    before = canary.read_text()
    sandbox.commands.run(f"ln -s {canary} link; ln -s {canary.parent} folder; ln -s /proc/1/root/{canary} init")
    for path in ("link", f"folder/{canary.name}", "init", f"../../../../../../..{canary}", f"/proc/1/root{canary}"):
        with pytest.raises(SandboxException):
            sandbox.files.read(path)
    for path in ("link", f"folder/{canary.name}", f"../../../../../../..{canary}"):
        with contextlib.suppress(SandboxException):
            sandbox.files.write(path, "owned", user="root")
    with contextlib.suppress(SandboxException):
        sandbox.files.remove("folder")
    assert canary.read_text() == before


def test_a_fifo_or_device_hangs_nobody(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkfifo pipe")
    with pytest.raises(SandboxException) as refusal:
        sandbox.files.read("pipe", request_timeout=10)
    assert not isinstance(refusal.value, TimeoutException)
    with pytest.raises(SandboxException) as refusal:
        sandbox.files.write("pipe", "x", request_timeout=10)
    assert not isinstance(refusal.value, TimeoutException)
    assert sandbox.commands.run("echo well").stdout == "well\n"


def test_host_services_are_out_of_reach(sandbox: Sandbox, engine: Engine) -> None:
    gateway = sandbox.commands.run("awk '$2 == \"00000000\" {print $3}' /proc/net/route").stdout.strip()
    addresses = ["127.0.0.1"]
    if gateway:
        addresses.append(socket.inet_ntoa(bytes.fromhex(gateway)[::-1]))
    addresses += [line.split("/")[0] for line in host_addresses()]
    with service("0.0.0.0") as port:
        for address in addresses:
            assert attack(sandbox, f"connect:{address}:{port}", f"connect:{address}:{engine.port}") == {}, address
    name = f"sandyard-{secrets.token_hex(4)}"
    with service(b"\0" + name.encode(), socket.AF_UNIX):
        assert attack(sandbox, f"abstract_socket:{name}") == {}


def curl(sandbox: Sandbox, url: str, *options: str) -> str:
    """What curl gets in a sandbox: the body and its status, or 000 where there is no answer."""
    command = ["curl", "-s", "-m", "10", "-w", " %{http_code}", *options, url]
    return sandbox.commands.run(f"{shlex.join(command)} || true").stdout.strip()


def test_public_names_open_nothing_else_of_the_host(new_sandbox: NewSandbox, engine: Engine) -> None:
    """The engine is reached by its public names, with the usual tokens, and no other port or address with it."""
    victim, attacker = new_sandbox(), new_sandbox()
    address = attacker.commands.run(f"getent ahostsv4 api.{DOMAIN} | cut -d' ' -f1 | head -1").stdout.strip()
    assert curl(attacker, f"https://api.{DOMAIN}/health") == "204", "it is there, or the test shows nothing"
    with service("0.0.0.0") as port:
        attempts = [f"connect:{address}:{one}" for one in (port, engine.port, 22, 80, 8443)]
        attempts += [f"connect:{place.split('/')[0]}:443" for place in host_addresses()]
        assert attack(attacker, *attempts) == {}
    # by the engine to services of the host: neither a name nor a header leads anywhere but to ports of sandboxes
    for name in (
        f"{engine.port}-127.0.0.1.{DOMAIN}",
        f"localhost.{DOMAIN}",
        f"host.{DOMAIN}",
        f"22-localhost.{DOMAIN}",
    ):
        answer = curl(attacker, f"https://{name}/", "-k")
        assert answer.endswith((" 401", " 404", " 502", "000")), (name, answer)
    # nothing of another sandbox or of the API without its token, however the request is addressed
    api = f"https://api.{DOMAIN}"
    routed = ("-H", f"E2b-Sandbox-Id: {victim.sandbox_id}", "-H", "E2b-Sandbox-Port: 49983")
    for request in (
        (f"{api}/v2/sandboxes",),
        (f"{api}/v2/sandboxes", "-H", "X-API-KEY: e2b_0000000000000000000000000000000000000000"),
        (f"{api}/sandboxes/{victim.sandbox_id}", "-X", "DELETE"),
        (f"{api}/files?path=/etc/passwd", *routed),
        (f"{api}/_sandyard/x", *routed, "-X", "POST"),
        (f"https://49983-{victim.sandbox_id}.{DOMAIN}/files?path=/etc/passwd",),
        (f"https://49983-{victim.sandbox_id}.{DOMAIN}/init", "-X", "POST", "-d", "{}"),
        (f"https://49983-{victim.sandbox_id}.{DOMAIN}/init", "-X", "POST", "-H", "X-Forwarded-For: 127.0.0.1"),
    ):
        assert curl(attacker, *request).endswith((" 401", " 403")), request
    assert victim.commands.run("echo well").stdout == "well\n"


def test_a_closed_network_has_no_public_names_but_those_it_allows(new_sandbox: NewSandbox) -> None:
    victim = new_sandbox()
    victim.commands.run("echo seen > page; python3 -m http.server 8080", background=True)
    victim.commands.run("for i in $(seq 100); do curl -s 127.0.0.1:8080 >/dev/null && break; sleep 0.1; done")
    host, api = f"8080-{victim.sandbox_id}.{DOMAIN}", f"api.{DOMAIN}"
    closed = new_sandbox(allow_internet_access=False)
    gateway = socket.inet_ntoa(
        bytes.fromhex(closed.commands.run("awk '$2 == \"00000000\" {print $3}' /proc/net/route").stdout.strip())[::-1]
    )
    for name in (host, api):
        pinned = ("--resolve", f"{name}:443:{gateway}")
        assert curl(closed, f"https://{name}/page") == "000"
        assert curl(closed, f"https://{name}/page", *pinned) == "000", "nor with the address it would have"
    one = new_sandbox(network={"allow_out": [host], "deny_out": ["0.0.0.0/0"]})
    assert curl(one, f"https://{host}/page") == "seen\n 200"
    reached = ("--resolve", f"{api}:443:{gateway}")
    assert curl(one, f"https://{api}/health") == "000", "its name is not resolved"
    assert curl(one, f"https://{api}/health", *reached).endswith(" 403"), (
        "one name does not open another at its address"
    )
    assert curl(one, f"https://{host}/health", "-H", f"Host: {api}").endswith(" 403")
    other = ("-H", "E2b-Sandbox-Id: ianother", "-H", "E2b-Sandbox-Port: 8080")
    assert curl(one, f"https://{host}/page", *other).endswith(" 403"), "nor does a header"
    upgrade = ("-H", f"Host: {api}", "-H", "Connection: Upgrade", "-H", "Upgrade: websocket")
    assert curl(one, f"https://{host}/page", *upgrade).endswith(" 403"), "nor an upgrade"


def host_addresses() -> list[str]:
    said = subprocess.run(
        ["ip", "-4", "-o", "addr", "show", "scope", "global"], capture_output=True, text=True, check=True
    )
    return [line.split()[3] for line in said.stdout.splitlines()]


def test_the_metadata_address_is_out_of_reach(sandbox: Sandbox) -> None:
    """The host itself plays the metadata service for the time of the test, so that nothing leaves this machine."""
    address = "169.254.169.254"
    subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
    try:
        with service(address) as port:
            with socket.create_connection((address, port), timeout=5) as seen:
                assert seen.recv(10) == b"secret", "the stand-in must work, or the test shows nothing"
            assert attack(sandbox, f"connect:{address}:{port}") == {}
    finally:
        subprocess.run(["ip", "addr", "del", f"{address}/32", "dev", "lo"], check=True)


def test_other_sandboxes_are_out_of_reach(new_sandbox: NewSandbox) -> None:
    victim, attacker = new_sandbox(), new_sandbox()
    victim.commands.run("python3 -m http.server 8080 --bind 0.0.0.0", background=True)
    victim.commands.run("for i in $(seq 50); do curl -s 127.0.0.1:8080 >/dev/null && break; sleep 0.1; done")
    victim.files.write("/tmp/secret", "s")
    address = victim.commands.run("hostname -I").stdout.split()
    for place in address:
        assert attack(attacker, f"connect:{place}:8080") == {}
    seen = attacker.commands.run("ps -eo args", user="root").stdout
    assert "http.server" not in seen
    with pytest.raises(NotFoundException):
        attacker.files.read("/tmp/secret")
    attacker.commands.run("echo owned > /usr/bin/owned; echo owned > /etc/profile.d/owned.sh", user="root")
    assert "owned" not in victim.commands.run("ls /usr/bin /etc/profile.d").stdout


def test_a_fork_bomb_hurts_only_itself(new_sandbox: NewSandbox) -> None:
    bomber, neighbour = new_sandbox(), new_sandbox()
    with contextlib.suppress(SandboxException, CommandExitException):
        bomber.commands.run("bomb() { bomb | bomb & }; bomb; sleep 3", timeout=5)
    assert neighbour.commands.run("echo well").stdout == "well\n"
    assert len(list(Path("/proc").glob("[0-9]*"))) < PIDS + 2000
    bomber.kill()
    assert neighbour.commands.run("echo well").stdout == "well\n"


def test_a_memory_bomb_hurts_only_itself(new_sandbox: NewSandbox) -> None:
    bomber, neighbour = new_sandbox(), new_sandbox()
    with pytest.raises(CommandExitException):
        bomber.commands.run("python3 -c \"b = bytearray(2 << 30); print('GOT THROUGH')\"")
    assert bomber.commands.run("echo well").stdout == "well\n", "the sandbox itself survives"
    assert neighbour.commands.run("echo well").stdout == "well\n"


def test_what_the_kernel_counts_for_a_user_is_taken_from_nobody_else(new_sandbox: NewSandbox) -> None:
    """Not even by all users of a sandbox together: inotify instances, message queues, queued signals, terminals."""
    greedy, neighbour = new_sandbox(), new_sandbox()
    greedy.files.write("/tmp/attacks.py", ATTACKS, user="root")
    command = "python3 /tmp/attacks.py hold_everything_counted:/tmp/held"
    greedy.commands.run(command, user="root", background=True)
    said = greedy.commands.run("for i in $(seq 600); do test -e /tmp/held && break; sleep 0.1; done; cat /tmp/held")
    held = json.loads(said.stdout)
    assert all(held[name] for name in COUNTED), held
    assert set(attack(neighbour, *COUNTED)) == set(COUNTED), f"another sandbox, beside {held}"
    host = subprocess.run([sys.executable, "-c", ATTACKS, *COUNTED], capture_output=True, text=True, check=True).stdout
    assert {what for what, _ in json.loads(host).values()} == {"GOT THROUGH"}, f"{host}, beside {held}"
    instances = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    assert held["inotify_instance"] <= instances, "its users have no more of them together than one user of the machine"
    assert held["queued_signal"] <= 16_384
    assert held["terminal"] <= 64


@pytest.mark.parametrize(
    "way",
    [
        "hold_netlink:240",
        "hold_locks:300000:/dev/shm/locks",
        "hold_locks:300000:/tmp/locks",
        "hold_unsent:900",
        "hold_unaccepted:800",
        pytest.param("hold_little:3", marks=COUNTS_SOCKETS),
        "hold_little:1:close",
        "hold_errors:400",
        "hold_echoes:600",
    ],
)
def test_kernel_memory_that_no_cgroup_counts_is_given_back(new_sandbox: NewSandbox, engine: Engine, way: str) -> None:
    """Whoever holds too much of it is ended while it still takes more, or a moment later; the sandbox itself lives on."""
    greedy, neighbour = new_sandbox(), new_sandbox()
    going_on = neighbour.commands.run("sleep 1000", background=True)
    greedy.files.write("/tmp/attacks.py", ATTACKS, user="root")
    with pytest.raises(CommandExitException):
        greedy.commands.run(f"python3 /tmp/attacks.py {way}", user="root", timeout=120)
    told = [line for line in engine.log.read_text().splitlines() if "sandbox_kernel_memory_exceeded" in line]
    assert greedy.sandbox_id in told[-1]

    def is_well() -> bool:
        try:
            return greedy.commands.run("echo well").stdout == "well\n"
        except CommandExitException:  # its processes are ended until none is left: also one that comes meanwhile
            return False

    until(is_well, 30)
    assert going_on.pid in {process.pid for process in neighbour.commands.list()}


def test_an_ordinary_load_of_connections_is_not_ended(new_sandbox: NewSandbox, engine: Engine) -> None:
    busy = new_sandbox()
    outcome = attack(busy, "transfer:50:200:2000")
    assert outcome == {"transfer:50:200:2000": str(200 << 20)}, "50 connections, then 2,000 idle ones"
    assert not [line for line in engine.log.read_text().splitlines() if "exceeded" in line and busy.sandbox_id in line]


def test_shared_memory_counts_as_memory(new_sandbox: NewSandbox) -> None:
    with pytest.raises(CommandExitException):
        new_sandbox().commands.run("head -c 2G /dev/zero > /dev/shm/fill")


def test_writing_is_limited_where_the_kernel_can(sandbox: Sandbox, engine: Engine) -> None:
    folders = [Path(path) for path in json.loads((engine.data / "instance.json").read_text())["cgroups"].values()]
    names = ("io.max", "blkio.throttle.write_bps_device")
    files = [file for folder in folders for name in names for file in folder.glob(f"{sandbox.sandbox_id}/{name}")]
    if not files:
        assert not any(folder.parent.name == "blkio" for folder in folders), "the group is the sandbox's"
        pytest.skip("the kernel has no io controller here")
    assert all((file.parent / "cgroup.procs").read_text() for file in files), "it lives in there"
    assert all(str(IO_MBPS * 1_000_000) in file.read_text() for file in files)
    weights = [file for folder in folders for file in folder.glob("*bfq.weight")]
    assert all("50" in file.read_text() for file in weights)


def test_disk_filling_ends_at_the_limit(new_sandbox: NewSandbox, engine: Engine) -> None:
    filler, neighbour = new_sandbox(), new_sandbox()
    # measured in the store, a file system of its own where possible: other programs write to the machine's disk meanwhile
    store = engine.data / "store"
    before = shutil.disk_usage(store).free
    with pytest.raises(CommandExitException) as full:
        filler.commands.run("head -c 1G /dev/urandom > fill; r=$?; sync; exit $r", timeout=120)
    assert "quota" in full.value.stderr.lower() or "space" in full.value.stderr.lower()
    assert before - shutil.disk_usage(store).free < 2 * DISK_MB << 20
    with pytest.raises(NotEnoughSpaceException):
        filler.files.write("more", b"x" * (8 << 20))
    assert not filler.files.exists("more"), "nothing half-written stays"
    neighbour.files.write("more", b"x" * (8 << 20))
    filler.commands.run("rm fill; sync")
    filler.files.write("more", b"x" * 1024)
