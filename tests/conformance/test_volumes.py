"""Volumes: the same files in several sandboxes at once, and after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandyard.engine.contract import Condition, Mount
from sandyard.engine.drivers.namespace.driver import NamespaceDriver
from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError
from tests.conformance import tiny
from tests.conformance.yard import Yard, as_json, from_json

VOLUME = "vol1"
SIZE_MB = 64
HERE = (Mount(VOLUME, "/shared/data"),)


@pytest_asyncio.fixture
async def volume(yard: Yard) -> AsyncIterator[str]:
    await yard.driver.create_volume(VOLUME, SIZE_MB)
    yield VOLUME
    await yard.open()
    await yard.driver.delete_volume(VOLUME)
    assert not yard.driver.volume_path(VOLUME).exists()


async def test_several_sandboxes_see_the_same_files_at_once(yard: Yard, volume: str) -> None:
    _, one = await yard.create(mounts=HERE)
    _, two = await yard.create(mounts=(Mount(volume, "/elsewhere"),))
    _, none = await yard.create()
    await one.run("echo first > shared/data/file")
    assert await two.read("elsewhere/file") == "first\n"
    await two.run("echo second >> elsewhere/file; mkdir elsewhere/folder")
    assert await one.read("shared/data/file") == "first\nsecond\n"
    assert (await one.run("ls shared/data/folder")).code == 0
    assert (await none.run("ls shared/data elsewhere")).code != 0
    assert (yard.driver.volume_path(volume) / "file").read_text() == "first\nsecond\n"


async def test_it_outlives_sandboxes_and_engines(yard: Yard, volume: str) -> None:
    handle, agent = await yard.create(mounts=HERE)
    await agent.run("echo kept > shared/data/file")
    assert await yard.open([from_json(as_json(handle))]) == {handle.id: Condition.RUNNING}
    assert await yard.agent(handle).read("shared/data/file") == "kept\n"
    await yard.driver.kill(handle)
    assert await yard.open() == {}
    _, later = await yard.create(mounts=HERE)
    assert await later.read("shared/data/file") == "kept\n"
    await yard.driver.create_volume(volume, SIZE_MB)
    assert await later.read("shared/data/file") == "kept\n"


async def test_a_stopped_sandbox_has_it_again_when_it_boots(yard: Yard, volume: str) -> None:
    handle, agent = await yard.create(mounts=HERE)
    await agent.run("echo kept > shared/data/file")
    stopped = await yard.driver.stop(handle)
    assert await yard.open([from_json(as_json(stopped))]) == {handle.id: Condition.STOPPED}
    booted = await yard.driver.boot(stopped, yard.spec(handle.id, mounts=HERE))
    assert await yard.agent(booted).read("shared/data/file") == "kept\n"


async def test_copies_share_it_and_do_not_hold_its_files(yard: Yard, volume: str) -> None:
    handle, agent = await yard.create(mounts=HERE)
    await agent.run("echo 1 > shared/data/file; echo own > file")
    fork = await yard.driver.fork(handle, yard.spec(mounts=HERE))
    await yard.agent(fork).run("echo 2 > shared/data/file")
    assert await agent.read("shared/data/file") == "2\n"
    assert await yard.agent(fork).read("file") == "own\n"
    layers = await yard.driver.snapshot(handle, "with-volume")
    _, mounted = await yard.create(layers=layers, mounts=HERE)
    assert await mounted.read("shared/data/file") == "2\n"
    if yard.real:
        _, bare = await yard.create(layers=layers)
        assert (await bare.run("ls -A shared/data")).out == ""


async def test_a_volume_that_is_not_there(yard: Yard) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        await yard.create("loser", mounts=(Mount("nothing", "/data"),))
    assert yard.traces("loser") == []
    await yard.driver.delete_volume("nothing")


async def test_a_place_that_is_no_directory(yard: Yard, volume: str) -> None:
    handle, agent = await yard.create()
    await agent.run("echo x > plain; mkdir full; echo x > full/file; ln -s nowhere/else dangling")
    layers = await yard.driver.snapshot(handle, "with-files")
    for target in ("/plain", "/plain/below", *(("/dangling",) if yard.real else ())):
        with pytest.raises(InvalidInputError, match=target):
            await yard.create("loser", layers=layers, mounts=(Mount(volume, target),))
        assert yard.traces("loser") == []


async def test_ids_are_plain_and_privileges_are_not_gained(yard: Yard, volume: str) -> None:
    if not yard.real:
        pytest.skip("it has no users of its own")
    _, agent = await yard.create(mounts=HERE)
    flags = (await agent.run("cat /proc/self/mounts")).out
    assert any(
        line.split()[1] == "/shared/data" and {"nosuid", "nodev"} <= set(line.split()[3].split(","))
        for line in flags.splitlines()
    )
    path = yard.driver.volume_path(volume)
    if isinstance(yard.driver, NamespaceDriver) and yard.kind != "namespace-rootless":
        done = await agent.run("echo x > /shared/data/mine && stat -c %u:%g /shared/data/mine", user="user")
        assert done.out == "1000:1000\n", done.err
        assert (path / "mine").stat().st_uid == 1000
        assert (await agent.run("stat -c %u:%g /shared")).out == "0:0\n"


async def test_read_only(yard: Yard, volume: str) -> None:
    if not yard.real:
        pytest.skip(yard.driver.capabilities.missing["volumes"])
    _, writer = await yard.create(mounts=HERE)
    _, reader = await yard.create(mounts=(Mount(volume, "/data", read_only=True),))
    await writer.run("echo it > /shared/data/file")
    assert await reader.read("/data/file") == "it\n"
    assert "Read-only" in (await reader.run("echo x > /data/file")).err


async def test_links_in_the_image_lead_nowhere_but_into_the_sandbox(yard: Yard, volume: str) -> None:
    """The root is put together where the store and all templates can be seen."""
    if not yard.real:
        pytest.skip("it has no root of its own")
    handle, agent = await yard.create()
    await agent.run(
        "ln -s /store /out; ln -s ../../../store /up; ln -s /proc /sys-link; mkdir -p /real; ln -s /real /link"
    )
    layers = await yard.driver.snapshot(handle, "traps")
    store = yard.data_dir / "store"
    before = sorted(path.name for path in store.iterdir())
    for target in ("/out/escaped", "/up/escaped"):
        with pytest.raises(SandyardError):
            await yard.create("loser", layers=layers, mounts=(Mount(volume, target),))
    with pytest.raises(InvalidInputError):
        await yard.create("loser", layers=layers, mounts=(Mount(volume, "/sys-link/sys"),))
    assert sorted(path.name for path in store.iterdir()) == before
    _, linked = await yard.create(layers=layers, mounts=(Mount(volume, "/link/inner"),))
    await linked.run("echo through > /real/inner/file")
    assert (yard.driver.volume_path(volume) / "file").read_text() == "through\n"


async def test_it_is_full_by_itself(yard: Yard, volume: str) -> None:
    if "disk" not in yard.driver.capabilities.limits:
        pytest.skip("there are no disk limits here")
    _, agent = await yard.create(mounts=HERE)
    done = await agent.run(f"dd if=/dev/zero of=/shared/data/big bs=1M count={SIZE_MB * 2}")
    assert done.code != 0, done.err
    assert (await agent.run("dd if=/dev/zero of=/big bs=1M count=8")).code == 0


async def test_its_limit_is_not_left_by_a_subvolume(yard: Yard, volume: str) -> None:
    """A sandbox's own root is an overlay, which takes no calls for btrfs; a volume is the store itself. Any user may make a
    subvolume there, which the volume's quota would not count, or turn the volume read-only for all others."""
    if "disk" not in yard.driver.capabilities.limits:
        pytest.skip("there are no disk limits here")
    _, agent = await yard.create(mounts=HERE)
    script = (
        "import ctypes, os, struct\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "fd = os.open('/shared/data', os.O_RDONLY)\n"
        "for number, data in ((0x5000940e, struct.pack('=q4088s', 0, b'inner')), (0x4008941a, struct.pack('Q', 2))):\n"
        "    done = libc.ioctl(fd, ctypes.c_ulong(number), data)\n"
        "    print(done, ctypes.get_errno())\n"
    )
    done = await agent.run(f'{tiny.PYTHON} -I -S -c "{script}"')
    assert done.out == "-1 25\n-1 25\n", done
    assert (await agent.run("ls -A /shared/data")).out == ""
    assert (await agent.run("echo x > /shared/data/a && cp --reflink=always /shared/data/a /shared/data/b")).code == 0


