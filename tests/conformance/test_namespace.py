"""Test guarantees of the namespace driver only: how a sandbox ends, what happens when its zygote dies, and what a sandbox
cannot reach."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition, Handle, Isolation, Limits, NetworkPolicy, Spec
from sandyard.engine.drivers.machine.driver import MachineDriver
from sandyard.engine.drivers.namespace.runtime import NamespaceRuntime
from sandyard.kit.errors import InvalidInputError, UnsupportedError
from tests.conformance import tiny
from tests.conformance.guest_agent import GuestAgent
from tests.conformance.harness import DriverHarness, make_machine_driver

_ESCAPES = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def check(name, result):
    print(name, 'ok' if result >= 0 else os.strerror(ctypes.get_errno()), sep=': ')
check('mount', libc.mount(b'x', b'/tmp', b'tmpfs', 0, None))
check('remount', libc.mount(b'none', b'/proc/sys', None, 0x1020, None))
check('umount', libc.umount2(b'/proc/keys', 2))
check('unshare user', libc.unshare(0x10000000))
check('unshare mount', libc.unshare(0x20000))
check('setns', libc.setns(os.open('/proc/self/ns/net', 0), 0))
check('sethostname', libc.sethostname(b'x', 1))
check('swapoff', libc.swapoff(b'/x'))
check('ptrace agent', libc.ptrace(16, 1, 0, 0))
check('mknod', libc.mknod(b'/tmp/device', 0o20666, os.makedev(1, 1)))
check('setuid outside', libc.setresuid(70000, 70000, 70000))
for family, kind in ((socket.AF_PACKET, 3), (socket.AF_INET, 3), (40, 1), (38, 5)):
    try:
        socket.socket(family, kind, 1 if family == 2 else 0)
        print('socket', int(family), ': ok')
    except OSError as error:
        print('socket', int(family), error.strerror)
"""


@pytest.fixture(autouse=True)
def _require_namespaces(harness: DriverHarness) -> None:
    if not harness.kind.startswith("namespace"):
        pytest.skip("the fake driver has no namespaces")


def _host_pid(handle: Handle) -> int:
    return int(handle.data["life"]["pid"])


async def _run_python(agent: GuestAgent, program: str, *, user: str = "root") -> str:
    await agent.run(f"cat > /tmp/program.py <<'EOF'\n{program}\nEOF\nchmod 644 /tmp/program.py")
    result = await agent.run(f"{tiny.PYTHON} -I -S /tmp/program.py", user=user)
    assert result.code == 0, result.err
    return result.out


# How a sandbox ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGKILL, "killed from outside"), (signal.SIGTERM, "shut down")])
async def test_the_exit_reason_is_reported(harness: DriverHarness, number: signal.Signals, reason: str) -> None:
    handle, agent = await harness.create()
    await agent.run("echo kept > file")
    os.kill(_host_pid(handle), number)
    assert reason in await asyncio.wait_for(harness.driver.wait_for_exit(handle), 10)
    assert await harness.driver.get_condition(handle) is Condition.STOPPED
    booted = await harness.driver.boot(handle, harness.spec(handle.id))
    assert await harness.agent(booted).read("file") == "kept\n"


async def test_wait_for_exit_waits_for_the_reason(harness: DriverHarness) -> None:
    """On a busy machine the zygote, which knows the reason, may not run for a while."""
    handle, _ = await harness.create()
    os.kill(_zygote_pid(harness), signal.SIGSTOP)
    os.kill(_host_pid(handle), signal.SIGKILL)
    await asyncio.sleep(0.5)
    os.kill(_zygote_pid(harness), signal.SIGCONT)
    assert "killed from outside" in await asyncio.wait_for(harness.driver.wait_for_exit(handle), 10)


