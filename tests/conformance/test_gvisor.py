"""Properties that only gVisor sandboxes have or lack."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition, Handle, Isolation, Limits
from sandyard.engine.drivers.gvisor.checkpoints import Checkpoints
from sandyard.engine.drivers.machine.net.settings import CONNECTIONS_PER_SECOND, MAX_CONNECTIONS
from sandyard.kit.errors import NotFoundError, SandyardError, UnsupportedError
from tests.conformance import tiny
from tests.conformance.guest_agent import GuestAgent
from tests.conformance.harness import DriverHarness, make_driver

AGENT_PYTHON = "/dev/.sandyard/ld.so --library-path /dev/.sandyard/lib /dev/.sandyard/python -I -S -B"
"""The agent's, which every user can run and which has all of the standard library."""


@pytest.fixture(scope="session")
def kind() -> str:
    return "gvisor"


async def test_the_kernel_is_not_the_hosts_and_processes_of_others_are_invisible(harness: DriverHarness) -> None:
    _, agent = await harness.create(limits=Limits(memory_mb=300, cpu_count=1))
    assert (await agent.run("cat /proc/version")).out != Path("/proc/version").read_text()
    assert (await agent.run("nproc")).out == "1\n"
    assert (await agent.run("cat /proc/meminfo")).out.split()[:3] == ["MemTotal:", str(300 << 10), "kB"]
    _, other = await harness.create()
    await other.start("exec sleep 4321")
    assert "4321" not in (await agent.run("cat /proc/[0-9]*/cmdline")).out


async def test_a_sandbox_survives_everything_that_an_engine_does_with_it(harness: DriverHarness) -> None:
    """The most important part of the other tests, which run with gVisor in `make test-all` only."""
    driver = harness.driver
    handle, agent = await harness.create()
    pid = await agent.start("trap 'echo alive > sign' USR1; while :; do sleep 0.01; done")
    await driver.freeze(handle)
    assert await driver.get_condition(handle) is Condition.FROZEN
    await harness.open([handle])
    driver = harness.driver
    suspended = await driver.suspend(handle)
    assert await driver.get_condition(suspended) is Condition.SUSPENDED
    handle = await driver.restore(suspended)
    agent = harness.agent(handle)
    assert (await agent.run(f"kill -USR1 {pid}; sleep 0.1; cat sign")).out == "alive\n"
    size = 4 << 20
    assert len((await agent.run(f"head -c {size} /dev/zero | tr '\\0' x")).out) == size
    handle = await driver.boot(await driver.stop(handle), harness.spec(handle.id))
    assert await harness.agent(handle).read("/sign") == "alive\n"
    await driver.kill(handle)
    assert harness.traces(handle.id) == []