@pytest.mark.timeout(120)
async def test_memory_goes_to_disk_and_back_beside_a_volume(yard: Yard, volume: str) -> None:
    able = yard.driver.capabilities
    if isinstance(yard.driver, NamespaceDriver):
        able = await yard.driver.all_capabilities()
    if not able.suspend:
        pytest.skip(able.missing["suspend"])
    handle, agent = await yard.create(mounts=HERE)
    await agent.run("echo kept > /shared/data/file")
    pid = await agent.begin("trap 'echo alive > /shared/data/sign' USR1; while :; do sleep 0.01; done")
    using = await agent.begin("exec sleep 1000 < /shared/data/file")
    await yard.driver.freeze(handle)
    with pytest.raises(SandyardError, match="of a volume"):
        await yard.driver.suspend(handle)
    assert await yard.driver.condition(handle) is Condition.FROZEN
    await yard.driver.thaw(handle)
    await agent.run(f"kill {using}; cd /shared/data; sleep 0.2")
    await yard.driver.freeze(handle)
    suspended = await yard.driver.suspend(handle)
    (yard.driver.volume_path(volume) / "file").write_text("changed meanwhile\n")
    assert await yard.open([from_json(as_json(suspended))]) == {handle.id: Condition.SUSPENDED}
    restored = await yard.driver.restore(suspended)
    again = yard.agent(restored)
    assert await again.read("/shared/data/file") == "changed meanwhile\n"
    assert (await again.run(f"kill -USR1 {pid}")).code == 0
    async with asyncio.timeout(10):
        while not (yard.driver.volume_path(volume) / "sign").exists():
            await asyncio.sleep(0.02)
    done = await again.run("echo own > /shared/data/mine && stat -c %u /shared/data/mine", user="user")
    assert done.out == "1000\n", done.err
    flags = (await again.run("cat /proc/self/mounts")).out
    assert any("/shared/data" in line and "nosuid" in line for line in flags.splitlines())