async def test_processes_inside_cannot_kill_the_guest_agent(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.run("kill -KILL 1; kill -KILL -1; kill -SEGV 1")
    assert await agent.health() == 204
    assert await harness.driver.get_condition(handle) is Condition.RUNNING


async def test_the_exit_of_an_adopted_sandbox_is_detected(harness: DriverHarness) -> None:
    handle, _ = await harness.create()
    await harness.open([handle])
    os.kill(_host_pid(handle), signal.SIGKILL)
    assert await asyncio.wait_for(harness.driver.wait_for_exit(handle), 10)
    assert await harness.driver.get_condition(handle) is Condition.STOPPED


# The zygote --------------------------------------------------------------------------------------------------------------


def _zygote_pid(harness: DriverHarness) -> int:
    driver = harness.driver
    assert isinstance(driver, MachineDriver)
    runtime = driver.runtimes[driver.name]
    assert isinstance(runtime, NamespaceRuntime)
    pid = runtime.launcher.forker.pid
    assert pid is not None
    return pid


async def test_sandboxes_survive_the_death_of_the_zygote(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    first = _zygote_pid(harness)
    os.kill(first, signal.SIGKILL)
    await asyncio.sleep(0.05)
    assert (await agent.run("echo alive")).out == "alive\n"
    other, second = await harness.create()
    assert await second.health() == 204
    assert _zygote_pid(harness) != first
    await harness.driver.kill(handle)
    assert harness.traces(handle.id) == []
    assert await harness.driver.get_condition(other) is Condition.RUNNING


async def test_creates_in_progress_survive_the_death_of_the_zygote(harness: DriverHarness) -> None:
    creating = [asyncio.ensure_future(harness.create()) for _ in range(12)]
    await asyncio.sleep(0.03)
    os.kill(_zygote_pid(harness), signal.SIGKILL)
    made = await asyncio.gather(*creating)
    assert {await agent.health() for _, agent in made} == {204}


async def test_no_process_is_left_when_the_driver_is_closed(harness: DriverHarness) -> None:
    handle, _ = await harness.create()
    zygote = _zygote_pid(harness)
    await harness.driver.kill(handle)
    await harness.close()
    assert not Path(f"/proc/{zygote}").exists()


# Isolation --------------------------------------------------------------------------------------------------------------


async def test_root_in_a_sandbox_cannot_escape(harness: DriverHarness) -> None:
    _, agent = await harness.create()
    lines = (await _run_python(agent, _ESCAPES)).splitlines()
    assert len(lines) == 15
    assert [line for line in lines if line.endswith("ok")] == []


async def test_only_sandboxes_with_containers_create_namespaces(harness: DriverHarness) -> None:
    """Also after later starts, in forks, and in the slot of a sandbox that could."""
    unshare = "import ctypes, sys; sys.exit(-ctypes.CDLL(None).unshare(0x50020000))"  # user, network, mounts
    driver, can = harness.driver, f"{tiny.PYTHON} -I -S -c '{unshare}'"
    spec = harness.spec(containers=True)
    if Isolation.NAMESPACE not in driver.capabilities.containers:
        with pytest.raises(UnsupportedError, match="Containers in a sandbox with isolation level namespace are not"):
            await driver.create(spec)
        pytest.skip(driver.capabilities.missing["containers.namespace"])
    handle = await driver.create(spec)
    assert (await harness.agent(handle).run(can)).code == 0
    fork = await driver.fork(handle, harness.spec(containers=True))
    assert (await harness.agent(fork).run(can)).code == 0
    await harness.open([handle, fork])
    await harness.driver.kill(fork)
    handle = await harness.driver.boot(await harness.driver.stop(handle), spec)
    assert (await harness.agent(handle).run(can)).code == 0
    await harness.driver.kill(handle)
    for _ in range(3):
        assert (await (await harness.create())[1].run(can)).code != 0


async def test_the_proc_files_of_the_guest_agent_cannot_be_read(harness: DriverHarness) -> None:
    _, agent = await harness.create()
    for name in ("environ", "maps", "mem", "fd", "root", "cwd", "exe"):
        seen = await agent.run(f"ls -l /proc/1/{name}/ 2>/dev/null || cat /proc/1/{name}")
        assert seen.out == "", name
        assert seen.code != 0, name
    assert str(harness.data_dir) not in (await agent.run("cat /proc/1/cmdline /proc/self/mountinfo")).out


async def test_details_of_the_host_are_hidden(harness: DriverHarness) -> None:
    _, agent = await harness.create()
    for name in ("keys", "kallsyms", "interrupts", "timer_list", "kcore", "kmsg"):
        assert (await agent.run(f"head -c 100 /proc/{name}")).out == "", name
    assert (await agent.run("ls -A /proc/pressure /proc/fs")).out.split() == ["/proc/fs:", "/proc/pressure:"]
    assert (await agent.run("echo 1 > /proc/sys/kernel/hostname")).code != 0
    assert (await agent.run("echo b > /proc/sysrq-trigger")).code != 0
    assert (await agent.run("ls /sys")).out == "devices\nfs\n"
    assert (await agent.run("ls /dev")).out.split() == sorted(
        ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]
    )
    assert int((await agent.run("nproc")).out) == os.cpu_count()
    pids = (await agent.run("ls /proc")).out.split()
    assert len([pid for pid in pids if pid.isdigit()]) < 5
    assert set((await agent.run("cat /proc/self/cgroup")).out.replace("\n", " ").split(":")[-1].strip()) == {"/"}


async def test_devices_work_for_all_users(harness: DriverHarness) -> None:
    _, agent = await harness.create()
    for user in ("root", "user"):
        result = await agent.run(
            "head -c 4 /dev/urandom | wc -c; echo x > /dev/null; head -c 2 /dev/zero | wc -c", user=user
        )
        assert (result.code, result.out) == (0, "4\n2\n")
    assert (await agent.run("echo x > /dev/full")).code != 0
    assert (await agent.run("echo shared > /dev/shm/x; cat /dev/shm/x")).out == "shared\n"


async def test_commands_run_as_the_requested_user(harness: DriverHarness) -> None:
    _, agent = await harness.create()
    single = "users" in harness.driver.capabilities.missing
    assert (await agent.run("id -u", user="user")).out == ("0\n" if single else "1000\n")
    await agent.run("echo mine > /tmp/mine", user="user")
    assert (await agent.run("stat -c %u /tmp/mine")).out == ("0\n" if single else "1000\n")
    if not single:
        assert (await agent.run("cat /root/x 2>&1; ls /root", user="user")).code != 0


async def test_sandboxes_do_not_see_each_other(harness: DriverHarness) -> None:
    one, other = (await harness.create())[1], (await harness.create())[1]
    await one.run("echo secret > /tmp/secret; echo secret > /dev/shm/secret")
    await one.start("sleep 4321")
    assert (await other.run("ls /tmp/secret /dev/shm/secret")).out == ""
    assert "4321" not in (await other.run("cat /proc/[0-9]*/cmdline")).out


async def test_the_host_name_and_the_hosts_file_are_set(harness: DriverHarness) -> None:
    _, agent = await harness.create()
    assert (await agent.run("uname -n; cat /etc/hostname")).out == "e2b.local\ne2b.local\n"
    assert "localhost" in await agent.read("/etc/hosts")
    await agent.run("echo 10.1.2.3 mine >> /etc/hosts")
    layers = await harness.driver.snapshot(agent.handle, "names")
    _, later = await harness.create(layers=layers)
    assert "10.1.2.3 mine" in await later.read("/etc/hosts")


# Unusual inputs ----------------------------------------------------------------------------------------------------------


async def test_a_data_directory_with_a_long_and_unusual_name_works(harness: DriverHarness, tmp_path: Path) -> None:
    await harness.close()
    folder = tmp_path / ("very long: and, odd " * 6) / "data"
    folder.mkdir(parents=True)
    other = DriverHarness(harness.kind, folder, harness.layers)
    await other.open()
    try:
        handle, agent = await other.create()
        await agent.run("echo kept > file")
        fork = await other.driver.fork(handle, other.spec())
        assert await other.agent(fork).read("file") == "kept\n"
    finally:
        await other.clear()
        await other.close()


async def test_layers_can_be_in_directories_that_were_not_declared(harness: DriverHarness, tmp_path: Path) -> None:
    """The zygote is replaced by one that can see them."""
    elsewhere = tmp_path / "else:where"
    (elsewhere / "etc").mkdir(parents=True)
    elsewhere.chmod(0o755)
    (elsewhere / "etc/extra").write_text("extra\n")
    old, agent = await harness.create()
    _, stacked = await harness.create(layers=(str(elsewhere), *harness.layers))
    assert await stacked.read("/etc/extra") == "extra\n"
    assert (await stacked.run("ls /bin/sh")).code == 0
    assert await agent.health() == 204
    assert await harness.driver.get_condition(old) is Condition.RUNNING


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.slow)])
async def test_many_layers_with_long_paths_work(harness: DriverHarness, tmp_path: Path, count: int) -> None:
    """Together their paths are longer than the page that mount(2) has for its options."""
    layers = []
    for number in range(count):
        layer = tmp_path / ("layers" * 40) / str(number)
        layer.mkdir(parents=True)
        (layer / f"file{number}").write_text(f"{number}\n")
        layers.append(str(layer))
    _, agent = await harness.create(layers=(*layers, *harness.layers))
    assert len((await agent.run("cat /file*")).out.splitlines()) == count


