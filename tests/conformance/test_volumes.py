"""Volumes: files that several sandboxes share and that outlive them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandyard.engine.contract import Condition, Mount
from sandyard.engine.drivers.machine.driver import MachineDriver
from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError
from tests.conformance import tiny
from tests.conformance.harness import DriverHarness, as_json, from_json

VOLUME = "vol1"
SIZE_MB = 64
MOUNTS = (Mount(VOLUME, "/shared/data"),)


@pytest_asyncio.fixture(loop_scope="module")
async def volume(harness: DriverHarness) -> AsyncIterator[str]:
    await harness.driver.create_volume(VOLUME, SIZE_MB)
    yield VOLUME
    await harness.clear()
    await harness.driver.delete_volume(VOLUME)
    with pytest.raises(NotFoundError):
        await harness.driver.get_volume_files(VOLUME).list("/")


async def test_sandboxes_share_the_files_of_a_volume(harness: DriverHarness, volume: str) -> None:
    _, one = await harness.create(mounts=MOUNTS)
    _, two = await harness.create(mounts=(Mount(volume, "/elsewhere"),))
    _, none = await harness.create()
    await one.run("echo first > shared/data/file")
    assert await two.read("elsewhere/file") == "first\n"
    await two.run("echo second >> elsewhere/file; mkdir elsewhere/folder")
    assert await one.read("shared/data/file") == "first\nsecond\n"
    assert (await one.run("ls shared/data/folder")).code == 0
    assert (await none.run("ls shared/data elsewhere")).code != 0
    assert await harness.read_volume(volume, "file") == "first\nsecond\n"


async def test_a_volume_outlives_sandboxes_and_engines(harness: DriverHarness, volume: str) -> None:
    handle, agent = await harness.create(mounts=MOUNTS)
    await agent.run("echo kept > shared/data/file")
    assert await harness.open([from_json(as_json(handle))]) == {handle.id: Condition.RUNNING}
    assert await harness.agent(handle).read("shared/data/file") == "kept\n"
    await harness.driver.kill(handle)
    assert await harness.open() == {}
    _, later = await harness.create(mounts=MOUNTS)
    assert await later.read("shared/data/file") == "kept\n"
    await harness.driver.create_volume(volume, SIZE_MB)
    assert await later.read("shared/data/file") == "kept\n"


async def test_a_volume_is_mounted_again_when_a_stopped_sandbox_boots(harness: DriverHarness, volume: str) -> None:
    handle, agent = await harness.create(mounts=MOUNTS)
    await agent.run("echo kept > shared/data/file")
    stopped = await harness.driver.stop(handle)
    assert await harness.open([from_json(as_json(stopped))]) == {handle.id: Condition.STOPPED}
    booted = await harness.driver.boot(stopped, harness.spec(handle.id, mounts=MOUNTS))
    assert await harness.agent(booted).read("shared/data/file") == "kept\n"


async def test_copies_mount_the_volume_and_do_not_contain_its_files(harness: DriverHarness, volume: str) -> None:
    handle, agent = await harness.create(mounts=MOUNTS)
    await agent.run("echo 1 > shared/data/file; echo own > file")
    fork = await harness.driver.fork(handle, harness.spec(mounts=MOUNTS))
    await harness.agent(fork).run("echo 2 > shared/data/file")
    assert await agent.read("shared/data/file") == "2\n"
    assert await harness.agent(fork).read("file") == "own\n"
    layers = await harness.driver.snapshot(handle, "with-volume")
    _, mounted = await harness.create(layers=layers, mounts=MOUNTS)
    assert await mounted.read("shared/data/file") == "2\n"
    if harness.real:
        _, bare = await harness.create(layers=layers)
        assert (await bare.run("ls -A shared/data")).out == ""


async def test_creating_a_sandbox_with_a_missing_volume_fails(harness: DriverHarness) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        await harness.create("loser", mounts=(Mount("nothing", "/data"),))
    assert harness.traces("loser") == []
    await harness.driver.delete_volume("nothing")


async def test_a_mount_target_that_is_not_a_directory_is_rejected(harness: DriverHarness, volume: str) -> None:
    handle, agent = await harness.create()
    await agent.run("echo x > plain; mkdir full; echo x > full/file; ln -s nowhere/else dangling")
    layers = await harness.driver.snapshot(handle, "with-files")
    for target in ("/plain", "/plain/below", *(("/dangling",) if harness.real else ())):
        with pytest.raises(InvalidInputError, match=target):
            await harness.create("loser", layers=layers, mounts=(Mount(volume, target),))
        assert harness.traces("loser") == []


async def test_volumes_keep_user_ids_and_are_mounted_nosuid_and_nodev(harness: DriverHarness, volume: str) -> None:
    if not harness.real:
        pytest.skip("the fake driver has no users of its own")
    _, agent = await harness.create(mounts=MOUNTS)
    if harness.kind != "gvisor":  # it ignores set-user-id bits everywhere and shows no such options
        flags = (await agent.run("cat /proc/self/mounts")).out
        assert any(
            line.split()[1] == "/shared/data" and {"nosuid", "nodev"} <= set(line.split()[3].split(","))
            for line in flags.splitlines()
        )
    if isinstance(harness.driver, MachineDriver) and harness.kind != "namespace-rootless":
        result = await agent.run("echo x > /shared/data/mine && stat -c %u:%g /shared/data/mine", user="user")
        assert result.out == "1000:1000\n", result.err
        assert (await harness.driver.get_volume_files(volume).stat("mine")).uid == 1000
        assert (await agent.run("stat -c %u:%g /shared")).out == "0:0\n"


async def test_a_read_only_mount_rejects_writes(harness: DriverHarness, volume: str) -> None:
    if not harness.real:
        pytest.skip(harness.driver.capabilities.missing["volumes"])
    _, writer = await harness.create(mounts=MOUNTS)
    _, reader = await harness.create(mounts=(Mount(volume, "/data", read_only=True),))
    await writer.run("echo it > /shared/data/file")
    assert await reader.read("/data/file") == "it\n"
    assert "Read-only" in (await reader.run("echo x > /data/file")).err


async def test_links_in_the_image_cannot_put_a_mount_outside_the_sandbox(harness: DriverHarness, volume: str) -> None:
    """The root is assembled in a place from which the store and all templates are visible."""
    if not harness.real:
        pytest.skip("the fake driver has no root file system of its own")
    handle, agent = await harness.create()
    await agent.run(
        "ln -s /store /out; ln -s ../../../store /up; ln -s /proc /sys-link; mkdir -p /real; ln -s /real /link"
    )
    layers = await harness.driver.snapshot(handle, "traps")
    store = harness.host_dir / "store"
    before = sorted(path.name for path in store.iterdir())
    for target in ("/out/escaped", "/up/escaped"):
        with pytest.raises(SandyardError):
            await harness.create("loser", layers=layers, mounts=(Mount(volume, target),))
    with pytest.raises(InvalidInputError):
        await harness.create("loser", layers=layers, mounts=(Mount(volume, "/sys-link/sys"),))
    assert sorted(path.name for path in store.iterdir()) == before
    _, linked = await harness.create(layers=layers, mounts=(Mount(volume, "/link/inner"),))
    await linked.run("echo through > /real/inner/file")
    assert await harness.read_volume(volume, "file") == "through\n"


async def test_a_full_volume_does_not_fill_the_sandbox(harness: DriverHarness, volume: str) -> None:
    if "disk" not in harness.driver.capabilities.limits:
        pytest.skip("there are no disk limits here")
    _, agent = await harness.create(mounts=MOUNTS)
    result = await agent.run(f"dd if=/dev/zero of=/shared/data/big bs=1M count={SIZE_MB * 2}")
    assert result.code != 0, result.err
    assert (await agent.run("dd if=/dev/zero of=/big bs=1M count=8")).code == 0


async def test_a_subvolume_cannot_evade_the_limit_of_a_volume(harness: DriverHarness, volume: str) -> None:
    """The root of a sandbox is an overlay, which does not support btrfs ioctls; a volume is part of the store itself.
    Without protection any user could create a subvolume there, which the volume's quota would not count, or make the
    volume read-only for all others."""
    if "disk" not in harness.driver.capabilities.limits:
        pytest.skip("there are no disk limits here")
    _, agent = await harness.create(mounts=MOUNTS)
    script = (
        "import ctypes, os, struct\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "fd = os.open('/shared/data', os.O_RDONLY)\n"
        "for number, data in ((0x5000940e, struct.pack('=q4088s', 0, b'inner')), (0x4008941a, struct.pack('Q', 2))):\n"
        "    done = libc.ioctl(fd, ctypes.c_ulong(number), data)\n"
        "    print(done, ctypes.get_errno())\n"
    )
    result = await agent.run(f'{tiny.PYTHON} -I -S -c "{script}"')
    assert result.out == "-1 25\n-1 25\n", result
    assert (await agent.run("ls -A /shared/data")).out == ""
    if harness.kind == "gvisor":
        return  # it has no reflinks
    assert (await agent.run("echo x > /shared/data/a && cp --reflink=always /shared/data/a /shared/data/b")).code == 0


@pytest.mark.timeout(120)
async def test_a_sandbox_with_a_volume_can_be_suspended_and_restored(harness: DriverHarness, volume: str) -> None:
    await harness.require_suspend()
    handle, agent = await harness.create(mounts=MOUNTS)
    await agent.run("echo kept > /shared/data/file")
    pid = await agent.start("trap 'echo alive > /shared/data/sign' USR1; while :; do sleep 0.01; done")
    reader_pid = await agent.start("exec sleep 1000 < /shared/data/file")
    await harness.driver.freeze(handle)
    if harness.kind != "gvisor":  # it can save open files of a volume
        with pytest.raises(SandyardError, match="of a volume"):
            await harness.driver.suspend(handle)
        assert await harness.driver.get_condition(handle) is Condition.FROZEN
        await harness.driver.thaw(handle)
        await agent.run(f"kill {reader_pid}; cd /shared/data; sleep 0.2")
        await harness.driver.freeze(handle)
    suspended = await harness.driver.suspend(handle)
    await harness.write_volume(volume, "file", "changed meanwhile\n")
    assert await harness.open([from_json(as_json(suspended))]) == {handle.id: Condition.SUSPENDED}
    restored = await harness.driver.restore(suspended)
    restored_agent = harness.agent(restored)
    assert await restored_agent.read("/shared/data/file") == "changed meanwhile\n"
    assert (await restored_agent.run(f"kill -USR1 {pid}")).code == 0
    async with asyncio.timeout(10):
        while "sign" not in [entry.name for entry in await harness.driver.get_volume_files(volume).list("/")]:
            await asyncio.sleep(0.02)
    result = await restored_agent.run("echo own > /shared/data/mine && stat -c %u /shared/data/mine", user="user")
    assert result.out == "1000\n", result.err
    flags = (await restored_agent.run("cat /proc/self/mounts")).out
    assert harness.kind == "gvisor" or any("/shared/data" in line and "nosuid" in line for line in flags.splitlines())
