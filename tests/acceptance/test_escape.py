"""Test attacks by a hostile agent from inside, as root of its sandbox: all of them fail and do not affect others."""

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
from collections.abc import Callable
from pathlib import Path

import pytest
from e2b import CommandExitException, NotEnoughSpaceException, NotFoundException, Sandbox, SandboxException
from e2b.exceptions import TimeoutException

from tests.acceptance.conftest import DISK_MB, DOMAIN, IO_MBPS, PIDS
from tests.acceptance.isolation.attempts import ATTACKS, METADATA_SERVICE, host_service, metadata_service, run_attacks
from tests.acceptance.isolation.levels import AS_ROOT_OF_A_CONTAINER, WITH_ITS_OWN_PROC
from tests.harness.engine import Engine
from tests.harness.platform import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="full isolation of the namespace driver needs root")

NewSandbox = Callable[..., Sandbox]
NEEDS_SOCKET_ACCOUNTING = pytest.mark.skipif(
    not Path("/sys/fs/cgroup/memory/memory.kmem.tcp.limit_in_bytes").exists(),
    reason="with cgroup v2 a sandbox of this size reaches its memory limit before it holds too much TCP memory of the machine",
)
ON_ITS_OWN_MOUNTS = (
    *("core_pattern", "modprobe_path", "overcommit", "sysrq", "uevent_helper", "release_agents", "cgroup_limits"),
    *(
        "kernel_core",
        "kernel_symbols",
        "load_module",
        "memory_device",
        "disk_device",
        "kernel_log",
        "kernel_log_device",
    ),
)
ALLOWED_WITH_CONTAINERS = {"new_user_namespace", "namespaces_by_the_kernels_own_count", "devices_present"}
ALLOWED_IN_A_CONTAINER = {
    *ALLOWED_WITH_CONTAINERS,
    *(
        "new_mount_namespace",
        "new_network_namespace",
        "mount_tmpfs",
        "mount_bind",
        "mount_overlay",
        "mount_cgroup",
        "mount_cgroup2",
    ),
    *("set_hostname", "raw_socket", "network_admin"),
}
COUNTED = ("inotify_instance", "message_queue", "queued_signal", "terminal")


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A world-readable file of the host that sandboxes must not see or change."""
    path = tmp_path / "canary"
    path.write_text(secrets.token_hex(16))
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    return path


@pytest.mark.parametrize("user", ["root", "user"])
def test_no_attack_on_the_kernel_or_the_guest_agent_succeeds(sandbox: Sandbox, user: str) -> None:
    assert run_attacks(sandbox, user=user) == {}


@pytest.mark.parametrize("user", ["root", "user"])
def test_containers_in_a_sandbox_give_no_power_over_it_or_the_machine(
    new_sandbox: NewSandbox, user: str, canary: Path
) -> None:
    """What `sandyard.containers` allows affects only the namespaces that a program has created itself."""
    sandbox = new_sandbox(metadata={"sandyard.containers": "true"})
    assert run_attacks(sandbox, user=user).keys() <= ALLOWED_WITH_CONTAINERS
    assert run_attacks(sandbox, user=user, prefix=AS_ROOT_OF_A_CONTAINER).keys() <= ALLOWED_IN_A_CONTAINER
    assert run_attacks(sandbox, *ON_ITS_OWN_MOUNTS, user=user, prefix=WITH_ITS_OWN_PROC) == {}
    attacks = [f"{attack}:{canary}" for attack in ("canary_by_path", "canary_by_processes", "chroot_escape")]
    assert run_attacks(sandbox, *attacks, user=user, prefix=AS_ROOT_OF_A_CONTAINER) == {}
    assert run_attacks(sandbox, *attacks, user=user, prefix=WITH_ITS_OWN_PROC) == {}
    assert sandbox.commands.run("echo well").stdout == "well\n"


def test_host_files_are_not_visible(sandbox: Sandbox, canary: Path) -> None:
    attacks = [f"{attack}:{canary}" for attack in ("canary_by_path", "canary_by_processes", "chroot_escape")]
    assert run_attacks(sandbox, *attacks) == {}


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


def test_reading_or_writing_a_pipe_does_not_hang(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkfifo pipe")
    with pytest.raises(SandboxException) as error:
        sandbox.files.read("pipe", request_timeout=10)
    assert not isinstance(error.value, TimeoutException)
    with pytest.raises(SandboxException) as error:
        sandbox.files.write("pipe", "x", request_timeout=10)
    assert not isinstance(error.value, TimeoutException)
    assert sandbox.commands.run("echo well").stdout == "well\n"


def test_host_services_are_unreachable(sandbox: Sandbox, engine: Engine) -> None:
    gateway = sandbox.commands.run("awk '$2 == \"00000000\" {print $3}' /proc/net/route").stdout.strip()
    addresses = ["127.0.0.1"]
    if gateway:
        addresses.append(socket.inet_ntoa(bytes.fromhex(gateway)[::-1]))
    addresses += [line.split("/")[0] for line in host_addresses()]
    with host_service("0.0.0.0") as port:
        for address in addresses:
            assert run_attacks(sandbox, f"connect:{address}:{port}", f"connect:{address}:{engine.port}") == {}, address
    name = f"sandyard-{secrets.token_hex(4)}"
    with host_service(b"\0" + name.encode(), socket.AF_UNIX):
        assert run_attacks(sandbox, f"abstract_socket:{name}") == {}


def curl_in_sandbox(sandbox: Sandbox, url: str, *options: str) -> str:
    """Run curl in a sandbox and return the body and the status, or 000 if there is no response."""
    command = ["curl", "-s", "-m", "10", "-w", " %{http_code}", *options, url]
    return sandbox.commands.run(f"{shlex.join(command)} || true").stdout.strip()


def test_public_names_give_no_access_to_other_services_of_the_host(new_sandbox: NewSandbox, engine: Engine) -> None:
    """Sandboxes reach the engine by its public names, with the usual tokens, but no other port or address of the host."""
    victim, attacker = new_sandbox(), new_sandbox()
    address = attacker.commands.run(f"getent ahostsv4 api.{DOMAIN} | cut -d' ' -f1 | head -1").stdout.strip()
    assert curl_in_sandbox(attacker, f"https://api.{DOMAIN}/health") == "204", (
        "the engine must be reachable, or the test proves nothing"
    )
    with host_service("0.0.0.0") as port:
        attempts = [f"connect:{address}:{other_port}" for other_port in (port, engine.port, 22, 80, 8443)]
        attempts += [f"connect:{address_with_prefix.split('/')[0]}:443" for address_with_prefix in host_addresses()]
        assert run_attacks(attacker, *attempts) == {}
    # through the engine to services of the host: names and headers lead only to ports of sandboxes
    for name in (
        f"{engine.port}-127.0.0.1.{DOMAIN}",
        f"localhost.{DOMAIN}",
        f"host.{DOMAIN}",
        f"22-localhost.{DOMAIN}",
    ):
        answer = curl_in_sandbox(attacker, f"https://{name}/", "-k")
        assert answer.endswith((" 401", " 404", " 502", "000")), (name, answer)
    # no access to another sandbox or the API without its token, however the request is addressed
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
        assert curl_in_sandbox(attacker, *request).endswith((" 401", " 403")), request
    assert victim.commands.run("echo well").stdout == "well\n"


def test_a_closed_network_reaches_only_allowed_public_names(new_sandbox: NewSandbox) -> None:
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
        assert curl_in_sandbox(closed, f"https://{name}/page") == "000"
        assert curl_in_sandbox(closed, f"https://{name}/page", *pinned) == "000", (
            "the name must be blocked even with its address"
        )
    limited = new_sandbox(network={"allow_out": [host], "deny_out": ["0.0.0.0/0"]})
    assert curl_in_sandbox(limited, f"https://{host}/page") == "seen\n 200"
    pinned_api = ("--resolve", f"{api}:443:{gateway}")
    assert curl_in_sandbox(limited, f"https://{api}/health") == "000", "the name must not resolve"
    assert curl_in_sandbox(limited, f"https://{api}/health", *pinned_api).endswith(" 403"), (
        "an allowed name must not open another name at the same address"
    )
    assert curl_in_sandbox(limited, f"https://{host}/health", "-H", f"Host: {api}").endswith(" 403")
    other = ("-H", "E2b-Sandbox-Id: ianother", "-H", "E2b-Sandbox-Port: 8080")
    assert curl_in_sandbox(limited, f"https://{host}/page", *other).endswith(" 403"), (
        "a header must not open another sandbox"
    )
    upgrade = ("-H", f"Host: {api}", "-H", "Connection: Upgrade", "-H", "Upgrade: websocket")
    assert curl_in_sandbox(limited, f"https://{host}/page", *upgrade).endswith(" 403"), (
        "an upgrade must not open another name"
    )


def host_addresses() -> list[str]:
    output = subprocess.run(
        ["ip", "-4", "-o", "addr", "show", "scope", "global"], capture_output=True, text=True, check=True
    )
    return [line.split()[3] for line in output.stdout.splitlines()]


def test_the_cloud_metadata_address_is_unreachable(sandbox: Sandbox) -> None:
    with metadata_service() as port:
        assert run_attacks(sandbox, f"connect:{METADATA_SERVICE}:{port}") == {}


def test_other_sandboxes_are_unreachable(new_sandbox: NewSandbox) -> None:
    victim, attacker = new_sandbox(), new_sandbox()
    victim.commands.run("python3 -m http.server 8080 --bind 0.0.0.0", background=True)
    victim.commands.run("for i in $(seq 50); do curl -s 127.0.0.1:8080 >/dev/null && break; sleep 0.1; done")
    victim.files.write("/tmp/secret", "s")
    for address in victim.commands.run("hostname -I").stdout.split():
        assert run_attacks(attacker, f"connect:{address}:8080") == {}
    seen = attacker.commands.run("ps -eo args", user="root").stdout
    assert "http.server" not in seen
    with pytest.raises(NotFoundException):
        attacker.files.read("/tmp/secret")
    attacker.commands.run("echo owned > /usr/bin/owned; echo owned > /etc/profile.d/owned.sh", user="root")
    assert "owned" not in victim.commands.run("ls /usr/bin /etc/profile.d").stdout


def test_a_fork_bomb_does_not_affect_other_sandboxes(new_sandbox: NewSandbox) -> None:
    bomber, neighbour = new_sandbox(), new_sandbox()
    with contextlib.suppress(SandboxException, CommandExitException):
        bomber.commands.run("bomb() { bomb | bomb & }; bomb; sleep 3", timeout=5)
    assert neighbour.commands.run("echo well").stdout == "well\n"
    assert len(list(Path("/proc").glob("[0-9]*"))) < PIDS + 2000
    bomber.kill()
    assert neighbour.commands.run("echo well").stdout == "well\n"


def test_a_memory_bomb_does_not_affect_other_sandboxes(new_sandbox: NewSandbox) -> None:
    bomber, neighbour = new_sandbox(), new_sandbox()
    with pytest.raises(CommandExitException):
        bomber.commands.run("python3 -c \"b = bytearray(2 << 30); print('GOT THROUGH')\"")
    assert bomber.commands.run("echo well").stdout == "well\n", "the sandbox itself must survive"
    assert neighbour.commands.run("echo well").stdout == "well\n"


def test_per_user_kernel_limits_are_not_shared_between_sandboxes(new_sandbox: NewSandbox) -> None:
    """All users of a sandbox together cannot exhaust inotify instances, message queues, queued signals or terminals for others."""
    greedy, neighbour = new_sandbox(), new_sandbox()
    greedy.files.write("/tmp/attacks.py", ATTACKS, user="root")
    command = "python3 /tmp/attacks.py hold_everything_counted:/tmp/held"
    greedy.commands.run(command, user="root", background=True)
    output = greedy.commands.run("for i in $(seq 600); do test -e /tmp/held && break; sleep 0.1; done; cat /tmp/held")
    held = json.loads(output.stdout)
    assert all(held[name] for name in COUNTED), held
    assert set(run_attacks(neighbour, *COUNTED)) == set(COUNTED), (
        f"another sandbox must get some of each while {held} are held"
    )
    host = subprocess.run([sys.executable, "-c", ATTACKS, *COUNTED], capture_output=True, text=True, check=True).stdout
    assert {outcome_kind for outcome_kind, _ in json.loads(host).values()} == {"GOT THROUGH"}, (
        f"the host must get some of each while {held} are held: {host}"
    )
    instances = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    assert held["inotify_instance"] <= instances, (
        "all users of a sandbox together must not get more than one user of the machine"
    )
    assert held["queued_signal"] <= 16_384
    assert held["terminal"] <= 64


@pytest.mark.parametrize(
    "attack",
    [
        "hold_netlink:240",
        "hold_locks:300000:/dev/shm/locks",
        "hold_locks:300000:/tmp/locks",
        "hold_unsent:900",
        "hold_unaccepted:800",
        pytest.param("hold_little:3", marks=NEEDS_SOCKET_ACCOUNTING),
        "hold_little:1:close",
        "hold_errors:400",
        "hold_echoes:600",
    ],
)
def test_processes_that_hold_too_much_uncounted_kernel_memory_are_killed(
    new_sandbox: NewSandbox, engine: Engine, attack: str
) -> None:
    """Processes that hold too much are killed while they allocate or shortly after; the sandbox itself survives. A process of
    another sandbox with a name that is not UTF-8 does not prevent it."""
    greedy, neighbour = new_sandbox(), new_sandbox()
    running_command = neighbour.commands.run(r"cp /bin/sleep /tmp/$'\377' && /tmp/$'\377' 1000", background=True)
    greedy.files.write("/tmp/attacks.py", ATTACKS, user="root")
    with pytest.raises(CommandExitException):
        greedy.commands.run(f"python3 /tmp/attacks.py {attack}", user="root", timeout=120)
    log_lines = [line for line in engine.log.read_text().splitlines() if "sandbox_kernel_memory_exceeded" in line]
    assert greedy.sandbox_id in log_lines[-1]

    def is_working() -> bool:
        try:
            return greedy.commands.run("echo well").stdout == "well\n"
        except CommandExitException:  # the engine kills processes until none is left, including new ones
            return False

    until(is_working, 30)
    assert running_command.pid in {process.pid for process in neighbour.commands.list()}


def test_processes_with_an_ordinary_number_of_connections_are_not_killed(
    new_sandbox: NewSandbox, engine: Engine
) -> None:
    busy = new_sandbox()
    outcome = run_attacks(busy, "transfer:50:200:2000")
    assert outcome == {"transfer:50:200:2000": str(200 << 20)}, (
        "50 connections and then 2,000 idle ones must be allowed"
    )
    assert not [line for line in engine.log.read_text().splitlines() if "exceeded" in line and busy.sandbox_id in line]


def test_shared_memory_counts_as_memory(new_sandbox: NewSandbox) -> None:
    with pytest.raises(CommandExitException):
        new_sandbox().commands.run("head -c 2G /dev/zero > /dev/shm/fill")


def test_the_write_rate_is_limited_if_the_kernel_supports_it(sandbox: Sandbox, engine: Engine) -> None:
    folders = [Path(path) for path in json.loads((engine.data / "instance.json").read_text())["cgroups"].values()]
    names = ("io.max", "blkio.throttle.write_bps_device")
    files = [file for folder in folders for name in names for file in folder.glob(f"{sandbox.sandbox_id}/{name}")]
    if not files:
        assert not any(folder.parent.name == "blkio" for folder in folders), (
            "with a blkio controller, the sandbox must have its own group"
        )
        pytest.skip("the kernel has no io controller here")
    assert all((file.parent / "cgroup.procs").read_text() for file in files), (
        "the group must contain processes of the sandbox"
    )
    assert all(str(IO_MBPS * 1_000_000) in file.read_text() for file in files)
    weights = [file for folder in folders for file in folder.glob("*bfq.weight")]
    assert all("50" in file.read_text() for file in weights)


def test_writing_stops_at_the_disk_limit(new_sandbox: NewSandbox, engine: Engine) -> None:
    full_sandbox, neighbour = new_sandbox(), new_sandbox()
    # measured in the store, a separate file system where possible, because other programs write to the disk of the machine
    store = engine.data / "store"
    before = shutil.disk_usage(store).free
    with pytest.raises(CommandExitException) as full:
        full_sandbox.commands.run("head -c 1G /dev/urandom > fill; r=$?; sync; exit $r", timeout=120)
    assert "quota" in full.value.stderr.lower() or "space" in full.value.stderr.lower()
    assert before - shutil.disk_usage(store).free < 2 * DISK_MB << 20
    with pytest.raises(NotEnoughSpaceException):
        full_sandbox.files.write("more", b"x" * (8 << 20))
    assert not full_sandbox.files.exists("more"), "a partly written file must be removed"
    neighbour.files.write("more", b"x" * (8 << 20))
    full_sandbox.commands.run("rm fill; sync")
    full_sandbox.files.write("more", b"x" * 1024)