async def test_a_restore_that_fails_before_gvisor_starts_keeps_the_memory(
    harness: DriverHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, agent = await harness.create()
    pid = await agent.start("exec sleep 1000")
    await harness.driver.freeze(handle)
    suspended = await harness.driver.suspend(handle)

    def fail(layer: str) -> str:
        raise NotFoundError(f"The layer {layer} does not exist.")

    with monkeypatch.context() as patch:
        patch.setattr("sandyard.engine.drivers.gvisor.runtime._resolve_layer", fail)
        with pytest.raises(NotFoundError):
            await harness.driver.restore(suspended)
    assert await harness.driver.get_condition(suspended) is Condition.SUSPENDED
    restored = await harness.driver.restore(suspended)
    assert (await harness.agent(restored).run(f"kill -0 {pid}")).code == 0


async def test_a_sandbox_that_exceeds_its_memory_limit_ends_and_says_why(harness: DriverHarness) -> None:
    handle, agent = await harness.create(limits=Limits(memory_mb=128))
    await agent.start(f"{tiny.PYTHON} -I -S -c 'x = bytearray(400 << 20)'")
    async with asyncio.timeout(30):
        assert await harness.driver.wait_for_exit(handle) == "out of memory: the limit of the sandbox is 128 MiB"
    assert await harness.driver.get_condition(handle) is Condition.STOPPED


async def test_sandboxes_of_both_levels_run_beside_each_other(harness: DriverHarness) -> None:
    strong, agent = await harness.create()
    weak = await harness.driver.create(harness.spec(isolation=Isolation.NAMESPACE))
    assert (strong.driver, weak.driver) == ("gvisor", "namespace")
    await agent.run("echo kept > /file")
    layers = await harness.driver.snapshot(strong, "shared")
    copy = await harness.driver.create(harness.spec(layers=layers, isolation=Isolation.NAMESPACE))
    assert await harness.agent(copy).read("/file") == "kept\n"
    fork = await harness.driver.fork(strong, harness.spec(isolation=Isolation.NAMESPACE))
    assert fork.driver == "gvisor", "a fork is isolated like its original"


@pytest.mark.parametrize("place", ["/tmp", "/usr/bin/sudo"])
async def test_links_in_the_image_cannot_lead_to_files_of_the_host(harness: DriverHarness, place: str) -> None:
    """These files are mounted by the engine, which sees the host's file system."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        secret = Path(folder, "secret")
        secret.write_text("of the host")
        target = folder if place == "/tmp" else secret
        handle = await harness.driver.create(harness.spec(isolation=Isolation.NAMESPACE))
        await harness.agent(handle).run(f"rm -rf {place}; mkdir -p /usr/bin; ln -s {target} {place}")
        layers = await harness.driver.snapshot(handle, "hostile")
        with contextlib.suppress(SandyardError):  # gVisor does not start from every such image
            _, agent = await harness.create(layers=layers)
            read = await agent.run(f"cat {secret} {place} {place}/secret /dev/.sandyard/original-sudo")
            assert "of the host" not in read.out


async def test_programs_cannot_use_the_agent_or_create_user_namespaces(harness: DriverHarness) -> None:
    """On the agent's port, any program or web page could otherwise become root of the sandbox. In gVisor, root of a user namespace
    has all rights over the sandbox's network."""
    _, agent = await harness.create()
    for user in ("user", "nobody", "root"):
        result = await agent.run(f"{AGENT_PYTHON} -c {shlex.quote(_USE_AGENT)}", user=user)
        assert result.out == "127.0.0.1: b''\n192.0.0.2: b''\nnot 192.0.0.1: EACCES\n", (user, result)
    for user in ("root", "nobody"):
        result = await agent.run(f"{AGENT_PYTHON} -c {shlex.quote(_CREATE_USER_NAMESPACE)}", user=user)
        assert result.out == "EPERM\nEPERM\nENOSYS\nEPERM\n", result


async def test_no_program_can_listen_on_the_agents_port(harness: DriverHarness) -> None:
    """Otherwise it would get what the engine sends to the agent, and could respond."""
    addresses = "0.0.0.0 127.0.0.1 192.0.0.2 :: ::ffff:127.0.0.1 ::ffff:192.0.0.2"

    async def check(handle: Handle) -> None:
        for user in ("user", "root"):
            assert await _try_to_listen(harness.agent(handle), 49983, addresses, user) == "done\n"

    handle, _ = await harness.create()
    await check(handle)
    await harness.driver.freeze(handle)
    handle = await harness.driver.restore(await harness.driver.suspend(handle))
    await check(handle)
    handle = await harness.driver.boot(await harness.driver.stop(handle), harness.spec(handle.id))
    await check(handle)


async def test_no_program_can_take_over_a_port_of_the_loopback_address(harness: DriverHarness) -> None:
    """The code interpreter and the tunnel for model requests listen there, with SO_REUSEADDR."""
    _, agent = await harness.create()
    server = "import socket, time; _ = socket.create_server(('127.0.0.1', 8000)); open('/ready', 'w'); time.sleep(60)"
    await agent.start(f"exec {AGENT_PYTHON} -c {shlex.quote(server)}")
    assert (await agent.run("until [ -e /ready ]; do sleep 0.01; done")).code == 0
    assert await _try_to_listen(agent, 8000, "127.0.0.1 ::ffff:127.0.0.1", "user") == "done\n"


async def _try_to_listen(agent: GuestAgent, port: int, addresses: str, user: str) -> str:
    result = await agent.run(f"{AGENT_PYTHON} -c {shlex.quote(_LISTEN)} {port} {addresses}", user=user)
    return result.out + result.err


async def test_with_containers_programs_cannot_use_or_change_the_agent_or_send_foreign_packets(
    harness: DriverHarness,
) -> None:
    handle = await harness.driver.create(harness.spec(containers=True))
    agent = harness.agent(handle)
    # root of a new user namespace may mount everything writable, so changes of the agent of others must be prevented on the host
    (folder,) = (harness.data_dir / "gvisor").glob("agent-*")
    before = _list_tree(folder)
    result = await agent.run(f"{tiny.PYTHON} -I -S -c {shlex.quote(_CHANGE_AGENT)}")
    assert result.out == "mounted\n" + "Read-only file system\n" * 3
    assert _list_tree(folder) == before

    # the table of neighbours is one for all namespaces of the machine
    netns = (harness.data_dir / "run" / handle.id / "regular-netns").readlink()
    result = await agent.run(f"{AGENT_PYTHON} -c {shlex.quote(_SEND_FRAMES)}")
    assert result.out == "sent\n", result
    output = subprocess.run(["nsenter", f"--net={netns}", "ip", "neigh"], capture_output=True, text=True, check=True)
    assert {line.split()[-1] for line in output.stdout.splitlines()} == {"PERMANENT"}, output.stdout
    dropped = subprocess.run(
        ["nsenter", f"--net={netns}", "ip", "-s", "link", "show", "gvisor"], capture_output=True, text=True, check=True
    )
    packets = int(re.search(r"RX:.*\n +\d+ +(\d+)", dropped.stdout)[1])  # type: ignore[index]
    assert packets >= 300, "they were sent"

    # they can take the engine's address, after which it gets no answers, and see the engine's packets
    await agent.start(f"{AGENT_PYTHON} -c {shlex.quote(_RECORD_PROOF)} > part; mv part proof")
    async with asyncio.timeout(30):
        while (await agent.run("[ -e proof ]")).code:  # each time with another connection
            pass
    result = await agent.run(f"{AGENT_PYTHON} -c {shlex.quote(_USE_AGENT)} proof", user="root")
    assert result.out == "127.0.0.1: b''\n192.0.0.2: b''\n192.0.0.1: b''\nagain: b''\n", result


_CHANGE_AGENT = """
import ctypes, os
libc = ctypes.CDLL(None)
CLONE_NEWUSER, CLONE_NEWNS, MS_REMOUNT, MS_BIND = 0x10000000, 0x20000, 32, 4096
assert libc.unshare(CLONE_NEWUSER) == libc.unshare(CLONE_NEWNS) == 0
assert libc.mount(b"none", b"/dev/.sandyard", None, MS_REMOUNT | MS_BIND, b"") == 0
print("mounted")
changes = (
    lambda: open("/dev/.sandyard/new", "w"),
    lambda: open("/dev/.sandyard/sudo", "a"),
    lambda: os.rename("/dev/.sandyard/sudo", "/dev/.sandyard/other"),
)
for change in changes:
    try:
        change()
    except OSError as error:
        print(error.strerror)
os.chmod("/dev/.sandyard/sudo", 0o4777)
"""


def _list_tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    stats = {str(path): path.lstat() for path in folder.rglob("*")}
    return {path: (found.st_mode, found.st_size, found.st_mtime_ns) for path, found in stats.items()}


_USE_AGENT = """
import ctypes, errno, os, socket, struct, sys
def ask(source, proof=b""):
    with socket.socket() as sock:
        sock.bind((source, 0))
        sock.settimeout(5)
        try:
            sock.connect((source if source != "192.0.0.1" else "192.0.0.2", 49983))
            sock.sendall(proof + b"GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
            return sock.recv(12)
        except ConnectionError:
            return b""
for source in ("127.0.0.1", "192.0.0.2"):
    print(f"{source}: {ask(source)}")
if os.getuid():
    ctypes.CDLL(None).unshare(0x10000000)  # CLONE_NEWUSER
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
address = socket.inet_aton("192.0.0.1")
body = struct.pack("=BBBBi", 2, 32, 0, 0, 1) + b"".join(struct.pack("=HH", 8, kind) + address for kind in (1, 2))
link.send(struct.pack("=IHHII", 16 + len(body), 20, 0x405, 1, 0) + body)  # RTM_NEWADDR
code = -struct.unpack_from("=i", link.recv(4096), 16)[0]
if code:
    sys.exit(print(f"not 192.0.0.1: {errno.errorcode[code]}"))
print(f"192.0.0.1: {ask('192.0.0.1', bytes(56))}")
print(f"again: {ask('192.0.0.1', open(sys.argv[1], 'rb').read(56))}")
"""
_LISTEN = """
import itertools, socket, sys
for address, reuse_address, reuse_port in itertools.product(sys.argv[2:], (0, 1), (0, 1)):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        if ":" in address:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            sock.bind((address, int(sys.argv[1])))
            sock.listen()
            print("listening:", address, reuse_address, reuse_port)
        except OSError:
            pass
print("done")
"""
_RECORD_PROOF = """
import socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
packets.settimeout(30)
while True:
    packet = packets.recv(65536)
    start = (packet[0] & 15) * 4
    data = packet[start + (packet[start + 12] >> 4) * 4 :]
    if packet[9] == 6 and packet[12:16] == bytes((192, 0, 0, 1)) and len(data) == 56:
        sys.exit(sys.stdout.buffer.write(data) and 0)
"""


_CREATE_USER_NAMESPACE = """
import ctypes, errno, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
clone = 56 if os.uname().machine == "x86_64" else 220
new_user, clone3 = 0x10000000, struct.pack("=8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
for arguments in ((clone, new_user | 17, 0, 0, 0, 0), (clone, new_user | 0x20011, 0, 0, 0, 0), (435, clone3, 64)):
    if libc.syscall(*arguments) == 0:
        os._exit(0)
    print(errno.errorcode[ctypes.get_errno()])
libc.unshare(new_user)
print(errno.errorcode[ctypes.get_errno()])
"""


_SEND_FRAMES = """
import fcntl, os, socket, struct
def pack(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
def change(index, flags, up, *attributes):
    body = struct.pack("=BxHiII", 0, 0, index, up, up) + b"".join(attributes)
    link.send(struct.pack("=IHHII", 16 + len(body), 16, 5 | flags, 1, 0) + body)  # RTM_NEWLINK
    assert struct.unpack_from("=i", link.recv(4096), 16)[0] == 0
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH14x", b"tap0", 0x1002))  # TUNSETIFF, an Ethernet device
change(0, 0x600, 0, pack(3, b"br0\\0"), pack(18, pack(1, b"bridge")))
bridge = socket.if_nametoindex("br0")
for name in ("tap0", "eth0"):
    change(socket.if_nametoindex(name), 0, 0, pack(10, struct.pack("=I", bridge)))  # IFLA_MASTER
for name in ("tap0", "br0"):
    change(socket.if_nametoindex(name), 0, 1)
mac = bytes.fromhex("020000000001")
for number in range(300):
    sender = struct.pack("!I", 0x08000001 + number)
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + sender + bytes(6) + socket.inet_aton("192.0.0.1")
    os.write(tap, b"\\xff" * 6 + mac + b"\\x08\\x06" + body + bytes(18))
print("sent")
"""


async def test_connections_outside_are_limited_and_have_the_address_of_the_sandbox(harness: DriverHarness) -> None:
    if not harness.driver.capabilities.egress:
        pytest.skip("sandboxes have no network here")
    handle, agent = await harness.create()
    netns = (harness.data_dir / "run" / handle.id / "regular-netns").readlink()
    table = [sys.executable, "-c", _CONNECTION_TABLE]

    async def open_connections() -> None:
        result = await agent.run(f"{tiny.PYTHON} -I -S -c {shlex.quote(_OPEN_CONNECTIONS)}")
        assert result.out == "sent\n", result

    def count_and_remove_connections() -> int:
        return int(subprocess.check_output(["nsenter", f"--net={netns}", *table]))

    await open_connections()
    started_at = time.monotonic()
    # also from the agent's and the engine's connections
    assert 4000 < count_and_remove_connections() <= MAX_CONNECTIONS + 20
    await open_connections()
    assert count_and_remove_connections() < CONNECTIONS_PER_SECOND * (time.monotonic() - started_at + 1)


_CONNECTION_TABLE = """
from ipaddress import IPv4Address
from pathlib import Path
from sandyard.engine.drivers.machine.net.conntrack import Conntrack
print(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())
Conntrack().delete_connections(IPv4Address("192.0.0.2"))
"""
_OPEN_CONNECTIONS = """
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for port in range(1, 18_000):
    one.sendto(b"x", ("198.51.100.1", port))
print("sent")
"""


async def test_forks_with_memory_continue_the_processes_of_one_instant(harness: DriverHarness) -> None:
    driver = harness.driver
    handle, agent = await harness.create()
    # each number is in the memory of the process first, and then in the file
    pid = await agent.start(
        "n=0; trap 'echo $n > memory' USR1; while :; do n=$((n+1)); echo $n > next; mv next file; sleep 0.01; done"
    )
    await agent.run("while ! [ -e file ]; do sleep 0.01; done")
    results = await driver.fork_with_memory(handle, [harness.spec(), harness.spec()])
    forks = [result for result in results if isinstance(result, Handle)]
    assert len(forks) == 2 and len({handle.id, *(fork.id for fork in forks)}) == 3
    for machine in (handle, *forks):
        assert await driver.get_condition(machine) is Condition.RUNNING
        inside = harness.agent(machine)
        before = int(await inside.read("/file"))
        await inside.run(f"kill -USR1 {pid}; while ! [ -s memory ]; do sleep 0.01; done; sleep 0.1")
        assert before <= int(await inside.read("/memory")) <= int(await inside.read("/file"))
        await inside.run(f"kill {pid}; echo {machine.id} > own")
    for machine in (handle, *forks):
        assert await harness.agent(machine).read("/own") == f"{machine.id}\n"
    await driver.kill(forks[0])
    assert harness.traces(forks[0].id) == []
    assert not list((harness.data_dir / "suspended-gvisor").iterdir()), "the copy of the memory is deleted"
    await driver.freeze(forks[1])
    restored = await driver.restore(await driver.suspend(forks[1]))
    assert await harness.agent(restored).read("/own") == f"{forks[1].id}\n"


async def test_a_frozen_sandbox_can_be_forked_with_its_memory_and_stays_frozen(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    pid = await agent.start("exec sleep 1000")
    await harness.driver.freeze(handle)
    (fork,) = await harness.driver.fork_with_memory(handle, [harness.spec()])
    assert isinstance(fork, Handle)
    assert (await harness.agent(fork).run(f"kill -0 {pid}")).code == 0
    assert await harness.driver.get_condition(handle) is Condition.FROZEN
    await harness.driver.thaw(handle)
    assert (await agent.run(f"kill -0 {pid}")).code == 0


async def test_an_engine_killed_while_it_copies_memory_leaves_a_sandbox_that_runs(
    harness: DriverHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, agent = await harness.create()
    (harness.data_dir / "run" / handle.id / "paused").touch()  # it is killed before it pauses the processes
    assert (await harness.open([handle]))[handle.id] is Condition.RUNNING
    agent = harness.agent(handle)
    assert (await asyncio.wait_for(agent.run("echo alive"), 10)).out == "alive\n"

    paused, ended = asyncio.Event(), asyncio.Event()

    async def fail_late(*_arguments: object) -> None:
        paused.set()
        await ended.wait()
        raise UnsupportedError("late")

    monkeypatch.setattr(Checkpoints, "_run_checkpoint", fail_late)
    fork = asyncio.create_task(harness.driver.fork_with_memory(handle, [harness.spec()]))
    await asyncio.wait_for(paused.wait(), 10)
    later = make_driver(harness.kind, harness.data_dir, harness.layers)
    for _ in range(2):  # the second time there is nothing to do
        assert (await later.open([handle], ()))[handle.id] is Condition.RUNNING
        assert (await asyncio.wait_for(agent.run("echo alive"), 10)).out == "alive\n"
    await later.close()
    ended.set()
    with pytest.raises(SandyardError):  # not what happens after a crash: it resumes the sandbox once more
        await fork
    await harness.close()  # the later driver has removed what this one keeps ready


async def test_memory_that_cannot_be_copied_leaves_the_original_unchanged(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    pid = await agent.start("exec 3>open; rm open; > ready; exec sleep 1000")
    await agent.run("while ! [ -e ready ]; do sleep 0.01; done")
    spec = harness.spec()
    with pytest.raises(UnsupportedError, match="can't be copied"):
        await harness.driver.fork_with_memory(handle, [spec])
    assert (await agent.run(f"kill -0 {pid}")).code == 0
    assert harness.traces(spec.id) == []