async def test_invalid_sandbox_ids_are_rejected(harness: DriverHarness) -> None:
    for name in ("", "../x", "a/b", "_zygote", ".x", "x" * 65):
        with pytest.raises(InvalidInputError):
            await harness.driver.create(Spec(name, harness.layers, Limits(), NetworkPolicy()))


async def test_stopped_sandboxes_and_snapshots_survive_a_reboot(harness: DriverHarness) -> None:
    """As after a reboot: nothing of the old engine is mounted or running."""
    handle, agent = await harness.create()
    await agent.run("echo kept > file")
    layers = await harness.driver.snapshot(handle, "snap")
    stopped = await harness.driver.stop(handle)
    await harness.close()
    if harness.kind == "namespace":
        assert not (harness.data_dir / "store").is_mount()
    assert await harness.open([stopped], ["snap"]) == {handle.id: Condition.STOPPED}
    booted = await harness.driver.boot(stopped, harness.spec(handle.id))
    assert await harness.agent(booted).read("file") == "kept\n"
    _, later = await harness.create(layers=layers)
    assert await later.read("file") == "kept\n"


async def test_two_engines_on_one_machine_do_not_interfere(harness: DriverHarness, tmp_path: Path) -> None:
    handle, agent = await harness.create("same")
    other = make_machine_driver(tmp_path, store="plain")
    await other.open([], [])
    try:
        twin = await other.create(Spec("same", harness.layers))
        await GuestAgent(other, twin).run("echo other > file")
        assert (await agent.run("ls file")).code != 0
        await other.open([], [])
        assert await other.get_condition(twin) is Condition.ABSENT
        assert await agent.health() == 204
    finally:
        await other.close()
        shutil.rmtree(tmp_path, ignore_errors=True)
    assert await harness.driver.get_condition(handle) is Condition.RUNNING
