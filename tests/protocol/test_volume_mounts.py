"""Test volumes mounted in sandboxes, after an engine crash, and with only the address of the API."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from e2b import AsyncSandbox, AsyncVolume, Sandbox, Volume
from e2b.exceptions import NotFoundException, SandboxException, VolumeException

from tests.harness.engine import Engine
from tests.protocol.tls_engine import DOMAIN, TlsEngine, random_loopback_address

from .conftest import NewAsyncSandbox, NewSandbox
from .name_server import NameServer
from .waiting import until


@pytest.fixture
def volume(unique: str) -> Iterator[Volume]:
    created = Volume.create(f"mounted-{unique}")
    yield created
    Volume.destroy(created.volume_id)


@pytest.fixture
async def async_volume(unique: str) -> AsyncIterator[AsyncVolume]:
    created = await AsyncVolume.create(f"mounted-{unique}")
    yield created
    await AsyncVolume.destroy(created.volume_id)


def test_a_volume_persists_across_sandboxes(volume: Volume) -> None:
    for number in range(2):
        sandbox = Sandbox.create(volume_mounts={"/mnt/data": volume})
        try:
            if number == 0:
                sandbox.files.write("/mnt/data/hello.txt", "written by the first")
            assert sandbox.files.read("/mnt/data/hello.txt") == "written by the first"
            assert sandbox.get_info().volume_mounts == [{"name": volume.name, "path": "/mnt/data"}]
        finally:
            sandbox.kill()
    assert volume.read_file("/hello.txt") == "written by the first"
    assert volume.get_info("/hello.txt").uid == 1000


def test_several_sandboxes_share_a_volume(volume: Volume, new_sandbox: NewSandbox) -> None:
    one = new_sandbox(volume_mounts={"/home/user/shared": volume})
    two = new_sandbox(volume_mounts={"/data": volume.name})
    volume.write_file("/from-outside", "out")
    assert one.commands.run("cat shared/from-outside").stdout == "out"
    one.commands.run("echo one > shared/file")
    assert two.commands.run("cat /data/file").stdout == "one\n"
    two.commands.run("echo two >> /data/file; sudo sh -c 'echo root > /data/roots'; mkdir /data/dir")
    assert one.commands.run("cat shared/file").stdout == "one\ntwo\n"
    assert one.commands.run("stat -c %U shared/roots shared/dir").stdout == "root\nuser\n"
    assert sorted(entry.name for entry in volume.list("/")) == ["dir", "file", "from-outside", "roots"]


@pytest.mark.not_in_gvisor("gVisor does not list these options, and ignores set-user-id bits and device nodes")
def test_the_mount_of_a_volume_is_nosuid_and_nodev(volume: Volume, new_sandbox: NewSandbox) -> None:
    options = new_sandbox(volume_mounts={"/data": volume}).commands.run("findmnt -no OPTIONS /data").stdout
    assert {"rw", "nosuid", "nodev"} <= set(options.strip().split(","))


def test_links_from_a_sandbox_are_not_followed(volume: Volume, new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(volume_mounts={"/data": volume})
    sandbox.commands.run(
        "cd /data; ln -s /etc/shadow link; ln -s ../../.. up; ln -s /proc/self/root proc; ln -s loop loop"
    )
    kinds = {entry.name: (entry.type.value, entry.target) for entry in volume.list("/", depth=10)}
    assert kinds["link"] == ("symlink", "/etc/shadow")
    for path in ("/link", "/up/etc/passwd", "/proc/etc/passwd", "/loop"):
        with pytest.raises((VolumeException, NotFoundException)):
            volume.read_file(path)
    volume.remove("/up")
    assert sandbox.commands.run("ls /etc/shadow").exit_code == 0


@pytest.mark.not_in_gvisor("gVisor keeps named pipes in its own kernel, so that none gets into the volume")
def test_pipes_from_a_sandbox_are_not_read(volume: Volume, new_sandbox: NewSandbox) -> None:
    new_sandbox(volume_mounts={"/data": volume}).commands.run("mkfifo /data/pipe")
    assert [entry.type.value for entry in volume.list("/")] == ["unknown"]
    with pytest.raises((VolumeException, NotFoundException)):
        volume.read_file("/pipe")


def test_a_volume_stays_mounted_over_pause_and_reboot(volume: Volume, new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(volume_mounts={"/data": volume})
    sandbox.commands.run("echo before > /data/file")
    for memory in (True, False):
        sandbox.pause(keep_memory=memory)
        volume.write_file("/file", f"meanwhile {memory}", force=True)
        with pytest.raises(VolumeException, match=f"409.*{sandbox.sandbox_id}"):
            Volume.destroy(volume.volume_id)
        sandbox = sandbox.connect()
        assert sandbox.commands.run("cat /data/file").stdout == f"meanwhile {memory}"
        sandbox.commands.run("echo after > /data/mine && rm /data/mine")


def test_forks_share_a_volume_and_snapshots_do_not_contain_it(
    volume: Volume, new_sandbox: NewSandbox, api: httpx.Client
) -> None:
    sandbox = new_sandbox(volume_mounts={"/data": volume})
    sandbox.commands.run("echo 1 > /data/file")
    for count in (1, 2):
        for fork in sandbox.fork(count=count):
            assert isinstance(fork, Sandbox)
            fork.commands.run("echo fork >> /data/file")
            fork.kill()
    assert sandbox.commands.run("cat /data/file").stdout == "1\nfork\nfork\nfork\n"
    snapshot = sandbox.create_snapshot()
    bare = new_sandbox(snapshot.snapshot_id)
    assert bare.commands.run("ls -A /data").stdout == ""
    mounted = new_sandbox(snapshot.snapshot_id, volume_mounts={"/data": volume})
    assert mounted.commands.run("tail -n1 /data/file").stdout == "fork\n"
    api.delete(f"/templates/{snapshot.snapshot_id}")


def test_a_mounted_volume_cannot_be_deleted(volume: Volume, unique: str) -> None:
    other = Volume.create(f"other-{unique}")
    sandbox = Sandbox.create(volume_mounts={"/data": other})
    with pytest.raises(VolumeException, match=f"409.*{sandbox.sandbox_id}"):
        Volume.destroy(other.volume_id)
    sandbox.kill()
    assert Volume.destroy(other.volume_id) is True


@pytest.mark.parametrize(
    ("mounts", "reason"),
    [
        ({"/data": "no-such-volume"}, "not found"),
        ({"/data": "{name}", "/data/inner": "{name}"}, "nested"),
        ({"data": "{name}"}, "absolute"),
        ({"/": "{name}"}, "reserved"),
        ({"/proc/x": "{name}"}, "reserved"),
        ({"/a/../proc": "{name}"}, "must not contain"),
        ({"/etc/passwd": "{name}"}, "Not a directory"),
    ],
)
def test_invalid_mounts_are_refused(volume: Volume, mounts: dict[str, str], reason: str) -> None:
    volume_mounts = {path: name.format(name=volume.name) for path, name in mounts.items()}
    with pytest.raises(SandboxException, match=f"400[^$]*{reason}"):
        Sandbox.create(volume_mounts=volume_mounts)
    assert Volume.destroy(volume.volume_id) is True, "the refused request must not leave it mounted"


async def test_async_mounts(async_volume: AsyncVolume, new_async_sandbox: NewAsyncSandbox) -> None:
    one, two = await asyncio.gather(
        *(new_async_sandbox(volume_mounts={"/data": async_volume}) for _ in range(2)),
    )
    await one.files.write("/data/file", "shared")
    assert await two.files.read("/data/file") == "shared"
    assert isinstance(one, AsyncSandbox)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_volumes_survive_an_engine_crash(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine({"POOL_SIZE": "0", "VOLUME_SIZE_MB": "64"})
    engine.start()
    try:
        for name, value in engine.environment.items():
            monkeypatch.setenv(name, value)
        volume = Volume.create(unique)
        doomed = Volume.create(f"doomed-{unique}")
        sandbox = Sandbox.create(volume_mounts={"/data": volume})
        stopped = Sandbox.create(volume_mounts={"/data": volume})
        sandbox.commands.run("echo kept > /data/file")
        stopped.pause(keep_memory=False)
        Volume.destroy(doomed.volume_id)
        engine.kill()
        engine.start()
        assert volume.read_file("/file") == "kept\n"
        assert [item.name for item in Volume.list()] == [unique]
        sandbox.commands.run("echo again >> /data/file")
        assert stopped.connect().commands.run("cat /data/file").stdout == "kept\nagain\n"
        folder = engine.data / "store" / "volumes"
        until(lambda: [path.name for path in folder.iterdir()] == [volume.volume_id])
        _check_quota(volume, sandbox)
        engine.clear()
        until(lambda: not list(folder.iterdir()))
    finally:
        left = engine.stop()
    assert not left


def _check_quota(volume: Volume, sandbox: Sandbox) -> None:
    """If the store has quotas, the size limit of a volume applies to clients and sandboxes."""
    file_system = sandbox.commands.run("findmnt -no FSTYPE /data").stdout.strip()
    if file_system != "btrfs":
        pytest.skip("the store has no quotas here")
    with pytest.raises(VolumeException, match="507"):
        volume.write_file("/big", io.BytesIO(bytes(100 << 20)))
    assert volume.exists("/big") is False
    with pytest.raises(Exception, match=r"quota|space"):
        sandbox.commands.run("dd if=/dev/zero of=/data/big bs=1M count=100")
    sandbox.commands.run("rm -f /data/big; echo room > /data/file")
    assert volume.read_file("/file") == "room\n"


# Without E2B_VOLUME_API_URL -------------------------------------------------------------------------------------------------------

SCRIPT = """
import os
os.environ.pop("E2B_DOMAIN")
os.environ["E2B_API_URL"] = {url!r}
from e2b import Volume
volume = Volume.create({name!r})
volume.write_file("/file", "by its name")
print(volume.read_file("/file"), Volume.destroy(volume.volume_id))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for port 443, a name server and a mount namespace")
def test_with_tls_the_sdk_needs_only_the_api_address(unique: str) -> None:
    address = random_loopback_address()
    engine = Engine({"TLS_HOST": address, "TLS_PORT": "443", "DOMAIN": DOMAIN, "POOL_SIZE": "0"})
    name_server = NameServer(DOMAIN, address, address)
    try:
        engine.start()
        tls_engine = TlsEngine(engine, address, name_server)
        assert tls_engine.run(sys.executable, "-c", SCRIPT.format(url=engine.url, name=unique)) == "by its name True\n"
    finally:
        name_server.close()
        engine.stop()
